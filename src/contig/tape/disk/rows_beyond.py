"""Rows in the files beyond the head: appended, and never committed as far as the index knows.

The next append takes their place. Those that the marker does not explain are put aside before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from . import files
from .directory import Directory
from .extents import Extents
from .linked_bytes import link_or_copy
from .marker import Mark

__all__ = ["RowsBeyond"]

log = logging.getLogger("contig.disk")

Array = np.ndarray[Any, Any]


class _Piece(NamedTuple):
    """What a file has beyond the head.

    Attributes:
        extent: its number.
        at: where in it that begins, in bytes.
        rows: ``[n, stride]`` bytes.
        written: which of these rows are not just zeros.
    """

    extent: int
    at: int
    rows: Array
    written: Array


class RowsBeyond:
    """Rows from a seq on. Nobody may be appending.

    Args:
        extents: the files.
        record_size: bytes of a row that are not its checksum.
        head: the seq.
        blobs: files of bytes of leaves of any size, if there are any.
        blob_head: the position from which on they are not of rows that are known.
    """

    def __init__(
        self,
        extents: Extents,
        record_size: int,
        head: int,
        blobs: Extents | None = None,
        blob_head: int = 0,
    ) -> None:
        self._extents, self._record_size, self._head = extents, record_size, head
        self._blobs, self._blob_head = blobs, blob_head

    def _files(self) -> Iterator[_Piece]:
        return _pieces(self._extents, self._head)

    def cut(self) -> None:
        """Removes them for good, with their bytes."""
        self._extents.cut(self._head)
        if self._blobs is not None:
            self._blobs.cut(self._blob_head)

    def count(self) -> int:
        """How many there are."""
        return sum(int(found.written.sum()) for found in self._files())

    def unexplained(self, left_by: Mark | None) -> int:
        """How many there are, unless somebody is known to have left just these."""
        count = self.count()
        return 0 if left_by is not None and self._are_of(left_by) else count

    def _are_of(self, mark: Mark) -> bool:
        """Whether they are what a process left that was killed while it appended: one behind the
        other from the head on, with its salt; only the last may have been cut short."""
        salts = np.array([0, mark.salt], np.int64).view(np.uint64)
        expected, cut = self._head, False
        for found in self._files():
            if not found.written.any():
                continue
            first = found.extent * self._extents.rows + found.at // self._extents.stride
            count = int(found.written.sum())
            if cut or first != expected or not found.written[:count].all():
                return False
            stored = np.ascontiguousarray(found.rows[:count]).reshape(-1)
            stride = self._extents.stride
            _, wrong = _native.decode_rows(stored, self._record_size, stride, first, salts)
            cut = len(wrong) > 0
            if cut and [int(w) for w in wrong] != [count - 1]:
                return False
            whole = first + count == (found.extent + 1) * self._extents.rows
            cut, expected = cut or not whole, first + count
        return True

    def put_aside(self, directory: Directory) -> int:
        """Links or copies them to quarantine/; how many there are. They stay here, too, until they
        are cut off."""
        count = 0
        target: Path | None = None
        for found in self._files():
            if not found.written.any():
                continue
            count += int(found.written.sum())
            if target is None:
                target = directory.aside("rows") / "extents"
                files.make_dir(target)
            _keep(self._extents, found, target)
        if target is not None:
            for found in () if self._blobs is None else _pieces(self._blobs, self._blob_head):
                assert self._blobs is not None
                if found.written.any():
                    _keep(self._blobs, found, target)
            files.fsync_dir(target)
            log.warning(
                "%s: %d rows behind the newest that the index knows are put aside, in %s: the "
                "index is not the newest, or the system stopped before they were committed",
                directory.path,
                count,
                directory.shown(target.parent),
            )
        return count


def _pieces(extents: Extents, head: int) -> Iterator[_Piece]:
    """What files have from a seq, or a position, on."""
    for extent in extents.present():
        if (extent + 1) * extents.rows <= head:
            continue
        at = max(head - extent * extents.rows, 0) * extents.stride
        there = files.read_part(extents.path(extent), extents.nbytes - at, at)
        there += bytes(-len(there) % extents.stride)
        rows = np.frombuffer(there, np.uint8).reshape(-1, extents.stride)
        yield _Piece(extent, at, rows, np.asarray(rows.any(1)))


def _keep(extents: Extents, found: _Piece, folder: Path) -> None:
    """A second name for a file of which nothing is known; a copy of the rest of another one."""
    path = extents.path(found.extent)
    if found.at == 0:
        link_or_copy(path, folder / path.name)
    else:
        _copy(found, extents.nbytes, folder / path.name)


def _copy(found: _Piece, nbytes: int, to: Path) -> None:
    """What is in a file from a place on, at the same place of a new one."""
    fd = files.create(to, nbytes)
    try:
        files.pwrite_all(fd, found.rows.reshape(-1)[: nbytes - found.at].data, found.at)
        files.fsync(fd)
    finally:
        files.close(fd)
