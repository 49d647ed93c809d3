"""Draws that native code does in the same call as the gather, with the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..tape import Recipe, Wide
from .draw import Draw
from .index import Index

__all__ = ["UniformRows", "UniformSlices"]


class UniformRows(NamedTuple):
    """Rows, each alike, as they are or with those that follow folded into them.

    Attributes:
        recipe: how following rows are folded in; None: they are not.
    """

    recipe: Recipe | None = None


class UniformSlices(NamedTuple):
    """Slices of trajectories, and their marks.

    Attributes:
        form: a draw of no slices, which has the leaves that are added.
        check: raises NothingEligibleError if nobody knows where trajectories end.
        spec: the native form of what a valid slice of so many rows is.
        marks: which columns of a batch are marked, see `SliceMarks.columns_in`.
    """

    form: Draw
    check: Callable[[Index], None]
    spec: Callable[[int], Any]
    marks: Callable[[Wide], tuple[Any, ...] | None]
