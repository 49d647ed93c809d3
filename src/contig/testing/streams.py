"""OrderedStreams: the streams of a device where there is none, for tests of who waits for whom.

    side stream     copies when somebody waits for it, as late as it may
    current stream  does at once what it is given: tensors of the CPU are its device's, or
                    those of another device that has no streams

Each thread has a current stream of its own, and `on` gives it another one. `mark` and `is_after`
say whether what a stream is given now comes behind something that another one was given.

What is used before its copy was waited for has other bytes, and so has a page-locked block that is
filled again, or given back, while it is being copied. Put it in the place of
`contig.convert.transfers.streams_of`.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["OrderedStreams"]

_NOT_THERE = 0xDD  # bytes of what has not arrived


_Known = dict[str, int]  # of each stream, by name, how much of its work has been done


class _Event:
    def __init__(self, stream: _Stream) -> None:
        self.stream, self.done = stream, False
        self.known = {**stream.known, stream.name: stream.given}

    def set(self) -> None:
        self.done = True


class _Stream:
    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: deque[Callable[[], None]] = deque()
        self.given = 0
        self.known: _Known = {}  # what of others' work is done before it goes on

    def run(self) -> None:
        while self.queue:
            self.queue.popleft()()


class OrderedStreams:
    """Streams whose work is done no earlier than it has to be. Thread-safe.

    Args:
        device: of torch, whose streams these are said to be.

    Attributes:
        calls: what was asked for, in order: (name, stream's name).
        blocks: memory of page-locked blocks that were made.
        kept: tensors whose memory another stream uses.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self._device = device
        self.calls: list[tuple[str, str]] = []
        self.blocks: list[Any] = []
        self.kept: list[Any] = []
        self._own = threading.local()
        self._streams: list[_Stream] = []
        self._sides = self._threads = 0
        self._waited: _Known = {}  # what of all streams' work threads have waited for
        self._lock = threading.RLock()
        self._own.stream = self._new("current")

    def _new(self, name: str) -> _Stream:
        self._streams.append(_Stream(name))
        return self._streams[-1]

    def _note(self, what: str, stream: _Stream | None = None) -> None:
        self.calls.append((what, "" if stream is None else stream.name))

    def pinned(self, nbytes: int) -> Any:
        """A page-locked block of so many bytes; what it holds is recognisably nothing."""
        import torch

        with self._lock:
            self._note("pinned")
            memory = np.full(nbytes, _NOT_THERE, np.uint8)
            self.blocks.append(memory)
            lent = memory.view()
            weakref.finalize(lent, memory.fill, _NOT_THERE)  # others may have it then
            return torch.from_numpy(lent)

    def is_pinned(self, block: Any) -> bool:
        """Whether the memory of a block is that of a page-locked one."""
        return self._memory(block) is not None

    def _memory(self, block: Any) -> Any:
        """The bytes of a block in page-locked memory, which do not keep it; None: it is not."""
        with self._lock:
            for memory in self.blocks:
                at = block.data_ptr() - memory.ctypes.data
                if 0 <= at < len(memory):
                    return memory[at : at + len(block)]
            return None

    def side(self) -> Any:
        """A new stream, beside the current one."""
        with self._lock:
            self._sides += 1
            return self._new(f"side {self._sides - 1}")

    def current(self) -> Any:
        """The stream that the calling thread computes on: "current" of the one that made this,
        "thread 1" and so on of others."""
        if not hasattr(self._own, "stream"):
            with self._lock:
                self._threads += 1
                self._own.stream = self._new(f"thread {self._threads}")
        return self._own.stream

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """The calling thread computes on this stream meanwhile."""
        before, self._own.stream = self.current(), stream
        try:
            yield
        finally:
            self._own.stream = before

    def mark(self) -> tuple[str, int]:
        """Something that the calling thread's stream is given now."""
        with self._lock:
            stream = self.current()
            stream.given += 1
            return stream.name, stream.given

    def is_after(self, mark: tuple[str, int]) -> bool:
        """Whether what the calling thread's stream is given next begins when that is done."""
        with self._lock:
            (name, number), stream = mark, self.current()
            done = max(stream.known.get(name, 0), self._waited.get(name, 0))
            return bool(name == stream.name or number <= done)

    def to_device(self, block: Any, stream: Any) -> Any:
        """A copy of a block, which is there when the stream has come to it."""
        import torch

        with self._lock:
            self._note("to_device", stream)
            memory = self._memory(block)
            tensor = torch.full_like(block, _NOT_THERE, device=self._device)
            source = block if memory is None else torch.from_numpy(memory)
            stream.queue.append(lambda: _copy(tensor, source))
            if stream is self.current():
                stream.run()
            return tensor

    def to_host(self, tensor: Any, block: Any, stream: Any) -> None:
        """Copies a tensor into a block, when the stream has come to it."""
        with self._lock:
            self._note("to_host", stream)
            stream.queue.append(lambda: _copy(block, tensor))

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
            _learn(stream.known, event.known)
            self._reach(event)

    def done(self, event: Any) -> bool:
        """Whether an event is over."""
        with self._lock:
            if event.done:
                _learn(self._waited, event.known)
            return bool(event.done)

    def finish(self, event: Any) -> None:
        """Waits for an event."""
        with self._lock:
            self._note("finish", event.stream)
            _learn(self._waited, event.known)
            self._reach(event)

    def keep(self, tensor: Any, stream: Any) -> None:
        """Says that another stream uses a tensor's memory."""
        with self._lock:
            self._note("keep", stream)
            self.kept.append(tensor)

    def run(self) -> None:
        """Everything that was given to any stream is done."""
        with self._lock:
            for stream in self._streams:
                stream.run()

    def _reach(self, event: _Event) -> None:
        while not event.done:
            event.stream.queue.popleft()()


def _copy(target: Any, source: Any) -> None:
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():  # it is done by the stream, whoever waits for that
        target.copy_(source)


def _learn(known: _Known, more: _Known) -> None:
    for name, number in more.items():
        known[name] = max(known.get(name, 0), number)
