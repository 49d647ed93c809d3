"""Bytes of leaves of any size of a checkpoint: hard links to the files of the storage."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import files
from .extents import BYTES, Extents

__all__ = ["LinkedBytes", "link_bytes", "link_or_copy"]

Array = np.ndarray[Any, Any]

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)


def link_or_copy(old: Path, new: Path) -> None:
    """A second name for a file that does not change any more; a copy where that is not possible."""
    files.unlink(new)  # of a try before this one, which was overtaken
    try:
        files.link(old, new)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        files.copy(old, new)
        files.sync(new)


class LinkedBytes(NamedTuple):
    """Bytes by position, in ``NNNNNNNN.bin`` of a folder.

    Attributes:
        file_bytes: of a file.
        tail, head: positions of the first byte, and behind the last.
    """

    file_bytes: int
    tail: int
    head: int

    def path(self, folder: Path, number: int) -> Path:
        return folder / f"{number:08d}{BYTES}"

    def numbers(self) -> range:
        """Of the files."""
        return range(self.tail // self.file_bytes, -(-self.head // self.file_bytes))

    def read(self, folder: Path, first: int, last: int) -> Array:
        """Bytes from one position to another.

        Raises:
            ValueError: they are not there.
        """
        parts, at = [np.zeros(0, np.uint8)], first
        while at < last:
            number, offset = divmod(at, self.file_bytes)
            count = min(self.file_bytes - offset, last - at)
            path = self.path(folder, number)
            try:
                part = np.frombuffer(files.read_part(path, count, offset), np.uint8)
            except FileNotFoundError:
                raise ValueError(f"{path} is missing") from None
            if len(part) < count:
                raise ValueError(f"{path} ends before position {at + count}")
            parts.append(part)
            at += count
        return np.concatenate(parts)

    def check(self, folder: Path) -> None:
        """Raises ValueError unless the files are there, in their size."""
        if not 0 <= self.tail <= self.head or self.file_bytes < 1:
            raise ValueError(f"bytes {self.tail} to {self.head} make no sense")
        for number in self.numbers():
            path, end = self.path(folder, number), min((number + 1) * self.file_bytes, self.head)
            needed = end - number * self.file_bytes
            size = files.size(path) if files.exists(path) else -1
            if size < needed:
                state = "is missing" if size < 0 else f"has {size} bytes, expected {needed}"
                raise ValueError(f"{path} {state}")


def link_bytes(extents: Extents, folder: Path, blobs: LinkedBytes) -> None:
    """Files of bytes in a folder; none of them may be deleted meanwhile. What is complete is
    linked; the start of the one that still grows is copied."""
    for number in blobs.numbers():
        source, target = extents.path(number), blobs.path(folder, number)
        if not files.exists(source):
            continue
        if (number + 1) * blobs.file_bytes <= blobs.head:
            link_or_copy(source, target)
        else:
            start = files.read_part(source, blobs.head - number * blobs.file_bytes, 0)
            files.write_new(target, start)
    files.fsync_dir(folder)
