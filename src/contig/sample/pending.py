"""What an ordered sampler has still to deliver, kept by what comes and goes.

`Pending` holds any items (trajectories, or rows of a window), which become eligible in any order.
`NewestRows` holds rows that all are eligible: ranges of them are enough.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np

from .base import Array
from .undo import Change, Point, UndoLog

__all__ = ["NewestRows", "Pending"]

Range = tuple[int, int, int, Any]  # start, stop, deliveries of row stop - 1, the range below


class Pending:
    """Items by number, each to be delivered so many times, the lowest or the highest first.

    An item that becomes eligible late is delivered late. Costs are those of what comes and goes:
    items that are no longer eligible are left where they are, and dropped when it is their turn.

    Args:
        newest_first: the order.
        times: deliveries of each.
    """

    def __init__(self, newest_first: bool, times: int) -> None:
        self._sign = -1 if newest_first else 1
        self._times = times
        self.reset()

    def reset(self) -> None:
        self.token = 0  # of the view's changes
        self.counts: dict[int, int] = {}  # deliveries of items that may still be there
        self._done: list[tuple[int, int]] = []  # delivered ranges, from a state of version 0.1
        self._heap: list[int] = []
        self._undo = UndoLog()

    def follow(self, changes: tuple[int, bool, Array, Array]) -> None:
        """Takes in items that became eligible."""
        self.token, everything, on, _ = changes
        fresh = [self._sign * o for o in on.tolist() if self._had(o) < self._times]
        if everything:
            self._heap = fresh
            heapq.heapify(fresh)
            return
        for item in fresh:
            heapq.heappush(self._heap, item)

    def _had(self, item: int) -> int:
        if any(a <= item < b for a, b in self._done):
            return self._times
        return self.counts.get(item, 0)

    def forget(self, items: list[int]) -> None:
        """Lets go of items that will never come again."""
        for item in items:
            self.counts.pop(item, None)

    def forget_below(self, bound: int) -> None:
        """The same for items below a bound, some of them perhaps later."""
        gone = []
        for item in self.counts:  # about in the order of delivery, which is that of eviction
            if item >= bound:
                break
            gone.append(item)
        self.forget(gone)

    def pick(self, n: int, eligible: Callable[[Array], Array]) -> list[int]:
        """The next n deliveries.

        Args:
            n: how many.
            eligible: which of some items may be delivered now, a mask.
        """
        picked: list[int] = []
        taken: list[tuple[int, int]] = []
        while len(picked) < n and self._heap:
            for item in self._candidates(n - len(picked), eligible):
                had = self._had(item)
                take = min(self._times - had, n - len(picked))
                if take > 0:
                    picked += [item] * take
                    taken.append((item, take))
                    self.counts[item] = had + take
                if had + take < self._times:
                    heapq.heappush(self._heap, self._sign * item)
        self._undo.note(taken)
        return picked

    def _candidates(self, n: int, eligible: Callable[[Array], Array]) -> list[int]:
        """Up to n of the next items, without those that fell out or were delivered."""
        found: list[int] = []
        while self._heap and len(found) < n:
            item = self._sign * heapq.heappop(self._heap)
            if self._had(item) < self._times and (not found or found[-1] != item):
                found.append(item)
        items = np.array(found, np.int64)
        return items[eligible(items)].tolist() if found else []

    def mark(self) -> Point:
        return self._undo.mark()

    def rewind(self, mark: Point) -> None:
        self._put_back(self._undo.since(mark))

    def taken(self, mark: Point) -> list[Change]:
        return self._undo.changes(mark)

    def give_back(self, taken: list[Change]) -> None:
        """To be delivered once more, in its place in the order."""
        self._put_back(self._undo.undo(taken))

    def _put_back(self, draws: list[list[tuple[int, int]]]) -> None:
        for drawn in draws:
            for item, take in drawn:
                had = self.counts.get(item, 0) - take
                if had > 0:
                    self.counts[item] = had
                else:
                    self.counts.pop(item, None)
                heapq.heappush(self._heap, self._sign * item)

    def state(self) -> dict[str, Any]:
        return {
            "done": [list(r) for r in self._done],
            "counts": [[item, count] for item, count in self.counts.items()],
        }

    def load(self, state: dict[str, Any]) -> None:
        self.reset()
        self.counts = {int(item): int(count) for item, count in state["counts"]}
        self._done = [(int(a), int(b)) for a, b in state.get("done", ())]


class NewestRows:
    """Rows not yet delivered, the newest on top: a stack of ranges.

    A range is never changed, only replaced, so a mark is the top of the stack.

    Args:
        times: deliveries of each row.
    """

    def __init__(self, times: int) -> None:
        self._times = times
        self.reset()

    def reset(self) -> None:
        self._top: Range | None = None
        self._seen = 0  # rows below have been on the stack
        self._ranges = self._trim_at = 0

    def pick(self, low: int, high: int, n: int) -> list[int]:
        """The next n deliveries among rows [low, high)."""
        if high < self._seen:  # a checkpoint was loaded below us
            self.reset()
        if high > self._seen:
            self._push(max(self._seen, low), high, 0)
            self._seen = high
        picked: list[int] = []
        while self._top is not None and len(picked) < n:
            start, stop, had, below = self._top
            start = max(start, low)
            if start >= stop:  # evicted, and all that lies below too
                self._top, self._ranges = None, 0
                break
            row, take = stop - 1, min(self._times - had, n - len(picked))
            picked += [row] * take
            self._top, self._ranges = below, self._ranges - 1
            if had + take < self._times:
                self._push(start, stop, had + take)
            elif start < row:
                self._push(start, row, 0)
        if self._ranges > self._trim_at:
            self._trim(low)
        return picked

    def _push(self, start: int, stop: int, had: int) -> None:
        if self._top is not None and self._top[1] == start and self._top[2] == 0:
            self._top = (self._top[0], stop, had, self._top[3])
            return
        self._top = (start, stop, had, self._top)
        self._ranges += 1

    def _trim(self, low: int) -> None:
        """Lets go of evicted ranges, each time twice as many have come."""
        kept = [r for r in self._pending() if r[1] > low]
        self._stack(kept)
        self._trim_at = 2 * self._ranges + 64

    def _stack(self, ranges: list[tuple[int, int, int]]) -> None:
        self._top, self._ranges = None, 0
        for start, stop, had in ranges:
            self._top = (start, stop, had, self._top)
            self._ranges += 1

    def _pending(self) -> list[tuple[int, int, int]]:
        """The ranges, ascending."""
        out = []
        at = self._top
        while at is not None:
            out.append(at[:3])
            at = at[3]
        return out[::-1]

    def give_back(self, rows: list[int]) -> None:
        """Rows to be delivered once more, each as often as it is there. Costs what is pending."""
        ranges = {stop - 1: (start, stop, had) for start, stop, had in self._pending()}
        for row in rows:
            if row < self._seen:
                start, stop, had = ranges.get(row, (row, row + 1, self._times))
                ranges[row] = (start, stop, had - 1)
        joined: list[tuple[int, int, int]] = []
        for start, stop, had in sorted(ranges.values()):
            if joined and joined[-1][1] == start and joined[-1][2] == 0:
                start = joined.pop()[0]
            joined.append((start, stop, had))
        self._stack(joined)

    def mark(self) -> Any:
        return (self._top, self._seen, self._ranges, self._trim_at)

    def rewind(self, mark: Any) -> None:
        self._top, self._seen, self._ranges, self._trim_at = mark

    def state(self) -> dict[str, Any]:
        """Ranges of rows that will not come any more, and deliveries of those that have begun."""
        done, counts, upto = [], [], 0
        for start, stop, had in self._pending():
            if start > upto:
                done.append([upto, start])
            if had:
                counts.append([stop - 1, had])
            upto = stop
        if self._seen > upto:
            done.append([upto, self._seen])
        return {"done": done, "counts": counts}

    def load(self, state: dict[str, Any]) -> None:
        done = sorted((int(a), int(b)) for a, b in state["done"])
        counts = {int(row): int(c) for row, c in state["counts"]}
        self._seen = max([b for _, b in done] + [row + 1 for row in counts], default=0)
        # What lies between the delivered ranges, cut behind each row whose delivery has begun.
        cuts = sorted({row + 1 for row in counts})
        ranges: list[tuple[int, int, int]] = []
        upto = 0
        for a, b in [*done, (self._seen, self._seen)]:
            inside = [c for c in cuts if upto < c < a]
            for stop in [*inside, a]:
                if stop > upto:
                    ranges.append((upto, stop, counts.get(stop - 1, 0)))
                    upto = stop
            upto = max(upto, b)
        self._stack(ranges)
        self._trim_at = 2 * self._ranges + 64
