"""The memory behind a tape, a queue or a weights board: a memfd, a named file in shared memory, or
private memory. Whatever is in it, its seventh word says how many bytes to map at first.

A named segment is a file of ``/dev/shm``. Every process that has it open holds a shared ``flock``
on it; whoever can get an exclusive one knows that nobody is left and may unlink it. That is what
`reap` does with leftovers of crashed processes, and `Segment.close` with its own.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .. import _native
from ..errors import ClosedError, StorageFull

if sys.platform == "linux":
    import fcntl

__all__ = ["Segment", "leftovers", "new_segment", "opened", "reap"]

T = TypeVar("T")

Form = Callable[[np.ndarray[Any, Any]], None]

_DIR = Path("/dev/shm")
_PREFIX = "contig-"
_reaped = False


class Segment:
    """One piece of memory in this process. Created by the class methods below.

    `fd` is -1 for private memory, which no other process can see. A named one is locked through a
    descriptor of its own: duplicates of `fd`, which others may hold for longer, have no lock.
    """

    def __init__(
        self, fd: int, control_bytes: int, name: str | None = None, lock_fd: int = -1
    ) -> None:
        self.fd = fd
        self.name = name
        self._lock_fd = lock_fd
        self._private = fd < 0
        self._using = threading.RLock()  # the descriptor: its number may be another file's later
        self.control = self._map(0, control_bytes)

    def _map(self, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        if self._private:
            return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)
        with self._using:
            self._check_open()
            return _native.map_file(self.fd, offset, nbytes)

    def _check_open(self) -> None:
        if self.fd < 0:
            raise ClosedError("this storage is closed")

    def map_data(self, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        """The tape's rows, once their place is known."""
        return self._map(offset, nbytes)

    def read(self, offset: int, nbytes: int) -> bytes:
        with self._using:
            self._check_open()
            return os.pread(self.fd, nbytes, offset)

    @staticmethod
    def anonymous(nbytes: int, form: Form, reserve: int) -> Segment:
        """Memory that can be handed to other processes by descriptor (on Linux only).

        Args:
            nbytes: what is mapped at first.
            form: writes the header into that memory.
            reserve: bytes to have memory for at once.

        Raises:
            StorageFull: there is no memory for it.
        """
        fd = -1
        if sys.platform == "linux":
            with _needs_room(reserve):
                fd = os.memfd_create("contig", os.MFD_CLOEXEC)
                try:
                    _size(fd, nbytes, reserve)
                except BaseException:
                    os.close(fd)
                    raise
        segment = Segment(fd, nbytes)
        form(segment.control)
        return segment

    @staticmethod
    def from_fd(fd: int) -> Segment:
        """An anonymous segment of another process."""
        return Segment(fd, _control_bytes_of(fd))

    @staticmethod
    def named(name: str | None, nbytes: int, form: Form, reserve: int) -> tuple[Segment, bool]:
        """Creates a named segment, or attaches to the one there; says whether it created it.

        Raises:
            StorageFull: there is no memory for it; nothing is left of it.
        """
        _need_sharing()
        reap_once()
        name = uuid.uuid4().hex[:16] if name is None else _checked(name)
        while True:
            try:
                return Segment.attach(name), False
            except FileNotFoundError:
                pass
            with _needs_room(reserve):
                segment = _create(name, nbytes, form, reserve)
            if segment is not None:
                return segment, True

    @staticmethod
    def attach(name: str) -> Segment:
        """Attaches to a named segment.

        Raises:
            FileNotFoundError: there is none of this name.
        """
        _need_sharing()
        reap_once()
        path = _path(_checked(name))
        while True:
            _unlink_if_unused(path)  # what a crashed process left is nobody's storage
            lock_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(lock_fd, fcntl.LOCK_SH)
            if _is(lock_fd, path):
                fd = _reopened(lock_fd)
                return Segment(fd, _control_bytes_of(fd), name, lock_fd)
            os.close(lock_fd)  # it was unlinked before we had the lock

    def close(self) -> None:
        """Lets go of the segment; the last process to do so unlinks a named one.

        Arrays that view its memory keep the memory, not the name.
        """
        with self._using:
            fd, self.fd = self.fd, -1
            if fd < 0 or sys.platform != "linux":
                return
            os.close(fd)
        if self.name is not None:
            os.close(self._lock_fd)
            _unlink_if_unused(_path(self.name))


