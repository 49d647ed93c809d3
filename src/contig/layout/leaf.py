"""One leaf of a record: what it is, where it is, and the same as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..convert import numpy_dtype
from ..tree import Path

__all__ = [
    "Leaf",
    "LeafSpec",
    "ShapeDtype",
    "as_bytes",
    "leaf_from_json",
    "place_leaves",
    "plan_leaf",
]


LeafSpec = tuple[Path, tuple[int, ...], np.dtype[Any]]  # path, per-row shape, dtype


class ShapeDtype(NamedTuple):
    """A leaf without data, for examples: ``ShapeDtype((84, 84), np.uint8)``."""

    shape: tuple[int, ...]
    dtype: Any


class Leaf(NamedTuple):
    """One array of the record: its path, per-row shape and dtype, and its place."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    nbytes: int

    def describe(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"

    def to_json(self) -> dict[str, Any]:
        return {"path": list(self.path), "shape": list(self.shape), "dtype": self.dtype_name}

    @property
    def dtype_name(self) -> str:
        """The dtype as it is written."""
        return self.dtype.name if self.dtype.kind in "biufcV" else self.dtype.str


def leaf_from_json(data: dict[str, Any]) -> LeafSpec:
    path, shape, name = data["path"], data["shape"], data["dtype"]
    if not isinstance(path, list) or not all(type(k) in (str, int) for k in path):
        raise ValueError(f"path {path!r}: expected a list of keys")
    sizes = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not sizes or len(shape) > 32:
        raise ValueError(f"shape {shape!r}: expected a list of sizes")
    if not isinstance(name, str):
        raise ValueError(f"dtype {name!r}: expected its name")
    dtype = numpy_dtype(name)
    if dtype.hasobject or dtype.itemsize == 0 or name.startswith((">", "!")):
        raise ValueError(f"dtype {name!r}: not a little-endian one of fixed size")
    if math.prod(shape) * dtype.itemsize >= 1 << 47:
        raise ValueError(f"shape {shape!r} of {name}: too large")
    return tuple(path), tuple(shape), dtype


def place_leaves(specs: Iterable[LeafSpec]) -> tuple[tuple[Leaf, ...], int]:
    """The leaves at their places in a record, one after another, and the record's size."""
    offset, largest = 0, 1
    leaves = []
    for path, shape, dtype in specs:
        size = dtype.itemsize
        align = size if size & (size - 1) == 0 else dtype.alignment
        largest = max(largest, align)
        offset = -(-offset // align) * align
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        leaves.append(Leaf(path, shape, dtype, offset, nbytes))
        offset += nbytes
    return tuple(leaves), max(-(-offset // largest) * largest, 1)


def plan_leaf(leaf: Leaf) -> tuple[str, int, int, int, tuple[int, ...]]:
    """A leaf as the native planner takes it. Kinds it does not know never match a buffer."""
    kind = leaf.dtype.kind if leaf.dtype.kind in "biufc" else "?"
    return (kind, leaf.dtype.itemsize, leaf.offset, leaf.nbytes, leaf.shape)


def as_bytes(array: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """A contiguous array as flat uint8, without a copy."""
    assert array is not None
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
