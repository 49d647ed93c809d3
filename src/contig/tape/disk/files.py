"""Every call that touches a storage's files, apart from SQLite's own. Fault tests replace these."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from ... import _native

__all__ = [
    "changed_ns",
    "close",
    "copy",
    "create",
    "exchange",
    "exists",
    "fsync",
    "free_bytes",
    "fsync_dir",
    "link",
    "links",
    "listing",
    "make_dir",
    "new_dir",
    "open_to_read",
    "open_to_write",
    "pread",
    "pwrite",
    "read",
    "remove_dir",
    "remove_tree",
    "rename",
    "size",
    "truncate",
    "unlink",
    "write_new",
]


def make_dir(path: Path) -> None:
    """With those above it; each of them is there after a power loss, too."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_dir(path.parent)
    path.mkdir(exist_ok=True)
    fsync_dir(path.parent)


def new_dir(path: Path) -> None:
    """One that must not be there yet."""
    path.mkdir()


def exists(path: Path) -> bool:
    return path.exists()


def listing(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def create(path: Path, nbytes: int) -> int:
    """A new file of that size, without blocks yet; its descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_to_write(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def open_to_read(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def close(fd: int) -> None:
    os.close(fd)


def size(fd: int) -> int:
    return os.fstat(fd).st_size


def changed_ns(fd: int) -> int:
    """When a file was last changed, or put where it is."""
    return os.fstat(fd).st_ctime_ns


def links(path: Path) -> int:
    """Names that a file has."""
    return path.stat().st_nlink


def truncate(fd: int, nbytes: int) -> None:
    os.ftruncate(fd, nbytes)


def pwrite(fd: int, data: Any, offset: int) -> int:
    """Some of the bytes; how many."""
    return os.pwrite(fd, data, offset)


def pread(fd: int, nbytes: int, offset: int) -> bytes:
    """Bytes of a file; fewer where it ends."""
    parts = []
    while nbytes > 0 and (part := os.pread(fd, nbytes, offset)):
        parts.append(part)
        nbytes, offset = nbytes - len(part), offset + len(part)
    return b"".join(parts)


def fsync(fd: int) -> None:
    os.fsync(fd)


def free_bytes(path: Path) -> int:
    """Bytes that may still be written there."""
    return shutil.disk_usage(path).free


def fsync_dir(path: Path) -> None:
    """Names in a directory, to the disk. Not on Windows, where directories cannot be opened."""
    if os.name == "nt":
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read(path: Path) -> bytes:
    return path.read_bytes()


def write_new(path: Path, data: bytes) -> None:
    """A whole small file: visible only when it is complete and on its way to the disk."""
    temporary = path.with_name(path.name + ".tmp")
    fd = create(temporary, len(data))
    try:
        at = 0
        while at < len(data):
            at += pwrite(fd, data[at:], at)
        fsync(fd)
    finally:
        close(fd)
    rename(temporary, path)
    fsync_dir(path.parent)


def copy(old: Path, new: Path) -> None:
    """All of a file, not synced."""
    shutil.copyfile(old, new)


def remove_dir(path: Path) -> None:
    """An empty one."""
    path.rmdir()


def remove_tree(path: Path) -> None:
    """With all that is in it, as far as that goes."""
    shutil.rmtree(path, ignore_errors=True)


def exchange(one: Path, other: Path) -> int:
    """Has two names change places, in one step; 0, or why not, as the system calls it."""
    return int(_native.exchange_paths(os.fsencode(one), os.fsencode(other)))


def rename(old: Path, new: Path) -> None:
    os.replace(old, new)


def unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def link(old: Path, new: Path) -> None:
    os.link(old, new)
