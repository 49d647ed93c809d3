"""The batch queue as a list, and items whose every byte says which one they are."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from contig import Layout

Item = tuple[int, int]  # whose (0: nobody's), which one

EXAMPLES: dict[str, Any] = {
    "number": {"x": np.int64(0)},
    "bytes": {"x": np.zeros(3, np.uint8)},
    "padded": {"a": np.uint8(0), "b": np.float64(0), "c": np.zeros(3, np.int16), "d": False},
    "empty leaves": {"none": np.zeros((0, 4), np.float32), "x": np.uint32(0), "z": np.zeros(0)},
    "nested": {"o": {"p": False, "q": np.zeros((2, 3), np.float32)}, "r": (np.int8(0), 1.5)},
    "wide": {"w": np.zeros((5, 17), np.uint16), "v": np.complex64(0), "u": np.zeros(2, np.float16)},
}


@functools.lru_cache(4096)
def leaves(layout: Layout, item: Item) -> list[np.ndarray[Any, Any]]:
    """An item's arrays, in the layout's order."""
    out = []
    for number, leaf in enumerate(layout.leaves):
        places = np.arange(int(np.prod(leaf.shape, dtype=np.int64)), dtype=np.int64)
        key = (item[0] * 7919 + item[1] * 31 + number) * 97 + places
        top = (
            2
            if leaf.dtype == bool
            else min(np.iinfo(leaf.dtype).max, 1 << 40)
            if (leaf.dtype.kind in "iu")
            else 2039
        )
        out.append((key % top).astype(leaf.dtype).reshape(leaf.shape))
    return out


def tree(layout: Layout, item: Item) -> Any:
    return layout.build_tree(leaves(layout, item))


def records(layout: Layout, items: list[Item]) -> np.ndarray[Any, Any]:
    """Packed; the gaps between leaves hold rubbish."""
    rows = [layout.pack_one(tree(layout, item)) for item in items]
    out = np.stack(rows)
    used = np.zeros(layout.record_size, bool)
    for leaf in layout.leaves:
        used[leaf.offset : leaf.offset + leaf.nbytes] = True
    out[:, ~used] = 0xA5
    return out.reshape(-1)


def columns(layout: Layout, items: list[Item]) -> list[np.ndarray[Any, Any]]:
    """What a batch of these items holds."""
    rows = [leaves(layout, item) for item in items]
    return [np.stack([row[i] for row in rows]) for i in range(len(layout.leaves))]


class Accepted(NamedTuple):
    seen: int
    added: int
    gap: bool
    full: bool


class Model:
    """What the queue should do. `pending` starts at a block's first row, always."""

    def __init__(self, size: int, slots: int) -> None:
        self.size, self.slots = size, slots
        self.pending: list[Item] = []
        self.seen: dict[int, int] = {}
        self.pinned = 0
        self.total = self.taken = self.blocked = self.fresh = self.duplicates = 0

    def room(self) -> int:
        return (self.slots - self.pinned) * self.size - len(self.pending)

    def accept(self, producer: int, first: int, n: int) -> Accepted:
        again = 0
        if producer:
            seen = self.seen.get(producer, first)  # it is known from its first item on
            if first > seen:
                return Accepted(seen, 0, True, False)
            again = min(seen - first, n)
            self.duplicates += again
            if again == n:
                return Accepted(seen, 0, False, False)
        added = min(n - again, self.room())
        full = added < n - again
        self.blocked += full
        start = first + again
        self.pending += [(producer, start + i) for i in range(added)]
        self.total += added
        if producer and added:
            self.seen[producer] = start + added
        return Accepted(start + added, added, False, full)

    def take(self, copy: bool, partial: bool) -> tuple[list[Item], bool] | None:
        """The items, and whether they stay in their slot."""
        items = self.pending[: self.size]
        if len(items) < self.size and not (partial and items):
            return None
        del self.pending[: self.size]
        self.taken += 1
        last = self.pinned + 1 == self.slots
        self.fresh += last and not copy
        pins = not copy and not last and len(items) == self.size
        self.pinned += pins
        return items, pins
