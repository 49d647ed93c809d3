"""Rows of a checkpoint that are in extent files: hard links to those of the storage.

Complete files are linked; the start of the one that still grows is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...layout import Layout
from ..packed_bytes import Packed, RecordPlaces
from ..snapshot import Array, Rows
from . import files
from .changes import Salts
from .extents import Extents
from .linked_bytes import LinkedBytes, link_or_copy
from .stored_slots import StoredSlots

__all__ = ["LinkedRows", "SlotPart", "link_extents"]

_PIECE_BYTES = 16 << 20  # that are looked at together
_EXPANDED_BYTES = 64 << 20


def link_extents(extents: Extents, folder: Path, first: int, head: int) -> None:
    """Rows [first, head) in a folder; none of them may be deleted meanwhile."""
    files.make_dir(folder)
    for extent in range(first // extents.rows, head // extents.rows):
        if files.exists(extents.path(extent)):
            link_or_copy(extents.path(extent), folder / extents.path(extent).name)
    extent, rest = divmod(head, extents.rows)
    if rest and first < head and files.exists(extents.path(extent)):
        # It still grows.
        start = files.read_part(extents.path(extent), rest * extents.stride, 0)
        files.write_new(folder / extents.path(extent).name, start)
    files.fsync_dir(folder)


class SlotPart(NamedTuple):
    """Rows as they are in a file, the first with this seq; and the bytes of observations that they
    refer to, from a position on."""

    first: int
    stored: Array
    blobs: Array
    base: int


class LinkedRows(Rows):
    """Rows in ``NNNNNNNN.rec`` of a folder.

    Args:
        folder: where they are.
        layout: what a record is.
        stride: bytes from one row to the next.
        rows_per_extent: rows of a file.
        salts: what the rows' checksums begin with, from a seq on; see `changes.Salts`.
        blobs: bytes of leaves of any size, in the same folder, if rows have some.
        slots: what is stored once of them; then those bytes are observations.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        stride: int,
        rows_per_extent: int,
        salts: Iterable[Sequence[int]] = (),
        blobs: LinkedBytes | None = None,
        slots: StoredSlots | None = None,
    ) -> None:
        record_size = layout.record_size
        stored_size = record_size if slots is None else slots.record_size
        if stride < stored_size + (4 if blobs is None else 8) or rows_per_extent < 1:
            raise ValueError(f"rows of {stored_size} bytes every {stride} make no sense")
        if (bool(layout.variable) or slots is not None) != (blobs is not None):
            raise ValueError("leaves of any size without their bytes, or the other way round")
        self.folder, self.blobs, self.slots, self._stored_size = folder, blobs, slots, stored_size
        self.sharing = None if slots is None else slots.sharing
        self.record_size, self.stride, self.rows_per_extent = record_size, stride, rows_per_extent
        self.salts: Salts = tuple((int(first), int(salt)) for first, salt in salts)
        self._leaves = np.array([(x, 1) for x in layout.blob_offsets], np.int64).reshape(-1)
        if blobs is not None and slots is None:
            self.places = RecordPlaces(record_size, layout.blob_offsets)

    @staticmethod
    def saved(folder: Path, layout: Layout, said: dict[str, Any]) -> LinkedRows:
        """As a checkpoint says it."""
        blobs, slots = said.get("blobs"), said.get("slots")
        return LinkedRows(
            folder,
            layout,
            int(said["stride"]),
            int(said["rows_per_extent"]),
            said.get("salts", ()),
            None if blobs is None else LinkedBytes(*map(int, blobs)),
            None if slots is None else StoredSlots.from_json(layout, slots),
        )

    def path(self, extent: int) -> Path:
        return self.folder / f"{extent:08d}.rec"

    def read(self, first: int, last: int) -> Array:
        if self.slots is not None:
            return self._expanded(self.slots, first, last)
        parts: list[Any] = [np.zeros(0, np.uint8)]
        while first < last:
            extent, at = divmod(first, self.rows_per_extent)
            count = min(self.rows_per_extent - at, last - first)
            parts.append(self._decode(extent, at, count))
            first += count
        return np.concatenate(parts)

    def _expanded(self, slots: StoredSlots, first: int, last: int) -> Array:
        """Rows as they came in."""
        size, out = self.record_size, np.empty((last - first) * self.record_size, np.uint8)
        for part in self.slot_parts(first, last):
            at = (part.first - first) * size
            room = out[at : at + len(part.stored) // self.stride * size]
            of = (slots.form, size, self.stride, part.first, self.sums())
            damaged = _native.expand_slots(part.stored, *of, part.blobs, part.base, room)
            self.refuse(part.first, damaged)
        return out

    def slot_parts(self, first: int, last: int) -> Iterator[SlotPart]:
        """Rows in stretches, with all that they refer to. Their records are checked, not that."""
        assert self.blobs is not None and self.slots is not None
        most = max(_EXPANDED_BYTES // self.record_size, 1)
        while first < last:
            extent, at = divmod(first, self.rows_per_extent)
            count = min(self.rows_per_extent - at, last - first, most)
            begins, lengths = self.slots.places.of(self._decode(extent, at, count))
            begins, ends = begins[:, 0], begins[:, 0] + lengths[:, 0]
            if np.any(begins[1:] < begins[:-1]) or np.any(lengths < 0) or begins[0] < 0:
                raise ValueError(f"{self.path(extent)}: observations that are not in order")
            fit = int(np.searchsorted(ends - begins[0], _PIECE_BYTES, side="right"))
            gaps = np.flatnonzero(begins[1:] != ends[:-1]) + 1
            count = min([count, max(fit, 1), *gaps[:1].tolist()])
            base = max(int(begins[0]) - self.slots.margin, self.blobs.tail)
            blobs = self.blobs.read(self.folder, base, int(ends[count - 1]))
            yield SlotPart(first, self._stored(extent, at, count), blobs, base)
            first += count

    def refuse(self, first: int, damaged: Any) -> None:
        """Raises ValueError if rows are damaged: `damaged` are their places behind the first."""
        if len(damaged):
            row = first + int(damaged[0])
            path = self.path(row // self.rows_per_extent)
            raise ValueError(f"{path}: row {row} is damaged: its checksum is wrong")

    def pack(self, first: int, last: int) -> Packed:
        parts = [packed for _, packed, _ in self.stretches(first, last)]
        assert self.places is not None
        return Packed.joined(parts, self.places)

    def stretches(self, first: int, last: int) -> Iterator[tuple[int, Packed, int]]:
        """Rows with their bytes, checked, in stretches whose bytes have no gaps between them: (seq
        of the first, they, position of their first byte)."""
        assert self.blobs is not None and self.places is not None
        while first < last:
            extent, at = divmod(first, self.rows_per_extent)
            count = min(self.rows_per_extent - at, last - first)
            records = self._decode(extent, at, count)
            begins, lengths = self.places.of(records)
            ends = begins[:, -1] + lengths[:, -1]
            gaps = np.flatnonzero(begins[1:, 0] != ends[:-1]) + 1
            fit = int(np.searchsorted(ends - begins[0, 0], _PIECE_BYTES, side="right"))
            count = min([count, max(fit, 1), *gaps[:1].tolist()])
            base, end = int(begins[0, 0]), int(ends[count - 1])
            blobs = self.blobs.read(self.folder, base, end)
            self._check_bytes(extent, at, count, blobs, base)
            packed = Packed(self.places.moved(records[: count * self.record_size], -base), blobs)
            yield first, packed, base
            first += count

    def _check_bytes(self, extent: int, at: int, count: int, blobs: Array, base: int) -> None:
        stored, first = self._stored(extent, at, count), extent * self.rows_per_extent + at
        of = (self.record_size, self.stride, first, self.sums())
        self.refuse(first, _native.check_rows(stored, *of, self._leaves, blobs, base))

    def sums(self) -> Array:
        return np.array(self.salts, np.int64).reshape(-1).view(np.uint64)

    def _stored(self, extent: int, at: int, count: int) -> Array:
        path = self.path(extent)
        stored = np.frombuffer(
            files.read_part(path, count * self.stride, at * self.stride), np.uint8
        )
        if len(stored) < count * self.stride:
            raise ValueError(f"{path} ends before row {extent * self.rows_per_extent + at + count}")
        return stored

    def _decode(self, extent: int, at: int, count: int) -> Array:
        stored, first = self._stored(extent, at, count), extent * self.rows_per_extent + at
        records, damaged = _native.decode_rows(
            stored, self._stored_size, self.stride, first, self.sums()
        )
        self.refuse(first, damaged)
        return np.asarray(memoryview(records)).reshape(-1)

    def check(self, first: int, last: int) -> None:
        """Raises ValueError unless the files for these rows are there, in their size."""
        if first == last:
            return
        for extent in range(first // self.rows_per_extent, -(-last // self.rows_per_extent)):
            path, end = self.path(extent), min((extent + 1) * self.rows_per_extent, last)
            needed = (end - extent * self.rows_per_extent) * self.stride
            size = files.size(path) if files.exists(path) else -1
            if size < needed:
                state = "is missing" if size < 0 else f"has {size} bytes, expected {needed}"
                raise ValueError(f"{path} {state}")
        if self.blobs is not None:
            self.blobs.check(self.folder)
