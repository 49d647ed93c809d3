"""Rows, uniformly: with replacement, without, and each only so many times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _native
from ..arguments import whole
from .at_once import UniformRows
from .base import Array, Draw, Index, Mass, Request, Rng, Sampler
from .candidates import uniform_rows
from .fields import FieldLeaves
from .sumtree import RowTree, draw_rows
from .undo import Change, UndoLog

__all__ = ["RandomSampler", "SamplerWithoutReplacement"]


_ROWS = UniformRows()


class RandomSampler(Sampler):
    """Uniform over rows, with replacement.

    Args:
        max_times_sampled: rows retire after so many draws; None: never.
        fields: fields of its trajectory that each row gets, below `fields`.
    """

    def __init__(self, max_times_sampled: int | None = None, *, fields: Sequence[Any] = ()) -> None:
        self._fields = FieldLeaves(fields)
        if max_times_sampled is not None:
            max_times_sampled = whole("max_times_sampled", max_times_sampled, 1)
        self.max_times_sampled = max_times_sampled
        self._left: RowTree | None = None  # draws left; a row's weight is 1 while it has any
        self._times: Array = np.empty(0, np.int64)
        self._undo = UndoLog()

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        fields = self._fields if self._fields.paths else None
        if fields is not None:
            fields.check(index)
        if self.max_times_sampled is not None:
            return self._draw_retiring(index, rng, request)
        seqs = uniform_rows(index, rng, request.groups)
        if seqs is None:
            return None
        return Draw(seqs) if fields is None else fields.add(index, Draw(seqs))

    def at_once(self) -> UniformRows | None:
        # Whoever draws in another way, by a subclass, is asked.
        plain = self.max_times_sampled is None and type(self).draw is RandomSampler.draw
        return _ROWS if plain and not self._fields.paths else None

    def _draw_retiring(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        self._left = self._followed(index)
        picked: list[Array] = []
        need = request.groups
        while need > 0:
            seqs = draw_rows(self._left, rng, need, index)
            if seqs is None:
                break
            picked.append(self._count(seqs, index.capacity))
            need -= len(picked[-1])
        if not picked:
            return None
        drawn = np.concatenate(picked)
        self._undo.note(drawn)
        return self._fields.add(index, Draw(drawn))

    def _followed(self, index: Index) -> RowTree:
        """What is left, caught up with the tape."""
        self._fit(index.capacity)
        assert self._left is not None
        before = self._left.head
        self._left.follow(index, 1.0)
        fresh = np.arange(max(before, self._left.tail), self._left.head) % index.capacity
        self._times[fresh] = 0
        return self._left

    def mass(self, index: Index, request: Request) -> Mass:
        if self.max_times_sampled is None:
            return super().mass(index, request)
        return Mass(float(self._followed(index).among(index).total))

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
        turn = np.empty(len(slots), np.int64)  # how often its row was drawn before, in this batch
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
        return self._undo.mark()

    def rewind(self, mark: Any) -> None:
        self._put_back(self._undo.since(mark))

    def taken(self, mark: Any) -> list[Change]:
        return self._undo.changes(mark)

    def give_back(self, taken: list[Change]) -> None:
        self._put_back(self._undo.undo(taken))

    def progress(self, mark: Any) -> Any:
        drawn = [change.what for change in self._undo.changes(mark)]
        return np.concatenate(drawn) if drawn else None

    def advance(self, index: Index, progress: Any) -> None:
        if progress is not None:
            self._left = self._followed(index)
            there = (progress >= self._left.tail) & (progress < self._left.head)
            self._count(progress[there], index.capacity)

    def _put_back(self, draws: list[Array]) -> None:
        for drawn in draws:
            left = self._left
            assert left is not None
            # Rows that were evicted since need nothing back: others have their places.
            rows = drawn[(drawn >= left.tail) & (drawn >= left.head - left.capacity)]
            slots = rows % left.capacity
            np.subtract.at(self._times, slots, 1)
            left.update(slots, np.ones(len(slots)))

    def reset(self) -> None:
        self._left = None
        self._undo = UndoLog()

    def state(self) -> dict[str, Any]:
        if self._left is None:
            return {}
        times = self._times[self._left.seqs() % self._left.capacity]
        return {"left": self._left.state(), "times": times}

    def carried(
        self, states: list[dict[str, Any]], rows: list[tuple[int, Array]]
    ) -> dict[str, Any] | None:
        if self.max_times_sampled is None:
            return None
        left, times = [np.empty(0)], [np.empty(0, np.int64)]
        for which, seqs in rows:
            before = RandomSampler(self.max_times_sampled)
            before.load(states[which])
            tree = before._left or RowTree(1)
            left.append(tree.known(seqs, 1.0))
            seen = np.isin(seqs, tree.seqs())
            counted = before._times[seqs % tree.capacity] if len(before._times) else 0
            times.append(np.where(seen, counted, 0))
        rest = np.concatenate(left)
        tree_state = {"rows": rest, "bounds": [len(rest), 0]}
        return {"left": tree_state, "times": np.concatenate(times)}

    def load(self, state: dict[str, Any]) -> None:
        self.reset()
        if "times" in state:
            self._left = RowTree.of_state(state["left"])
            self._times = np.array(state["times"], np.int64)
            if "rows" in state["left"]:  # else they are by slot, as the first version kept them
                slots = self._left.seqs() % self._left.capacity
                by_slot = np.zeros(self._left.capacity, np.int64)
                by_slot[slots] = self._times
                self._times = by_slot


class SamplerWithoutReplacement(Sampler):
    """Each row once per epoch, in random order; an epoch is what was there when it began.

    Args:
        drop_last: an epoch ends before a batch it cannot fill; else its last batch is shorter.
    """

    def __init__(self, drop_last: bool = False) -> None:
        self.drop_last = drop_last
        self._rank, self._ranks = 0, 1
        self.reset()

    @property
    def drops_last(self) -> bool | None:  # type: ignore[override]
        """Whether an epoch ends before a batch it cannot fill; None: there are no epochs."""
        return self.drop_last

    def reset(self) -> None:
        self._key = self._first = self._rows = self._at = 0
        self._spans: Array | None = None  # [2, n]: first seqs, and rows up to each one's end
        self._back: Array = np.empty(0, np.int64)  # given back: they come before all others
        self._undo = UndoLog()

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        n = request.groups
        for _ in range(2):
            again = self._back[self._drawable(index, self._back)]
            seqs = self._take(index, n - min(len(again), n))
            if len(again):
                seqs = np.concatenate([again[:n], seqs])
            if len(seqs) == n or (len(seqs) and not self.drop_last):
                self._back = again[n:]
                self._undo.note(seqs)
                return Draw(seqs)
            if not self._begin(index, rng):
                return None
        return None

    def _begin(self, index: Index, rng: Rng) -> bool:
        """A new epoch, of the rows that are there now."""
        low, rows, spans = index.tail, index.head - index.tail, None
        if not index.contiguous:
            firsts, counts = index.view.spans_in(index.window)
            ends = firsts + counts
            firsts = firsts + (self._rank - firsts) % self._ranks
            counts = np.maximum(-((firsts - ends) // self._ranks), 0)
            spans = np.stack([firsts, np.cumsum(counts)])
            low, rows = 0, int(spans[1, -1]) if len(firsts) else 0
        elif self._ranks > 1:  # every so many rows, from the first one that is this rank's
            low += (self._rank - low) % self._ranks
            rows = -(-(index.head - low) // self._ranks)
        if rows <= 0:
            return False
        self._key, self._first, self._rows, self._at = rng.key(), low, rows, 0
        self._spans = spans
        return True

    def divide(self, rank: int, world_size: int) -> None:
        if (rank, world_size) != (self._rank, self._ranks):
            self._rank, self._ranks = rank, world_size
            self.reset()

    def mass(self, index: Index, request: Request) -> Mass:
        return Mass(self._rows - self._at)

    def take(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        n = min(request.groups, self._rows - self._at)
        if n <= 0:
            return None
        seqs = self._seqs(_native.permute(self._key, self._rows, self._at, n))
        self._at += n
        seqs = seqs[self._drawable(index, seqs)]
        return Draw(seqs) if len(seqs) else None

    def begin_epoch(self, index: Index, rng: Rng) -> None:
        if not self._begin(index, rng):
            self.reset()

    def _drawable(self, index: Index, seqs: Array) -> Array:
        """Which rows are still there, and in the window: a mask."""
        return np.asarray((seqs >= index.tail) & index.eligible(seqs))

    def _take(self, index: Index, n: int) -> Array:
        """The epoch's next n rows, without those evicted since it began or outside a window."""
        found: list[Array] = [np.empty(0, np.int64)]
        need, ahead = n, n
        while need > 0 and self._at < self._rows:
            places = _native.permute(
                self._key, self._rows, self._at, min(ahead, self._rows - self._at)
            )
            seqs = self._seqs(places)
            kept = np.flatnonzero(self._drawable(index, seqs))[:need]
            self._at += int(kept[-1]) + 1 if len(kept) == need else len(seqs)
            found.append(seqs[kept])
            need -= len(kept)
            ahead *= 2  # most are gone: look further at a time
        return np.concatenate(found)

    def _seqs(self, places: Array) -> Array:
        if self._spans is None:
            return np.asarray(places * self._ranks + self._first)
        firsts, upto = self._spans
        span = np.searchsorted(upto, places, side="right")
        before = np.where(span > 0, upto[span - 1], 0)
        return np.asarray(firsts[span] + (places - before) * self._ranks)

    def missing(self, index: Index) -> str:
        return f"an epoch of {index.head - index.tail} rows cannot fill one batch (drop_last)"

    def mark(self) -> Any:
        place = (self._key, self._first, self._rows, self._at, self._spans, self._back)
        return (*place, self._undo.mark())

    def rewind(self, mark: Any) -> None:
        *place, point = mark
        self._key, self._first, self._rows, self._at, self._spans, self._back = place
        self._undo.since(point)

    def taken(self, mark: Any) -> list[Change]:
        return self._undo.changes(mark[-1])

    def give_back(self, taken: list[Change]) -> None:
        # Of an epoch that is over, too: it is not, for whoever gets them.
        self._back = np.concatenate([*self._undo.undo(taken), self._back])

    def progress(self, mark: Any) -> Any:
        return {"at": self._at, "back": self._back} if mark[0] == self._key else self.state()

    def advance(self, index: Index, progress: Any) -> None:
        if "epoch" in progress:  # another one than before
            self.load(progress)
        else:
            self._at, self._back = int(progress["at"]), np.array(progress["back"], np.int64)

    def state(self) -> dict[str, Any]:
        out: dict[str, Any] = {"epoch": [self._key, self._first, self._rows, self._at]}
        if self._spans is not None:
            out["spans"] = self._spans
        if len(self._back):
            out["back"] = self._back
        return out

    def load(self, state: dict[str, Any]) -> None:
        self.reset()
        self._key, self._first, self._rows, self._at = state["epoch"]
        if "spans" in state:
            self._spans = np.array(state["spans"], np.int64)
        self._back = np.array(state.get("back", ()), np.int64)
