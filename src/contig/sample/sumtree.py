"""A sum tree over the rows of a ring: leaf = seq % capacity."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _native
from .base import Array, Index, Rng

__all__ = ["RowTree", "draw_rows", "draw_starts"]

_ONE_ROW = _native.SliceSpec(1, over_steps=True)
_MOST_PARTS = 4  # kept at once: a sampler has one spec for each batch size in use
_BAD_DRAWS = 4  # among all rows, of which most are no valid start, before only those are looked at
_OVERTAKEN = 64  # draws of rows that writers evict at the same time, before the lock is taken


def _sum_tree(capacity: int) -> tuple[_native.SumTree, Array]:
    """A tree of zeros, and the memory of its nodes: the leaves come first.

    The memory has no pages until it is touched, and begins at a multiple of 64 bytes, so that a
    node is one cache line and not two.
    """
    size = _native.SumTree.size(capacity)
    memory = np.zeros(size + 8)
    first = -(memory.ctypes.data // 8) % 8
    nodes = memory[first : first + size]
    return _native.SumTree(capacity, nodes), nodes


class RowTree:
    """Weights of rows, drawn in proportion. Not thread-safe: it belongs to its sampler.

    It follows the tape: rows between the `head` it has seen and the index's get a weight, rows
    below `tail` lose theirs.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._tree, self._nodes = _sum_tree(capacity)
        self._parts: dict[Any, _Part] = {}  # by spec, the last used last
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
            self._clear()
            self.head = self.tail = tail
        if tail > self.tail:
            # Slots of evicted rows that no newer row has taken.
            self._tree.fill(self.tail, min(tail, self.head), 0.0)
            self.tail = tail
        if head > self.head:
            self._tree.fill(max(self.head, head - self.capacity, tail), head, weight)
            self.head = head

    def update(self, slots: Array, weights: Array) -> None:
        slots = np.ascontiguousarray(slots, np.int64)
        self._tree.update(slots, np.ascontiguousarray(weights, float))
        for part in self._parts.values():
            part.reweigh(slots, self.weights)

    def draw(self, rng: Rng, n: int) -> Array:
        """Seqs of n rows in proportion to their weights."""
        return self._tree.draw(rng.words, n, self.head)

    def draw_weighted(self, rng: Rng, n: int, beta: float) -> tuple[Array, Array]:
        """`draw`, and the rows' `importance`."""
        return self._tree.draw_weighted(rng.words, n, self.head, beta)

    def importance(self, seqs: Array, beta: float) -> Array:
        """(q / least q)^-beta of rows, float32."""
        return self._tree.weights(seqs, self.head, beta)

    @property
    def all_rows(self) -> Any:
        """The tree itself."""
        return self._tree

    def among(self, index: Index, spec: Any = _ONE_ROW) -> Any:
        """The tree of those rows that are valid starts of slices, caught up with the tape."""
        if spec is _ONE_ROW and index.window is None:
            return self._tree
        part = self._parts.pop(spec, None)
        if part is None:
            part = _Part(self.capacity, spec)
            if len(self._parts) == _MOST_PARTS:
                del self._parts[next(iter(self._parts))]
        self._parts[spec] = part
        part.follow(index, self.weights)
        return part.tree

    def prioritize(self, seqs: Array, priorities: Array, alpha: float, eps: float) -> Any:
        """Sets weights (p + eps)^alpha: first bad place or -1, evicted rows, the largest p."""
        done = self._tree.prioritize(seqs, priorities, self.tail, self.head, alpha, eps)
        if self._parts:
            slots = seqs[(seqs >= self.tail) & (seqs < self.head)] % self.capacity
            for part in self._parts.values():
                part.reweigh(slots, self.weights)
        return done

    def _clear(self) -> None:
        """All weights 0; places that no row has had are not touched."""
        self._tree.fill(max(self.tail, self.head - self.capacity), self.head, 0.0)

    def seqs(self) -> Array:
        """The rows that have places."""
        return np.arange(max(self.tail, self.head - self.capacity), self.head)

    def state(self) -> dict[str, Any]:
        """What is stored, and no more: the capacity may be far larger."""
        rows = self.weights[self.seqs() % self.capacity]
        return {"rows": rows, "bounds": [self.head, self.tail]}

    def load(self, state: dict[str, Any]) -> None:
        """Back to a state of this tree."""
        self._clear()
        self.head, self.tail = _bounds(state)
        self._parts.clear()
        self.update(self.seqs() % self.capacity, np.asarray(state["rows"], float))

    @staticmethod
    def of_state(state: dict[str, Any]) -> RowTree:
        """A tree that is just large enough; `move_to` gives it a ring's size.

        Raises:
            KeyError, ValueError: it is no state.
        """
        head, tail = _bounds(state)
        if "weights" in state:  # by slot, as the first version kept them
            weights = np.asarray(state["weights"], float)
            tree = RowTree(len(weights))
            tree.update(np.arange(len(weights)), weights)
            tree.head, tree.tail = head, tail
            return tree
        rows = np.asarray(state["rows"], float)
        if rows.ndim != 1 or len(rows) > head - tail or not np.all(rows >= 0):
            raise ValueError(f"weights of rows {tail} to {head}: {rows.shape} of them, or bad ones")
        tree = RowTree(max(len(rows), 1))
        tree.load(state)
        return tree

    def known(self, seqs: Array, otherwise: float) -> Array:
        """Weights of rows; of those that it has not seen, another."""
        there = (seqs >= max(self.tail, self.head - self.capacity)) & (seqs < self.head)
        return np.where(there, self.weights[seqs % self.capacity], otherwise)

    def move_to(self, capacity: int) -> RowTree:
        """The same weights in a ring of another size; rows that do not fit are dropped."""
        out = RowTree(capacity)
        seqs = np.arange(max(self.tail, self.head - self.capacity, self.head - capacity), self.head)
        if len(seqs):
            out.update(seqs % capacity, self.weights[seqs % self.capacity])
        out.head, out.tail = self.head, int(seqs[0]) if len(seqs) else self.head
        return out


