"""Connections to an index, and its log."""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
from pathlib import Path
from urllib.parse import quote

__all__ = ["connect", "deleted", "has_log", "keep_log"]

if sys.platform == "linux":
    import fcntl

_TIMEOUT_S = 30.0
_SHARED_BYTES = (0x40000002, 510)  # of a file, which SQLite locks while it reads


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


def has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0
