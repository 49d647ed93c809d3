"""Rows from files to a checkpoint and back: complete files are linked, the rest is copied."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import StorageFull
from ..contents import Contents
from . import files
from .changes import Salts
from .extents import Extents
from .linked import LinkedRows, copy_start, link_or_copy
from .mirror import set_salts

__all__ = ["Load", "link_extents"]

_PIECE_BYTES = 16 << 20


def link_extents(extents: Extents, folder: Path, record_size: int, first: int, head: int) -> None:
    """Rows [first, head) in ``folder/extents``; nobody may let go of any meanwhile."""
    target = LinkedRows(folder / "extents", record_size, extents.stride, extents.rows)
    files.make_dir(target.folder)
    for extent in range(first // extents.rows, head // extents.rows):
        if files.exists(extents.path(extent)):
            link_or_copy(extents.path(extent), target.path(extent))
    extent, rest = divmod(head, extents.rows)
    if rest and first < head and files.exists(extents.path(extent)):
        copy_start(extents.path(extent), target.path(extent), rest * extents.stride)
    files.fsync_dir(target.folder)


class Load:
    """The rows of a checkpoint, on their way into a storage's files.

    Args:
        contents: what is to be loaded.
        extents: the files.
        tape: of the storage.
        salt: for the checksums of rows that are copied.

    Attributes:
        salts: of the rows when they are loaded.
    """

    def __init__(self, contents: Contents, extents: Extents, tape: Any, salt: int) -> None:
        self._contents, self._extents, self._tape = contents, extents, tape
        rows, size = contents.rows, (extents.stride, extents.rows)
        self._linked: LinkedRows | None = None
        self._copied_from = contents.tail  # files of the rows before it are linked
        if isinstance(rows, LinkedRows) and (rows.stride, rows.rows_per_extent) == size:
            self._linked = rows
            sealed = contents.head // extents.rows * extents.rows  # the open file is written to
            self._copied_from = max(contents.tail, sealed)
        theirs = () if self._linked is None else self._linked.salts
        kept = tuple(s for s in theirs if s[0] < self._copied_from)
        self.salts: Salts = (*kept, (self._copied_from, salt))

    def check(self) -> None:
        """Looks for what would make it fail, before what the storage holds is let go of.

        Raises:
            ValueError: a file is missing or too short, or a row that has to be copied is damaged.
            StorageFull: there is no room for the rows that have to be copied.
        """
        contents, extents = self._contents, self._extents
        if self._linked is not None:
            self._linked.check(contents.tail, contents.head)
        needed = (contents.head - self._copied_from) * extents.stride
        if self._linked is not None and contents.head > contents.tail:
            there, here = (p.stat().st_dev for p in (self._linked.folder, extents.folder))
            if there != here:  # files of another file system are copied, not linked
                needed = (contents.head - contents.tail) * extents.stride
        free = files.free_bytes(extents.folder)
        if needed > free:
            raise StorageFull(
                errno.ENOSPC,
                f"{extents.folder}: the checkpoint needs {needed:,} bytes, and {free:,} are free; "
                "nothing was loaded. Make room, or empty the storage first",
            )
        if isinstance(contents.rows, LinkedRows):
            for _ in self._pieces():
                pass

    def _pieces(self) -> Iterator[tuple[int, Any]]:
        head = self._contents.head
        step = max(_PIECE_BYTES // self._tape.record_size, 1)
        for at in range(self._copied_from, head, step):
            yield at, self._contents.rows.read(at, min(at + step, head))

    def run(self) -> None:
        """Makes the files, and maps them."""
        extents = self._extents
        set_salts(self._tape, self.salts)
        if self._linked is not None:
            first, sealed = self._contents.tail // extents.rows, self._copied_from // extents.rows
            for extent in range(first, sealed):
                link_or_copy(self._linked.path(extent), extents.path(extent))
                extents.map(extent)
            extents.created = True
        for at, records in self._pieces():
            extents.write(at, self._tape.encode(records, at))
            extents.show()
