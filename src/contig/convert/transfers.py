"""Copies between host memory and a device, without anybody waiting for them.

    batch (one block) -> page-locked block -> copy on a stream -> event
                                                                    |
    consumer's stream waits for the event <- the device's block <---+

All that contig knows of streams, events and page-locked memory is here. `Streams` is what a device
has to offer; CUDA is the only one that does, and other devices copy as torch does it. Tests put
`contig.testing.OrderedStreams` in its place, which runs nothing before somebody waits for it.

Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .arrays import as_array
from .tensors import to_torch

__all__ = [
    "Arriving",
    "Fetched",
    "Streams",
    "Transfers",
    "Turns",
    "device_of",
    "moved",
    "pinned_copy",
    "streams_of",
]

Array = np.ndarray[Any, Any]


class Streams(Protocol):
    """The streams of one device. Nothing here waits, but for `finish`."""

    def pinned(self, nbytes: int) -> Any:
        """A page-locked tensor of bytes."""

    def is_pinned(self, block: Any) -> bool:
        """Whether a tensor is in page-locked memory."""

    def side(self) -> Any:
        """A stream besides those that anybody computes on."""

    def current(self) -> Any:
        """The stream that the calling thread computes on."""

    def to_device(self, block: Any, stream: Any) -> Any:
        """A page-locked block on the device, as soon as the stream gets there."""

    def to_host(self, tensor: Any, block: Any, stream: Any) -> None:
        """A tensor's bytes in a page-locked block, as soon as the stream gets there."""

    def record(self, stream: Any) -> Any:
        """An event: it is done when the stream has done all that it was given up to now."""

    def wait(self, stream: Any, event: Any) -> None:
        """What the stream is given from now on begins after the event."""

    def done(self, event: Any) -> bool:
        """Whether an event is done."""

    def finish(self, event: Any) -> None:
        """Returns when an event is done."""

    def keep(self, tensor: Any, stream: Any) -> None:
        """A tensor's memory is not used again before this stream, too, is through with it."""


class CudaStreams:
    """Those of a CUDA device."""

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._device = device

    def pinned(self, nbytes: int) -> Any:
        import torch

        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_pinned(self, block: Any) -> bool:
        return bool(block.is_pinned())

    def side(self) -> Any:
        return self._cuda.Stream(self._device)

    def current(self) -> Any:
        return self._cuda.current_stream(self._device)

    def to_device(self, block: Any, stream: Any) -> Any:
        with self._cuda.stream(stream):
            return block.to(self._device, non_blocking=True)

    def to_host(self, tensor: Any, block: Any, stream: Any) -> None:
        with self._cuda.stream(stream):
            block.copy_(tensor, non_blocking=True)

    def record(self, stream: Any) -> Any:
        event = self._cuda.Event()
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def done(self, event: Any) -> bool:
        return bool(event.query())

    def finish(self, event: Any) -> None:
        event.synchronize()

    def keep(self, tensor: Any, stream: Any) -> None:
        tensor.record_stream(stream)


def device_of(device: Any) -> Any:
    """A torch device as its tensors name it: of CUDA with its number, of the CPU without.

    Raises:
        ValueError: torch knows no such device, or has none of that kind.
    """
    import torch

    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        hint = 'such as "cpu", "cuda" or "cuda:1"'
        raise ValueError(f"device: expected one of torch's, {hint}, got {device!r}") from error
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(
                f"device={str(device)!r}: this torch finds no CUDA device; install one that does, "
                'or use device="cpu"'
            )
        if found.index is None:
            return torch.device("cuda", torch.cuda.current_device())
        return found
    return torch.device("cpu") if found.type == "cpu" else torch.empty(0, device=found).device


def streams_of(device: Any) -> Streams | None:
    """The streams of a device; None: it has none, and copies are done when they return."""
    return CudaStreams(device) if device.type == "cuda" else None


def page_locked(streams: Streams, nbytes: int) -> Any:
    """A page-locked tensor of bytes, which is written to again by whoever comes next: in inference
    mode or not."""
    import torch

    with torch.inference_mode(False):
        return streams.pinned(nbytes)


