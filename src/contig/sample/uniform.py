"""Rows, uniformly: with replacement, without, and each only so many times."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _native
from .base import Array, Draw, Index, Request, Rng, Sampler
from .sumtree import ONE_ROW, RowTree, draw_starts

__all__ = ["RandomSampler", "SamplerWithoutReplacement"]


class RandomSampler(Sampler):
    """Uniform over rows, with replacement.

    Args:
        max_times_sampled: rows retire after so many draws; None: never.
    """

    def __init__(self, max_times_sampled: int | None = None) -> None:
        if max_times_sampled is not None and max_times_sampled < 1:
            raise ValueError(f"max_times_sampled must be at least 1, got {max_times_sampled}")
        self.max_times_sampled = max_times_sampled
        self._left: RowTree | None = None  # draws left; a row's weight is 1 while it has any
        self._times: Array = np.empty(0, np.int64)

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        if self.max_times_sampled is not None:
            return self._draw_retiring(index, rng, request)
        seqs = index.view.draw_rows(rng.words, index.window, request.groups)
        return None if seqs is None else Draw(seqs)

    def _draw_retiring(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        assert self.max_times_sampled is not None
        self._fit(index.capacity)
        assert self._left is not None
        before = self._left.head
        self._left.follow(index, 1.0)
        fresh = np.arange(max(before, index.tail), index.head) % index.capacity
        self._times[fresh] = 0
        picked: list[Array] = []
        need = request.groups
        while need > 0 and self._left.total > 0:
            found = draw_starts(self._left, rng, need, index, ONE_ROW)
            if found is None:
                break
            kept = self._count(found[0], index.capacity)
            picked.append(kept)
            need -= len(kept)
        return Draw(np.concatenate(picked)) if picked else None

    def _fit(self, capacity: int) -> None:
        """Makes room for a ring of this size, keeping what is known of its rows."""
        if self._left is None:
            self._left = RowTree(capacity)
            self._times = np.zeros(capacity, np.int64)
        elif self._left.capacity != capacity:
            old, self._left = self._left, self._left.move_to(capacity)
            seqs = np.arange(self._left.tail, self._left.head)
            times = np.zeros(capacity, np.int64)
            times[seqs % capacity] = self._times[seqs % old.capacity]
            self._times = times

    def _count(self, seqs: Array, capacity: int) -> Array:
        """Counts draws and retires rows; draws beyond a row's last one are left out."""
        assert self._left is not None and self.max_times_sampled is not None
        slots = seqs % capacity
        order = np.argsort(slots, kind="stable")
        ranked = slots[order]
        first = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
        turn = np.empty(len(slots), np.int64)  # the how-manieth draw of its row in this batch
        turn[order] = np.arange(len(slots)) - np.repeat(first, np.diff(np.r_[first, len(slots)]))
        keep = self._times[slots] + turn < self.max_times_sampled
        np.add.at(self._times, slots[keep], 1)
        retired = np.unique(slots[self._times[slots] >= self.max_times_sampled])
        self._left.update(retired, np.zeros(len(retired)))
        kept: Array = seqs[keep]
        return kept

    def missing(self, index: Index) -> str:
        if self.max_times_sampled is not None:
            return f"every row has been sampled {self.max_times_sampled} times"
        return super().missing(index)

    def mark(self) -> Any:
        if self._left is None:
            return None
        return (self._left.state(), self._times.copy())

    def rewind(self, mark: Any) -> None:
        if mark is not None and self._left is not None:
            self._left.load(mark[0])
            self._times = mark[1].copy()
        elif mark is None:
            self.reset()

    def reset(self) -> None:
        self._left = None

    def state(self) -> dict[str, Any]:
        if self._left is None:
            return {}
        return {"left": self._left.state(), "times": self._times.copy()}

    def load(self, state: dict[str, Any]) -> None:
        self._left = None
        if "times" in state:
            self._times = np.array(state["times"], np.int64)
            self._left = RowTree(len(self._times))
            self._left.load(state["left"])


class SamplerWithoutReplacement(Sampler):
    """Each row once per epoch, in random order; an epoch is what was there when it began.

    Args:
        drop_last: an epoch ends before a batch it cannot fill; else its last batch is shorter.
    """

    def __init__(self, drop_last: bool = False) -> None:
        self.drop_last = drop_last
        self.reset()

    def reset(self) -> None:
        self._key = self._first = self._rows = self._at = 0

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        for _ in range(2):
            parts: list[Array] = []
            need = request.groups
            while need > 0 and self._at < self._rows:
                n = min(need, self._rows - self._at)
                seqs = _native.permute(self._key, self._rows, self._at, n) + self._first
                self._at += n
                # Without those evicted since the epoch began, or outside a window.
                parts.append(seqs[(seqs >= index.tail) & index.eligible(seqs)])
                need -= len(parts[-1])
            if need == 0 or (need < request.groups and not self.drop_last):
                return Draw(np.concatenate(parts))
            low, high = index.tail, index.head
            if low >= high:
                return None
            self._key, self._first, self._rows, self._at = rng.key(), low, high - low, 0
        return None

    def missing(self, index: Index) -> str:
        return f"an epoch of {index.head - index.tail} rows cannot fill one batch (drop_last)"

    def mark(self) -> Any:
        return (self._key, self._first, self._rows, self._at)

    def rewind(self, mark: Any) -> None:
        self._key, self._first, self._rows, self._at = mark

    def state(self) -> dict[str, Any]:
        return {"epoch": list(self.mark())}

    def load(self, state: dict[str, Any]) -> None:
        self.rewind(tuple(state["epoch"]))
