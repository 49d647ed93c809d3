"""The directory of a storage on disk: which one it is, who writes to it, what is in it.

layout.json            what a record is, and the storage's number; never changes
index.sqlite           the index; `index-N.sqlite` is one that a repair made, the highest counts
lock                   the pid of the one process that writes
quarantine/            what was put aside
"""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from ... import _native
from . import files
from .changes import IndexState
from .failures import as_os_error, check_length, is_damage
from .index import FORMAT, DiskIndex

__all__ = [
    "DamagedIndexError",
    "Directory",
    "open_index",
    "read_description",
    "read_index",
    "sealed",
    "write_description",
]

if sys.platform != "win32":
    import fcntl

_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOTSUP)
_INDEX = re.compile(r"index(?:-(\d+))?\.sqlite")


class DamagedIndexError(ValueError):
    """SQLite cannot read a storage's index, or what it reads is not what was written."""


class ForeignIndexError(ValueError):
    """The index is that of another storage."""


class Directory:
    """A storage's directory, held open: whatever becomes of its name, this is the one.

    Args:
        path: where it is; a relative one is resolved now.
        make: whether to make it.

    Attributes:
        path: where it was when it was opened.
        root: the directory itself, as a path that goes with it.
    """

    _fd = _lock_fd = -1

    def __init__(self, path: str | Path, make: bool) -> None:
        if sys.platform == "win32":
            raise NotImplementedError("storages on disk need a POSIX system")
        self.path = Path(os.path.realpath(path))
        check_length(self.path / "index-99.sqlite")
        if make:
            files.make_dir(self.path / "extents")
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.path}: no storage is there") from None
        self._lock_is: tuple[int, int] | None = None  # where only a file can be locked
        self._is = _identity(os.fstat(self._fd))
        through = Path(f"/proc/self/fd/{self._fd}")
        self.root = through if through.exists() else self.path

    @property
    def is_moved(self) -> bool:
        """Whether its path leads to another directory now, or nowhere."""
        try:
            return _identity(os.stat(self.path)) != self._is
        except FileNotFoundError:
            return True

    def check(self) -> None:
        """Raises OSError if it was moved, or another one took its place."""
        if self.is_moved:
            now = os.readlink(self.root) if self.root != self.path else "somewhere else"
            raise OSError(
                errno.ESTALE,
                f"{self.path} is not the directory that was opened: that one was moved or deleted "
                f"(it is at {now}). What was appended before is committed there, and nothing was "
                "written here; close this storage and open it where it is",
            )
        if self._lock_is is not None and _identity(os.stat(self.root / "lock")) != self._lock_is:
            raise OSError(errno.ESTALE, f"{self.path / 'lock'} was replaced: who else writes here?")

    def lock(self) -> None:
        """Makes this process the one that writes.

        Raises:
            BlockingIOError: another one does; it names its pid.
        """
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # On the directory, which cannot be deleted from under it; and on the file, where
            # contig 0.1 looks, and which is all that some network file systems lock.
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                self._lock_is = _identity(os.fstat(fd))
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise BlockingIOError(
                f"{self.path} is being written by process {holder}: one process writes at a time; "
                "open it with read_only=True to follow it"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        self._lock_fd = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Lets it go, and the lock. In a fork, only the fork's."""
        for fd in (self._lock_fd, self._fd):
            if fd >= 0:
                os.close(fd)
        self._lock_fd = self._fd = -1

    __del__ = close  # of a storage that nobody closed

    # -- what is in it ------------------------------------------------------------------------

    def indexes(self) -> list[Path]:
        """Its indexes, by their real names, the one that counts last."""
        found = [(int(m[1] or 0), m[0]) for n in files.listing(self.root) if (m := _index_name(n))]
        return [self.path / name for _, name in sorted(found)]

    @property
    def index(self) -> Path:
        """The path of the index that counts, which need not be there yet."""
        return [self.path / "index.sqlite", *self.indexes()][-1]

    def row_files(self) -> list[Path]:
        """Files of rows, in whichever folder (see `folders`) that is complete."""
        root = self.root / "extents"
        loads = [root / name for name in files.listing(root) if name.startswith("load-")]
        return [f / n for f in (root, *loads) for n in files.listing(f) if n.endswith(".rec")]

    def aside(self, what: str) -> Path:
        """A new folder in quarantine/."""
        path = self.root / "quarantine" / time.strftime(f"{what}-%Y%m%d-%H%M%S")
        folder, n = path, 1
        while files.exists(folder):
            n += 1
            folder = path.with_name(f"{path.name}-{n}")
        files.make_dir(folder)
        return folder

    def check_storage(self) -> None:
        """Raises FileNotFoundError unless there is a storage in it."""
        if not files.exists(self.root / "layout.json"):
            raise FileNotFoundError(f"{self.path}: no storage is there (layout.json is missing)")

    def name_in(self, error: BaseException) -> None:
        """Has an error of the system say the path that people know."""
        if isinstance(error, OSError) and str(error.filename or "").startswith(f"{self.root}/"):
            error.filename = str(self.shown(Path(error.filename)))

    def shown(self, path: Path) -> Path:
        """A path below `root`, as people know it."""
        return self.path / path.relative_to(self.root)


def _index_name(name: str) -> re.Match[str] | None:
    return _INDEX.fullmatch(name)


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def read_description(directory: Directory) -> dict[str, Any] | None:
    """What layout.json says, or None in a new directory."""
    path, shown = directory.root / "layout.json", directory.path / "layout.json"
    if not files.exists(path):
        left = directory.row_files()
        if left:
            raise ValueError(
                f"{shown} is missing, but there are {len(left)} files of rows, which cannot be "
                "read without it. Restore it from a checkpoint of this storage"
            )
        return None
    try:
        described = dict(json.loads(files.read(path)))
        if described["format"] > FORMAT:
            raise ValueError(
                f"{shown}: format {described['format']}, this contig reads up to {FORMAT}; "
                "use a newer one"
            )
        if described["crc"] != _crc(described):
            raise ValueError("its checksum is wrong")
    except (ValueError, KeyError, TypeError) as error:
        if "use a newer one" in str(error):
            raise
        raise ValueError(
            f"{shown} is damaged ({error}): without it the rows cannot be read. Restore it from "
            "a checkpoint of this storage; it does not change after the first row"
        ) from error
    return described


def sealed(described: dict[str, Any]) -> bytes:
    """A description as it is stored: with its checksum."""
    return json.dumps({**described, "crc": _crc(described)}, indent=1).encode()


def write_description(directory: Directory, described: dict[str, Any]) -> None:
    """Makes a new directory a storage."""
    files.write_new(directory.root / "layout.json", sealed(described))


def _crc(described: dict[str, Any]) -> int:
    content = {k: v for k, v in described.items() if k != "crc"}
    return _native.crc32c(json.dumps(content, sort_keys=True).encode())


def open_index(directory: Directory, writable: bool, store: int) -> DiskIndex:
    """The index of a directory; a new one where there are no rows yet.

    Raises:
        DamagedIndexError: it cannot be read, or is gone.
        OSError: something else is in the way.
    """
    path = directory.index
    there = path.exists() and path.stat().st_size > 0
    if not there and directory.row_files():
        raise _damaged_index(path, ValueError("it is missing, but there are files of rows"))
    try:
        index = DiskIndex(path, writable, store)
    except sqlite3.Error as error:
        raise _failed(path, error) from error
    if writable and directory.is_moved:  # before SQLite had it open, or since
        index.close(directory.root / path.name)
        directory.check()
    return index


def read_index(index: DiskIndex, writable: bool, store: int) -> IndexState:
    """All of an index; who is going to write to it looks at all of its pages.

    Raises:
        DamagedIndexError: it cannot be read.
        ForeignIndexError: it is of another storage than `store`.
        OSError: something else is in the way.
    """
    try:
        if writable:
            index.check()
        state = index.load()
    except (sqlite3.Error, OverflowError) as error:
        raise _failed(index.path, error) from error
    if index.store != store:
        raise ForeignIndexError(
            f"{index.path} is the index of another storage (number {index.store:x}, expected "
            f"{store:x}, as layout.json says): the rows here are not those that it tells of. Put "
            "this storage's own index back"
        )
    return state


def _failed(path: Path, error: Exception) -> Exception:
    if is_damage(error) or not isinstance(error, sqlite3.Error):
        return _damaged_index(path, error)
    return as_os_error(error, path)


def _damaged_index(path: Path, error: Exception) -> DamagedIndexError:
    return DamagedIndexError(
        f"{path} is damaged ({error}). `contig inspect --repair {path.parent}` builds a new one of "
        "what can be read, and keeps this one"
    )
