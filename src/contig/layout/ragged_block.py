"""Leaves of any size in a batch's block: offsets among its columns, values behind all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..ragged import Blob, Ragged
from .columns import Columns, round_column
from .layout import Layout
from .leaf import RAGGED, TEXT, Leaf

__all__ = ["RaggedBlock", "block_of", "columns_of_records", "ragged_column"]

Array = np.ndarray[Any, Any]


class RaggedBlock(NamedTuple):
    """A block, as far as it has leaves of any size."""

    layout: Layout
    columns: Columns
    block: Any

    def offsets(self, number: int) -> Array:
        shape, dtype, offset = self.columns.views[number]
        return np.ndarray(shape, dtype, self.block, offset)

    def values_at(self, number: int) -> tuple[int, int]:
        """Where the values of a leaf are in the block, and how many bytes."""
        at = self.columns.nbytes
        for i in self.layout.ragged:
            nbytes = int(self.offsets(i)[-1]) * self.layout.leaves[i].element_bytes
            if i == number:
                return at, nbytes
            at += round_column(nbytes)
        raise KeyError(number)

    def sealed(self) -> Array:
        """All bytes, with zeros between columns, where memory is as it was found. Memory that
        cannot be written to came from somebody who has done that."""
        block = np.frombuffer(self.block, np.uint8)
        if not block.flags.writeable:
            return block
        parts = [(at, math.prod(shape) * dtype.itemsize) for shape, dtype, at in self.columns.views]
        parts += [self.values_at(i) for i in self.layout.ragged]
        for (at, nbytes), (after, _) in pairwise([*parts, (len(block), 0)]):
            block[at + nbytes : after] = 0
        return block

    def column(self, number: int) -> Ragged:
        leaf = self.layout.leaves[number]
        offsets = self.offsets(number)
        shape = (int(offsets[-1]), *leaf.shape)
        if not shape[0]:  # there may be no byte behind the columns then
            return ragged_column(leaf, np.empty(shape, leaf.dtype), offsets)
        start, _ = self.values_at(number)
        return ragged_column(leaf, np.ndarray(shape, leaf.dtype, self.block, start), offsets)


def ragged_column(leaf: Leaf, values: Array, offsets: Array) -> Ragged:
    """A column of a leaf of any size."""
    if leaf.kind == RAGGED:
        return Ragged(values, offsets)
    return Blob(values, offsets, text=leaf.kind == TEXT)


def block_of(layout: Layout, rows: int, columns: Sequence[Any]) -> Any:
    """A block whose leaves of any size are copies of some columns; the others are not set."""
    places = layout.block_columns(rows)
    packed = {i: columns[i].packed() for i in layout.ragged}
    nbytes = places.nbytes + sum(round_column(x.values.nbytes) for x in packed.values())
    out = RaggedBlock(layout, places, _native.Block(nbytes))
    for i, column in packed.items():
        out.offsets(i)[...] = column.offsets
    for i, column in packed.items():
        out.column(i).values[...] = column.values
    return out.block


def columns_of_records(layout: Layout, records: Array, blobs: Array) -> list[Any]:
    """The columns of packed rows ``[n, record_size]`` with the bytes that they refer to."""
    columns: list[Any] = []
    for leaf in layout.leaves:
        field = np.ascontiguousarray(records[:, leaf.offset : leaf.offset + leaf.nbytes])
        if not leaf.ragged:
            columns.append(field.view(leaf.dtype).reshape(len(records), *leaf.shape))
            continue
        places = field.view(np.int64).reshape(-1, 2)
        parts = [np.empty(0, np.uint8), *(blobs[at : at + size] for at, size in places)]
        values = np.concatenate(parts).view(leaf.dtype).reshape(-1, *leaf.shape)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(places[:, 1])])
        columns.append(ragged_column(leaf, values, offsets // leaf.element_bytes))
    return columns
