"""The columns of a batch's block: where they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .leaf import Leaf

__all__ = ["Columns"]

_ALIGN = 64  # columns start at multiples of this


class Columns(NamedTuple):
    """A block's columns.

    Attributes:
        views: (shape, dtype, offset) of each leaf.
        nbytes: the block's size.
        fields: the whole block as one structure, or None where numpy cannot have one.
        names: of its fields, one per leaf.
    """

    views: list[tuple[tuple[int, ...], np.dtype[Any], int]]
    nbytes: int
    fields: np.dtype[Any] | None
    names: tuple[str, ...]

    @staticmethod
    def of(leaves: tuple[Leaf, ...], n: int) -> Columns:
        """Those of n rows."""
        views, nbytes = [], 0
        for leaf in leaves:
            views.append(((n, *leaf.shape), leaf.dtype, nbytes))
            nbytes += -(-leaf.nbytes * n // _ALIGN) * _ALIGN
        names = tuple(f"{i}" for i in range(len(views)))
        fields = None
        if 0 < nbytes < 2**31:
            formats = [(dtype, shape) for shape, dtype, _ in views]
            offsets = [at for _, _, at in views]
            spec = {"names": names, "formats": formats, "offsets": offsets, "itemsize": nbytes}
            fields = np.dtype(spec)  # type: ignore[call-overload]
        return Columns(views, nbytes, fields, names)
