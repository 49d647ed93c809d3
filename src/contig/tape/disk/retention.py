"""Which rows the bounds of a storage on disk let go of, other than its capacity."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Bounds", "Retention"]

Array = np.ndarray[Any, Any]

_LOOK_S = 1.0
_MOST_MARKS = 1 << 14


class Bounds(NamedTuple):
    """How much is kept; None: as much as the others allow."""

    nbytes: int | None
    episodes: int | None
    age_s: float | None


class Retention:
    """Applies bounds. Not thread-safe: its user holds a lock.

    Args:
        bounds: what is kept.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._looked = 0.0
        # When the head was where: an entry only knows when its first row came.
        self._times: list[int] = []
        self._heads: list[int] = []

    @property
    def bounded(self) -> bool:
        """Whether there is any bound."""
        return any(bound is not None for bound in self.bounds)

    def bound_bytes(self, most: int) -> None:
        """At most so many bytes, whatever was wanted."""
        nbytes = min(self.bounds.nbytes or most, most)
        self.bounds = self.bounds._replace(nbytes=nbytes)

    def appended(self, head: int) -> None:
        """Rows up to a head were appended now."""
        if self.bounds.age_s is None:
            return
        self._times.append(time.time_ns())
        self._heads.append(head)
        if len(self._times) > _MOST_MARKS:
            del self._times[::2], self._heads[::2]

    def forget(self) -> None:
        """Other rows have these seqs from now on."""
        self._times.clear()
        self._heads.clear()

    def keep_from(
        self, tail: int, head: int, stride: int, entries_of: Callable[[], Array], now: bool
    ) -> int:
        """The first row to keep. The index, which `entries_of` gives, is looked through every
        second, or `now`."""
        nbytes, episodes, age_s = self.bounds
        first = tail
        if nbytes is not None:
            first = max(first, head - max(nbytes // stride, 1))
        moment = time.monotonic()
        if (episodes is None and age_s is None) or (not now and moment - self._looked < _LOOK_S):
            return first
        self._looked = moment
        entries = entries_of()
        if episodes is not None:
            ordinals = entries["ordinal"]
            newest = np.unique(ordinals)[-episodes:]
            keep = ordinals >= (newest[0] if len(newest) else 0)
            first = max(first, int(entries["first"][np.argmax(keep)]) if keep.any() else head)
        if age_s is not None:
            first = max(first, self._young_from(entries, time.time_ns() - int(age_s * 1e9)))
        return first

    def _young_from(self, entries: Array, since_ns: int) -> int:
        """A seq such that the rows before it came before a time."""
        at = bisect_right(self._times, since_ns)
        first = self._heads[at - 1] if at else 0
        # Of rows that others wrote: those before a run came before the run began.
        old = np.flatnonzero(entries["time_ns"] <= since_ns)
        return max(first, int(entries["first"][old[-1]]) if len(old) else 0)