class _Blocks:
    """Page-locked blocks that are used again, each after the event of its last copy.

    Args:
        most: blocks to keep. If all of them are on their way, there is another one for once.
    """

    def __init__(self, streams: Streams, most: int) -> None:
        self._streams, self._most = streams, most
        self._lock = threading.Lock()
        self._used: list[tuple[Any, Any]] = []  # with the events after which they are free
        self._held: list[tuple[Any, Any]] = []  # the same, of those that are not used again

    def take(self, nbytes: int) -> Any:
        with self._lock:
            for i, (block, event) in enumerate(self._used):
                if len(block) >= nbytes and self._streams.done(event):
                    del self._used[i]
                    return block
        return page_locked(self._streams, nbytes)

    def hold(self, block: Any, event: Any) -> None:
        """Keeps somebody else's block alive until an event."""
        with self._lock:
            self._hold(block, event)

    def _hold(self, block: Any, event: Any) -> None:
        self._held = [x for x in self._held if not self._streams.done(x[1])]
        self._held.append((block, event))

    def give(self, block: Any, event: Any) -> None:
        """Gives a block back, which is in use until an event."""
        with self._lock:
            if len(self._used) >= self._most:  # the smallest goes: batches may have grown
                smallest = min(range(len(self._used)), key=lambda i: len(self._used[i][0]))
                if len(self._used[smallest][0]) >= len(block) or not self._streams.done(
                    self._used[smallest][1]
                ):
                    self._hold(block, event)
                    return
                del self._used[smallest]
            self._used.append((block, event))


class Arriving:
    """Tensors that one stream makes, for whoever uses them on others.

    Args:
        streams: their device's; None: it has none, and they are there.
        tensors: all of them, wherever their memory is.
        stream, event: what makes them, and when it has done so.
    """

    def __init__(
        self, streams: Streams | None, tensors: Sequence[Any], stream: Any = None, event: Any = None
    ) -> None:
        self._streams, self._tensors = streams, tensors
        self._stream, self._event = stream, event

    @staticmethod
    def made(streams: Streams | None, tensors: Sequence[Any]) -> Arriving:
        """Tensors that the calling thread's stream was just given to make, or to change."""
        if streams is None:
            return Arriving(None, tensors)
        current = streams.current()
        return Arriving(streams, tensors, current, streams.record(current))

    def after(self, tensors: Sequence[Any]) -> Arriving:
        """`made` of other tensors of the same device."""
        return Arriving.made(self._streams, tensors)

    def tensor(self) -> Any:
        """The first of them. What the calling thread does with any of them on its stream begins
        when they are made; the thread itself does not wait."""
        if self._streams is not None:
            current = self._streams.current()
            if current != self._stream:
                self._streams.wait(current, self._event)
                for tensor in self._tensors:
                    self._streams.keep(tensor, current)
        return self._tensors[0] if self._tensors else None


class Fetched:
    """Arrays on their way to the host."""

    def __init__(
        self, tensors: Sequence[Any], streams: Streams | None = None, event: Any = None
    ) -> None:
        self._tensors, self._streams, self._event = tensors, streams, event

    def arrays(self) -> list[Array]:
        """They, when they are there."""
        if self._streams is not None:
            self._streams.finish(self._event)
        return [as_array(tensor) for tensor in self._tensors]


_ROUND = 16  # any dtype can be viewed at a multiple of it


