"""Where collected batches go: a buffer's storage, here or in a worker, or a server's table.

Workers import this: what only collectors need of buffers and servers is imported where it is used.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ..batch import Batch
from ..layout import Layout
from ..replay.ingress import Ingress, attach_storage
from ..tape import LazyTensorStorage, SharedStorage, Storage
from ..tape.entry import ends_of
from ..tape.episodes import read_index
from ..tape.stacking import count_rows
from .episode_fields import pieces_with_fields, row_fields

if TYPE_CHECKING:
    from ..replay import ReplayBuffer
    from ..sample import RateLimiter

__all__ = [
    "Address",
    "HasProducers",
    "RemoteSink",
    "StorageSink",
    "address_elsewhere",
    "address_of",
    "buffers_of",
    "has_after",
    "open_sink",
    "sink_of",
]


_SLICE_S = 0.1
_ROOM_S = 60.0


class Producer(Protocol):
    """Writes to a buffer elsewhere, exactly once."""

    def extend(self, data: Any, *, fields: Any = None) -> Any: ...
    def flush(self, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...


class ProducerSource(Protocol):
    """What is sent to an actor, which makes its producer of it."""

    def connect(self, data_sample: Any = None) -> Producer: ...


@runtime_checkable
class HasProducers(Protocol):
    """A buffer that is spread over a cluster; `feed` and `watch` as a ReplayBuffer has them."""

    def client(self) -> ProducerSource: ...
    def feed(self, check: Callable[[], None], *, always: bool = False) -> Callable[[], None]: ...
    def watch(self, check: Callable[[], None]) -> Callable[[], None]: ...


class Address(NamedTuple):
    """What a worker needs to reach a storage or a server's table.

    Attributes:
        server: arguments of a RemoteReplayBuffer, for a table elsewhere.
        storage: where it is on this host, as its `Ingress` describes it.
        fd: of memory that this process has and a worker inherits; -1 if it has a name.
        transform, limiter: as the buffer has them.
        client: the way into a buffer that is spread over a cluster.
    """

    server: dict[str, Any] | None = None
    storage: dict[str, Any] | None = None
    fd: int = -1
    transform: Callable[[Batch], Any] | None = None
    limiter: RateLimiter | None = None
    client: ProducerSource | None = None


def _always() -> None:
    """Nobody minds the wait."""


def _untold(going: bool) -> None:
    """Nobody counts."""


class StorageSink:
    """Appends to a storage with a writer of its own. For one thread.

    Attributes:
        newest: the seq of the last row it wrote.
    """

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress.apart()
        self.newest = -1

    def write(
        self,
        batch: Any,
        go_on: Callable[[], None] = _always,
        tell: Callable[[bool], None] = _untold,
    ) -> int:
        """Appends a batch; returns its rows.

        Args:
            go_on: called while it waits for room.
            tell: called with True right before rows are there, with False if they are not after
                all: whoever dies in between may have written them.
        """
        fields = row_fields(batch, self._ingress.storage)
        batch = self._ingress.admit(batch, go_on)
        if batch is None:  # a transform that keeps rows back, until it has seen what follows
            return 0
        tell(True)
        try:
            seqs = self._ingress.writer.extend(batch, fields=fields)
        except Exception:
            tell(False)
            raise
        self.newest = int(np.max(seqs))
        return len(seqs)

    @property
    def writer(self) -> int:
        """Its writer's number; 0 before the first row."""
        return self._ingress.writer.id

    def fix(self, rows: Batch, fields: Layout | None) -> None:
        """Says what rows will be, by some of them, and fields of trajectories."""
        if self._ingress.transform is None:
            self._ingress.storage.publish_like(rows, fields)

    def close(self) -> None:
        """The storage stays open: it is not ours."""


