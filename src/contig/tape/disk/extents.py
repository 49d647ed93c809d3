"""The extent files of a storage: ``extents/NNNNNNNN.rec``, each a fixed number of rows; and
``extents/NNNNNNNN.bin``, each a fixed number of the bytes of leaves of any size.

Bytes have positions as rows have seqs: here they are rows of one byte. Rows are written with
`pwrite` and read through mappings, so a full disk is an error and not a signal. A file has its full
size from the start, without blocks.
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_left, insort
from pathlib import Path
from typing import Any

from ... import _native
from . import files

__all__ = ["BYTES", "ROWS", "Extents", "blob_file_bytes", "extent_rows", "row_stride"]

ROWS, BYTES = ".rec", ".bin"  # names of files end so

_SMALL_EXTENT, _EXTENT = 16 << 20, 64 << 20
_SMALL_STORAGE = 256 << 30
_PAGE = 4096
_WASTE = 64  # of a large row, at most such a part is padding
_FILES = 8  # of a storage with bounded bytes, at least: what is not kept is soon deleted
_OPEN = 8  # files kept open for writing
_PIECE = 1 << 20


def row_stride(record_size: int, any_size: bool = False) -> int:
    """Bytes from one row to the next: the record, its checksum, with leaves of any size another one
    of it and their bytes, and padding.

    Rows of 1.2 to 2 kB get 2 kB, so that none lies across two pages: reading one is one fault.
    """
    need = record_size + (8 if any_size else 4)
    if 1228 < need <= 2048:
        return 2048
    # Large rows begin at pages, or at large parts of one: else a file of whole pages, whose rows
    # are a power of two, would have 64 of them at least.
    unit = 64
    while unit < _PAGE and unit * 2 * _WASTE <= need:
        unit *= 2
    lines = -(-need // unit) * unit
    return lines if (lines - need) * 8 <= need else -(-need // 8) * 8


def extent_rows(
    stride: int, wanted: int | None, most_bytes: int | None, bound: int | None = None
) -> int:
    """Returns the rows of an extent: a power of two, whole pages.

    Small ones make checkpoints fast, which copy the newest; but a process can map some 65,000 files
    only. So at most 16 MB, and of storages that are meant to be larger than 256 GB, 64 MB. Of the
    bytes that were asked for (`bound`), at most an eighth.
    """
    size = _EXTENT if most_bytes is not None and most_bytes > _SMALL_STORAGE else _SMALL_EXTENT
    if bound is not None:
        size = min(size, bound // _FILES)
    least = 1
    while least * stride % _PAGE:
        least *= 2
    rows = least
    while (rows < wanted) if wanted is not None else (rows * 2 * stride <= size):
        rows *= 2
    return rows


def blob_file_bytes(most_bytes: int | None) -> int:
    """Returns the bytes of a file of leaves of any size, of which so many are kept."""
    return extent_rows(1, None, most_bytes, most_bytes)


def _own(path: Path) -> None:
    """Before a file is written to: if a checkpoint has it too, a copy takes its place here."""
    if files.links(path) > 1:
        files.write_new(path, files.read(path))


class Extents:
    """Files mapped one behind another. Thread-safe.

    Args:
        folder: where they are.
        region_extents: how many may be mapped at a time; extent e is at place e modulo that.
        rows: of an extent.
        stride: bytes of a row.
        writable: else nothing is created.
        suffix: how their names end.
    """

    def __init__(
        self,
        folder: Path,
        region_extents: int,
        rows: int,
        stride: int,
        writable: bool,
        suffix: str = ROWS,
    ) -> None:
        self.folder, self._suffix = folder, suffix
        self.rows, self.stride = rows, stride
        self.nbytes = rows * stride
        self._places = region_extents
        self.most_rows = (region_extents - 1) * rows  # that have different addresses, wherever
        assert self.nbytes % 4096 == 0, "extents begin at pages"
        self.region = _native.Region(region_extents * self.nbytes)
        self._writable = writable
        self._fds: dict[int, int] = {}
        self._mapped: dict[int, int] = {}  # place -> extent
        self._unseen: set[int] = set()  # written, but not mapped yet
        # Numbers of files that may be there, ascending: listed once, as a commit that let go of
        # rows would list thousands of names each time.
        self._known: list[int] | None = None
        self._lock = threading.RLock()
        self._marking, self._syncing = threading.Lock(), threading.Lock()
        self._sync_failure: OSError | None = None
        self.unsynced: set[int] = set()
        # A file was made since the directory was last synced: perhaps by one that was killed.
        self.created = writable

    def path(self, extent: int) -> Path:
        return self.folder / f"{extent:08d}{self._suffix}"

    def present(self) -> list[int]:
        """Numbers of the files that are there."""
        names = files.listing(self.folder)
        return [int(n[:-4]) for n in names if n.endswith(self._suffix) and n[:-4].isdigit()]

    def map(self, extent: int) -> bool:
        """Makes an extent's rows readable; False if its file is missing."""
        with self._lock:
            place = extent % self._places
            if self._mapped.get(place) == extent:
                return True
            try:
                fd = self._fds.get(extent, -1)
                fd = files.open_to_read(self.path(extent)) if fd < 0 else os.dup(fd)
            except FileNotFoundError:
                # Never what was there before: those are other rows, whose checksums are right.
                self._mapped.pop(place, None)
                self.region.unmap(place * self.nbytes, self.nbytes)
                return False
            try:
                # Of a file that was cut, only what is there: the rest reads as zeros, which no
                # checksum fits.
                there = min(files.size(fd), self.nbytes)
                if there < self.nbytes:
                    self.region.unmap(place * self.nbytes, self.nbytes)
                if there:
                    self.region.map(place * self.nbytes, fd, there)
            except OSError as error:
                self._mapped.pop(place, None)
                text = f"{self.path(extent)} cannot be read: {error.strerror}"
                raise type(error)(error.errno, text) from error
            finally:
                files.close(fd)
            self._mapped[place] = extent
            return True

    def fetch(self, first: int, last: int) -> None:
        """Has rows in memory, read from end to end: faults would read them page by page. Asks for
        as much again behind them."""
        while first < last:
            extent, at = divmod(first, self.rows)
            count = min(self.rows - at, last - first)
            first += count
            try:
                fd = files.open_to_read(self.path(extent))
            except OSError:
                continue
            try:
                start, size = at * self.stride, count * self.stride
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(fd, start, 2 * size, os.POSIX_FADV_WILLNEED)
                for offset in range(start, start + size, _PIECE):
                    os.pread(fd, _PIECE, offset)
            finally:
                files.close(fd)

    def map_again(self, extent: int) -> bool:
        """As `map`, of the file as it is now: it may have been shorter, or not there."""
        with self._lock:
            self._mapped.pop(extent % self._places, None)
            return bool(self.map(extent))

    def is_mapped(self, extent: int) -> bool:
        return self._mapped.get(extent % self._places) == extent

    def enter(self, folder: Path) -> None:
        """Unmaps everything: the files of these numbers are other ones now, in that folder."""
        with self._lock:
            for place in self._mapped:
                self.region.unmap(place * self.nbytes, self.nbytes)
            self._mapped.clear()
            self.close()
            self._unseen.clear()
            self._known = None
            with self._marking:
                self.unsynced.clear()
                self.created = self._writable
            self.folder = folder

    def show(self) -> None:
        """Makes what was written readable. Rows that lie in the same places must be evicted: until
        then, these are their addresses."""
        with self._lock:
            while self._unseen:
                self.map(min(self._unseen))
                self._unseen.discard(min(self._unseen))

    def cut(self, head: int) -> None:
        """Removes rows from a seq on, for good: an append that was never committed must not come
        back in the place of one whose rows a power loss took."""
        with self._lock:
            gone = [e for e in self.present() if e >= -(-head // self.rows)]
            self._delete(gone)
            extent, at = divmod(head, self.rows)
            if at and files.exists(self.path(extent)):
                _own(self.path(extent))
                fd = files.open_to_write(self.path(extent))
                try:
                    files.truncate(fd, at * self.stride)
                    files.truncate(fd, self.nbytes)
                    files.fsync(fd)
                finally:
                    files.close(fd)
            if gone:
                files.fsync_dir(self.folder)

    def write(self, first: int, rows: Any) -> None:
        """Stores encoded rows from a seq on, in one or more files; `show` makes them readable.

        Raises:
            OSError: it could not; what was written lies beyond the head and does not count.
        """
        with self._lock:
            data = memoryview(rows).cast("B")
            seq = first
            while data:
                extent, at = divmod(seq, self.rows)
                count = min(len(data) // self.stride, self.rows - at)
                part = data[: count * self.stride]
                fd = self._open(extent)
                offset = at * self.stride
                while part:
                    done = files.pwrite(fd, part, offset)
                    part, offset = part[done:], offset + done
                with self._marking:
                    self.unsynced.add(extent)
                seq += count
                data = data[count * self.stride :]

    def _open(self, extent: int) -> int:
        fd = self._fds.get(extent)
        if fd is not None:
            return fd
        path = self.path(extent)
        if files.exists(path):
            _own(path)
            fd = files.open_to_write(path)
            try:
                if files.size(fd) < self.nbytes:
                    files.truncate(fd, self.nbytes)
            except BaseException:
                files.close(fd)
                raise
        else:
            fd = files.create(path, self.nbytes)
            self.created = True
            if self._known is not None and extent not in self._known[-1:]:
                insort(self._known, extent)
        while len(self._fds) >= _OPEN:
            files.close(self._fds.pop(min(self._fds)))
        self._fds[extent] = fd
        if self.is_mapped(extent):  # it was shorter, or is a copy now
            del self._mapped[extent % self._places]
        self._unseen.add(extent)
        return fd

    def sync(self) -> None:
        """Returns when everything written so far is on the disk; appends go on meanwhile.

        Raises:
            OSError: it could not be synced, now or before: that is final.
        """
        with self._syncing:  # whoever finds nothing to sync knows that it is synced
            if self._sync_failure is not None:  # a second fsync would succeed without meaning it
                raise self._sync_failure
            with self._marking:
                paths = [self.path(extent) for extent in sorted(self.unsynced)]
                folder = self.folder if self.created else None
                self.unsynced.clear()
                self.created = False
            try:
                for path in paths:
                    with contextlib.suppress(FileNotFoundError):  # let go meanwhile
                        files.sync(path)
                if folder is not None:
                    with contextlib.suppress(FileNotFoundError):  # a load replaced all of it
                        files.fsync_dir(folder)
            except OSError as error:
                self._sync_failure = error
                raise

    def delete_below(self, seq: int) -> list[int]:
        """Removes files all of whose rows lie below a seq; their numbers."""
        with self._lock:
            if self._known is None:
                self._known = self.present()
            gone = self._known[: bisect_left(self._known, seq // self.rows)]
            for at, extent in enumerate(gone):
                try:
                    self._delete([extent])
                except BaseException:  # it is tried again
                    del self._known[:at]
                    raise
            del self._known[: len(gone)]
            return gone

    def _delete(self, gone: list[int]) -> None:
        for extent in gone:
            fd = self._fds.pop(extent, None)
            if fd is not None:
                files.close(fd)
            self.unsynced.discard(extent)
            self._unseen.discard(extent)
            files.unlink(self.path(extent))
            place = extent % self._places
            if self._mapped.get(place) == extent:
                self.region.unmap(place * self.nbytes, self.nbytes)
                del self._mapped[place]

    def close(self) -> None:
        for fd in self._fds.values():
            files.close(fd)
        self._fds.clear()
