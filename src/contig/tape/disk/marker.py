"""The record of the last commit, in a file of its own: ``committed``, 72 bytes.

The index says what it has; this says what it must have. An index that has less was damaged, or is
an older one, and rows behind its head may have been committed: they are put aside. If it has all,
whatever lies behind its head never was, and may be deleted.

Written after each commit and before anybody hears of it, and not synced: it is believed only by the
system that was running when it was written, and only if nobody put the file there since (its time
of change is the one that it says).
"""

from __future__ import annotations

import errno
import logging
import struct
import time
from pathlib import Path
from typing import NamedTuple

from ... import _native
from . import clock, files
from .changes import IndexState

__all__ = ["Mark", "Marker"]

log = logging.getLogger("contig.disk")

_NAME = "committed"
_MAGIC = b"contig 1"
_FIELDS = struct.Struct("<8sqqqqQqq")
_CRC = struct.Struct("<I4x")
_BYTES = _FIELDS.size + _CRC.size
_APART_NS = 1_000_000_000  # between the time that it says and the file's


class Mark(NamedTuple):
    """Attributes:
    salt: of the process that wrote last.
    revision, head: of the index, after the last commit.
    """

    salt: int
    revision: int
    head: int

    def is_in(self, index: IndexState) -> bool:
        """Whether an index has everything that was ever committed."""
        if index.bad:
            return False
        if index.revision == self.revision:
            return index.head == self.head
        # Killed after a commit, before it was marked. A copy that went on has another salt.
        last = index.salts[-1][1] if index.salts else 0
        return index.revision > self.revision and index.head >= self.head and last == self.salt


class Marker:
    """The file. Who writes holds the storage's lock.

    Args:
        root: the storage's directory.
        store: the storage's number.

    Attributes:
        offset_ns: the wall clock less the time since the system started; the least that was seen
            by those who wrote here since then. With it, no row looks older than it is, however the
            clock was set meanwhile.
    """

    _fd = -1

    def __init__(self, root: Path, store: int) -> None:
        self._path, self._store = root / _NAME, store
        self.offset_ns = time.time_ns() - clock.uptime_ns()
        self._off = clock.boot_id() == 0  # nobody could tell whether to believe it

    def read(self) -> Mark | None:
        """What it says, if that can be believed."""
        try:
            fd = files.open_to_read(self._path)
        except OSError:
            return None
        try:
            data, changed_ns = files.pread(fd, _BYTES + 1, 0), files.changed_ns(fd)
        except OSError:
            return None
        finally:
            files.close(fd)
        if len(data) != _BYTES:
            return None
        magic, store, salt, revision, head, boot, now_ns, offset_ns = _FIELDS.unpack_from(data)
        (crc,) = _CRC.unpack_from(data, _FIELDS.size)
        if magic != _MAGIC or crc != _native.crc32c(data[: _FIELDS.size]):
            return None
        if store != self._store or boot != clock.boot_id() or boot == 0:
            return None
        if abs(changed_ns - now_ns) >= _APART_NS:
            return None
        self.offset_ns = min(self.offset_ns, offset_ns)
        return Mark(salt, revision, head)

    def note(self, mark: Mark) -> None:
        """Says what was committed last.

        Raises:
            OSError: it could neither be written nor removed.
        """
        if self._off:
            return
        try:
            if self._fd < 0:
                self._fd = files.create(self._path, _BYTES)
            now_ns = time.time_ns()
            self.offset_ns = min(self.offset_ns, now_ns - clock.uptime_ns())
            times = (clock.boot_id(), now_ns, self.offset_ns)
            said = _FIELDS.pack(_MAGIC, self._store, *mark, *times)
            data = said + _CRC.pack(_native.crc32c(said))
            if files.pwrite(self._fd, data, 0) < len(data):
                raise OSError(errno.EIO, "it was written in part")
        except OSError as error:
            files.unlink(self._path)  # what it says is not so any more
            log.warning("%s cannot be written: %s", self._path, error)
            self._off = True

    def close(self) -> None:
        if self._fd >= 0:
            files.close(self._fd)
        self._fd = -1
