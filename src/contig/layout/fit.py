"""Data fitted to a layout's leaves: arrays in their order, or an error that says what differs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..convert import as_array, cast
from ..errors import LayoutError
from ..tree import Path, Structure, flatten, show_path
from .fit_encoded import check_shape, fit_encoded
from .fit_ragged import fit_ragged, is_column
from .leaf import FIXED, Leaf
from .mistakes import mistake_in

__all__ = ["agreed_dims", "difference", "find_leaves", "fit_arrays"]

_BOOL = np.dtype(bool)


def difference(mine: Mapping[Path, Leaf], theirs: Mapping[Path, Leaf]) -> str:
    """What a person must change in their leaves to get mine; empty if nothing."""
    lines = []
    for path, leaf in mine.items():
        other = theirs.get(path)
        if other is None:
            # A bare array has the empty path, which is like no other.
            near = [p for p in theirs if path and p[-1:] == path[-1:]]
            hint = f" (there is {show_path(near[0])}: renamed or nested?)" if near else ""
            lines.append(f"{show_path(path)}: missing, expected {leaf.describe()}{hint}")
            continue
        if (other.kind, other.codec_kind) != (leaf.kind, leaf.codec_kind):
            lines.append(f"{show_path(path)}: {other.describe()}, expected {leaf.describe()}")
            continue
        if other.shape != leaf.shape:
            lines.append(
                f"{show_path(path)}: shape {list(other.shape)}, expected {list(leaf.shape)}"
            )
        if other.dtype != leaf.dtype:
            lines.append(f"{show_path(path)}: dtype {other.dtype.name}, expected {leaf.dtype.name}")
    lines += [
        f"{show_path(p)}: not expected ({x.describe()}); leave it out"
        for p, x in theirs.items()
        if p not in mine
    ]
    return "\n".join(lines)


def find_leaves(
    structure: Structure, known: Mapping[Path, Leaf], tree: Any, optional: frozenset[Path]
) -> list[Any]:
    """The leaves of any tree, in order; None where an optional one is missing."""
    paths, values, containers = flatten(tree, lambda node: _is_column(node, known))
    given = dict(zip(paths, values))
    missing = [p for p in known if p not in given and p not in optional]
    surplus = [p for p in given if p not in known]
    if missing or surplus:
        mistake = mistake_in(tree, missing, surplus, known)
        raise LayoutError(mistake or _structure_error(known, missing, surplus))
    if not optional and containers != structure:
        raise LayoutError(
            "the tree has the right leaves in other containers: expected "
            f"{structure.kind} where a {containers.kind} came"
            if containers.kind != structure.kind
            else "the tree has the right leaves in other containers than the layout"
        )
    return [given.get(path) for path in known]


def _is_column(node: Any, known: Mapping[Path, Leaf]) -> bool:
    """Whether a list is rows of a leaf of any size, and no container."""
    if is_column(node):
        return True
    if type(node) is not list or not any(leaf.variable for leaf in known.values()):
        return False
    return not any(isinstance(item, (dict, list, tuple)) for item in node)


def _structure_error(known: Iterable[Path], missing: list[Path], surplus: list[Path]) -> str:
    parts = []
    if missing:
        parts.append("missing " + ", ".join(show_path(p) for p in missing))
    if surplus:
        parts.append("unexpected " + ", ".join(show_path(p) for p in surplus))
    listed = ", ".join(show_path(p) for p in known)
    return f"the data does not fit the layout: {'; '.join(parts)}. The layout has {listed}"


def fit_arrays(
    leaves: Iterable[Leaf], found: list[Any], batch_ndim: int
) -> tuple[list[Any], tuple[int, ...]]:
    """Contiguous arrays ``[*batch, *leaf.shape]``, checked and cast, and the batch dims. Of a leaf
    of any size, a flat column of all rows: a Ragged; of one with a codec, of its encoded rows.

    Args:
        found: one value per leaf; None stays None.
    """
    batch: tuple[int, ...] | None = None
    first: Path = ()
    flat: list[tuple[Path, int]] = []  # columns that have no batch dims of their own
    out: list[Any] = []
    for leaf, value in zip(leaves, found):
        if value is None:
            out.append(None)
            continue
        variable = leaf.kind != FIXED or leaf.codec is not None
        if variable:
            fit = fit_ragged if leaf.codec is None else fit_encoded
            column, rows = fit(leaf, value, batch_ndim)
            out.append(column)
            if rows is None:
                flat.append((leaf.path, len(column)))
                continue
            lead = rows
        else:
            array = as_array(value, leaf.path)
            out.append(array)
            lead = array.shape[:batch_ndim]
            if array.shape[batch_ndim:] != leaf.shape or len(lead) < batch_ndim:
                check_shape(leaf, array, batch_ndim)
        if batch is None:
            batch, first = lead, leaf.path
        elif lead != batch:
            raise LayoutError(
                f"{show_path(leaf.path)}: {list(lead)} rows, but {show_path(first)} has "
                f"{list(batch)}; all leaves need the same leading dims"
            )
        if not variable:
            if array.dtype is not leaf.dtype or array.dtype is _BOOL:
                array = cast(array, leaf.dtype, leaf.path)
            out[-1] = np.ascontiguousarray(array)
    return out, agreed_dims(batch, first, flat)


def agreed_dims(
    batch: tuple[int, ...] | None, first: Path, flat: list[tuple[Path, int]]
) -> tuple[int, ...]:
    """The batch dims of columns, if flat ones have as many rows as they say.

    Args:
        batch: of those that have some, the `first` for one; None: there are none.
        flat: paths of the others, and how many rows they have.
    """
    if batch is None:  # there are flat columns only
        first, rows = flat[0]
        batch = (rows,)
    for path, rows in flat:
        if rows != math.prod(batch):
            raise LayoutError(
                f"{show_path(path)}: {rows} rows, but {show_path(first)} has {list(batch)}; all "
                "leaves need the same number of rows"
            )
    return batch
