"""Batches of two buffers as one: rows of the first, then rows of the other."""

from __future__ import annotations

from ..batch import Batch
from ..errors import LayoutError
from ..sample import Rng
from ..tree import Path, show_path
from .record import FIELDS, MASK, Record

__all__ = ["join_batches", "share"]


def share(n: int, ratio: float, rng: Rng) -> int:
    """How many of n rows are demos; `n * ratio` on average, also where that is no whole number."""
    exact = n * ratio
    whole = int(exact + 1e-9)
    part = exact - whole
    if part > 1e-9 and rng.key() < part * 2.0**63:
        whole += 1
    return whole


def join_batches(online: Batch | None, record: Record, demo: Batch, demo_record: Record) -> Batch:
    """Rows of both, with the first one's fields. What demos lack must be optional, and is masked.

    Raises:
        LayoutError: a field of one that the other lacks or has in another form.
    """
    _check(record, demo_record)
    n = 0 if online is None else len(online)
    out = Batch.empty(record.layout, (n + len(demo),))
    for path in record.layout.by_path:
        column = out[path]
        if online is not None:
            column[:n] = online[path]
        if path in demo_record.layout.by_path:
            column[n:] = demo[path]
        elif path[0] == MASK:  # all demos have it, or none has
            column[n:] = all(p in demo_record.fields for p in record.optional[path[1:]])
        else:
            column[n:] = 0
    return out


def _check(online: Record, demo: Record) -> None:
    for path in {*online.fields, *demo.fields}:
        mine = online.layout.by_path.get((FIELDS, *path))
        theirs = demo.layout.by_path.get((FIELDS, *path))
        may_lack = _optional(online, path)
        if mine is None:
            raise LayoutError(
                f"{show_path(path)}: the demo buffer has it and this buffer does not; leave it out "
                f"there, or declare it here: optional={{{show_path(path)}: ShapeDtype(...)}}"
            )
        if theirs is None:
            if not may_lack:
                raise LayoutError(
                    f"{show_path(path)}: the demo buffer does not have it; if that is right, "
                    f"declare it here: optional=[{show_path(path)}]"
                )
        elif (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            raise LayoutError(
                f"{show_path(path)}: {theirs.describe()} in the demo buffer, {mine.describe()} here"
            )
        elif _optional(demo, path) != may_lack and _optional(demo, path) is not None:
            raise LayoutError(
                f"{show_path(path)}: optional in the demo buffer; declare it the same here"
            )


def _optional(record: Record, path: Path) -> Path | None:
    """The optional field that a leaf is part of."""
    return next((p for p, leaves in record.optional.items() if path in leaves), None)
