"""Queues and stacks: rows or whole trajectories in the order of writing, each so many times."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from .. import _native
from ..arguments import whole
from ..keys import INIT, TRUNCATED
from .base import Array, Draw, Index, Mass, Request, Rng, Sampler
from .pending import NewestRows, Pending
from .slice_marks import SliceMarks
from .undo import Change, UndoLog

__all__ = ["FifoSampler", "LifoSampler"]

# A trajectory as one slice, however long; and a row.
_WHOLE = _native.SliceSpec(2**62, complete_only=True)
_ROW = _native.SliceSpec(1)


class _Ordered(Sampler):
    """Shared by both orders.

    Rows of the whole tape, or of a window that is a part of it from some row on, are numbers from
    here to there, and each order counts them in its own way. Trajectories, and rows of other
    windows, come and go: `Pending` keeps them.
    """

    _newest_first: bool

    def __init__(self, *, per: str = "rows", max_times_sampled: int = 1) -> None:
        if per not in ("rows", "trajectories"):
            raise ValueError(f'per: expected "rows" or "trajectories", got {per!r}')
        self.per = per
        self.max_times_sampled = whole("max_times_sampled", max_times_sampled, 1)
        self._marks = SliceMarks(INIT, TRUNCATED)
        self._pending = Pending(self._newest_first, max_times_sampled)
        self._undo = UndoLog()  # rows that were picked; `Pending` has its own
        self.reset()

    @abstractmethod
    def _pick_rows(self, low: int, high: int, n: int) -> list[int]:
        """The next n deliveries among rows [low, high)."""

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        if self.per == "trajectories":
            return self._draw_trajectories(index, rng, request.groups)
        if index.contiguous:
            picked = self._pick_rows(index.tail, index.head, request.groups)
            self._undo.note(picked)
        else:
            picked = self._pick_from_window(index, request.groups)
        return Draw(np.array(picked, np.int64)) if picked else None

    def _pick_from_window(self, index: Index, n: int) -> list[int]:
        pending = self._pending
        pending.follow(index.view.changed_rows(index.window, _ROW, pending.token))
        pending.forget_below(int(index.view.tail))
        return pending.pick(n, index.eligible)

    def _draw_trajectories(self, index: Index, rng: Rng, n: int) -> Draw | None:
        """Complete ones, by the order in which they began."""
        pending, view, window = self._pending, index.view, index.window
        changes = view.changed_ordinals(window, _WHOLE, pending.token)
        pending.follow(changes)
        pending.forget(changes[3].tolist())
        if changes[1]:
            pending.forget_below(int(view.ordinal_of_newest(2**62)))

        def eligible(ordinals: Array) -> Array:
            return view.has_trajectories(ordinals, window, _WHOLE).astype(bool)

        ordinals = np.array(pending.pick(n, eligible), np.int64)
        slices, _ = view.slices_of(rng.words, window, _WHOLE, ordinals, len(ordinals))
        return self._marks.draw(slices, 0) if len(slices[1]) else None

    @abstractmethod
    def _put_back(self, rows: list[int]) -> None:
        """Rows that were picked, to be delivered once more, in their place in the order."""

    def taken(self, mark: Any) -> list[Change]:
        *_, point, pending = mark
        return [*self._undo.changes(point), *self._pending.taken(pending)]

    def give_back(self, taken: list[Change]) -> None:
        rows = [row for picked in self._undo.undo(taken) for row in picked]
        if rows:
            self._put_back(rows)
        self._pending.give_back(taken)

    def mass(self, index: Index, request: Request) -> Mass:
        raise TypeError(
            f"{self.name} delivers in the order of writing, and rows of different shards have "
            "none: use SamplerWithoutReplacement, or one shard"
        )

    def divide(self, rank: int, world_size: int) -> None:
        if world_size > 1:
            raise TypeError(
                f"{self.name} delivers each once, and several learners would each get all: use "
                "SamplerWithoutReplacement, which divides"
            )

    def missing(self, index: Index) -> str:
        what = "row" if self.per == "rows" else "complete trajectory"
        return f"every {what} has been delivered {self.max_times_sampled} time(s)"


class FifoSampler(_Ordered):
    """The oldest first, each `max_times_sampled` times in a row, then never again.

    Args:
        per: "rows", or "trajectories" (complete ones; batch_size counts trajectories).
        max_times_sampled: deliveries of each.
    """

    _newest_first = False

    def reset(self) -> None:
        self._next = -1  # seq of the next row; -1: the oldest there is
        self._times = 0  # it has been delivered
        self.skipped = 0  # rows evicted before their turn
        self._back: list[int] = []  # given back, ascending: they come before all others
        self._undo = UndoLog()
        self._pending.reset()

    def _pick_rows(self, low: int, high: int, n: int) -> list[int]:
        if self._back:
            there = [row for row in self._back if row >= low]
            self.skipped += len(self._back) - len(there)
            again, self._back = there[:n], there[n:]
            return again + self._pick_new(low, high, n - len(again))
        return self._pick_new(low, high, n)

    def _put_back(self, rows: list[int]) -> None:
        self._back = sorted(self._back + rows)

    def _pick_new(self, low: int, high: int, n: int) -> list[int]:
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

    def mark(self) -> Any:
        place = (self._next, self._times, self.skipped, self._back)
        return (*place, self._undo.mark(), self._pending.mark())

    def rewind(self, mark: Any) -> None:
        self._next, self._times, self.skipped, self._back, point, pending = mark
        self._undo.since(point)
        self._pending.rewind(pending)

    def state(self) -> dict[str, Any]:
        return {
            "next": self._next,
            "times": self._times,
            "counts": self._pending.state()["counts"],
            "skipped": self.skipped,
            "back": list(self._back),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.reset()
        self._next, self._times = int(state["next"]), int(state["times"])
        self.skipped = int(state["skipped"])
        self._back = [int(row) for row in state.get("back", ())]
        self._pending.load({"counts": state["counts"]})


class LifoSampler(_Ordered):
    """The newest first, each `max_times_sampled` times in a row, then never again.

    Args:
        per, max_times_sampled: as in FifoSampler.
    """

    _newest_first = True

    def reset(self) -> None:
        self._rows = NewestRows(self.max_times_sampled)
        self._undo = UndoLog()
        self._pending.reset()

    def _pick_rows(self, low: int, high: int, n: int) -> list[int]:
        return self._rows.pick(low, high, n)

    def _put_back(self, rows: list[int]) -> None:
        self._rows.give_back(rows)

    def mark(self) -> Any:
        return (self._rows.mark(), self._undo.mark(), self._pending.mark())

    def rewind(self, mark: Any) -> None:
        rows, point, pending = mark
        self._rows.rewind(rows)
        self._undo.since(point)
        self._pending.rewind(pending)

    def state(self) -> dict[str, Any]:
        return {**self._rows.state(), "pending": self._pending.state()}

    def load(self, state: dict[str, Any]) -> None:
        self.reset()
        self._rows.load(state)
        # Version 0.1 had one record for rows, rows of a window and trajectories.
        self._pending.load(state.get("pending", state))