class RemoteSink:
    """Sends to a table of a server, or to a shard of a cluster."""

    writer, newest = 0, -1  # only the server knows

    def __init__(self, buffer: Producer, own: bool = False) -> None:
        self._buffer, self._own = buffer, own

    def write(
        self,
        batch: Any,
        go_on: Callable[[], None] = _always,
        tell: Callable[[bool], None] = _untold,
    ) -> int:
        """Sends a batch and waits until it is in the table; returns its rows."""
        tell(True)
        for piece, fields in pieces_with_fields(batch):
            if fields is None:
                self._buffer.extend(piece)
            else:
                self._buffer.extend(piece, fields=fields)
        deadline = time.monotonic() + _ROOM_S
        while True:
            try:
                self._buffer.flush(_SLICE_S)
                return count_rows(batch, 1)
            except TimeoutError:
                if not self._is_there():
                    deadline = time.monotonic() + _ROOM_S  # no room and no server are two things
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"the server's table had no room for {len(batch)} rows in {_ROOM_S} s"
                    ) from None
            asked = time.monotonic()
            go_on()
            deadline += time.monotonic() - asked  # time it held us up does not count

    def _is_there(self) -> bool:
        """Whether its server is; raises when that has been away for too long."""
        asked = getattr(self._buffer, "server_is_there", None)  # a shard of a cluster says it alone
        return True if asked is None else bool(asked())

    def fix(self, rows: Batch, fields: Layout | None) -> None:
        """The table checks rows against its own layout."""

    def close(self) -> None:
        if self._own:
            self._buffer.close()


def buffers_of(given: Any) -> list[ReplayBuffer[Any]]:
    """The buffers of this process behind a `replay_buffer` argument; none for a remote one.

    Raises:
        TypeError: it is nothing that rows can be written to.
    """
    from ..client import RemoteReplayBuffer
    from ..replay import ReplayBuffer, ReplayBufferEnsemble
    from ..server import Server

    if isinstance(given, ReplayBuffer):
        return [given]
    if isinstance(given, ReplayBufferEnsemble):
        return list(given.buffers)
    if isinstance(given, Server):
        tables = given.buffers
        if len(tables) != 1:
            raise TypeError(
                f"replay_buffer: a server with one table of trajectories, got one with "
                f"{sorted(tables) or 'a queue'}; give the collector server.buffers[name]"
            )
        return list(tables.values())
    if isinstance(given, (RemoteReplayBuffer, HasProducers)):
        return []
    raise TypeError(
        "replay_buffer: expected a ReplayBuffer, a ReplayBufferEnsemble, a Server, a "
        f"RemoteReplayBuffer or a RayReplayBuffer, got {type(given).__name__}"
    )


def sink_of(given: Any, worker: int = 0) -> StorageSink | RemoteSink:
    """What worker i writes through, in this process."""
    buffers = buffers_of(given)
    if not buffers:
        cluster = isinstance(given, HasProducers)
        return RemoteSink(given.client().connect() if cluster else given, own=cluster)
    buffer = buffers[worker % len(buffers)]
    return StorageSink(buffer.ingress)


def has_after(storage: Storage, writer: int, newest: int) -> bool:
    """Whether a storage has rows of a writer after one; True if that cannot be known any more."""
    entries = read_index(storage.tape).entries
    mine = entries.compress(entries["writer"] == writer)
    if not writer or not len(mine):
        return True
    return int(ends_of(mine).max()) > newest + 1


def address_of(given: Any, worker: int) -> Address | None:
    """How worker i reaches it from its own process; None if only this process can write there."""
    buffers = buffers_of(given)
    if not buffers:
        return address_elsewhere(given, worker)
    ingress = buffers[worker % len(buffers)].ingress
    storage = ingress.storage
    fd = storage.fd if isinstance(storage, LazyTensorStorage) else -1
    if fd < 0 and not isinstance(storage, SharedStorage):
        return None
    return Address(None, ingress.describe(), fd, ingress.transform, ingress.limiter)


def address_elsewhere(given: Any, worker: int) -> Address | None:
    """How worker i reaches it from any host; None if only this process can write there."""
    if buffers_of(given):
        return None
    if isinstance(given, HasProducers):
        return Address(client=given.client())
    server = given.portable_arguments
    return None if server is None else Address(server)


def open_sink(address: Address, layout: str | None) -> StorageSink | RemoteSink:
    """The sink at an address, in a worker."""
    sample = None if layout is None else Layout.from_json(json.loads(layout))
    if address.client is not None:
        return RemoteSink(address.client.connect(sample), own=True)
    if address.storage is None:
        from ..client import RemoteReplayBuffer

        assert address.server is not None
        return RemoteSink(RemoteReplayBuffer(**address.server, data_sample=sample), own=True)
    fd = -1 if address.fd < 0 else os.dup(address.fd)
    storage = attach_storage(address.storage, fd)
    return StorageSink(Ingress(storage, address.transform, address.limiter))
