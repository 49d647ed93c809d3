"""Rows as callers give them: how many there are, and a list of them as one tree of arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from ..batch import Batch
from ..convert import as_array, is_tensor, plain_tree, stacked, tensordict_shape
from ..errors import LayoutError
from ..layout import Layout, Leaf, is_column, pair_of
from ..ragged import Ragged
from ..tree import Path, Structure, first_leaf, flatten, show_path, unflatten
from .schema import Schema

__all__ = ["batch_ndim_of", "count_rows", "lanes_of", "stack_rows"]

_MISSING: Any = object()


def count_rows(data: Any, ndim: int) -> int:
    """How many rows there are by the batch dims of a Batch or TensorDict, else by the first `ndim`
    dims of one leaf: leaves that disagree are the layout's to refuse."""
    shape = data.shape if isinstance(data, Batch) else tensordict_shape(data)
    if shape is None:
        leaf = _counting_leaf(data)
        shape = (len(leaf),) if isinstance(leaf, Ragged) else np.shape(leaf)[:ndim]
    return math.prod(shape)


def _counting_leaf(data: Any) -> Any:
    """One that has as many rows as there are: a list of bytes or text is a column, too."""
    leaf = first_leaf(data)
    if isinstance(leaf, (Ragged, bytes, str)) or not hasattr(leaf, "shape"):
        leaves = flatten(data, is_column)[1]
        leaf = next((x for x in leaves if hasattr(x, "shape")), leaves[0] if leaves else leaf)
    return leaf if not isinstance(leaf, list) else np.empty(_dims(leaf))


def _dims(column: Any) -> tuple[int, ...]:
    return (len(column), *_dims(column[0])) if isinstance(column, list) and column else ()


AsRows = Callable[[Any, int], Batch]  # a tree, and how many batch dims it has


def stack_rows(data: Any, schema: Schema | None, as_rows: AsRows | None = None) -> Any:
    """A list of rows (TensorDicts, Batches, dicts) as a Batch; anything else as it is.

    Args:
        as_rows: of a storage on a device, what makes the batch: tensors stay where they are.

    Raises:
        LayoutError: the rows differ, or they could also be one tree.
    """
    if type(data) not in (list, tuple) or not data:
        return data
    if schema is not None and schema.layout.structure.kind != "dict":
        return data  # its rows are lists or tuples themselves
    own = [isinstance(row, Batch) or plain_tree(row)[1] is not None for row in data]
    if not all(own):
        if any(own) or not all(isinstance(row, Mapping) for row in data):
            return data
        if schema is None:
            raise LayoutError(
                f"a list of {len(data)} dicts may be so many rows, or a tree of arrays. For rows, "
                "give one dict of stacked arrays, or the storage an example of a row; for a tree, "
                "give the storage an example of that"
            )
    return _stacked(data, schema, as_rows)


def _stacked(rows: Any, schema: Schema | None, as_rows: AsRows | None) -> Any:
    trees = [_tree(row) for row in rows]
    paths, _, structure = flatten(trees[0][0])
    columns: list[list[Any]] = [[] for _ in paths]
    for i, (tree, shape) in enumerate(trees):
        found, leaves, other = flatten(tree)
        if other != structure or shape != trees[0][1]:
            odd = sorted(set(found) ^ set(paths), key=str)
            what = show_path(odd[0]) if odd else f"batch shape {list(shape)}"
            raise LayoutError(f"row {i} of the list differs from row 0: {what}")
        for column, leaf in zip(columns, leaves):
            column.append(leaf)
    any_size = set() if schema is None else _any_size(schema, dict(zip(paths, columns)))
    if any_size:
        return _stacked_any_size(columns, paths, structure, any_size, trees[0][1], as_rows)
    columns = [_of_one_kind(column, as_rows is not None) for column in columns]
    for path, column in zip(paths, columns):
        odd_one = next((i for i, x in enumerate(column) if x.shape != column[0].shape), None)
        if odd_one is not None:
            raise LayoutError(
                f"{show_path(path)}: shape {list(column[odd_one].shape)} in row {odd_one} of the "
                f"list, {list(column[0].shape)} in row 0"
            )
    each = (_stack(column) for column in columns)
    return (as_rows or Batch.from_tree)(unflatten(structure, each), 1 + len(trees[0][1]))


def _any_size(schema: Schema, columns: dict[Path, list[Any]]) -> set[Path]:
    """Leaves of any size, and those with codecs whose rows come as bytes: an array of bytes would
    lose zeros at their ends."""
    given = (bytes, bytearray, memoryview, Ragged)
    return {
        x.path
        for x in schema.layout.leaves
        if x.ragged
        or (x.codec is not None and any(isinstance(v, given) for v in columns.get(x.path, ())))
    }


def _of_one_kind(column: list[Any], tensors: bool) -> list[Any]:
    """Leaves that can be stacked: arrays, or tensors of one device where those may stay."""
    if tensors and all(is_tensor(x) for x in column):
        if all(x.device == column[0].device and x.dtype == column[0].dtype for x in column):
            return column
    return [as_array(leaf) for leaf in column]


