"""Every call that touches files of storages, checkpoints and rollouts, apart from SQLite's own.

Fault tests replace these: a call that fails, is cut short, or is the last before a power loss.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ... import _native

if sys.platform != "win32":
    import fcntl

__all__ = [
    "changed_ns", "close", "copy", "create", "exchange", "exists", "free_bytes", "fsync",
    "fsync_dir", "identity", "is_dir", "is_file", "lexists", "link", "links", "listing", "lock",
    "make_dir", "mapped", "modified_ns", "new_dir", "open_dir", "open_lock", "open_stream",
    "open_to_read", "open_to_write", "pread", "pwrite", "pwrite_all", "read", "read_part",
    "read_pieces", "remove_dir", "remove_tree", "rename", "sign", "size", "sync", "truncate",
    "unlink", "write", "write_new",
]  # fmt: skip


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


def lexists(path: Path) -> bool:
    """Whether there is anything of that name, a link to nothing included."""
    return os.path.lexists(path)


def is_dir(path: Path) -> bool:
    return path.is_dir()


def is_file(path: Path) -> bool:
    return path.is_file()


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


def open_dir(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_lock(path: Path) -> int:
    """A file to be locked, made if it is not there; it is never deleted."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def close(fd: int) -> None:
    os.close(fd)


def lock(fd: int, shared: bool = False) -> None:
    """Locks a file or directory for as long as the descriptor is open; does not wait.

    Raises:
        BlockingIOError: somebody else has it.
        OSError: it cannot be locked: some network file systems do not.
    """
    fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def unlock(fd: int) -> None:
    """Gives back what `lock` took. Closing is not enough: processes that were forked meanwhile have
    the descriptor too, and with it the lock."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def sign(fd: int) -> None:
    """Says in a lock's file which process has it."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


def identity(what: Path | int) -> tuple[int, int]:
    """Of a file or directory, whatever its name: the device, and its number there."""
    stat = os.stat(what)
    return stat.st_dev, stat.st_ino


def size(what: Path | int) -> int:
    return os.stat(what).st_size


def changed_ns(fd: int) -> int:
    """When a file was last changed, or put where it is."""
    return os.fstat(fd).st_ctime_ns


def modified_ns(path: Path) -> int:
    """When a file or directory was last written to."""
    return path.stat().st_mtime_ns


def links(path: Path) -> int:
    """Names that a file has."""
    return path.stat().st_nlink


def truncate(fd: int, nbytes: int) -> None:
    os.ftruncate(fd, nbytes)


def pwrite(fd: int, data: Any, offset: int) -> int:
    """Some of the bytes; how many."""
    return os.pwrite(fd, data, offset)


def pwrite_all(fd: int, data: Any, offset: int) -> int:
    """All of the bytes; where they end."""
    left = memoryview(data).cast("B")
    while left:
        done = pwrite(fd, left, offset)
        left, offset = left[done:], offset + done
    return offset


def pread(fd: int, nbytes: int, offset: int) -> bytes:
    """Bytes of a file; fewer where it ends."""
    parts = []
    while nbytes > 0 and (part := os.pread(fd, nbytes, offset)):
        parts.append(part)
        nbytes, offset = nbytes - len(part), offset + len(part)
    return b"".join(parts)


def fsync(fd: int) -> None:
    os.fsync(fd)


def sync(path: Path) -> None:
    """What is in a file, to the disk."""
    fd = open_to_write(path)
    try:
        fsync(fd)
    finally:
        close(fd)


def free_bytes(path: Path) -> int:
    """Bytes that may still be written there."""
    return shutil.disk_usage(path).free


def fsync_dir(path: Path) -> None:
    """Names in a directory, to the disk. Not on Windows, where directories cannot be opened."""
    if os.name == "nt":
        return
    fd = open_dir(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read(path: Path) -> bytes:
    return path.read_bytes()


def read_part(path: Path, nbytes: int, offset: int) -> bytes:
    """Bytes of a file from a place on; fewer where it ends."""
    fd = open_to_read(path)
    try:
        return pread(fd, nbytes, offset)
    finally:
        close(fd)


def read_pieces(path: Path, nbytes: int) -> Iterator[bytes]:
    """A whole file, at most `nbytes` at a time."""
    fd, at = open_to_read(path), 0
    try:
        while piece := pread(fd, nbytes, at):
            at += len(piece)
            yield piece
    finally:
        close(fd)


def open_stream(path: str | Path) -> BinaryIO:
    """For what others read from a file object."""
    return open(path, "rb")


def mapped(path: Path) -> np.ndarray[Any, Any]:
    """A file's bytes, read when they are looked at; there must be some."""
    return np.memmap(path, mode="c")


def write(path: Path, data: bytes | memoryview) -> None:
    """A whole file, synced; its name is not."""
    fd = create(path, len(data))
    try:
        pwrite_all(fd, data, 0)
        fsync(fd)
    finally:
        close(fd)


def write_new(path: Path, data: bytes) -> None:
    """A whole small file: visible only when it is complete and on its way to the disk."""
    temporary = path.with_name(path.name + ".tmp")
    write(temporary, data)
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
