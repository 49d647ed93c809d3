"""Rows of a checkpoint that are in extent files: hard links to those of the storage.

Complete files are linked; the start of the one that still grows is copied.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ... import _native
from ..snapshot import Array, Rows
from . import files
from .changes import Salts
from .extents import Extents

__all__ = ["LinkedRows", "link_extents", "link_or_copy"]

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)


def link_or_copy(old: Path, new: Path) -> None:
    """A second name for a file that does not change any more; a copy where that is not possible."""
    try:
        files.link(old, new)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        files.copy(old, new)
        files.sync(new)


def link_extents(extents: Extents, folder: Path, record_size: int, first: int, head: int) -> None:
    """Rows [first, head) in ``folder/extents``; none of them may be deleted meanwhile."""
    target = LinkedRows(folder / "extents", record_size, extents.stride, extents.rows)
    files.make_dir(target.folder)
    for extent in range(first // extents.rows, head // extents.rows):
        if files.exists(extents.path(extent)):
            link_or_copy(extents.path(extent), target.path(extent))
    extent, rest = divmod(head, extents.rows)
    if rest and first < head and files.exists(extents.path(extent)):
        # It still grows.
        start = files.read_part(extents.path(extent), rest * extents.stride, 0)
        files.write_new(target.path(extent), start)
    files.fsync_dir(target.folder)


class LinkedRows(Rows):
    """Rows in ``NNNNNNNN.rec`` of a folder.

    Args:
        folder: where they are.
        record_size, stride: bytes of a record, and from one to the next.
        rows_per_extent: rows of a file.
        salts: what the rows' checksums begin with, from a seq on; see `changes.Salts`.
    """

    def __init__(
        self,
        folder: Path,
        record_size: int,
        stride: int,
        rows_per_extent: int,
        salts: Iterable[Sequence[int]] = (),
    ) -> None:
        if stride < record_size + 4 or rows_per_extent < 1:
            raise ValueError(f"rows of {record_size} bytes every {stride} make no sense")
        self.folder = folder
        self.record_size, self.stride, self.rows_per_extent = record_size, stride, rows_per_extent
        self.salts: Salts = tuple((int(first), int(salt)) for first, salt in salts)

    def path(self, extent: int) -> Path:
        return self.folder / f"{extent:08d}.rec"

    def read(self, first: int, last: int) -> Array:
        parts: list[Any] = [np.zeros(0, np.uint8)]
        while first < last:
            extent, at = divmod(first, self.rows_per_extent)
            count = min(self.rows_per_extent - at, last - first)
            parts.append(self._decode(extent, at, count))
            first += count
        return np.concatenate(parts)

    def _decode(self, extent: int, at: int, count: int) -> Array:
        path = self.path(extent)
        stored = np.frombuffer(
            files.read_part(path, count * self.stride, at * self.stride), np.uint8
        )
        if len(stored) < count * self.stride:
            raise ValueError(f"{path} ends before row {extent * self.rows_per_extent + at + count}")
        first = extent * self.rows_per_extent + at
        salts = np.array(self.salts, np.int64).reshape(-1).view(np.uint64)
        records, damaged = _native.decode_rows(stored, self.record_size, self.stride, first, salts)
        if len(damaged):
            row = first + int(damaged[0])
            raise ValueError(f"{path}: row {row} is damaged: its checksum is wrong")
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