def _stack(column: list[Any]) -> Any:
    return stacked(column) if is_tensor(column[0]) else np.stack(column)


def _stacked_any_size(
    columns: list[list[Any]],
    paths: list[Path],
    structure: Structure,
    any_size: Collection[Path],
    shape: tuple[int, ...],
    as_rows: AsRows | None,
) -> Any:
    """The same of rows with leaves of any size: a tree, whose columns of those are lists."""
    if shape:
        raise LayoutError(
            f"a list of rows with leaves of any size: each is one row, got batch shape "
            f"{list(shape)}; give one Batch or TensorDict with all of them"
        )
    out: list[Any] = []
    for path, column in zip(paths, columns):
        if path in any_size:
            out.append([x[0] if isinstance(x, Ragged) else x for x in column])
        else:
            out.append(_stack(_of_one_kind(column, as_rows is not None)))
    return unflatten(structure, iter(out))


def _tree(row: Any) -> tuple[Any, tuple[int, ...]]:
    if isinstance(row, Batch):
        return row.stored(), row.shape
    tree, shape = plain_tree(row)
    return tree, shape or ()


def lanes_of(tree: Any, schema: Schema | None, ndim: int) -> tuple[int, ...]:
    """The dims of a plain tree's lanes: its batch dims but for time."""
    if ndim < 2:
        return ()
    dims: tuple[int, ...] | None
    if schema is not None:
        dims = _batch_dims(schema, tree, ndim)
    else:
        leaves, values = Layout.of_rows(tree).leaves, flatten(tree, is_column)[1]
        shapes = [np.shape(x) for x, leaf in zip(values, leaves) if not leaf.ragged]
        dims = min(shapes, key=len) if shapes else _dims(values[0])
    return () if dims is None else dims[:ndim][:-1]


def batch_ndim_of(schema: Schema, tree: Any, ndim: int) -> int:
    """Batch dims of a plain tree: fewer than the storage's are one run of rows."""
    dims = _batch_dims(schema, tree, ndim)
    return ndim if dims is None else len(dims)


def _batch_dims(schema: Schema, tree: Any, ndim: int) -> tuple[int, ...] | None:
    """Those of the leaf that tells best, of a fixed size if there is one; None if there is no leaf:
    the layout's own check words the error."""
    leaf: Leaf = schema.first_leaf
    value = _value_at(tree, leaf.path)
    if value is _MISSING or value is None:  # a flag that may be left out, or by mistake
        others = sorted(schema.layout.leaves, key=lambda x: (x.ragged, x.variable))
        found = ((x, _value_at(tree, x.path)) for x in others)
        there = (x for x in found if x[1] is not _MISSING and x[1] is not None)
        leaf, value = next(there, (leaf, _MISSING))
        if value is _MISSING:
            return None
    dims = _dims_of(leaf, value)
    if not 1 <= len(dims) <= ndim:
        raise LayoutError(
            f"{show_path(leaf.path)}: {len(dims)} batch dims, expected 1 to {ndim} (the storage's "
            f"ndim) before a row's shape {list(leaf.shape)}"
            + ("; use add for a single row" if not dims else "")
        )
    return dims


def _value_at(tree: Any, path: Path) -> Any:
    try:
        for key in path:
            tree = getattr(tree, str(key)) if hasattr(tree, "_fields") else tree[key]
    except (KeyError, IndexError, TypeError, AttributeError):
        return _MISSING
    return tree


def _dims_of(leaf: Leaf, value: Any) -> tuple[int, ...]:
    """A leaf's dims before those of one row. A flat column only knows how many rows there are."""
    if getattr(value, "is_nested", False) or (leaf.kind == "ragged" and pair_of(value)):
        return (1,)  # nobody asks how long one run is; where it does not fit, the layout says so
    if not leaf.variable:
        shape: tuple[int, ...] = np.shape(value)
        return shape[: max(len(shape) - len(leaf.shape), 0)]
    if isinstance(value, Ragged):
        return (len(value),)
    dims: tuple[int, ...] = ()
    while isinstance(value, (list, tuple)):
        dims = (*dims, len(value))
        # An empty row does not say how deep the others are.
        empty = value[0] if value else None
        value = next((x for x in value if not isinstance(x, (list, tuple)) or x), empty)
    if value is None:
        return dims[: max(len(dims) - 1, 1)] if leaf.kind == "ragged" else dims
    if leaf.kind == "ragged":
        dims, row = (*dims, *np.shape(value)), 1 + len(leaf.shape)
        return dims[: max(len(dims) - row, 0)]
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        return (*dims, *value.shape)
    if leaf.ragged or isinstance(value, (bytes, bytearray, memoryview)):
        return dims
    dims = (*dims, *np.shape(value))
    return dims[: max(len(dims) - len(leaf.shape), 0)]