def _room(tensor: Any) -> int:
    nbytes = int(tensor.numel()) * int(tensor.element_size())
    return -(-nbytes // _ROUND) * _ROUND


def packed(tensors: Sequence[Any]) -> Any:
    """The bytes of tensors of one device in one tensor of it."""
    import torch

    size = sum(_room(x) for x in tensors)
    whole = torch.zeros(size, dtype=torch.uint8, device=tensors[0].device)
    # By views of the result: bytes of a tensor cannot be seen if its strides are odd, which those
    # of a single row may be, or if it is conjugated.
    for part, tensor in zip(unpacked(whole, tensors), tensors):
        part.copy_(tensor.detach())
    return whole


def unpacked(whole: Any, tensors: Sequence[Any]) -> list[Any]:
    """Views of what `packed` made of tensors, wherever it is now."""
    out, at = [], 0
    for tensor in tensors:
        nbytes = int(tensor.numel()) * int(tensor.element_size())
        out.append(whole[at : at + nbytes].view(tensor.dtype).view(tensor.shape))
        at += _room(tensor)
    return out


class Transfers:
    """Copies of blocks of one device.

    Args:
        streams: the device's.
        blocks: page-locked blocks to keep; as many as copies are under way at a time.
    """

    def __init__(self, streams: Streams, blocks: int = 4) -> None:
        self.streams = streams
        self._blocks = _Blocks(streams, blocks)
        self._side: Any = None
        self._lock = threading.Lock()

    @staticmethod
    def to(device: Any, blocks: int = 4) -> Transfers | None:
        """Those to a device; None if it has no streams."""
        streams = streams_of(device)
        return None if streams is None else Transfers(streams, blocks)

    def send(self, block: Array, aside: bool = False) -> Arriving:
        """Begins to copy a block of bytes, which may be changed as soon as this returns; unless it
        is in page-locked memory, from which it is copied as it is.

        Args:
            aside: on a stream besides the calling thread's, so that it goes on meanwhile.
        """
        streams, source = self.streams, to_torch(block)
        stream = self._side_stream() if aside else streams.current()
        if streams.is_pinned(source):
            tensor = streams.to_device(source, stream)
            event = streams.record(stream)
            self._blocks.hold(source, event)
            return Arriving(streams, (tensor,), stream, event)
        pinned = self._blocks.take(len(block))
        part = pinned[: len(block)]
        part.copy_(source)
        tensor = streams.to_device(part, stream)
        event = streams.record(stream)
        self._blocks.give(pinned, event)
        return Arriving(streams, (tensor,), stream, event)

    def fetch(self, tensors: Sequence[Any]) -> Fetched:
        """Begins to copy tensors of the device to the host, all in one copy."""
        streams, whole = self.streams, packed(tensors)
        # Not of the pool: arrays of it are handed out.
        block, stream = page_locked(streams, len(whole)), streams.current()
        streams.to_host(whole, block, stream)
        event = streams.record(stream)
        return Fetched(unpacked(block, tensors), streams, event)

    def _side_stream(self) -> Any:
        with self._lock:
            if self._side is None:
                self._side = self.streams.side()
            return self._side


_shared: dict[Any, Transfers] = {}
_sharing = threading.Lock()


def sent(block: Array, device: Any) -> Arriving:
    """A block of bytes on its way to a device, on the calling thread's stream; in one copy, or none
    if it is there already."""
    where = device_of(device)
    with _sharing:
        transfers = _shared.get(where)
        if transfers is None and (made := Transfers.to(where)) is not None:
            transfers = _shared[where] = made
    if transfers is None:
        return Arriving(None, (to_torch(block).to(where),))
    return transfers.send(block)


def moved(block: Array, device: Any) -> Any:
    """A block of bytes as a tensor of a device, for the calling thread's stream; as `sent`."""
    return sent(block, device).tensor()


def pinned_copy(block: Array) -> Array | None:
    """A block of bytes in page-locked memory; None: it is in such memory, or nobody here has a use
    for it."""
    import torch

    tensor = to_torch(block)
    if not torch.cuda.is_available() or tensor.is_pinned():
        return None
    return np.asarray(tensor.pin_memory().numpy())


class Turns:
    """Keeps what is read from and written to one memory in the order in which it was asked for, on
    whatever streams. Used under the lock of that memory.

    Args:
        streams: the memory's device's; None: nothing is left to be done when a call returns.
    """

    def __init__(self, streams: Streams | None) -> None:
        self._streams = streams
        self._written: tuple[Any, Any] | None = None  # stream and event of the last write
        self._read: dict[Any, Any] = {}  # events of reads since then, by stream

    def before_write(self) -> None:
        if self._streams is None:
            return
        current = self._streams.current()
        last = () if self._written is None else (self._written,)
        for stream, event in (*last, *self._read.items()):
            if stream != current:
                self._streams.wait(current, event)

    def wrote(self) -> None:
        if self._streams is not None:
            current = self._streams.current()
            self._written, self._read = (current, self._streams.record(current)), {}

    def before_read(self) -> None:
        if self._streams is not None and self._written is not None:
            current, (stream, event) = self._streams.current(), self._written
            if stream != current:
                self._streams.wait(current, event)

    def read(self, tensor: Any) -> Arriving:
        """A tensor that was read just now, for whoever uses it on another stream."""
        if self._streams is None:
            return Arriving(None, (tensor,))
        current = self._streams.current()
        event = self._read[current] = self._streams.record(current)
        return Arriving(self._streams, (tensor,), current, event)

    def made(self, tensor: Any) -> Arriving:
        """A tensor of one's own that was made just now, likewise."""
        return Arriving.made(self._streams, (tensor,))
