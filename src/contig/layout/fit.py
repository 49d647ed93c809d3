"""Data fitted to a layout's leaves: arrays in their order, or an error that says what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..convert import as_array, cast
from ..errors import LayoutError
from ..tree import Path, Structure, flatten, show_path
from .leaf import Leaf

__all__ = ["difference", "find_leaves", "fit_arrays"]


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
    paths, values, containers = flatten(tree)
    given = dict(zip(paths, values))
    missing = [p for p in known if p not in given and p not in optional]
    surplus = [p for p in given if p not in known]
    if missing or surplus:
        raise LayoutError(_structure_error(known, missing, surplus))
    if not optional and containers != structure:
        raise LayoutError(
            "the tree has the right leaves in other containers: expected "
            f"{structure.kind} where a {containers.kind} came"
            if containers.kind != structure.kind
            else "the tree has the right leaves in other containers than the layout"
        )
    return [given.get(path) for path in known]


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
) -> tuple[list[np.ndarray[Any, Any] | None], tuple[int, ...]]:
    """Contiguous arrays ``[*batch, *leaf.shape]``, checked and cast, and the batch dims.

    Args:
        found: one value per leaf; None stays None.
    """
    batch: tuple[int, ...] | None = None
    first: Path = ()
    out: list[np.ndarray[Any, Any] | None] = []
    for leaf, value in zip(leaves, found):
        if value is None:
            out.append(None)
            continue
        array = as_array(value, leaf.path)
        lead = array.shape[:batch_ndim]
        if array.shape[batch_ndim:] != leaf.shape or len(lead) != batch_ndim:
            dims = ["n"] * batch_ndim + [str(n) for n in leaf.shape]
            raise LayoutError(
                f"{show_path(leaf.path)}: shape {list(array.shape)}, expected "
                f"[{', '.join(dims)}]; nothing is broadcast: reshape the data"
            )
        if batch is None:
            batch, first = lead, leaf.path
        elif lead != batch:
            raise LayoutError(
                f"{show_path(leaf.path)}: {list(lead)} rows, but {show_path(first)} has "
                f"{list(batch)}; all leaves need the same leading dims"
            )
        out.append(np.ascontiguousarray(cast(array, leaf.dtype, leaf.path)))
    assert batch is not None
    return out, batch
