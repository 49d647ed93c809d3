"""The index of trajectories, and the arithmetic of drawing from its newest part.

samples   0 ........ ends[0] ........ ends[1] .... ends[2]      a number below `total` is drawn,
rows      firsts[0] ...      firsts[1] ...   firsts[2] ...      bisected, and becomes a seq
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..sample import Rng
from .trajectory import Array

__all__ = ["TrajectoryEntry", "TrajectoryIndex", "DrawableRows"]

_FIRST, _COUNT, _END, _VERSION, _ORDINAL = range(5)


class TrajectoryEntry(NamedTuple):
    """What the index knows of a trajectory.

    Attributes:
        num_samples: T * B.
        first: seq of its first row.
        ordinal: its `id` in the storage's `episodes()`.
        version: of its weights: 0, 1, 2 ... in the order in which they first came.
    """

    uuid: str
    trajectory_id: int
    num_samples: int
    shape: tuple[int, ...]
    max_episode_length: int
    model_weights_id: str
    first: int = -1
    ordinal: int = -1
    version: int = 0

    def public(self) -> dict[str, Any]:
        """As RLinf's index has it."""
        names = self._fields[:6]
        return {**dict(zip(names, self)), "shape": list(self.shape)}


class DrawableRows(NamedTuple):
    """Trajectories that may be drawn from. Immutable.

    Attributes:
        firsts: seq of each one's first row.
        counts: samples of each.
        ends: samples of each and all before it, from `base` on.
        adjacent: whether no other rows are between theirs.
    """

    firsts: Array
    counts: Array
    ends: Array
    base: int
    adjacent: bool

    @property
    def total(self) -> int:
        return int(self.ends[-1]) - self.base if len(self.ends) else 0

    def draw(self, rng: Rng, n: int) -> Array:
        """Seqs of n samples, uniformly, with replacement."""
        if self.adjacent:
            first = int(self.firsts[0])
            return _native.uniform_below(rng.words, first, first + self.total, n)
        samples = _native.uniform_below(rng.words, self.base, self.base + self.total, n)
        at = np.searchsorted(self.ends, samples, side="right")
        seqs: Array = samples + (self.firsts - self.ends + self.counts)[at]
        return seqs


class TrajectoryIndex:
    """Trajectories in the order in which they came. Thread-safe.

    Args:
        window: of how many trajectories samples are drawn; 0: of all.
        max_staleness: how many versions one may be behind the newest; None: any.
    """

    def __init__(self, window: int, max_staleness: int | None) -> None:
        self._window_size, self._max_staleness = window, max_staleness
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._reset()
            self._versions: dict[str, int] = {}
            self._newest = -1

    def _reset(self) -> None:
        self._entries: list[TrajectoryEntry] = []
        self._columns = np.empty((5, 64), np.int64)
        self._start = self._stop = 0
        self._drawable: DrawableRows | None = None

    def version_of(self, model_weights_id: str) -> int:
        """The number of these weights; new ones get the next."""
        return self._versions.get(model_weights_id, self._newest + 1)

    def add(self, entry: TrajectoryEntry) -> None:
        with self._lock:
            self._versions.setdefault(entry.model_weights_id, entry.version)
            self._newest = max(self._newest, entry.version)
            self._put(entry)

    def _put(self, entry: TrajectoryEntry) -> None:
        if self._stop == self._columns.shape[1]:
            # Windows that were handed out keep the old array.
            kept = self._columns[:, self._start : self._stop]
            self._stop -= self._start
            self._start = 0
            self._columns = np.empty((5, max(2 * self._stop, 64)), np.int64)
            self._columns[:, : self._stop] = kept
        end = int(self._columns[_END, self._stop - 1]) if self._stop else 0
        row = (entry.first, entry.num_samples, end + entry.num_samples)
        self._columns[:, self._stop] = (*row, entry.version, entry.ordinal)
        self._stop += 1
        self._entries.append(entry)
        self._drawable = None

    def drop_before(self, seq: int) -> None:
        """Forgets trajectories whose first row is gone."""
        with self._lock:
            firsts = self._columns[_FIRST, self._start : self._stop]
            if len(firsts) and firsts[0] < seq:
                self._drop_oldest(int(np.searchsorted(firsts, seq)))

    def drop_beyond_window(self) -> None:
        """Forgets trajectories that are too old to be sampled."""
        with self._lock:
            if self._window_size and len(self._entries) > self._window_size:
                self._drop_oldest(len(self._entries) - self._window_size)

    def _drop_oldest(self, count: int) -> None:
        del self._entries[:count]
        self._start += count
        self._drawable = None

    def drop(self, ordinals: Collection[int]) -> None:
        """Forgets trajectories by `ordinal`: their rows are damaged."""
        with self._lock:
            kept = [e for e in self._entries if e.ordinal not in ordinals]
            if len(kept) < len(self._entries):
                self._reset()
                for entry in kept:
                    self._put(entry)

    def drawable(self) -> DrawableRows:
        """What may be drawn now."""
        with self._lock:
            if self._drawable is None:
                self._drawable = self._find_drawable()
            return self._drawable

    def _find_drawable(self) -> DrawableRows:
        low = self._start
        if self._window_size:
            low = max(low, self._stop - self._window_size)
        part = self._columns[:, low : self._stop]
        if not part.size:
            return DrawableRows(part[_FIRST], part[_COUNT], part[_END], 0, False)
        if self._max_staleness is not None:
            part = part[:, part[_VERSION] >= self._newest - self._max_staleness]
            return DrawableRows(part[_FIRST], part[_COUNT], np.cumsum(part[_COUNT]), 0, False)
        base = int(part[_END, 0] - part[_COUNT, 0])
        span = part[_FIRST, -1] + part[_COUNT, -1] - part[_FIRST, 0]
        adjacent = bool(span == part[_END, -1] - base)
        return DrawableRows(part[_FIRST], part[_COUNT], part[_END], base, adjacent)

    def rows_needed(self, more: int) -> int:
        """Rows of the window as it will be when a trajectory of `more` rows has come in."""
        with self._lock:
            low = self._start
            if self._window_size:
                low = max(low, self._stop - self._window_size + 1)
            return self._samples(low) + more

    def _samples(self, low: int) -> int:
        counts = self._columns[_COUNT, low : self._stop]
        ends = self._columns[_END, low : self._stop]
        return int(ends[-1] - ends[0] + counts[0]) if len(ends) else 0

    def entries(self) -> list[TrajectoryEntry]:
        with self._lock:
            return list(self._entries)

    def find(self, trajectory_id: int) -> TrajectoryEntry | None:
        """The newest one of this id."""
        found = (e for e in reversed(self.entries()) if e.trajectory_id == trajectory_id)
        return next(found, None)

    @property
    def total_samples(self) -> int:
        with self._lock:
            return self._samples(self._start)

    def __len__(self) -> int:
        return len(self._entries)
