"""A batch's columns as other libraries have them, and rows of a batch as callers name them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .convert import (
    BlockSplitter,
    as_array,
    cast,
    jagged_tensor,
    leaf_spec,
    non_tensors,
    to_jax,
    to_torch,
    to_torch_all,
    torch_dtype,
)
from .errors import LayoutError
from .layout import Layout, RaggedBlock, spec_of
from .ragged import Blob, Ragged
from .tree import Nested, Path, show_path

__all__ = [
    "TRAILING_DIM",
    "block_tensors",
    "host_tree",
    "is_rows",
    "jax_tree",
    "named_tensors",
    "one_row",
    "plain_tensors",
    "row_index",
]

Array = np.ndarray[Any, Any]

# Per-row scalars that TensorDict users expect as [N, 1].
TRAILING_DIM = ("reward", "done", "terminated", "truncated", "is_init")


def torch_column(column: Any) -> Any:
    """A column over the same memory: a Ragged is a jagged nested tensor, a Blob stays one."""
    if isinstance(column, np.ndarray):
        return to_torch(column)
    return column if isinstance(column, Blob) else column.torch()


def torch_columns(columns: Sequence[Any], plain: bool) -> list[Any]:
    """All columns of a batch; `plain`: they are arrays."""
    return to_torch_all(columns) if plain else [torch_column(column) for column in columns]


def block_tensors(there: RaggedBlock, tensor: Any, shape: tuple[int, ...]) -> list[Any]:
    """All columns of a block, from the tensor that it has become on some device."""
    out = []
    for number, leaf in enumerate(there.layout.leaves):
        rows, dtype, start = there.columns.views[number]
        nbytes = math.prod(rows) * dtype.itemsize
        column = tensor[start : start + nbytes].view(torch_dtype(dtype))
        if leaf.kind == "ragged":
            start, nbytes = there.values_at(number)
            values = tensor[start : start + nbytes].view(torch_dtype(leaf.dtype))
            values = values.view((-1, *leaf.shape))
            out.append(jagged_tensor(values, column))
        elif leaf.ragged:
            out.append(there.column(number))  # bytes and text are no tensors
        else:
            out.append(column.view((*shape, *leaf.shape)))
    return out


def named_tensors(
    there: RaggedBlock, tensors: Sequence[Any], shape: tuple[int, ...]
) -> dict[tuple[str, ...], Any]:
    """Tensors by path, as TorchRL has them: rewards and flags with a trailing dim, a Blob as a
    NonTensorStack."""
    flat = {}
    for (name, ragged, trailing), tensor in zip(_names_of(there.layout), tensors):
        if ragged and len(shape) != 1:
            raise LayoutError(
                f"{show_path(name)}: rows of different lengths are flat, and this batch has "
                f"dims {list(shape)}; call .reshape(-1) first"
            )
        if isinstance(tensor, Blob):
            tensor = non_tensors(list(tensor))
        elif trailing:
            tensor = tensor.unsqueeze(-1)
        flat[name] = tensor
    return flat


def plain_tensors(layout: Layout, columns: Sequence[Any]) -> dict[tuple[str, ...], Any]:
    """`named_tensors` over the memory of arrays: none of them is of any size."""
    names = _names_of(layout)
    # numpy adds a dim in a fraction of the time that torch takes.
    arrays = [c[..., None] if trailing else c for (_, _, trailing), c in zip(names, columns)]
    return {name: x for (name, _, _), x in zip(names, to_torch_all(arrays))}


@functools.lru_cache(256)
def _names_of(layout: Layout) -> list[tuple[tuple[str, ...], bool, bool]]:
    """Of each leaf, its path as text, and whether it is of any size, or gets a trailing dim."""
    return [
        (
            tuple(str(key) for key in leaf.path),
            leaf.ragged,
            leaf.shape == () and not leaf.ragged and leaf.path[-1] in TRAILING_DIM,
        )
        for leaf in layout.leaves
    ]


def jax_tree(columns: Sequence[Any], layout: Layout, copy: bool) -> Any:
    """All columns of a batch as a tree of jax arrays, Nested if it is a mapping: a Ragged is
    (values, offsets), a Blob stays one."""
    leaves = zip(columns, layout.leaves)
    arrays = [_jax_column(column, leaf.path, copy) for column, leaf in leaves]
    return Nested.of(layout.build_tree(arrays))


# What cuts blocks of a layout and number of rows; None: they were seen once. That is compiled, so
# it is for those that come again.
_splitters: dict[tuple[str, int], BlockSplitter | None] = {}  # by fingerprint
_MOST_SPLITTERS = 256
_WORTH_SPLITTING = 1 << 18  # larger blocks are not copied at all, where jax computes with them


def split_to_jax(memory: Any, layout: Layout, rows: int) -> Any:
    """`jax_tree` of a block that nobody writes to any more, in one piece; None if that is not the
    best way."""
    key = (layout.fingerprint, rows)
    splitter = _splitters.get(key)
    if splitter is None:
        known = key in _splitters
        place = layout.block_columns(rows)
        if layout.ragged or not 0 < place.nbytes < _WORTH_SPLITTING:
            return None
        if len(_splitters) >= _MOST_SPLITTERS:
            _splitters.clear()
        _splitters[key] = None
        if not known or not BlockSplitter.takes(place.views):
            return None
        splitter = BlockSplitter(place.views, [leaf.path for leaf in layout.leaves])
        _splitters[key] = splitter
    return Nested.of(layout.build_tree(splitter(memory)))


def _jax_column(column: Any, path: Path, copy: bool) -> Any:
    if isinstance(column, Blob):
        return column
    if isinstance(column, Ragged):
        return to_jax(column.values, path, copy), to_jax(column.offsets, path, copy)
    return to_jax(column, path, copy)


def host_tree(columns: Sequence[Any], layout: Layout) -> Any:
    """All columns as a tree of numpy arrays, which jax takes for a batch: a Ragged, and the bytes
    of a Blob, are (values, offsets)."""
    if not layout.ragged:
        return layout.build_tree(columns)
    return layout.build_tree(
        [(x.values, x.offsets) if isinstance(x, Ragged) else x for x in columns]
    )


def one_row(value: Any, path: Path) -> Any:
    """The value of one row as a column."""
    if spec_of(value, path).kind != "fixed":
        return value if isinstance(value, Ragged) else Blob.of([value])
    return cast(as_array(value), leaf_spec(value, path)[1], path)[None]


def is_rows(key: Any) -> bool:
    """Whether a key of a batch means rows, and no path."""
    if isinstance(key, list):  # of keys it is a path
        return not any(isinstance(k, str) for k in key)
    return isinstance(key, (int, float, slice, range)) or hasattr(key, "dtype")


def row_index(key: Any) -> Any:
    """What numpy takes for some rows."""
    if isinstance(key, slice):
        return key
    index = as_array(key)
    if index.size == 0:
        return np.empty(0, np.int64)
    if index.dtype.kind not in "iu" and not (index.dtype.kind == "b" and index.ndim):
        raise IndexError(
            f"rows by {index.dtype}: expected whole numbers, a slice, or a boolean for each row"
        )
    return index if index.ndim else int(index)
