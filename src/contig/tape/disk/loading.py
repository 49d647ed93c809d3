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
from .extents import Extents
from .linked_rows import LinkedRows, link_or_copy

__all__ = ["Load", "Shape"]

_PIECE_BYTES = 16 << 20


class Shape(NamedTuple):
    """How rows lie in files."""

    record_size: int
    stride: int
    rows_per_extent: int


class Load:
    """The rows of a checkpoint, on their way into a folder beside those of a storage.

    Args:
        contents: what is to be loaded.
        root: the storage's ``extents``; see `extent_folders`.
        shape: of its rows.
        salt: for the checksums of rows that are copied.

    Attributes:
        salts: of the rows when they are loaded.
        root: where its folder is.
        folder: where they are now, or None.
    """

    def __init__(self, contents: Snapshot, root: Path, shape: Shape, salt: int) -> None:
        self._contents, self.root, self._shape, self.salt = contents, root, shape, salt
        rows, size = contents.rows, shape.rows_per_extent
        self._linked: LinkedRows | None = None
        self._copied_from = contents.tail  # files of the rows before it are linked
        if isinstance(rows, LinkedRows) and (rows.stride, rows.rows_per_extent) == shape[1:]:
            self._linked = rows
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
        if self._linked is not None and contents.head > contents.tail:
            there, here = (files.identity(p) for p in (self._linked.folder, self.root))
            if there[0] != here[0]:  # files of another file system are copied, not linked
                needed = (contents.head - contents.tail) * stride
        free = files.free_bytes(self.root)
        if needed > free:
            raise StorageFull(
                errno.ENOSPC,
                f"{self.root}: the checkpoint needs {needed:,} bytes, and {free:,} are free; "
                "nothing was loaded. Make room, or empty the storage first",
            )
        if isinstance(contents.rows, LinkedRows):
            for _ in self._pieces():
                pass

    def _pieces(self) -> Iterator[tuple[int, Any]]:
        head = self._contents.head
        step = max(_PIECE_BYTES // self._shape.record_size, 1)
        for at in range(self._copied_from, head, step):
            yield at, self._contents.rows.read(at, min(at + step, head))

    def bring(self) -> None:
        """Makes the files, complete and synced, in a folder that does not count yet."""
        self.folder = begin(self.root)
        size, stride, rows = self._shape
        extents = Extents(self.folder, 2, rows, stride, True)
        try:
            if self._linked is not None:
                for extent in range(self._contents.tail // rows, self._copied_from // rows):
                    link_or_copy(self._linked.path(extent), extents.path(extent))
            salts = np.array(self.salts, np.int64).reshape(-1).view(np.uint64)
            for at, records in self._pieces():
                encoded = _native.encode_rows(records, size, stride, at, salts)
                extents.write(at, np.asarray(memoryview(encoded)))
            extents.sync()
        finally:
            extents.close()

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
