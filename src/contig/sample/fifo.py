"""Queues and stacks: rows or whole trajectories in the order of writing, each so many times."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from .. import _native
from .base import Array, Draw, Index, Request, Rng, Sampler
from .slices import SliceMarks

__all__ = ["FifoSampler", "LifoSampler"]

# A trajectory as one slice, however long.
_WHOLE = _native.SliceSpec(2**62, complete_only=True)


class _Ordered(Sampler):
    """Shared by both orders: remembers what was delivered."""

    def __init__(self, *, per: str = "rows", max_times_sampled: int = 1) -> None:
        if per not in ("rows", "trajectories"):
            raise ValueError(f'per: expected "rows" or "trajectories", got {per!r}')
        if max_times_sampled < 1:
            raise ValueError(f"max_times_sampled must be at least 1, got {max_times_sampled}")
        self.per = per
        self.max_times_sampled = max_times_sampled
        self._marks = SliceMarks("is_init", ("next", "truncated"))
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Nothing was delivered yet."""

    @abstractmethod
    def _pick(self, low: int, high: int, n: int, present: Array | None) -> list[int]:
        """The next n of the items in [low, high), or of those present; notes their delivery."""

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        if self.per == "rows":
            rows = index.eligible_rows()
            picked = self._pick(index.tail, index.head, request.groups, rows)
            return Draw(np.array(picked, np.int64)) if picked else None
        # Complete trajectories, by the order in which they began.
        present = index.view.ordinals(index.window, _WHOLE)
        if not len(present):
            return None
        picked = self._pick(int(present[0]), int(present[-1]) + 1, request.groups, present)
        if not picked:
            return None
        ordinals = np.array(picked, np.int64)
        slices, _ = index.view.slices_of(rng.words, index.window, _WHOLE, ordinals, len(ordinals))
        return self._marks.draw(slices, 0) if len(slices[1]) else None

    def missing(self, index: Index) -> str:
        what = "row" if self.per == "rows" else "complete trajectory"
        return f"every {what} has been delivered {self.max_times_sampled} time(s)"


class FifoSampler(_Ordered):
    """The oldest first, each `max_times_sampled` times in a row, then never again.

    Args:
        per: "rows", or "trajectories" (complete ones; batch_size counts trajectories).
        max_times_sampled: deliveries of each.
    """

    def reset(self) -> None:
        self._next = -1  # seq of the next row; -1: the oldest there is
        self._times = 0  # it has been delivered
        self._counts: dict[int, int] = {}  # deliveries of living trajectories
        self.skipped = 0  # rows evicted before their turn

    def _pick(self, low: int, high: int, n: int, present: Array | None) -> list[int]:
        if present is not None:
            return self._pick_present(present.tolist(), n)
        if self._next < low:
            self.skipped += low - self._next if self._next >= 0 else 0
            self._next, self._times = low, 0
        first, total = self._next, self._times + n
        order = first + np.arange(self._times, total) // self.max_times_sampled
        order = order[order < high]
        used = self._times + len(order)
        self._next = first + used // self.max_times_sampled
        self._times = used % self.max_times_sampled
        return list(order.tolist())

    def _pick_present(self, present: list[int], n: int) -> list[int]:
        # An older trajectory may complete after a newer one: it is then still delivered, late.
        self._counts = {o: self._counts[o] for o in present if o in self._counts}
        picked: list[int] = []
        for ordinal in present:
            had = self._counts.get(ordinal, 0)
            take = min(self.max_times_sampled - had, n - len(picked))
            if take > 0:
                picked += [ordinal] * take
                self._counts[ordinal] = had + take
            if len(picked) == n:
                break
        return picked

    def mark(self) -> Any:
        return (self._next, self._times, dict(self._counts), self.skipped)

    def rewind(self, mark: Any) -> None:
        self._next, self._times, counts, self.skipped = mark
        self._counts = dict(counts)

    def state(self) -> dict[str, Any]:
        return {
            "next": self._next,
            "times": self._times,
            "counts": [[o, c] for o, c in self._counts.items()],
            "skipped": self.skipped,
        }

    def load(self, state: dict[str, Any]) -> None:
        counts = {int(o): int(c) for o, c in state["counts"]}
        self.rewind((int(state["next"]), int(state["times"]), counts, int(state["skipped"])))


class LifoSampler(_Ordered):
    """The newest first, each `max_times_sampled` times in a row, then never again.

    Args:
        per, max_times_sampled: as in FifoSampler.
    """

    def reset(self) -> None:
        # Delivered ranges [start, stop), ascending and disjoint; usually one or two.
        self._done: list[list[int]] = []
        self._counts: dict[int, int] = {}  # items delivered, but not yet often enough

    def _pick(self, low: int, high: int, n: int, present: Array | None) -> list[int]:
        self._done = [[max(a, low), b] for a, b in self._done if b > low]
        self._counts = {item: c for item, c in self._counts.items() if item >= low}
        candidates = None if present is None else set(present.tolist())
        picked: list[int] = []
        at = high - 1
        while at >= low and len(picked) < n:
            covering = next((r for r in self._done if r[0] <= at < r[1]), None)
            if covering is not None:
                at = covering[0] - 1
                continue
            if candidates is None or at in candidates:
                had = self._counts.pop(at, 0)
                take = min(self.max_times_sampled - had, n - len(picked))
                picked += [at] * take
                if had + take == self.max_times_sampled:
                    self._finish(at)
                else:
                    self._counts[at] = had + take
            at -= 1
        return picked

    def _finish(self, item: int) -> None:
        for r in self._done:
            if r[1] == item:
                r[1] = item + 1
                break
            if r[0] == item + 1:
                r[0] = item
                break
        else:
            self._done.append([item, item + 1])
        self._done.sort()
        merged: list[list[int]] = []
        for a, b in self._done:
            if merged and merged[-1][1] >= a:
                merged[-1][1] = max(merged[-1][1], b)
            else:
                merged.append([a, b])
        self._done = merged

    def mark(self) -> Any:
        return ([list(r) for r in self._done], dict(self._counts))

    def rewind(self, mark: Any) -> None:
        self._done = [list(r) for r in mark[0]]
        self._counts = dict(mark[1])

    def state(self) -> dict[str, Any]:
        return {
            "done": [list(r) for r in self._done],
            "counts": [[item, c] for item, c in self._counts.items()],
        }

    def load(self, state: dict[str, Any]) -> None:
        counts = {int(item): int(c) for item, c in state["counts"]}
        self.rewind((state["done"], counts))
