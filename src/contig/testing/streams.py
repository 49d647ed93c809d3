"""OrderedStreams: the streams of a device where there is none, for tests of who waits for whom.

    side stream     copies when somebody waits for it, as late as it may
    current stream  does at once what it is given: tensors of the CPU are its device's

What is used before its copy was waited for has other bytes, and so has a page-locked block that is
filled again while it is being copied. Put it in the place of `contig.convert.transfers.streams_of`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["OrderedStreams"]

_NOT_THERE = 0xDD  # bytes of what has not arrived


class _Event:
    def __init__(self, stream: _Stream) -> None:
        self.stream, self.done = stream, False

    def set(self) -> None:
        self.done = True


class _Stream:
    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: deque[Callable[[], None]] = deque()

    def run(self) -> None:
        while self.queue:
            self.queue.popleft()()


class OrderedStreams:
    """Streams whose work is done no earlier than it has to be. Thread-safe.

    Attributes:
        calls: what was asked for, in order: (name, stream's name).
        blocks: page-locked blocks that were made.
        kept: tensors whose memory another stream uses.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.blocks: list[Any] = []
        self.kept: list[Any] = []
        self._now = _Stream("current")
        self._sides: list[_Stream] = []
        self._lock = threading.RLock()

    def _note(self, what: str, stream: _Stream | None = None) -> None:
        self.calls.append((what, "" if stream is None else stream.name))

    def pinned(self, nbytes: int) -> Any:
        """A page-locked block of so many bytes; what it holds is recognisably nothing."""
        import torch

        with self._lock:
            self._note("pinned")
            block = torch.full((nbytes,), _NOT_THERE, dtype=torch.uint8)
            self.blocks.append(block)
            return block

    def is_pinned(self, block: Any) -> bool:
        """Whether the memory of a block is that of a page-locked one."""
        with self._lock:
            pointers = ((x.data_ptr(), x.data_ptr() + len(x)) for x in self.blocks)
            return any(low <= block.data_ptr() < high for low, high in pointers)

    def side(self) -> Any:
        """A new stream, beside the current one."""
        with self._lock:
            self._sides.append(_Stream(f"side {len(self._sides)}"))
            return self._sides[-1]

    def current(self) -> Any:
        """The stream that the caller computes on."""
        return self._now

    def to_device(self, block: Any, stream: Any) -> Any:
        """A copy of a block, which is there when the stream has come to it."""
        import torch

        with self._lock:
            self._note("to_device", stream)
            tensor = torch.full_like(block, _NOT_THERE)
            stream.queue.append(lambda: tensor.copy_(block))
            if stream is self._now:
                stream.run()
            return tensor

    def to_host(self, tensor: Any, block: Any, stream: Any) -> None:
        """Copies a tensor into a block, when the stream has come to it."""
        with self._lock:
            self._note("to_host", stream)
            stream.queue.append(lambda: block.copy_(tensor))

    def record(self, stream: Any) -> Any:
        """An event that is over when the stream has done all that it has so far."""
        with self._lock:
            self._note("record", stream)
            event = _Event(stream)
            stream.queue.append(event.set)
            return event

    def wait(self, stream: Any, event: Any) -> None:
        """A stream goes on only behind an event."""
        with self._lock:
            self._note("wait", stream)
            self._reach(event)

    def done(self, event: Any) -> bool:
        """Whether an event is over."""
        with self._lock:
            return bool(event.done)

    def finish(self, event: Any) -> None:
        """Waits for an event."""
        with self._lock:
            self._note("finish", event.stream)
            self._reach(event)

    def keep(self, tensor: Any, stream: Any) -> None:
        """Says that another stream uses a tensor's memory."""
        with self._lock:
            self._note("keep", stream)
            self.kept.append(tensor)

    def run(self) -> None:
        """Everything that was given to any stream is done."""
        with self._lock:
            for stream in (self._now, *self._sides):
                stream.run()

    def _reach(self, event: _Event) -> None:
        while not event.done:
            event.stream.queue.popleft()()
