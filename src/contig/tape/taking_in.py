"""Rows of a checkpoint on their way onto a tape in memory: in the form that it stores them in, or
in the one that they have, and never all of them expanded beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..layout import Layout
from .asked import Asked
from .compact_rows import Compact, CompactRows, compacted
from .packed_bytes import Packed
from .recognition import ROWS_LOOKED_AT, columns_in
from .schema import Schema
from .sharing import Sharing
from .snapshot import Rows, Snapshot

__all__ = ["asked_for", "check_records", "put_rows", "rows_for"]


def asked_for(asked: Asked, layout: Layout, contents: Snapshot) -> Asked:
    """What a storage that has no rows yet asks for, if it takes these in: what was stored once is
    so here, unless the storage was told otherwise; and stacks are recognised, if there were none.
    """
    rows, tail = contents.rows, contents.tail
    if rows.sharing is not None:
        asked = asked.as_stored(layout, rows.sharing)
    first = rows.read(tail, min(tail + ROWS_LOOKED_AT, contents.head))
    return asked.looked_at(layout, columns_in(layout, first))


def rows_for(contents: Snapshot, schema: Schema, layout: Layout | None) -> Compact | Packed:
    """The rows, of this layout, for a tape with such a schema: whole records only if nothing is
    stored once on either side, or if they are mapped.

    Raises:
        ValueError: rows are damaged, or of another layout.
    """
    rows, span = contents.rows, (contents.tail, contents.head)
    sharing = _uncoded(schema.sharing) or _uncoded(rows.sharing)
    check_records(rows, schema, layout)
    if sharing is not None and isinstance(rows, CompactRows) and _uncoded(rows.sharing) == sharing:
        return rows.compact(*span)
    if sharing is None or (rows.mapped and rows.places is None):
        return _whole(rows, *span)
    return compacted(contents, schema.layout, sharing)


def check_records(rows: Rows, schema: Schema, layout: Layout | None) -> None:
    """Raises ValueError if rows of a checkpoint, of this layout, are not as a schema's. (Encoded
    rows and others may have records of the same size.)"""
    if layout is not None and layout != schema.layout:
        differs = schema.layout.diff(layout).replace("\n", "; ")
        raise ValueError(
            f"its rows are not stored as this storage was asked to store them: {differs}. Leave "
            "codecs= out to take them as they are, or read them elsewhere and extend this one"
        )
    if rows.record_size != schema.layout.record_size:
        raise ValueError(
            f"rows of {rows.record_size} bytes, and the storage's have "
            f"{schema.layout.record_size}: with the same leaves, they have other codecs"
        )


def _whole(rows: Rows, first: int, last: int) -> Packed:
    if rows.places is None:
        return Packed(rows.read(first, last), np.zeros(0, np.uint8))
    return rows.pack(first, last)


def _uncoded(sharing: Sharing | None) -> Sharing | None:
    return None if sharing is None else sharing._replace(codec=None)


def put_rows(tape: Any, rows: Compact | Packed, contents: Snapshot) -> None:
    """Fills a tape with them, in place of what it has."""
    bounds = (contents.tail, contents.head, *contents.numbered(), contents.trajectories)
    if isinstance(rows, Compact):
        tape.restore_compact(*rows[:3], *bounds, contents.fields, rows.blobs)
        return
    blobs = None if contents.rows.places is None else rows.blobs
    tape.restore(rows.records, *bounds, contents.fields, blobs)
