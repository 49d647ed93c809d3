"""Rows as a tape stores them: observations once, in slots that rows refer to by number.

rows    [ references | leaves that stay ]  one behind another     native/tape/compact_rows.h
slots   [ observation, of a stack one frame ]  one behind another
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..layout import Layout
from .packed_bytes import Packed, RecordPlaces
from .sharing import Sharing
from .snapshot import Array, Rows, Snapshot

__all__ = ["Compact", "CompactRows", "compacted", "stored_places"]


class Compact(NamedTuple):
    """Compact rows in memory.

    Attributes:
        form: which leaves are where.
        rows: packed one after another.
        slots: all that they refer to, and perhaps others.
        blobs: bytes of leaves of any size, in packed order; None: there are none.
    """

    form: Any
    rows: Array
    slots: Array
    blobs: Array | None


class CompactRows(Rows):
    """Rows whose slots are all at hand.

    Args:
        stored: compact rows by seq: their `record_size` is that of the form, and their `places`
            are those of `stored_places`.
        slots: packed one after another, in the order of their numbers.
        layout: of whole records.
        sharing: which leaves are in slots.
    """

    def __init__(self, stored: Rows, slots: Array, layout: Layout, sharing: Sharing) -> None:
        self.sharing, self._layout = sharing, layout
        self._stored, self._slots, self._form = stored, slots, sharing.native(layout)
        self.record_size = layout.record_size
        if stored.places is not None:
            self.places = RecordPlaces(layout.record_size, layout.blob_offsets)

    def read(self, first: int, last: int) -> Array:
        return self._expanded(self._stored.read(first, last))

    def pack(self, first: int, last: int) -> Packed:
        packed = self._stored.pack(first, last)
        return Packed(self._expanded(packed.records), packed.blobs)

    def _expanded(self, rows: Array) -> Array:
        out = np.empty(len(rows) // int(self._form.row_bytes) * self.record_size, np.uint8)
        _native.expand_compact(self._form, rows, self._slots, self.record_size, out)
        return out

    def some(self, starts: Array, counts: Array) -> Rows:
        assert self.sharing is not None
        return CompactRows(
            self._stored.some(starts, counts), self._slots, self._layout, self.sharing
        )

    def compact(self, first: int, last: int) -> Compact:
        """Rows [first, last), as they are."""
        if self.places is None:
            return Compact(self._form, self._stored.read(first, last), self._slots, None)
        packed = self._stored.pack(first, last)
        return Compact(self._form, packed.records, self._slots, packed.blobs)


def stored_places(layout: Layout, form: Any) -> RecordPlaces | None:
    """Where compact rows have the places of leaves of any size, if there are any."""
    if not layout.variable:
        return None
    return RecordPlaces(
        int(form.row_bytes), tuple(int(form.stored(x)) for x in layout.blob_offsets)
    )


def compacted(contents: Snapshot, layout: Layout, sharing: Sharing) -> Compact:
    """The rows of a checkpoint made compact, a piece at a time: it takes no more memory than what
    comes out, and a piece.

    Raises:
        ValueError: rows are damaged, or of another layout.
    """
    rows, first, last = contents.rows, contents.tail, contents.head
    form = sharing.native(layout)
    compactor, size = _native.Compactor(form, rows.record_size), int(form.row_bytes)
    out = np.empty((last - first) * size, np.uint8)
    blobs: list[Array] = []
    base = 0
    for low, high in rows.spans(first, last):
        if rows.places is None:
            records = rows.read(low, high)
        else:
            packed = rows.pack(low, high)
            records = rows.places.moved(packed.records, base)
            blobs.append(packed.blobs)
            base += len(packed.blobs)
        room = out[(low - first) * size : (high - first) * size]
        compactor.add(records, contents.parts(low, high), room)
    joined = None if rows.places is None else np.concatenate([np.zeros(0, np.uint8), *blobs])
    return Compact(form, out, compactor.slots, joined)
