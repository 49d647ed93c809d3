"""Which leaves of a row are marks and which are on the device; and data taken apart accordingly."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np

from ...convert import Place, fits_unseen, is_tensor, torch_dtype
from ...errors import LayoutError
from ...keys import NEXT
from ...layout import Layout, LeafSpec, ShapeDtype
from ...layout.fit import find_leaves, fit_arrays
from ...layout.fit_encoded import check_shape
from ...layout.leaf import Leaf, place_leaves
from ...tree import Path, nested, show_path
from ..schema import Schema

__all__ = ["HIDDEN", "Parts", "Rows", "check_leaves", "fit", "mark_paths"]

# In the records of the host, where rows have no marks at all. Nobody gets to see it.
HIDDEN: Path = ("contig.row",)


class Parts(NamedTuple):
    """The leaves of a row, in two parts.

    Attributes:
        marks: the layout of those in host memory: all that the index and the samplers look at.
        others: those on the device, at their places in its records.
        record: bytes of such a record.
        after: those of them that say what a step led to.
    """

    marks: Layout
    others: dict[Path, Place]
    record: int
    after: frozenset[Path]

    @staticmethod
    def of(schema: Schema) -> Parts:
        """Those of a storage's rows."""
        paths = mark_paths(schema)
        specs = [x.spec for x in schema.layout.leaves if x.path in paths]
        hidden = [LeafSpec(HIDDEN, (), np.dtype(np.uint8))]
        marks = Layout(nested({x.path: ShapeDtype(x.shape, x.dtype) for x in specs or hidden}))
        placed, record = place_leaves([x.spec for x in schema.layout.leaves if x.path not in paths])
        others = {x.path: Place(x.shape, x.dtype, x.offset, x.nbytes) for x in placed}
        return Parts(marks, others, record, frozenset(p for p in others if p[:1] == NEXT))


def mark_paths(schema: Schema) -> frozenset[Path]:
    """Leaves that say where trajectories begin and end, and what they return."""
    told = schema.boundaries
    paths = (told.id, told.done, told.init, told.version, told.reward, *schema.flag_paths)
    return frozenset(path for path in paths if path in schema.layout.by_path)


def check_leaves(layout: Layout) -> None:
    """Raises LayoutError unless a device can have these leaves."""
    for leaf in layout.leaves:
        if leaf.variable:
            raise LayoutError(
                f"{show_path(leaf.path)}: {leaf.describe()}, but a DeviceStorage has leaves of "
                "fixed size only; pad it, or use LazyTensorStorage"
            )
        try:
            torch_dtype(leaf.dtype)
        except TypeError as error:
            raise LayoutError(
                f"{show_path(leaf.path)}: torch has no {leaf.dtype}; convert the data, or use "
                "LazyTensorStorage"
            ) from error


class Rows(NamedTuple):
    """Data that fits: columns by path, arrays of the host or tensors of the device.

    Attributes:
        columns: ``[*batch, ...]`` each; flags that are not given are not there.
        batch: dims.
    """

    columns: dict[Path, Any]
    batch: tuple[int, ...]

    @property
    def rows(self) -> int:
        return math.prod(self.batch)

    def flat(self, path: Path) -> Any:
        """A column ``[rows, ...]``."""
        column = self.columns[path]
        return column.reshape((self.rows, *column.shape[len(self.batch) :]))


def fit(schema: Schema, device: Any, tree: Any, batch_ndim: int, marks: Container[Path]) -> Rows:
    """Data taken apart. Tensors of the device stay where they are; everything else is checked and
    cast as any storage does it. (So are marks, when they have come over.)

    Raises:
        LayoutError: it does not fit.
    """
    layout, optional = schema.layout, schema.flag_paths
    found = layout.structure.pick(tree)
    if found is None:
        found = find_leaves(layout.structure, layout.by_path, tree, optional)
    columns: dict[Path, Any] = {}
    batch: tuple[int, ...] | None = None
    first: Path = ()
    for leaf, value in zip(layout.leaves, found):
        if value is None:
            continue
        column = _fitted(leaf, device, value, batch_ndim, leaf.path in marks)
        lead = tuple(column.shape[:batch_ndim])
        if batch is None:
            batch, first = lead, leaf.path
        elif lead != batch:
            raise LayoutError(
                f"{show_path(leaf.path)}: {list(lead)} rows, but {show_path(first)} has "
                f"{list(batch)}; all leaves need the same leading dims"
            )
        columns[leaf.path] = column
    assert batch is not None
    if batch_ndim == 0:
        one = {p: c.reshape((1, *layout.by_path[p].shape)) for p, c in columns.items()}
        return Rows(one, (1,))
    return Rows(columns, batch)


def _fitted(leaf: Leaf, device: Any, value: Any, batch_ndim: int, mark: bool) -> Any:
    if is_tensor(value) and (
        value.device == device or "cpu" not in (device.type, value.device.type)
    ):
        check_shape(leaf, value, batch_ndim)
        wanted = torch_dtype(leaf.dtype)
        if value.dtype == wanted or (mark and device.type != "cpu"):
            return value.detach().to(device)
        if device.type != "cpu":
            if not fits_unseen(value.dtype, wanted):
                raise LayoutError(
                    f"{show_path(leaf.path)}: {value.dtype} as {wanted} may change values, and to "
                    "look at them would be to wait for the device; convert the data first"
                )
            return value.detach().to(device, wanted)
    (array,), _ = fit_arrays([leaf], [value], batch_ndim)
    return array
