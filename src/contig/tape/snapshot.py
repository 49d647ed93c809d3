"""What a checkpoint holds of a tape: rows, index and counters; and parts of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .entry import NONE, ends_of, flags_of, join, steps_of

__all__ = ["Snapshot", "PackedRows", "Rows"]

Array = np.ndarray[Any, Any]


class Rows(ABC):
    """Rows by seq, wherever they are."""

    record_size: int

    @abstractmethod
    def read(self, first: int, last: int) -> Array:
        """Records of rows [first, last), one after another.

        Raises:
            ValueError: some of them are damaged.
        """


class PackedRows(Rows):
    """Records in memory, the first of them with this seq."""

    def __init__(self, records: Array, first: int, record_size: int) -> None:
        self.record_size = record_size
        self._records, self._first = records, first

    def read(self, first: int, last: int) -> Array:
        size = self.record_size
        return self._records[(first - self._first) * size : (last - self._first) * size]


class _SomeRows(Rows):
    """Spans of other rows, one behind another, with seqs from 0 on."""

    def __init__(self, rows: Rows, starts: Array, counts: Array) -> None:
        self.record_size = rows.record_size
        self._rows, self._starts, self._counts = rows, starts, counts
        self._places = np.cumsum(counts) - counts

    def read(self, first: int, last: int) -> Array:
        parts = [np.zeros(0, np.uint8)]
        at = int(np.searchsorted(self._places, first, side="right")) - 1
        while first < last:
            skip = first - int(self._places[at])
            count = min(int(self._counts[at]) - skip, last - first)
            start = int(self._starts[at]) + skip
            parts.append(self._rows.read(start, start + count))
            first += count
            at += 1
        return np.concatenate(parts)


class _JoinedRows(Rows):
    """Several rows, one part behind another, with seqs from 0 on."""

    def __init__(self, parts: Sequence[Rows], counts: Sequence[int]) -> None:
        self.record_size = parts[0].record_size
        self._parts = parts
        self._ends = np.cumsum(counts)

    def read(self, first: int, last: int) -> Array:
        out = [np.zeros(0, np.uint8)]
        for part, end, count in zip(self._parts, self._ends, np.diff(self._ends, prepend=0)):
            start = int(end - count)
            low, high = max(first, start), min(last, int(end))
            if low < high:
                out.append(part.read(low - start, high - start))
        return np.concatenate(out)


class Snapshot(NamedTuple):
    """All that a checkpoint knows of a tape.

    Attributes:
        rows: rows [tail, head).
        tail, head: their seqs.
        entries: the index (tape/entry.py), numbers ascending without gaps.
        trajectories: how many numbers for trajectories were given.
    """

    rows: Rows
    tail: int
    head: int
    entries: Array
    trajectories: int

    def ordinals(self) -> Array:
        """Numbers of the trajectories, in the order in which they began."""
        return np.unique(self.entries["ordinal"])

    def numbered(self) -> tuple[Array, int, int]:
        """The index as a tape takes it: its words, its first number, and the one behind."""
        first = int(self.entries[0]["number"]) if len(self.entries) else 0
        return self.entries.view(np.uint64), first, first + len(self.entries)

    def newest(self, capacity: int) -> Snapshot:
        """As many of the newest rows as fit."""
        tail = max(self.tail, self.head - capacity)
        return self._replace(tail=tail, entries=self.entries.compress(ends_of(self.entries) > tail))

    def seqs_of(self, ordinals: Collection[int]) -> Array:
        """The rows that `only` keeps, in its order."""
        mine = self.entries.compress(np.isin(self.entries["ordinal"], list(ordinals)))
        starts = np.maximum(mine["first"], self.tail)
        counts = ends_of(mine) - starts
        before = np.cumsum(counts) - counts
        return np.asarray(np.repeat(starts - before, counts) + np.arange(int(counts.sum())))

    @staticmethod
    def joined(parts: Sequence[Snapshot]) -> Snapshot:
        """Several, as `only` made them, one behind another; there is at least one. Trajectories
        get new numbers."""
        entries, rows, runs, ordinals = [], 0, 0, 0
        for part in parts:
            new = part.entries.copy()
            new["first"] += rows
            new["number"] += runs
            for link in ("prev", "jump"):
                new[link] += np.where(new[link] > 0, runs, 0)  # NONE and 0 lead nowhere
            known, new["ordinal"] = np.unique(new["ordinal"], return_inverse=True)
            new["ordinal"] += ordinals
            entries.append(new)
            rows, runs, ordinals = rows + part.head, runs + len(new), ordinals + len(known)
        whole = _JoinedRows([p.rows for p in parts], [p.head for p in parts])
        return Snapshot(whole, 0, rows, join(entries), ordinals)

    def only(self, ordinals: Collection[int]) -> Snapshot:
        """Some trajectories; rows get new seqs, from 0 on, and keep their order."""
        mine = np.isin(self.entries["ordinal"], list(ordinals))
        old = self.entries.compress(mine)
        new = self.entries.compress(mine)
        cut = np.maximum(self.tail - old["first"], 0)
        steps = steps_of(old) - cut
        flags = flags_of(old) & np.where(cut > 0, ~_native.RunFlag.BEGINS, -1)
        new["steps_flags"] = steps << _native.FLAG_BITS | flags
        new["before"] += cut
        new["first"] = np.cumsum(steps) - steps
        # Numbers from 1 on: links to runs that are not there lead to 0, which is evicted.
        new["number"] = np.arange(1, len(new) + 1)
        numbers = old["number"]
        for link in ("prev", "jump"):
            to = old[link]
            at = np.searchsorted(numbers, to)
            known = numbers[np.minimum(at, len(old) - 1)] == to
            new[link] = np.where(to == NONE, NONE, np.where(known, at + 1, 0))
        rows = _SomeRows(self.rows, old["first"] + cut, steps)
        return Snapshot(rows, 0, int(steps.sum()), new, self.trajectories)
