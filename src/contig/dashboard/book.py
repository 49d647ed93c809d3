"""The episodes of a table, as the browser reads them: a list, and rows of one."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..batch import Batch
from ..layout import Layout
from ..tape import Storage
from ..tape.episodes import EpisodeReader, EpisodeRows

__all__ = ["Book", "Kept", "StorageBook", "read_kept", "row_bytes"]

Array = np.ndarray[Any, Any]
T = TypeVar("T")

_LEFT_OUT = (0.0, 1 / 16, 1 / 4, 1 / 2)  # of an episode that is evicted while it is read


def row_bytes(layout: Layout | None) -> int:
    """Bytes of a row as it is read: decoded, without leaves of any size."""
    leaves = () if layout is None else layout.leaves
    fixed = (x for x in leaves if not x.ragged)
    return sum(int(np.prod(x.shape, dtype=np.int64)) * x.dtype.itemsize for x in fixed)


class Kept(NamedTuple):
    """What a book has of an episode. Steps are numbered from its first one, evicted or not.

    Attributes:
        episode: its number.
        first: the step of the oldest row.
        end: the step behind the newest one.
        life: of the storage: after a restart, or a load, its numbers mean something else.
    """

    episode: int
    first: int
    end: int
    life: str

    def gone(self) -> KeyError:
        """What is said of steps that are not there any more."""
        return KeyError(
            f"episode {self.episode} is evicted while it is read; try again, or another one"
        )


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
    def kept(self, episode: int) -> Kept:
        """The rows an episode has now. Raises KeyError."""

    @abstractmethod
    def read(self, kept: Kept, steps: Array) -> Batch:
        """Rows of an episode, by their steps. Raises KeyError: some are gone."""

    def about(self, episode: int) -> Any:
        """One line of `episodes`. Raises KeyError."""
        table = self.episodes()
        at = np.flatnonzero(table["id"] == episode)
        if not len(at):
            raise KeyError(f"no episode {episode}; it may have been evicted")
        return table[at[0]]


def read_kept(book: Book, episode: int, read: Callable[[Kept], T]) -> T:
    """What `read` makes of all rows of an episode; if its oldest ones are evicted meanwhile, of
    the others. Raises KeyError."""
    for share in _LEFT_OUT:
        kept = book.kept(episode)
        first = kept.first + int(share * (kept.end - kept.first))
        try:
            return read(kept._replace(first=first))
        except KeyError:
            if share == _LEFT_OUT[-1]:
                raise
    raise AssertionError


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
        self._listed: tuple[str, Array] | None = None
        self.own = [0, 0]

    @property
    def layout(self) -> Layout | None:
        self._storage.poll()
        return self._storage.layout

    @property
    def fields(self) -> Layout | None:
        return self._storage.fields

    def episodes(self) -> Array:
        return self.listed()[1]

    def listed(self) -> tuple[str, Array]:
        """The life of the storage (see Kept), and its episodes, as they were at most a second ago;
        reading them takes at most a twentieth of the time."""
        with self._lock:
            began = time.monotonic()
            if self._listed is None or began >= self._due:
                self._listed = self._list()
                self._due = began + max(1.0, 20 * (time.monotonic() - began))
            return self._listed

    def _list(self) -> tuple[str, Array]:
        self._storage.poll()
        while True:
            restores = self._storage.tape.restores
            episodes = self._storage.episodes()
            if self._storage.tape.restores == restores:  # else a checkpoint was loaded
                return str(restores), episodes

    def kept(self, episode: int) -> Kept:
        rows = self._rows(episode)
        return Kept(episode, rows.first, rows.first + len(rows.seqs), str(rows.restores))

    def read(self, kept: Kept, steps: Array) -> Batch:
        rows = self._rows(kept.episode)
        places = steps - rows.first
        if str(rows.restores) != kept.life or not _all_within(places, len(rows.seqs)):
            raise kept.gone()
        seqs = np.ascontiguousarray(rows.seqs[places])
        batch, lost = self._storage.gather(seqs)
        self._count(seqs)
        if np.any(lost) or self._reader.stale:
            raise kept.gone()
        return batch  # type: ignore[no-any-return]

    def _rows(self, episode: int) -> EpisodeRows:
        self._storage.poll()
        rows = self._reader.rows_of(episode)
        if not len(rows.seqs):
            raise KeyError(f"no episode {episode}; it may have been evicted")
        return rows

    def _count(self, seqs: Array) -> None:
        head = int(self._storage.tape.snapshot()[0])
        with self._lock:
            self.own[0] += len(seqs)
            self.own[1] += int((head - seqs).sum())


def _all_within(places: Array, end: int) -> bool:
    return not len(places) or (int(places.min()) >= 0 and int(places.max()) < end)
