"""What is SQLite's own: connections to an index, its log, and what it fails with.

Its files are the only ones that `files` does not open.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from ...errors import StorageFull
from . import files

__all__ = [
    "SUFFIXES",
    "DamagedContents",
    "as_os_error",
    "check_length",
    "connect",
    "deleted",
    "is_damage",
    "keep_log",
    "log_bytes",
]

if sys.platform == "linux":
    import fcntl

SUFFIXES = ("", "-wal", "-shm")  # of a database's files
_TIMEOUT_S = 30.0
_SHARED_BYTES = (0x40000002, 510)  # of a file, which SQLite locks while it reads
# The low byte of an error code says what kind it is: https://sqlite.org/rescode.html
_ERROR, _BUSY, _LOCKED, _IO, _CORRUPT, _FULL, _SCHEMA, _NOT_A_DB = 1, 5, 6, 10, 11, 13, 17, 26
# `_ERROR`: of our own statements only because the tables are not those that they should be.
_DAMAGE = (_ERROR, _CORRUPT, _SCHEMA, _NOT_A_DB)
_LITTLE = 1 << 17  # bytes: SQLite shares 32 kB with others, and calls it I/O if there are none
_DESCRIPTORS = 6  # that two connections have open
_LONGEST = 500  # bytes; SQLite takes names of up to 512, with what it adds to them


def connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def deleted(path: Path) -> Path:
    """A way to a file that is open here and has no name any more."""
    for fd in Path("/proc/self/fd").iterdir():
        if fd.is_symlink() and os.readlink(fd) == f"{path} (deleted)":
            return fd
    return path


def keep_log(path: Path) -> int:
    """Locks a file as a reader does that is another process: nobody deletes its log."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    if sys.platform == "linux":
        start, length = _SHARED_BYTES
        request = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, start, length, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
    return fd


def log_bytes(path: Path) -> int:
    """The size of a file's write-ahead log; 0 if there is none."""
    log = path.with_name(path.name + "-wal")
    return log.stat().st_size if log.exists() else 0


class DamagedContents(sqlite3.DatabaseError):
    """SQLite can read it, but it is not what was written."""


def check_length(path: Path) -> None:
    """Raises OSError if a name is too long for SQLite, which would only say that it cannot."""
    if len(os.fsencode(path)) > _LONGEST:
        raise OSError(
            errno.ENAMETOOLONG,
            f"{path}: SQLite takes names of at most {_LONGEST} bytes; use a shorter one",
        )


def is_damage(error: Exception) -> bool:
    """Whether an error proves that a file is not what it was."""
    if isinstance(error, (DamagedContents, UnicodeDecodeError, OverflowError)):
        return True  # the middle one: of a message of SQLite's that quotes what it found
    if isinstance(error, sqlite3.OperationalError) and "decode to UTF-8" in str(error):
        return True  # Python's own words for text that is none
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGE


def as_os_error(error: sqlite3.Error, path: Path) -> OSError:
    """What is in the way of an index, as the system calls it."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    tail = "; it is not damaged, as far as can be told, and nothing was changed"
    if code == _FULL or (code == _IO and files.free_bytes(path.parent) < _LITTLE):
        return StorageFull(errno.ENOSPC, f"{path}: no room to work with it{tail}. Make room")
    if code in (_BUSY, _LOCKED):
        return OSError(errno.EBUSY, f"{path}: another process keeps it locked{tail}")
    # The files themselves are not opened to find out: closing them would take SQLite's locks away.
    with ExitStack() as opened:
        try:
            for _ in range(_DESCRIPTORS):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as found:
            return OSError(found.errno, f"{path} cannot be opened: {found.strerror}{tail}")
    for file in (path.with_name(path.name + suffix) for suffix in SUFFIXES):
        if file.exists() and not os.access(file, os.R_OK | os.W_OK):
            text = os.strerror(errno.EACCES)
            return PermissionError(errno.EACCES, f"{path} cannot be opened: {text}{tail}")
    return OSError(errno.EIO, f"{path} cannot be used: {error}{tail}")
