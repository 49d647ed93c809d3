"""What is watched: a table's numbers, what is sampled of it, and its episodes.

Source            what the page and `contig top` ask
StorageSource     storages that this process has open: a directory, a name, a server's tables
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..tape import Storage
from ..tape.disk import DiskStorage
from .ages import SEEN, RowTimes, ages_of, seen_now
from .book import Book, StorageBook
from .numbers import Numbers, table_numbers

__all__ = ["Ask", "Source", "StorageSource", "Told"]

Array = np.ndarray[Any, Any]

_WINDOW = 4096  # rows that histograms are of
_DRAWN_HERE = "a uniform draw of this page's own: the learner's sampler is in another process"
_DRAWN_THERE = "what the learner draws"
_NOT_COUNTED = "the learner's process counts what is drawn from a directory, and this one reads it"


class Told(NamedTuple):
    """What the process of a learner or server says of itself.

    Attributes:
        numbers: its counters.
        seen: by table, rows that were sampled since it was asked last (`ages.SEEN`).
        weights_version: the newest that was published, or None.
    """

    numbers: Numbers
    seen: dict[str, Array]
    weights_version: int | None = None


Ask = Callable[[], Told]


class Source(ABC):
    """Something to watch. Thread-safe.

    Attributes:
        kind: "server", "buffer", "shared", "directory" or "remote".
        label: what it was opened by.
        notes: what cannot be shown, and why, by the name of the panel.
    """

    kind = ""
    label = ""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    @abstractmethod
    def numbers(self) -> Numbers:
        """The counters now."""

    @abstractmethod
    def ages(self, table: str) -> dict[str, Any]:
        """Histograms of what is sampled, see `ages_of`; `of` says of which draws. KeyError."""

    @abstractmethod
    def book(self, table: str) -> Book:
        """A table's episodes. Raises KeyError: there are none, with the reason."""

    def close(self) -> None:  # noqa: B027
        """Lets go of what is watched."""


class StorageSource(Source):
    """Storages that are open in this process.

    Args:
        kind, label: see Source.
        storages: by table; those of a server, or one.
        samples_per_s: rows drawn per second for histograms, where draws cannot be seen.
        ask: asks the process where they are written and sampled. None: they are all there is.
    """

    def __init__(
        self,
        kind: str,
        label: str,
        storages: Mapping[str, Storage],
        *,
        samples_per_s: float = 1000.0,
        ask: Ask | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.label = kind, label
        self._storages = dict(storages)
        self._ask = ask
        self._per_look = int(min(samples_per_s, _WINDOW))
        self._books = {name: StorageBook(s) for name, s in storages.items()}
        self._times = {name: RowTimes(s) for name, s in storages.items()}
        self._seen = {name: np.empty(0, SEEN) for name in storages}
        self._newest: int | None = None
        self._rng = np.random.default_rng()
        self._lock = threading.Lock()
        if kind == "directory":
            self.notes["rows_out"] = _NOT_COUNTED
            self.notes["capacity"] = "how much is kept is known to the process that writes"
        if ask is None:
            self.notes["clients"] = "storages have no clients: watch the server that feeds them"
            self.notes["limiter"] = "a limiter belongs to the learner's buffer"
        elif kind == "buffer":
            self.notes["clients"] = "a buffer has no clients; a server in front of it has"

    def numbers(self) -> Numbers:
        if self._ask is None:
            numbers = Numbers({n: table_numbers(s) for n, s in self._storages.items()})
            seen = {name: self._draw(s) for name, s in self._storages.items()}
        else:
            numbers, seen, self._newest = self._ask()
        with self._lock:
            for name, rows in seen.items():
                self._seen[name] = np.concatenate([self._seen[name], rows])[-_WINDOW:]
        for name, table in numbers.tables.items():
            self._take_off_own(name, table)
        return numbers

    def _draw(self, storage: Storage) -> Array:
        """Rows of the index only: nothing is read, or counted."""
        head, tail, _, _ = storage.tape.snapshot()
        if head <= tail or self._per_look < 1:
            return np.empty(0, SEEN)
        return seen_now(head, self._rng.integers(tail, head, self._per_look))

    def _take_off_own(self, name: str, table: dict[str, Any]) -> None:
        """What this page has read was counted as drawn, where counters are shared."""
        storage = self._storages.get(name)
        if storage is None or table.get("drawn") is None or isinstance(storage, DiskStorage):
            return
        own = self._books[name].own
        table["drawn"] = [a - b for a, b in zip(table["drawn"], own)]

    def ages(self, table: str) -> dict[str, Any]:
        if table not in self._storages:
            raise KeyError(self._no_table(table))
        with self._lock:
            seen = self._seen[table]
        told = ages_of(seen, self._times[table], self._newest)
        return {**told, "of": _DRAWN_HERE if self._ask is None else _DRAWN_THERE}

    def book(self, table: str) -> StorageBook:
        if table not in self._books:
            raise KeyError(self._no_table(table))
        return self._books[table]

    def _no_table(self, table: str) -> str:
        if not self._storages:
            return "a queue hands each item out once: it keeps no episodes to browse"
        return f"no table {table!r}; there are {', '.join(self._storages)}"

    def close(self) -> None:
        for storage in self._storages.values():
            storage.close()
