"""What a storage on disk does not keep: rows beyond its bounds, then the files without any rows.

An append moves the tape's tail past the rows; files go after the commit that says so.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...arguments import seconds
from ..entry import read_entries
from . import clock
from .changes import Changes
from .directory import Directory
from .extent_folders import remove
from .extents import Extents
from .stored_bytes import StoredBytes

__all__ = ["Bounds", "FileRemover", "Retention"]

log = logging.getLogger("contig.disk")

Array = np.ndarray[Any, Any]

_LOOK_S = 1.0
_MOST_MARKS = 1 << 14


class Bounds(NamedTuple):
    """How much is kept; None: as much as the others allow."""

    nbytes: int | None
    episodes: int | None
    age_s: float | None

    def check(self) -> None:
        """Raises ValueError if they make no sense."""
        for name, bound in (("max_bytes", self.nbytes), ("max_episodes", self.episodes)):
            if bound is not None and bound < 1:
                raise ValueError(f"{name} must be at least 1, got {bound}")
        if self.age_s is not None:
            seconds("max_age_s", self.age_s)


class Retention:
    """Applies bounds. Not thread-safe: its user holds a lock.

    Args:
        bounds: what is kept.

    Attributes:
        bounded: whether there is any bound.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.bounded = any(bound is not None for bound in bounds)
        self._looked = 0.0
        # When the head was where, by the system's uptime: the wall clock may be set.
        self._times: list[int] = []
        self._heads: list[int] = []
        self._before = self._offset_ns = self._began_ns = 0

    def bound_bytes(self, most: int) -> None:
        """At most `most` bytes, whatever was asked for."""
        nbytes = min(self.bounds.nbytes or most, most)
        self.bounds, self.bounded = self.bounds._replace(nbytes=nbytes), True

    def appended(self, head: int) -> None:
        """Rows up to a head were appended now."""
        if self.bounds.age_s is None:
            return
        self._times.append(clock.uptime_ns())
        self._heads.append(head)
        if len(self._times) > _MOST_MARKS:
            del self._times[::2], self._heads[::2]

    def begin(self, head: int, offset_ns: int) -> None:
        """Takes the rows before a head as others wrote them: how old they are now, only the wall
        clock's times in the index tell.

        Args:
            head: the seq behind them.
            offset_ns: the wall clock less the uptime; see `Marker`.
        """
        self._before, self._offset_ns, self._began_ns = head, offset_ns, clock.uptime_ns()
        self._times[:], self._heads[:] = [self._began_ns], [head]

    def apply(self, tape: Any, stride: int, now: bool, blobs: StoredBytes | None = None) -> None:
        """Moves a tape's tail past the rows that are not kept. The index is looked through every
        second, or `now`. `blobs`: of leaves of any size, whose bytes count, too."""
        head, tail, _, _ = tape.snapshot()
        first = self._keep_from(tape, tail, head, stride, now)
        nbytes = self.bounds.nbytes
        if nbytes is not None and blobs is not None and tail < head:
            # One row is kept, whatever it has.
            first = max(first, min(blobs.within(stride, nbytes), head - 1))
        if first > tail:
            tape.retire(first)

    def _keep_from(self, tape: Any, tail: int, head: int, stride: int, now: bool) -> int:
        nbytes, episodes, age_s = self.bounds
        first = tail
        if nbytes is not None:
            first = max(first, head - max(nbytes // stride, 1))
        moment = time.monotonic()
        if (episodes is None and age_s is None) or (not now and moment - self._looked < _LOOK_S):
            return first
        self._looked = moment
        entries = read_entries(tape)
        if episodes is not None:
            ordinals = entries["ordinal"]
            newest = np.unique(ordinals)[-episodes:]
            keep = ordinals >= (newest[0] if len(newest) else 0)
            first = max(first, int(entries["first"][np.argmax(keep)]) if keep.any() else head)
        if age_s is not None:
            first = max(first, self._young_from(entries, clock.uptime_ns() - int(age_s * 1e9)))
        return first

    def _young_from(self, entries: Array, since_ns: int) -> int:
        """Returns a seq such that the rows before it came before a time (uptime)."""
        at = bisect_right(self._times, since_ns)
        first = self._heads[at - 1] if at else 0
        # Of rows that others wrote: those before a run came before the run began.
        theirs = entries[entries["first"] < self._before]
        came_ns = np.minimum(theirs["time_ns"] - self._offset_ns, self._began_ns)
        old = np.flatnonzero(came_ns <= since_ns)
        return max(first, int(theirs["first"][old[-1]]) if len(old) else 0)


class FileRemover:
    """Deletes files that hold nothing any more. Thread-safe.

    Args:
        directory: where they are.
        tape: whose rows count.
        extents: the files.
        blobs: those of leaves of any size.

    Attributes:
        held: a lock: while one has it, nothing is deleted.
        left: folders of loads that were not committed; they go after the next commit.
    """

    def __init__(
        self, directory: Directory, tape: Any, extents: Extents, blobs: StoredBytes | None
    ) -> None:
        self._directory, self._tape, self._extents = directory, tape, extents
        self._bytes = blobs
        self.held = threading.Lock()
        self.left: list[Path] = []

    def after(self, changes: Changes) -> None:
        """What a commit left without rows."""
        while self.left:
            self.remove(self.left.pop())
        if self._bytes is not None and changes.blob_tail // self._bytes.files.rows:
            with self.held:
                self._bytes.delete_below(changes.blob_tail)
        if changes.tail // self._extents.rows == 0:
            return
        with self.held:
            # A checkpoint that was loaded since may have files of these numbers.
            gone = self._extents.delete_below(min(changes.tail, self._tape.snapshot()[1]))
        if gone:
            path = self._directory.path
            log.info("%s: %d extents let go, rows below %d", path, len(gone), changes.tail)

    def remove(self, folder: Path) -> None:
        """A folder of rows that do not count any more."""
        with self.held:
            try:
                remove(folder, self._directory.root / "extents")
            except OSError as error:
                path = self._directory.path
                log.warning("%s: rows that were replaced are still there: %s", path, error)
