"""A sum tree over the rows of a ring: leaf = seq % capacity."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _native
from .base import Array, Index, Rng

__all__ = ["RowTree", "draw_starts", "ONE_ROW"]

ONE_ROW = _native.SliceSpec(1, over_steps=True)


class RowTree:
    """Weights of rows, drawn in proportion. Not thread-safe: it belongs to its sampler.

    It follows the tape: rows between the `head` it has seen and the index's get a weight, rows
    below `tail` lose theirs.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        size = _native.SumTree.size(capacity)
        # Zeros that have no memory until they are touched, at multiples of 64 bytes, so that a node
        # is one cache line and not two.
        memory = np.zeros(size + 8)
        first = -(memory.ctypes.data // 8) % 8
        self._nodes: Array = memory[first : first + size]
        self._tree = _native.SumTree(capacity, self._nodes)
        self.head = self.tail = 0

    @property
    def total(self) -> float:
        return float(self._tree.total)

    @property
    def least(self) -> float:
        """The smallest positive weight."""
        return float(self._tree.least)

    @property
    def weights(self) -> Array:
        """By slot (seq % capacity); a view."""
        return self._nodes[: self.capacity]

    def follow(self, index: Index, weight: float) -> None:
        """Takes in new rows at a weight and lets go of evicted ones."""
        head, tail = int(index.view.head), int(index.view.tail)
        if head < self.head or tail < self.tail:  # a checkpoint was loaded below us
            self._tree.fill(0, self.capacity, 0.0)
            self.head = self.tail = tail
        if tail > self.tail:
            # Slots of evicted rows that no newer row has taken.
            self._tree.fill(self.tail, min(tail, self.head), 0.0)
            self.tail = tail
        if head > self.head:
            self._tree.fill(max(self.head, head - self.capacity, tail), head, weight)
            self.head = head

    def update(self, slots: Array, weights: Array) -> None:
        self._tree.update(
            np.ascontiguousarray(slots, np.int64), np.ascontiguousarray(weights, float)
        )

    def draw(self, rng: Rng, n: int) -> Array:
        """Seqs of n rows in proportion to their weights."""
        return self._tree.draw(rng.words, n, self.head)

    def draw_weighted(self, rng: Rng, n: int, beta: float) -> tuple[Array, Array]:
        """`draw`, and the rows' `importance`."""
        return self._tree.draw_weighted(rng.words, n, self.head, beta)

    def importance(self, seqs: Array, beta: float) -> Array:
        """(q / least q)^-beta of rows, float32."""
        return self._tree.weights(seqs, self.head, beta)

    def draw_slices(self, index: Index, rng: Rng, spec: Any, n: int) -> Any:
        """Slices by their starts' weight among valid starts: starts, slices, how many lack."""
        return index.view.draw_by_weight(self._tree, self.head, rng.words, index.window, spec, n)

    def prioritize(self, seqs: Array, priorities: Array, alpha: float, eps: float) -> Any:
        """Sets weights (p + eps)^alpha: first bad place or -1, evicted rows, the largest p."""
        return self._tree.prioritize(seqs, priorities, self.tail, self.head, alpha, eps)

    def state(self) -> dict[str, Any]:
        return {"weights": self.weights.copy(), "bounds": [self.head, self.tail]}

    def load(self, state: dict[str, Any]) -> None:
        weights = np.asarray(state["weights"], float)
        self._tree.fill(0, self.capacity, 0.0)
        if len(weights) == self.capacity:
            self.update(np.arange(self.capacity), weights)
        self.head, self.tail = (int(x) for x in state["bounds"])

    def move_to(self, capacity: int) -> RowTree:
        """The same weights in a ring of another size; rows that do not fit are dropped."""
        out = RowTree(capacity)
        seqs = np.arange(max(self.tail, self.head - self.capacity, self.head - capacity), self.head)
        if len(seqs):
            out.update(seqs % capacity, self.weights[seqs % self.capacity])
        out.head, out.tail = self.head, int(seqs[0]) if len(seqs) else self.head
        return out


def draw_starts(
    tree: RowTree, rng: Rng, n: int, index: Index, spec: Any
) -> tuple[Array, tuple[Array, Array, Array, Array]] | None:
    """Starts by priority among valid ones, and their slices, by rejection, then exactly."""
    view, window = index.view, index.window
    found, slices, need = tree.draw_slices(index, rng, spec, n)
    parts, starts = [slices], [found]
    if need:
        mask = view.valid_starts(window, spec).astype(bool)
        rows = np.flatnonzero(mask) + int(view.tail)
        q = np.cumsum(tree.weights[rows % tree.capacity])
        if not len(q) or q[-1] <= 0:
            return None
        u = _unit(rng, need) * q[-1]
        seqs = rows[np.minimum(np.searchsorted(q, u, side="right"), len(rows) - 1)]
        slices, valid = view.slices_from(np.ascontiguousarray(seqs), window, spec)
        if not valid.all():
            return None
        parts.append(slices)
        starts.append(seqs)
    if len(parts) == 1:
        return found, slices
    merged = tuple(np.concatenate(p) for p in zip(*parts))
    return np.concatenate(starts), merged  # type: ignore[return-value]


def _unit(rng: Rng, n: int) -> Array:
    return _native.uniform_below(rng.words, 0, 2**53, n) / 2.0**53
