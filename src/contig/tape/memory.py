"""Storages in memory.

    LazyTensorStorage   memory of this process, handed to workers by descriptor
    SharedStorage       memory with a name, which any process of the host attaches to

Thread-safe.
"""

from __future__ import annotations

import sys
from typing import Any

from .. import _native
from ..arguments import whole
from ..convert import plain_tree
from ..layout import Layout
from .segment import Segment
from .storage import Storage

__all__ = ["LazyTensorStorage", "SharedStorage", "storage_of_fd"]


def _ndim(value: int) -> int:
    return whole("ndim", value, 1, "a number of batch dims")


def _tape_of(capacity: Any) -> tuple[int, Any, int]:
    """The control region's size for a capacity, what formats it, and what to reserve of it."""
    rows = whole("capacity", capacity, 1, "a number of rows")
    form = lambda control: _native.format_control(control, rows)  # noqa: E731
    return _native.control_bytes(rows), form, _native.table_bytes(rows)


class LazyTensorStorage(Storage):
    """Rows in memory of this process; workers it is passed to see them too.

    Args:
        capacity: rows to keep.
        ndim: batch dims of plain trees given to `extend`, the last of them time.
        example: one row; without it the first write fixes the layout.
    """

    def __init__(self, capacity: int, ndim: int = 1, example: Any = None) -> None:
        ndim = _ndim(ndim)
        super().__init__(Segment.anonymous(*_tape_of(capacity)), ndim, example)

    def __reduce__(self) -> Any:
        from multiprocessing.reduction import DupFd

        segment = self._open()
        if sys.platform != "linux":
            raise OSError("storages can be passed to other processes on Linux only")
        return _from_fd, (DupFd(segment.fd), self.ndim, self._keys)


def storage_of_fd(fd: int, ndim: int = 1) -> LazyTensorStorage:
    """A LazyTensorStorage of another process, by its descriptor, which it owns from now on."""
    storage = LazyTensorStorage.__new__(LazyTensorStorage)
    Storage.__init__(storage, Segment.from_fd(fd), ndim)
    return storage


def _from_fd(handle: Any, ndim: int, keys: tuple[Any, Any]) -> LazyTensorStorage:
    storage = storage_of_fd(handle.detach(), ndim)
    storage._keys = keys
    return storage


class SharedStorage(Storage):
    """Rows in shared memory under a name: every process of the host that names it shares it.

    The name disappears with the last process that has it open; leftovers of crashed processes go
    when the next contig process makes or attaches a SharedStorage.

    Args:
        capacity: rows to keep; must match when the name exists.
        name: a file name; made up if None.
        ndim, example: as in LazyTensorStorage.
    """

    def __init__(
        self, capacity: int, name: str | None = None, ndim: int = 1, example: Any = None
    ) -> None:
        ndim = _ndim(ndim)
        segment, created = Segment.named(name, *_tape_of(capacity))
        super().__init__(segment, ndim, example if created else None)
        if created:
            return
        try:
            if self.capacity != capacity:
                raise ValueError(
                    f"shared storage {name!r} exists with capacity {self.capacity}, asked for "
                    f"{capacity}"
                )
            if example is not None:
                self.publish(Layout(plain_tree(example)[0]))
        except BaseException:
            self.close()
            raise

    @classmethod
    def attach(cls, name: str, ndim: int = 1) -> SharedStorage:
        """The storage of this name, which must exist."""
        storage = cls.__new__(cls)
        Storage.__init__(storage, Segment.attach(name), ndim)
        return storage

    @property
    def name(self) -> str:
        name = self._open().name
        assert name is not None
        return name

    def __reduce__(self) -> Any:
        return _attach, (self.name, self.ndim, self._keys)


def _attach(name: str, ndim: int, keys: tuple[Any, Any]) -> SharedStorage:
    storage = SharedStorage.attach(name, ndim)
    storage._keys = keys
    return storage
