"""The columns of a batch's block: where they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .leaf import Leaf

__all__ = ["Columns", "round_column"]

_ALIGN = 64  # columns start at multiples of this
_OFFSETS = np.dtype(np.int64)


def round_column(nbytes: int) -> int:
    """Where the next column can start behind so many bytes."""
    return -(-nbytes // _ALIGN) * _ALIGN


class Columns(NamedTuple):
    """A block's columns.

    The column of a leaf of any size has its offsets: one more than rows, in elements. Its values
    are behind all columns, each leaf's at the next multiple of 64 bytes, in their order.

    Attributes:
        views: (shape, dtype, offset) of each leaf.
        nbytes: the block's size, without the values of leaves of any size.
        arrays: makes arrays of all columns of a block.
    """

    views: list[tuple[tuple[int, ...], np.dtype[Any], int]]
    nbytes: int
    arrays: _native.ColumnArrays

    @staticmethod
    def of(leaves: tuple[Leaf, ...], n: int) -> Columns:
        """Those of n rows."""
        views: list[tuple[tuple[int, ...], np.dtype[Any], int]] = []
        nbytes = 0
        for leaf in leaves:
            if leaf.ragged:
                views.append(((n + 1,), _OFFSETS, nbytes))
                nbytes += round_column(_OFFSETS.itemsize * (n + 1))
            else:
                views.append(((n, *leaf.shape), leaf.dtype, nbytes))
                nbytes += round_column(leaf.element_bytes * n)
        return Columns(views, nbytes, _native.ColumnArrays(views))
