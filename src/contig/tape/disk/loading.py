"""Rows of a checkpoint on their way into a storage: complete files are linked, the rest is copied.

They are brought into a folder that does not count yet; `restoring` makes it count.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...errors import StorageFull
from ..snapshot import Snapshot
from . import files
from .changes import Salts
from .extent_folders import begin, complete, remove
from .extents import BYTES, Extents
from .linked_bytes import link_or_copy
from .linked_rows import LinkedRows
from .loading_slots import SlotPieces
from .stored_slots import StoredSlots

__all__ = ["Load", "Shape"]

_PIECE_BYTES = 16 << 20


class Shape(NamedTuple):
    """How rows lie in files."""

    record_size: int
    stride: int
    rows_per_extent: int
    file_bytes: int = 0  # of leaves of any size; 0: there are none
    slots: StoredSlots | None = None  # of observations that are stored once

    @property
    def stored_size(self) -> int:
        """Bytes of a row in files, but for its checksums."""
        return self.record_size if self.slots is None else self.slots.record_size


class _Piece(NamedTuple):
    """Rows to be copied: records, whose positions of bytes count from 0 in `blobs`, and from `base`
    on in the storage."""

    first: int
    records: Any
    blobs: Any
    base: int


def _shape_of(rows: LinkedRows) -> Shape:
    size = 0 if rows.blobs is None else rows.blobs.file_bytes
    return Shape(rows.record_size, rows.stride, rows.rows_per_extent, size, rows.slots)


class Load:
    """The rows of a checkpoint, on their way into a folder beside those of a storage.

    Args:
        contents: what is to be loaded.
        root: the storage's ``extents``; see `extent_folders`.
        shape: of its rows.
        salt: for the checksums of rows that are copied.

    Attributes:
        salts: of the rows when they are loaded.
        blobs: positions of the bytes of leaves of any size then: the first, and behind the last.
        root: where its folder is.
        folder: where they are now, or None.
    """

    def __init__(self, contents: Snapshot, root: Path, shape: Shape, salt: int) -> None:
        self._contents, self.root, self._shape, self.salt = contents, root, shape, salt
        rows, size = contents.rows, shape.rows_per_extent
        self._linked: LinkedRows | None = None
        self._copied_from = contents.tail  # files of the rows before it are linked
        self.blobs = (0, 0)
        if isinstance(rows, LinkedRows) and _shape_of(rows) == shape:
            self._linked = rows
            self.blobs = (0, 0) if rows.blobs is None else rows.blobs[1:]
            sealed = contents.head // size * size  # the open file is written to
            self._copied_from = max(contents.tail, sealed)
        theirs = () if self._linked is None else self._linked.salts
        kept = tuple(s for s in theirs if s[0] < self._copied_from)
        self.salts: Salts = (*kept, (self._copied_from, salt))
        self.folder: Path | None = None

    def check(self) -> None:
        """Looks for what would make it fail, before anything is written.

        Raises:
            ValueError: a file is missing or too short, or a row that has to be copied is damaged.
            StorageFull: there is no room for the rows that have to be copied.
        """
        contents, stride = self._contents, self._shape.stride
        if self._linked is not None:
            self._linked.check(contents.tail, contents.head)
        needed = (contents.head - self._copied_from) * stride
        if self._shape.slots is not None and self._linked is None:  # about
            needed += (contents.head - self._copied_from) * self._shape.slots.form.slot_bytes
        if self._linked is None and contents.rows.places is not None:
            needed += sum(count for _, _, count in self._spans())
        elif self._linked is not None and contents.head > contents.tail:
            there, here = (files.identity(p) for p in (self._linked.folder, self.root))
            tail, head = self.blobs
            if there[0] != here[0]:  # files of another file system are copied, not linked
                needed = (contents.head - contents.tail) * stride + head - tail
            elif self._linked.blobs is not None:
                needed += head % self._shape.file_bytes
        free = files.free_bytes(self.root)
        if needed > free:
            raise StorageFull(
                errno.ENOSPC,
                f"{self.root}: the checkpoint needs {needed:,} bytes, and {free:,} are free; "
                "nothing was loaded. Make room, or empty the storage first",
            )
        if self._shape.slots is not None and self._linked is not None:
            for _ in self._slot_pieces(self._shape.slots).resealed(self._linked):
                pass
        elif self._shape.slots is not None and isinstance(contents.rows, LinkedRows):
            self._slot_pieces(self._shape.slots).check()
        elif isinstance(contents.rows, LinkedRows):
            for _ in self._pieces():
                pass

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """Rows that are copied, as many at a time as are best looked at together: [first, last),
        and how many bytes their leaves of any size have."""
        head, rows = self._contents.head, self._contents.rows
        step = max(_PIECE_BYTES // self._shape.record_size, 1)
        for at in range(self._copied_from, head, step):
            last = min(at + step, head)
            if rows.places is None:
                yield at, last, 0
                continue
            ends = np.cumsum(rows.places.row_bytes(rows.read(at, last)))
            low, before = 0, 0
            while at + low < last:
                high = max(int(np.searchsorted(ends, before + _PIECE_BYTES, "right")), low + 1)
                yield at + low, at + high, int(ends[high - 1]) - before
                low, before = high, int(ends[high - 1])

    def _pieces(self) -> Iterator[_Piece]:
        rows, nothing = self._contents.rows, np.zeros(0, np.uint8)
        if self._linked is not None and self._linked.blobs is not None:
            for first, packed, base in self._linked.stretches(
                self._copied_from, self._contents.head
            ):
                yield _Piece(first, packed.records, packed.blobs, base)
            return
        base = 0
        for first, last, count in self._spans():
            if rows.places is None:
                yield _Piece(first, rows.read(first, last), nothing, 0)
            else:
                packed = rows.pack(first, last)
                yield _Piece(first, packed.records, packed.blobs, base)
                base += count

    def bring(self) -> None:
        """Makes the files, complete and synced, in a folder that does not count yet."""
        self.folder = begin(self.root)
        _, stride, rows, file_bytes, slots = self._shape
        extents = Extents(self.folder, 2, rows, stride, True)
        blobs: Extents | None = None
        try:
            if file_bytes:
                blobs = Extents(self.folder, 2, file_bytes, 1, True, BYTES)
            if self._linked is not None:
                for extent in range(self._contents.tail // rows, self._copied_from // rows):
                    link_or_copy(self._linked.path(extent), extents.path(extent))
                if blobs is not None:
                    self._bring_bytes(blobs)
            if slots is not None and blobs is not None:
                self._copy_slots(slots, extents, blobs)
            else:
                self._copy(extents, None if self._linked is not None else blobs)
            extents.sync()
            if blobs is not None:
                blobs.sync()
        finally:
            extents.close()
            if blobs is not None:
                blobs.close()

    def _bring_bytes(self, target: Extents) -> None:
        """Files of bytes, linked; the start of the last one is copied."""
        assert self._linked is not None and self._linked.blobs is not None
        theirs, folder = self._linked.blobs, self._linked.folder
        for number in theirs.numbers():
            if (number + 1) * theirs.file_bytes <= theirs.head:
                link_or_copy(theirs.path(folder, number), target.path(number))
            else:
                first = max(number * theirs.file_bytes, theirs.tail)
                target.write(first, theirs.read(folder, first, theirs.head))

    def _copy(self, extents: Extents, blobs: Extents | None) -> None:
        """Rows that are not linked, and their bytes, if these are not either."""
        size, stride = self._shape[:2]
        salts = np.array(self.salts, np.int64).reshape(-1).view(np.uint64)
        places = self._contents.rows.places
        leaves = () if places is None else [(offset, 1) for offset in places.offsets]
        of = np.array(leaves, np.int64).reshape(-1)
        for first, records, their, base in self._pieces():
            encoded = _native.encode_rows(
                records, size, stride, first, salts, of if len(of) else None, their, base
            )
            if blobs is not None:
                blobs.write(base, their)
                self.blobs = (0, base + len(their))
            extents.write(first, np.asarray(memoryview(encoded)))

    def _slot_pieces(self, slots: StoredSlots) -> SlotPieces:
        of = (self._contents, self._copied_from)
        return SlotPieces(*of, slots, self._shape.stride, self.salts)

    def _copy_slots(self, slots: StoredSlots, extents: Extents, blobs: Extents) -> None:
        """The same of rows whose observations are stored once."""
        pieces = self._slot_pieces(slots)
        if self._linked is not None:
            for piece in pieces.resealed(self._linked):
                extents.write(piece.first, piece.rows)
            return
        for piece in pieces.encoded():
            blobs.write(piece.base, piece.blobs)
            extents.write(piece.first, piece.rows)
            self.blobs = (0, piece.base + len(piece.blobs))

    def name(self, number: int) -> Path:
        """Gives the folder its name; it counts when the index says so."""
        assert self.folder is not None
        self.folder = complete(self.folder, number)
        return self.folder

    def undo(self) -> None:
        """Removes what was brought in."""
        if self.folder is not None:
            remove(self.folder, self.root)
            self.folder = None
