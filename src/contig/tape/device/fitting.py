"""Which leaves of a row are marks and which are on the device; and data taken apart accordingly.

Leaves of any size, and those with codecs, are with the marks: their bytes are in the tape's ring,
where they are encoded and decoded.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np

from ...codecs import codec_of
from ...convert import Place, fits_unseen, is_tensor, torch_dtype
from ...errors import LayoutError
from ...keys import NEXT
from ...layout import Encoded, Layout, ShapeDtype
from ...layout.fit import agreed_dims, fit_arrays
from ...layout.fit_encoded import check_shape
from ...layout.leaf import Leaf, place_leaves
from ...tree import Path, nested, show_path
from ..schema import Schema

__all__ = ["HIDDEN", "Parts", "Rows", "check_leaves", "fit", "mark_paths"]

# In the records of the host, where nothing else of them has a fixed size: it tells the tape which
# batch dims rows have, and batches have a column on the host. Nobody gets to see it.
HIDDEN: Path = ("contig.row",)


class Parts(NamedTuple):
    """The leaves of a row, in two parts.

    Attributes:
        marks: the layout of those in host memory: all that the index and the samplers look at, and
            leaves of any size.
        others: those on the device, at their places in its records.
        record: bytes of such a record.
        after: those of them that say what a step led to.
        coded: those in host memory that have codecs: decoded, they go to the device.
    """

    marks: Layout
    others: dict[Path, Place]
    record: int
    after: frozenset[Path]
    coded: frozenset[Path]

    @staticmethod
    def of(schema: Schema) -> Parts:
        """Those of a storage's rows."""
        paths = mark_paths(schema)
        mine = [x for x in schema.layout.leaves if x.path in paths or x.variable]
        example: dict[Path, Any] = {x.path: x.example() for x in mine}
        coded = {x.path: codec_of(x.codec) for x in mine if x.codec is not None}
        there = [x.spec for x in schema.layout.leaves if x.path not in example]
        if all(x.variable for x in mine) and () not in example:  # a bare leaf is the whole row
            example[HIDDEN] = ShapeDtype((), np.uint8)
        marks = Layout(nested(example)).with_codecs(coded)
        placed, record = place_leaves(there)
        others = {x.path: Place(x.shape, x.dtype, x.offset, x.nbytes) for x in placed}
        after = frozenset(p for p in others if p[:1] == NEXT)
        return Parts(marks, others, record, after, frozenset(coded))


def mark_paths(schema: Schema) -> frozenset[Path]:
    """Leaves that say where trajectories begin and end, and what they return."""
    told = schema.boundaries
    paths = (told.id, told.done, told.init, told.version, told.reward, *schema.flag_paths)
    return frozenset(path for path in paths if path in schema.layout.by_path)


def check_leaves(layout: Layout) -> None:
    """Raises LayoutError unless torch knows these leaves."""
    for leaf in layout.leaves:
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
        columns: ``[*batch, ...]`` each; of leaves of any size, flat columns of all rows; flags that
            are not given are not there.
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
    cast as any storage does it (so are marks, when they have come over), and encoded where a leaf
    has a codec.

    Raises:
        LayoutError: it does not fit.
    """
    layout, optional = schema.layout, schema.flag_paths
    found = layout.values(tree, optional)
    columns: dict[Path, Any] = {}
    batch: tuple[int, ...] | None = None
    first: Path = ()
    flat: list[tuple[Path, int]] = []  # columns that have no batch dims of their own
    for leaf, value in zip(layout.leaves, found):
        if value is None:
            continue
        column, lead = _fitted(leaf, device, value, batch_ndim, leaf.path in marks)
        columns[leaf.path] = column
        if len(lead) != batch_ndim:
            flat.append((leaf.path, lead[0]))
        elif batch is None:
            batch, first = lead, leaf.path
        elif lead != batch:
            raise LayoutError(
                f"{show_path(leaf.path)}: {list(lead)} rows, but {show_path(first)} has "
                f"{list(batch)}; all leaves need the same leading dims"
            )
    batch = agreed_dims(batch, first, flat)
    if batch_ndim == 0:
        one = {p: _one_row(layout.by_path[p], c) for p, c in columns.items()}
        return Rows(one, (1,))
    return Rows(columns, batch)


def _one_row(leaf: Leaf, column: Any) -> Any:
    if leaf.codec is not None:
        return Encoded(column, (1,))
    return column if leaf.variable else column.reshape((1, *leaf.shape))


def _fitted(
    leaf: Leaf, device: Any, value: Any, batch_ndim: int, mark: bool
) -> tuple[Any, tuple[int, ...]]:
    """A column, and its batch dims, or how many rows it has if it is flat."""
    if (
        not leaf.variable
        and is_tensor(value)
        and (value.device == device or "cpu" not in (device.type, value.device.type))
    ):
        column = _on_device(leaf, device, value, batch_ndim, mark)
        return column, tuple(column.shape[:batch_ndim])
    (column,), lead = fit_arrays([leaf], [value], batch_ndim)
    if leaf.codec is not None:  # so that nobody encodes it again
        column = Encoded(column, lead if len(lead) == batch_ndim else None)
    return column, lead


def _on_device(leaf: Leaf, device: Any, value: Any, batch_ndim: int, mark: bool) -> Any:
    check_shape(leaf, value, batch_ndim)
    wanted = torch_dtype(leaf.dtype)
    if value.dtype == wanted or (mark and device.type != "cpu"):
        return value.detach().to(device)
    if device.type == "cpu":
        (column,), _ = fit_arrays([leaf], [value], batch_ndim)
        return column
    if not fits_unseen(value.dtype, wanted):
        raise LayoutError(
            f"{show_path(leaf.path)}: {value.dtype} as {wanted} may change values, and to "
            "look at them would be to wait for the device; convert the data first"
        )
    return value.detach().to(device, wanted)