def _need_sharing() -> None:
    if sys.platform != "linux" or not _native.ROBUST_LOCKS:
        raise OSError(
            "SharedStorage needs robust process-shared locks, which this platform does not have; "
            "use LazyTensorStorage within one process"
        )


def _checked(name: str) -> str:
    if not name or "/" in name or name.startswith("."):
        raise ValueError(f"name {name!r}: expected a file name without slashes")
    return name


def _path(name: str) -> Path:
    return _DIR / (_PREFIX + name)


def _reopened(fd: int) -> int:
    """Another description of the same open file."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


@contextmanager
def _needs_room(nbytes: int) -> Iterator[None]:
    """Makes a system without memory, or a full /dev/shm, a StorageFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
            raise
        raise StorageFull(
            error.errno,
            f"cannot reserve {nbytes:,} bytes of shared memory: {os.strerror(error.errno)}; "
            "nothing was made. Use a smaller capacity or a larger /dev/shm.",
        ) from error


def _size(fd: int, nbytes: int, reserve: int) -> None:
    os.ftruncate(fd, nbytes)
    os.posix_fallocate(fd, 0, min(nbytes, reserve))


def _is(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _control_bytes_of(fd: int) -> int:
    words = np.frombuffer(os.pread(fd, 64, 0).ljust(64, b"\0"), np.uint64)
    return min(int(words[6]), os.fstat(fd).st_size)  # whoever it is handed to checks the header


def _create(name: str, nbytes: int, form: Form, reserve: int) -> Segment | None:
    # Made complete under a temporary name, then linked: a name never shows a half-made header.
    temporary = _path(f"{name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    while True:
        lock_fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock_fd, fcntl.LOCK_SH)
        if _is(lock_fd, temporary):
            break
        os.close(lock_fd)  # a reaper was quicker than our lock
    fd = _reopened(lock_fd)
    try:
        _size(fd, nbytes, reserve)
        segment = Segment(fd, nbytes, name, lock_fd)
        form(segment.control)
        os.link(temporary, _path(name))
        return segment
    except BaseException as error:
        os.close(fd)
        os.close(lock_fd)
        if isinstance(error, FileExistsError):
            return None
        raise
    finally:
        os.unlink(temporary)


@contextmanager
def _exclusive(path: Path) -> Iterator[bool]:
    """Whether nobody else has the file open, true only for the length of the block."""
    try:
        # A description of its own: flock would otherwise just convert the lock we hold.
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        yield False
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield _is(fd, path)
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


def _unlink_if_unused(path: Path) -> bool:
    with _exclusive(path) as unused:
        if unused:
            path.unlink(missing_ok=True)
        return unused


def new_segment(
    name: str | None, nbytes: int, form: Callable[[np.ndarray[Any, Any]], None]
) -> Segment:
    """A segment that is formed by the caller; with a name other processes can attach to it.

    Raises:
        FileExistsError: there is one of this name.
    """
    if name is None or sys.platform != "linux":
        return Segment.anonymous(nbytes, form, nbytes)
    segment, created = Segment.named(name, nbytes, form, nbytes)
    if not created:
        segment.close()
        raise FileExistsError(f"shared memory {name!r} exists; choose another name")
    return segment


def opened(segment: Segment, form: Callable[[Segment], T]) -> T:
    """What a segment holds; one that holds something else is let go of."""
    try:
        return form(segment)
    except BaseException:
        segment.close()
        raise


def leftovers() -> dict[str, int]:
    """Segments whose processes are all gone, and the bytes of each. Nothing is changed."""
    if sys.platform != "linux":
        return {}
    found = {}
    for path in _DIR.glob(_PREFIX + "*"):
        try:
            if path.is_file():
                nbytes = path.stat().st_blocks * 512
                with _exclusive(path) as unused:
                    if unused:
                        found[path.name.removeprefix(_PREFIX)] = nbytes
        except OSError:
            pass  # somebody else's, or gone
    return found


def reap() -> list[str]:
    """Unlinks segments whose processes are all gone; returns their names."""
    if sys.platform != "linux":
        return []
    gone = []
    for path in _DIR.glob(_PREFIX + "*"):
        try:
            if path.is_file() and _unlink_if_unused(path):
                gone.append(path.name.removeprefix(_PREFIX))
        except OSError:
            pass  # somebody else's, or of another kind
    return gone


def reap_once() -> None:
    """The same, at most once in a process."""
    global _reaped
    if not _reaped:
        _reaped = True
        reap()
