"""Rows as callers give them: how many there are, and a list of them as one tree of arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..batch import Batch
from ..convert import as_array, plain_tree, tensordict_shape
from ..errors import LayoutError
from ..tree import first_leaf, flatten, show_path, unflatten
from .schema import Schema

__all__ = ["count_rows", "stack_rows"]


def count_rows(data: Any, ndim: int) -> int:
    """How many rows there are by the batch dims of a Batch or TensorDict, else by the first `ndim`
    dims of one leaf: leaves that disagree are the layout's to refuse."""
    shape = data.shape if isinstance(data, Batch) else tensordict_shape(data)
    if shape is None:
        shape = np.shape(first_leaf(data))[:ndim]
    return math.prod(shape)


def stack_rows(data: Any, schema: Schema | None) -> Any:
    """A list of rows (TensorDicts, Batches, dicts) as a Batch; anything else as it is.

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
    return _stacked(data)


def _stacked(rows: Any) -> Batch:
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
            column.append(as_array(leaf))
    for path, column in zip(paths, columns):
        odd_one = next((i for i, x in enumerate(column) if x.shape != column[0].shape), None)
        if odd_one is not None:
            raise LayoutError(
                f"{show_path(path)}: shape {list(column[odd_one].shape)} in row {odd_one} of the "
                f"list, {list(column[0].shape)} in row 0"
            )
    stacked = unflatten(structure, (np.stack(column) for column in columns))
    return Batch.from_tree(stacked, 1 + len(trees[0][1]))


def _tree(row: Any) -> tuple[Any, tuple[int, ...]]:
    if isinstance(row, Batch):
        return row.stored(), row.shape
    tree, shape = plain_tree(row)
    return tree, shape or ()
