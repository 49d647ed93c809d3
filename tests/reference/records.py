"""Records and columns. A leaf is (offset, nbytes) within the record."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Leaf = tuple[int, int]


def layout(specs: list[tuple[tuple[int, ...], Any]]) -> tuple[list[Leaf], int]:
    """Canonical places of leaves of these shapes and dtypes, and the record's size."""
    at, largest, leaves = 0, 1, []
    for shape, dtype in specs:
        item = np.dtype(dtype).itemsize
        nbytes = int(np.prod(shape)) * item
        at += -at % item
        leaves.append((at, nbytes))
        at, largest = at + nbytes, max(largest, item)
    return leaves, max(at + -at % largest, 1)


def join(columns: list[Array], leaves: list[Leaf], n: int, out: Array) -> None:
    """Columns of n rows each, as bytes, into records out[n, record_size]."""
    for column, (offset, nbytes) in zip(columns, leaves):
        out[:, offset : offset + nbytes] = column.reshape(n, nbytes)


def split(records: Array, leaves: list[Leaf]) -> list[Array]:
    """Records [n, record_size] as one column of bytes per leaf, [n, nbytes]."""
    return [records[:, offset : offset + nbytes] for offset, nbytes in leaves]


class Ring:
    """The last `capacity` of all rows ever written; row s has seq s."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows: list[Any] = []
        self.tail = 0

    @property
    def head(self) -> int:
        return len(self.rows)

    def extend(self, rows: list[Any]) -> None:
        # Of more rows than fit, the leading ones never get a seq.
        self.rows += rows[-self.capacity :]
        self.tail = max(self.tail, self.head - self.capacity)

    def gather(self, seqs: list[int]) -> list[Any]:
        return [self.rows[s] for s in seqs]
