"""The episodes of a table, as the browser reads them: a list, and rows of one."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ..batch import Batch
from ..layout import Layout
from ..tape import Storage
from ..tape.episodes import EpisodeReader

__all__ = ["Book", "StorageBook", "row_bytes"]

Array = np.ndarray[Any, Any]

_TRIES = 20


def row_bytes(layout: Layout | None) -> int:
    """Bytes of a row as it is read: decoded, without leaves of any size."""
    leaves = () if layout is None else layout.leaves
    fixed = (x for x in leaves if not x.ragged)
    return sum(int(np.prod(x.shape, dtype=np.int64)) * x.dtype.itemsize for x in fixed)


class Book(ABC):
    """Episodes that can be looked up. Thread-safe.

    Attributes:
        fields: of trajectories, or None.
    """

    @property
    @abstractmethod
    def layout(self) -> Layout | None:
        """What rows look like; None before the first one."""

    @property
    def fields(self) -> Layout | None:
        return None

    @abstractmethod
    def episodes(self) -> Array:
        """All of them: a structured array, see `contig.tape.episodes.EPISODE`."""

    @abstractmethod
    def rows_of(self, episode: int) -> int:
        """How many rows an episode has now. Raises KeyError."""

    @abstractmethod
    def read(self, episode: int, places: Array) -> Batch:
        """Some rows of an episode, by their number in it. Raises KeyError."""

    def about(self, episode: int) -> Any:
        """One line of `episodes`. Raises KeyError."""
        table = self.episodes()
        at = np.flatnonzero(table["id"] == episode)
        if not len(at):
            raise KeyError(f"no episode {episode}; it may have been evicted")
        return table[at[0]]


class StorageBook(Book):
    """The episodes of a storage, which others write to.

    Args:
        storage: open in this process.

    Attributes:
        own: rows that were read here, and their ages: the tape counts them as any reader's.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._reader = EpisodeReader(storage.tape)
        self._lock = threading.Lock()
        self._due = 0.0
        self._episodes: Array | None = None
        self.own = [0, 0]

    @property
    def layout(self) -> Layout | None:
        self._storage.poll()
        return self._storage.layout

    @property
    def fields(self) -> Layout | None:
        return self._storage.fields

    def episodes(self) -> Array:
        """As it was at most a second ago; reading it takes at most a twentieth of the time."""
        with self._lock:
            began = time.monotonic()
            if self._episodes is None or began >= self._due:
                self._storage.poll()
                self._episodes = self._storage.episodes()
                self._due = began + max(1.0, 20 * (time.monotonic() - began))
            return self._episodes

    def rows_of(self, episode: int) -> int:
        return len(self._seqs(episode))

    def read(self, episode: int, places: Array) -> Batch:
        for _ in range(_TRIES):
            seqs = self._seqs(episode)
            if len(places) and places[-1] >= len(seqs):
                break  # its oldest rows were evicted since they were counted
            batch, lost = self._storage.gather(np.ascontiguousarray(seqs[places]))
            self._count(seqs[places])
            if not np.any(lost) and not self._reader.stale:
                return batch  # type: ignore[no-any-return]
        raise KeyError(f"episode {episode} is evicted while it is read; try again, or another one")

    def _seqs(self, episode: int) -> Array:
        self._storage.poll()
        seqs = self._reader.rows_of(episode)
        if not len(seqs):
            raise KeyError(f"no episode {episode}; it may have been evicted")
        return seqs

    def _count(self, seqs: Array) -> None:
        head = int(self._storage.tape.snapshot()[0])
        with self._lock:
            self.own[0] += len(seqs)
            self.own[1] += int((head - seqs).sum())