class _Part:
    """The weights of a RowTree that lie on valid starts: a second tree, kept by what changes.

    Rows that become valid starts come in with their weight, rows that cease to be lose it: the view
    says which (native/tape/ledger.h). So it is the same, to the last bit, whenever it was made.
    """

    def __init__(self, capacity: int, spec: Any) -> None:
        self.capacity, self.spec = capacity, spec
        self.tree, self._nodes = _sum_tree(capacity)
        self._valid: Array = np.zeros(capacity, np.bool_)
        self._token = self._head = self._tail = 0

    def follow(self, index: Index, weights: Array) -> None:
        view = index.view
        self._token, everything, on, off = view.changed_rows(index.window, self.spec, self._token)
        head, tail = int(view.head), int(view.tail)
        # Places of evicted rows, or all that were in use: newer rows that took them come in below.
        self._forget(self._tail, self._head if everything else min(tail, self._head))
        self._head, self._tail = head, tail
        for rows, valid in ((off, False), (on, True)):
            if len(rows):
                slots = rows % self.capacity
                self._valid[slots] = valid
                self.reweigh(slots, weights)

    def reweigh(self, slots: Array, weights: Array) -> None:
        """Takes over the weights of some places."""
        self.tree.update(slots, np.where(self._valid[slots], weights[slots], 0.0))

    def _forget(self, first: int, last: int) -> None:
        if first >= last:
            return  # places that no row has had are not touched: a capacity may be large
        self.tree.fill(first, last, 0.0)
        a, n = first % self.capacity, last - first
        self._valid[a : a + n] = False
        self._valid[: max(a + n - self.capacity, 0)] = False


def draw_rows(tree: RowTree, rng: Rng, n: int, index: Index) -> Array | None:
    """Seqs of n rows of the window in proportion to their weights; None if all weigh 0."""
    rows = tree.among(index)
    return rows.draw(rng.words, n, tree.head) if rows.total > 0 else None


def _bounds(state: dict[str, Any]) -> tuple[int, int]:
    head, tail = (int(x) for x in state["bounds"])
    if not 0 <= tail <= head:
        raise ValueError(f"rows {tail} to {head} make no sense")
    return head, tail


def draw_starts(
    tree: RowTree, rng: Rng, n: int, index: Index, spec: Any
) -> tuple[Array, tuple[Array, Array, Array, Array]] | None:
    """Starts in proportion to their weights among valid ones, and their slices; None if there are
    none, or writers evict them as fast as they are drawn.

    Most rows of long trajectories are valid starts: a few draws among all rows find enough, and the
    tree of valid starts has nothing to follow meanwhile. Which way a start is found depends on the
    rows and the seed only, not on what this reader did before.
    """
    if tree.total <= 0:
        return None
    rows: Any = tree.all_rows
    parts: list[Any] = []
    starts: list[Array] = []
    bad = 0
    for _ in range(_OVERTAKEN):
        if bad == _BAD_DRAWS:
            rows = tree.among(index, spec)
            if rows.total <= 0:
                return None
        seqs = rows.draw(rng.words, n, tree.head)
        slices, valid = index.view.slices_from(seqs, index.window, spec)
        if len(slices[1]) == n and not parts:
            return seqs, slices
        parts.append(slices)
        starts.append(seqs[valid.astype(bool)])
        bad += 2 * len(starts[-1]) < n
        n -= len(starts[-1])
        if n == 0:
            merged = tuple(np.concatenate(p) for p in zip(*parts))
            return np.concatenate(starts), merged  # type: ignore[return-value]
    return None
