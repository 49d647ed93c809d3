"""The directory of a storage on disk: what it is, and who writes to it.

layout.json   what a record is; never changes
lock          held by the one process that writes; its pid is in it
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ... import _native
from . import files
from .index import FORMAT, DiskIndex, IndexState

__all__ = ["DamagedIndexError", "hold_directory", "lock_directory", "open_index", "read_index"]

if sys.platform != "win32":
    import fcntl


class DamagedIndexError(ValueError):
    """SQLite cannot read a storage's index."""


def read_description(directory: Path) -> dict[str, Any] | None:
    """What layout.json says, or None in a new directory."""
    path = directory / "layout.json"
    if not files.exists(path):
        left = [n for n in files.listing(directory / "extents") if n.endswith(".rec")]
        if left:
            raise ValueError(
                f"{path} is missing, but there are {len(left)} files of rows, which cannot be read "
                "without it. Restore it from a checkpoint of this storage"
            )
        return None
    try:
        described = dict(json.loads(files.read(path)))
        if described["format"] > FORMAT:
            raise ValueError(
                f"{path}: format {described['format']}, this contig reads up to {FORMAT}; "
                "use a newer one"
            )
        if described["crc"] != _crc(described):
            raise ValueError("its checksum is wrong")
    except (ValueError, KeyError, TypeError) as error:
        if "use a newer one" in str(error):
            raise
        raise ValueError(
            f"{path} is damaged ({error}): without it the rows cannot be read. Restore it from "
            "a checkpoint of this storage; it does not change after the first row"
        ) from error
    return described


def write_description(directory: Path, described: dict[str, Any]) -> None:
    """Makes a new directory a storage."""
    text = json.dumps({**described, "crc": _crc(described)}, indent=1)
    files.write_new(directory / "layout.json", text.encode())


def _crc(described: dict[str, Any]) -> int:
    content = {k: v for k, v in described.items() if k != "crc"}
    return _native.crc32c(json.dumps(content, sort_keys=True).encode())


def lock_directory(directory: Path) -> int:
    """Makes this process the one that writes; the lock's descriptor.

    Raises:
        BlockingIOError: another one does; it names its pid.
    """
    if sys.platform == "win32":
        raise NotImplementedError("storages on disk need a POSIX system")
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise BlockingIOError(
            f"{directory} is being written by process {holder}: one process writes at a time; "
            "open it with read_only=True to follow it"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


@contextmanager
def hold_directory(path: Path) -> Iterator[None]:
    """Nobody else writes there meanwhile."""
    fd = lock_directory(path)
    try:
        yield
    finally:
        os.close(fd)


def open_index(path: Path, writable: bool) -> DiskIndex:
    """The index at a path; a new one where there are no rows yet.

    Raises:
        DamagedIndexError: it cannot be read, or is gone.
    """
    there = path.exists() and path.stat().st_size > 0
    if not there and any(n.endswith(".rec") for n in files.listing(path.parent / "extents")):
        raise _damaged_index(path, ValueError("it is missing, but there are files of rows"))
    try:
        return DiskIndex(path, writable)
    except sqlite3.DatabaseError as error:
        raise _damaged_index(path, error) from error


def read_index(index: DiskIndex, writable: bool) -> IndexState:
    """All of an index; who is going to write to it looks at all of its pages.

    Raises:
        DamagedIndexError: it cannot be read.
    """
    try:
        if writable:
            index.check()
        return index.load()
    except sqlite3.DatabaseError as error:
        raise _damaged_index(index.path, error) from error


def _damaged_index(path: Path, error: Exception) -> DamagedIndexError:
    return DamagedIndexError(
        f"{path} is damaged ({error}). `contig inspect --repair {path.parent}` sets it aside and "
        "rebuilds what can be read"
    )
