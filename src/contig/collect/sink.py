"""Where collected batches go: a buffer's storage, here or in a worker, or a server's table.

Workers import this: what only collectors need of buffers and servers is imported where it is used.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..batch import Batch
from ..layout import Layout
from ..tape import LazyTensorStorage, SharedStorage, Storage, storage_of_fd
from ..tape.episodes import FIRST, STEPS_FLAGS, WRITER, read_index

if TYPE_CHECKING:
    from ..client import RemoteReplayBuffer
    from ..replay import ReplayBuffer
    from ..sample import RateLimiter

__all__ = [
    "Address",
    "RemoteSink",
    "StorageSink",
    "address_of",
    "buffers_of",
    "has_after",
    "open_sink",
    "sink_of",
]


_SLICE_S = 0.1
_ROOM_S = 60.0


class Address(NamedTuple):
    """What a worker needs to reach a storage or a server's table.

    Attributes:
        fd: of memory that this process has and a worker inherits; -1 if it has a name.
        name: of shared memory, or of a server's table.
        server: host, port and the client's options, of a table elsewhere.
        keys, ndim, on_write, limiter: as the buffer has them.
    """

    fd: int
    name: str
    server: tuple[str, int, dict[str, Any]] | None
    keys: tuple[Any, Any]
    ndim: int
    on_write: Callable[[Batch], Any] | None
    limiter: RateLimiter | None


def _always() -> None:
    """Nobody minds the wait."""


def _untold(going: bool) -> None:
    """Nobody counts."""


class StorageSink:
    """Appends to a storage with a writer of its own. For one thread.

    Attributes:
        newest: the seq of the last row it wrote.
    """

    def __init__(
        self,
        storage: Storage,
        on_write: Callable[[Batch], Any] | None = None,
        limiter: RateLimiter | None = None,
    ) -> None:
        self._storage, self._on_write, self._limiter = storage, on_write, limiter
        self._writer = storage.writer()
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
        if self._on_write is not None:
            batch = self._on_write(Batch.from_tree(batch, self._storage.batch_ndim(batch)))
        if self._limiter is not None:
            shape = Batch.from_tree(batch, self._storage.batch_ndim(batch)).shape
            rows = int(np.prod(shape, dtype=np.int64))
            self._limiter.await_insert(self._storage, rows, go_on)
        tell(True)
        try:
            seqs = self._writer.extend(batch)
        except Exception:
            tell(False)
            raise
        self.newest = int(np.max(seqs))
        return len(seqs)

    @property
    def writer(self) -> int:
        """Its writer's number; 0 before the first row."""
        return self._writer.id

    def fix(self, layout: Layout) -> None:
        """Says what rows will be."""
        if self._on_write is None:
            self._storage.publish(layout)

    def close(self) -> None:
        """The storage stays open: it is not ours."""


class RemoteSink:
    """Sends to a table of a server."""

    writer, newest = 0, -1  # only the server knows

    def __init__(self, buffer: RemoteReplayBuffer, own: bool = False) -> None:
        self._buffer, self._own = buffer, own

    def write(
        self,
        batch: Any,
        go_on: Callable[[], None] = _always,
        tell: Callable[[bool], None] = _untold,
    ) -> int:
        """Sends a batch and waits until it is in the table; returns its rows."""
        tell(True)
        self._buffer.extend(batch)
        deadline = time.monotonic() + _ROOM_S
        while True:
            try:
                self._buffer.flush(_SLICE_S)
                return int(np.prod(batch.shape, dtype=np.int64))
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"the server's table had no room for {len(batch)} rows in {_ROOM_S} s"
                    ) from None
            asked = time.monotonic()
            go_on()
            deadline += time.monotonic() - asked  # time it held us up does not count

    def fix(self, layout: Layout) -> None:
        """The table checks rows against its own layout."""

    def close(self) -> None:
        if self._own:
            self._buffer.close()


def buffers_of(given: Any) -> list[ReplayBuffer]:
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
    if isinstance(given, RemoteReplayBuffer):
        return []
    raise TypeError(
        "replay_buffer: expected a ReplayBuffer, a ReplayBufferEnsemble, a Server or a "
        f"RemoteReplayBuffer, got {type(given).__name__}"
    )


def sink_of(given: Any, worker: int = 0) -> StorageSink | RemoteSink:
    """What worker i writes through, in this process."""
    buffers = buffers_of(given)
    if not buffers:
        return RemoteSink(given)
    buffer = buffers[worker % len(buffers)]
    return StorageSink(buffer.storage, buffer._on_write, buffer.limiter)


def has_after(storage: Storage, writer: int, newest: int) -> bool:
    """Whether a storage has rows of a writer after one; True if that cannot be known any more."""
    words = read_index(storage.tape).words
    mine = words[words[:, WRITER] == writer]
    if not writer or not len(mine):
        return True
    return int((mine[:, FIRST] + (mine[:, STEPS_FLAGS] >> 8)).max()) > newest + 1


def address_of(given: Any, worker: int) -> Address | None:
    """How worker i reaches it from its own process; None if only this process can write there."""
    buffers = buffers_of(given)
    if not buffers:
        return _remote_address(given)
    buffer = buffers[worker % len(buffers)]
    storage = buffer.storage
    rest = (storage.keys, storage.ndim, buffer._on_write, buffer.limiter)
    if isinstance(storage, SharedStorage):
        return Address(-1, storage.name, None, *rest)
    if isinstance(storage, LazyTensorStorage) and storage.fd >= 0:
        return Address(storage.fd, "", None, *rest)
    return None


def _remote_address(buffer: RemoteReplayBuffer) -> Address | None:
    client = buffer._client
    place = client._session.address
    if place.tls is not None:
        return None  # its context stays in this process
    options = {"reconnect_s": client._session.options.reconnect_s, "token": place.token}
    server = (place.host, place.port, options)
    return Address(-1, place.table, server, (None, None), 1, None, None)


def open_sink(address: Address, layout: str | None) -> StorageSink | RemoteSink:
    """The sink at an address, in a worker."""
    if address.server is not None:
        from ..client import RemoteReplayBuffer

        host, port, options = address.server
        sample = None if layout is None else Layout.from_json(json.loads(layout))
        remote = RemoteReplayBuffer(host, port, address.name, data_sample=sample, **options)
        return RemoteSink(remote, own=True)
    storage: Storage
    if address.fd >= 0:
        storage = storage_of_fd(os.dup(address.fd), address.ndim)
    else:
        storage = SharedStorage.attach(address.name, address.ndim)
    storage.bind_keys(*address.keys)
    return StorageSink(storage, address.on_write, address.limiter)
