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
from .asked import Asked
from .encoding import check_codecs, codecs_of
from .fields import fields_layout
from .segment import Segment
from .stacks import stacks_of
from .storage import Storage

__all__ = ["LazyTensorStorage", "SharedStorage", "new_tape", "storage_of_fd"]


def _ndim(value: int) -> int:
    return whole("ndim", value, 1, "a number of batch dims")


def _asked(
    fields: Any, blob_bytes: int | None, codecs: Any, share_next: bool | None, stack: Any
) -> Asked:
    return Asked(
        fields=None if fields is None else fields_layout(fields),
        blob_bytes=blob_bytes,
        codecs=codecs_of(codecs),
        share_next=share_next,
        stack=stacks_of(stack),
    )


def _tape_of(capacity: Any) -> tuple[int, Any, int]:
    """The control region's size for a capacity, what formats it, and what to reserve of it."""
    rows = whole("capacity", capacity, 1, "a number of rows")
    form = lambda control: _native.format_control(control, rows)  # noqa: E731
    return _native.control_bytes(rows), form, _native.table_bytes(rows)


def new_tape(capacity: Any) -> Segment:
    """Memory for a tape that only this process, and those it hands it to, has."""
    return Segment.anonymous(*_tape_of(capacity))


class LazyTensorStorage(Storage):
    """Rows in memory of this process; workers it is passed to see them too.

    Args:
        capacity: rows to keep.
        ndim: batch dims of plain trees given to `extend`, the last of them time.
        example: one row; without it the first write fixes the layout.
        fields: an example of what each trajectory has besides its rows: a mapping of a few
            fixed-size values. Without it, the first write may give some.
        blob_bytes: what to keep of leaves of any size: older rows are evicted when their bytes do
            not fit. None: 1 KiB per row of the capacity, at least 256 MiB. Memory is taken only as
            far as it is used. With codecs at least an eighth of what their leaves have decoded.
        codecs: leaves to keep encoded, by key or path: ``{"pixels": "zstd"}``; see contig.codecs.
            A lossless one is for the same leaf below ``next``, too.
        share_next: whether leaves that are also below ``next`` are stored once: samples are the
            same, memory is about half. None: where that saves memory.
        stack: leaves that are stacks of frames, by key or path, with the number of frames, or that
            and their axis, 0 or -1: ``{"observation": 4}``. Frames are stored once. None: they
            are recognised in the first rows; ``{}``: there are none.
        max_size: the capacity, under TorchRL's name.
    """

    at_once = True

    def __init__(
        self,
        capacity: int | None = None,
        ndim: int = 1,
        example: Any = None,
        fields: Any = None,
        *,
        blob_bytes: int | None = None,
        codecs: Any = None,
        share_next: bool | None = None,
        stack: Any = None,
        max_size: int | None = None,
    ) -> None:
        if capacity is not None and max_size is not None:
            raise TypeError("LazyTensorStorage: give a capacity, or max_size, which is the same")
        rows = capacity if max_size is None else max_size
        ndim, asked = _ndim(ndim), _asked(fields, blob_bytes, codecs, share_next, stack)
        super().__init__(new_tape(rows), ndim, example, asked)

    def __reduce__(self) -> Any:
        from multiprocessing.reduction import DupFd

        segment = self._open()
        if sys.platform != "linux":
            raise OSError("storages can be passed to other processes on Linux only")
        return _from_fd, (DupFd(segment.fd), self.ndim, self.asked)


def storage_of_fd(fd: int, ndim: int = 1) -> LazyTensorStorage:
    """A LazyTensorStorage of another process, by its descriptor, which it owns from now on."""
    storage = LazyTensorStorage.__new__(LazyTensorStorage)
    Storage.__init__(storage, Segment.from_fd(fd), ndim)
    return storage


def _from_fd(handle: Any, ndim: int, asked: Asked) -> LazyTensorStorage:
    storage = storage_of_fd(handle.detach(), ndim)
    storage.asked = asked
    return storage


class SharedStorage(Storage):
    """Rows in shared memory under a name: every process of the host that names it shares it.

    The name disappears with the last process that has it open; leftovers of crashed processes go
    when the next contig process makes or attaches a SharedStorage.

    Args:
        capacity: rows to keep; must match when the name exists.
        name: a file name; made up if None.
        ndim, example, fields, blob_bytes, codecs, share_next, stack: as in LazyTensorStorage.
            Fields must match when the name exists, and codecs, too, unless they are left out;
            `blob_bytes`, `share_next` and `stack` are the first writer's.
    """

    at_once = True

    def __init__(
        self,
        capacity: int,
        name: str | None = None,
        ndim: int = 1,
        example: Any = None,
        fields: Any = None,
        *,
        blob_bytes: int | None = None,
        codecs: Any = None,
        share_next: bool | None = None,
        stack: Any = None,
    ) -> None:
        ndim, asked = _ndim(ndim), _asked(fields, blob_bytes, codecs, share_next, stack)
        segment, created = Segment.named(name, *_tape_of(capacity))
        super().__init__(segment, ndim, example if created else None, asked)
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
            elif self.schema is not None:
                check_codecs(self.schema.codecs, asked.codecs)
            if asked.fields is not None:
                self.bind_fields(asked.fields)
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
        """By which other processes of the host attach to it."""
        name = self._open().name
        assert name is not None
        return name

    def _place(self) -> str:
        return "" if self._segment is None else f" {self.name!r}"

    def __reduce__(self) -> Any:
        return _attach, (self.name, self.ndim, self.asked)


def _attach(name: str, ndim: int, asked: Asked) -> SharedStorage:
    storage = SharedStorage.attach(name, ndim)
    storage.asked = asked
    return storage
