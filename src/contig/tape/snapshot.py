"""What a checkpoint holds of a tape: rows, index and counters; and parts of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .entry import NONE, ends_of, flags_of, join, steps_of
from .packed_bytes import Packed, RecordPlaces
from .sharing import Sharing

__all__ = ["Snapshot", "PackedRows", "Rows"]

Array = np.ndarray[Any, Any]

_PIECE_BYTES = 16 << 20  # of records that are looked at together


class Rows(ABC):
    """Rows by seq, wherever they are.

    Attributes:
        places: where their records have leaves of any size, if they have any.
        sharing: what of them is stored once where they are; None: nothing is.
        mapped: whether reading them copies nothing.
    """

    record_size: int
    places: RecordPlaces | None = None
    sharing: Sharing | None = None
    mapped = False

    @abstractmethod
    def read(self, first: int, last: int) -> Array:
        """Records of rows [first, last), one after another. What they say of where bytes of leaves
        of any size are counts for `pack` only.

        Raises:
            ValueError: some of them are damaged.
        """

    def pack(self, first: int, last: int) -> Packed:
        """The same with the bytes of leaves of any size, for rows that have some."""
        raise TypeError(f"{type(self).__name__} has no leaves of any size")

    def spans(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Rows [first, last) in pieces that are best read at a time."""
        step = max(_PIECE_BYTES // max(self.record_size, 1), 1)
        for at in range(first, last, step):
            yield at, min(at + step, last)

    def some(self, starts: Array, counts: Array) -> Rows:
        """Spans of them, one behind another, with seqs from 0 on."""
        return _SomeRows(self, starts, counts)


class PackedRows(Rows):
    """Records in memory, the first of them with this seq.

    Args:
        records: packed one after another.
        first: the seq of the first one.
        record_size: bytes of each.
        blobs: bytes of leaves of any size, if they have some; where they are in the records; and
            the position of the first of them.
    """

    mapped = True

    def __init__(
        self,
        records: Array,
        first: int,
        record_size: int,
        blobs: tuple[Array, RecordPlaces, int] | None = None,
    ) -> None:
        self.record_size = record_size
        self._records, self._first = records, first
        self._blobs: Array = np.zeros(0, np.uint8)
        self._blob_first = 0
        if blobs is not None:
            self._blobs, self.places, self._blob_first = blobs

    def read(self, first: int, last: int) -> Array:
        size = self.record_size
        return self._records[(first - self._first) * size : (last - self._first) * size]

    def pack(self, first: int, last: int) -> Packed:
        if self.places is None:
            return super().pack(first, last)
        return self.places.pack(self.read(first, last), self._bytes)

    def _bytes(self, start: int, end: int) -> Array:
        low, high = start - self._blob_first, end - self._blob_first
        if low < 0 or high > len(self._blobs):
            raise ValueError("bytes of leaves of any size that are not there")
        return self._blobs[low:high]


class _SomeRows(Rows):
    """Spans of other rows, one behind another, with seqs from 0 on."""

    def __init__(self, rows: Rows, starts: Array, counts: Array) -> None:
        self.record_size, self.places = rows.record_size, rows.places
        self.sharing = rows.sharing
        self._rows, self._starts, self._counts = rows, starts, counts
        self._firsts = np.cumsum(counts) - counts

    def _spans(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        at = int(np.searchsorted(self._firsts, first, side="right")) - 1
        while first < last:
            skip = first - int(self._firsts[at])
            count = min(int(self._counts[at]) - skip, last - first)
            start = int(self._starts[at]) + skip
            yield start, start + count
            first += count
            at += 1

    def read(self, first: int, last: int) -> Array:
        parts = [np.zeros(0, np.uint8)]
        parts += [self._rows.read(*span) for span in self._spans(first, last)]
        return np.concatenate(parts)

    def pack(self, first: int, last: int) -> Packed:
        if self.places is None:
            return super().pack(first, last)
        parts = [self._rows.pack(*span) for span in self._spans(first, last)]
        return Packed.joined(parts, self.places)


class _JoinedRows(Rows):
    """Several rows, one part behind another, with seqs from 0 on."""

    def __init__(self, parts: Sequence[Rows], counts: Sequence[int]) -> None:
        self.record_size, self.places = parts[0].record_size, parts[0].places
        if all(part.sharing == parts[0].sharing for part in parts):
            self.sharing = parts[0].sharing
        self._parts = parts
        self._ends = np.cumsum(counts)

    def _spans(self, first: int, last: int) -> Iterator[tuple[Rows, int, int]]:
        for part, end, count in zip(self._parts, self._ends, np.diff(self._ends, prepend=0)):
            start = int(end - count)
            low, high = max(first, start), min(last, int(end))
            if low < high:
                yield part, low - start, high - start

    def read(self, first: int, last: int) -> Array:
        parts = [part.read(low, high) for part, low, high in self._spans(first, last)]
        return np.concatenate([np.zeros(0, np.uint8), *parts])

    def pack(self, first: int, last: int) -> Packed:
        if self.places is None:
            return super().pack(first, last)
        parts = [part.pack(low, high) for part, low, high in self._spans(first, last)]
        return Packed.joined(parts, self.places)


class Snapshot(NamedTuple):
    """All that a checkpoint knows of a tape.

    Attributes:
        rows: rows [tail, head).
        tail, head: their seqs.
        entries: the index (tape/entry.py), numbers ascending without gaps.
        trajectories: how many numbers for trajectories were given.
        fields: a record for each entry, uint8 ``[n, size]``; None: trajectories have none.
    """

    rows: Rows
    tail: int
    head: int
    entries: Array
    trajectories: int
    fields: Array | None = None

    def ordinals(self) -> Array:
        """Numbers of the trajectories, in the order in which they began."""
        # Other threads run while numpy sorts; while it looks for what is unique they do not.
        ordered = np.sort(self.entries["ordinal"])
        is_first = np.ones(len(ordered), bool)
        is_first[1:] = ordered[1:] != ordered[:-1]
        return ordered[is_first]

    def numbered(self) -> tuple[Array, int, int]:
        """The index as a tape takes it: its words, its first number, and the one behind.

        Nobody goes on with trajectories of a checkpoint: what a producer sent since is missing.
        """
        first = int(self.entries[0]["number"]) if len(self.entries) else 0
        entries = self.entries.take(np.arange(len(self.entries)))
        entries["steps_flags"] = steps_of(entries) << _native.FLAG_BITS | flags_of(entries)
        return entries.view(np.uint64), first, first + len(entries)

    def newest(self, capacity: int) -> Snapshot:
        """As many of the newest rows as fit."""
        tail = max(self.tail, self.head - capacity)
        kept = ends_of(self.entries) > tail
        entries, fields = self.entries.compress(kept), _some(self.fields, kept)
        return self._replace(tail=tail, entries=entries, fields=fields)

    def fitting(self, blob_bytes: int) -> Snapshot:
        """As many of the newest rows as have no more bytes in leaves of any size.

        Raises:
            ValueError: one row has more.
        """
        if self.rows.places is None or self.tail == self.head:
            return self
        places, spans = self.rows.places, self.rows.spans(self.tail, self.head)
        each = np.concatenate([places.row_bytes(self.rows.read(*span)) for span in spans])
        if each.max() > blob_bytes:
            raise ValueError(
                f"a row has {each.max()} bytes in leaves of any size, and the storage's ring has "
                f"room for {blob_bytes}; give the storage a larger blob_bytes="
            )
        return self.newest(int(np.count_nonzero(np.cumsum(each[::-1]) <= blob_bytes)))

    def seqs_of(self, ordinals: Collection[int]) -> Array:
        """The rows that `only` keeps, in its order."""
        mine = self.entries.compress(np.isin(self.entries["ordinal"], list(ordinals)))
        starts = np.maximum(mine["first"], self.tail)
        counts = ends_of(mine) - starts
        before = np.cumsum(counts) - counts
        return np.asarray(np.repeat(starts - before, counts) + np.arange(int(counts.sum())))

    def parts(self, first: int, last: int) -> Array:
        """Trajectories of rows [first, last), and how many of them in turn: int64, in pairs."""
        starts, ends = self.entries["first"], ends_of(self.entries)
        low, high = np.searchsorted(ends, first, "right"), np.searchsorted(starts, last, "left")
        counts = np.minimum(ends[low:high], last) - np.maximum(starts[low:high], first)
        pairs = np.stack([self.entries["ordinal"][low:high], counts], axis=1)
        return np.ascontiguousarray(pairs, np.int64).reshape(-1)

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
        fields = _joined_fields(parts)
        return Snapshot(whole, 0, rows, join(entries), ordinals, fields)

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
        rows = self.rows.some(old["first"] + cut, steps)
        fields = _some(self.fields, mine)
        return Snapshot(rows, 0, int(steps.sum()), new, self.trajectories, fields)


def _some(fields: Array | None, kept: Array) -> Array | None:
    return None if fields is None else np.ascontiguousarray(fields[kept])


def _joined_fields(parts: Sequence[Snapshot]) -> Array | None:
    """Those of all entries; zeros where a part has none, as a checkpoint without them is read."""
    size = next((part.fields.shape[1] for part in parts if part.fields is not None), None)
    if size is None:
        return None
    nothing = [np.zeros((len(part.entries), size), np.uint8) for part in parts]
    return np.concatenate([n if p.fields is None else p.fields for p, n in zip(parts, nothing)])
