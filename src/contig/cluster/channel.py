"""RayChannel: items from many actors to many, in order, each once, with back-pressure.

    rollout actor ──shared memory, or TCP──▶ ┌───────────────┐ ──shared memory──▶ learner here
    rollout actor ─────────────────────────▶ │ queue         │
                                             │ of `capacity` │ ──Ray object────▶ learner elsewhere
                                             └───────────────┘
                                              an actor's server

A full channel makes `put` wait, an empty one `get`. After `close` nothing is put any more, what is
there can still be got, and whoever waits is woken.

What was put (the call has returned) is in the channel once, also if its putter is killed; of a call
that was interrupted, an item is there whole or not at all. A getter that is killed loses what it
had been given, and at most what the call it was in was about to give. If the channel's own process
or node dies, what was in it is lost, and everybody is told.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arguments import seconds_or_none, whole
from ..client import TcpClient
from ..errors import ClosedError, ConnectionClosedError
from ..server import Server, TcpTransport
from ..tape import BatchQueue
from ..wire.announce import FoundServer
from .actor_options import ActorOptions
from .channel_items import Items
from .engine import need_cluster, own_node, ray

__all__ = ["RayChannel"]

_SLICE_S = 0.5  # a wait is cut in pieces, between which it is looked whether anybody is there
_THREADS = 64  # getters on other nodes that wait at a time; others take turns
_START_S = 60.0
_RECONNECT_S = 10.0  # a channel is not made again, but a network may be gone for a while


class _Place(NamedTuple):
    """Where a channel is.

    Attributes:
        node: the id of its node.
        server: its server's name on that node.
        host, port, token: for putters elsewhere.
    """

    node: str
    server: str
    host: str
    port: int
    token: str


class _Keeper:
    """The actor that holds the queue. Items of this node come and go past it."""

    def __init__(self, items: Items, capacity: int) -> None:
        host = str(ray.util.get_node_ip_address())
        token = secrets.token_hex(16)
        example = items.carried.unpack(np.zeros(items.carried.record_size, np.uint8))
        transport = TcpTransport(host=host, token=token)
        self._server = Server(example, 1, transport, max(capacity, 2)).start()
        name = self._server.name
        self._items, self._closing = items, False
        self._place = _Place(own_node(), name, host, self._server.port, token)
        self._queue = BatchQueue.attach(f"{name}.queue")

    def describe(self) -> tuple[Items, _Place]:
        return self._items, self._place

    def take(self, n: int, timeout_s: float) -> tuple[list[Any], bool]:
        """Blocks of up to n items, at least one if one comes in time; whether it was closed."""
        return _take(self._queue, n, timeout_s), bool(self._queue.native.closed)

    def size(self) -> int:
        return _size(self._queue)

    def closing(self) -> bool:
        """Whether nothing is put any more."""
        return self._closing

    def close(self) -> None:
        self._closing = True  # first: clients ask as soon as they are told
        self._server.close()


def _take(queue: BatchQueue, n: int, timeout_s: float) -> list[Any]:
    """Blocks of up to n items, without waiting for more than the first."""
    deadline = time.monotonic() + timeout_s
    out: list[Any] = []
    while len(out) < n:
        seen = queue.native.data_word
        batch = queue.take(copy=True)
        if batch is not None:
            out.append(np.frombuffer(batch.memory, np.uint8))
            continue
        left = deadline - time.monotonic()
        if out or left <= 0 or queue.native.closed:
            break
        queue.native.wait_data(seen, min(left, _SLICE_S))
    return out


def _size(queue: BatchQueue) -> int:
    counters = queue.native.counters()
    return max(int(counters["head"]) - int(counters["taken"]), 0)


class RayChannel:
    """A queue of items between actors. Picklable: pass it to them. Thread-safe.

    The channel lives as long as the process that made it, or somebody else, has a handle of it.

    Args:
        example: one item, a pytree of arrays; with `max_steps`, one row.
        capacity: items it holds.
        max_steps: items are trajectories ``[n, ...]`` of 1 to so many rows; each takes the room of
            the longest.
        name: by which `RayChannel.find` finds it in this Ray namespace.
        placement: where it is: "local", on the node of this process; a list with a node's id;
            None: where Ray likes; or a scheduling strategy. Best is the node of the getters.
    """

    def __init__(
        self,
        example: Any,
        capacity: int = 64,
        *,
        max_steps: int | None = None,
        name: str | None = None,
        placement: Any = "local",
    ) -> None:
        need_cluster()
        capacity = whole("capacity", capacity, 1, "items")
        items = Items(example, max_steps)
        options = ActorOptions(num_cpus=0, placement=placement)
        options.check()
        given = {**options.of(0), "max_concurrency": _THREADS}
        if name is not None:
            given["name"] = f"contig.channel.{name}"
        keeper: Any = ray.remote(_Keeper)
        actor = keeper.options(**given).remote(items, capacity)
        self._open(actor, *ray.get(actor.describe.remote(), timeout=_START_S))

    @staticmethod
    def find(name: str) -> RayChannel:
        """The channel of this name.

        Raises:
            ValueError: there is none.
        """
        need_cluster()
        actor: Any = ray.get_actor(f"contig.channel.{name}")
        return _channel_at(actor, *ray.get(actor.describe.remote(), timeout=_START_S))

    def _open(self, actor: Any, items: Items, place: _Place) -> None:
        self._actor, self._items, self._place = actor, items, place
        self._lock = threading.Lock()  # guards the next three, made when they are first needed
        self._queue: BatchQueue | None = None
        self._found: FoundServer | None = None
        self._client: TcpClient | None = None

    def __reduce__(self) -> Any:
        return _channel_at, (self._actor, self._items, self._place)

    # -- putting ------------------------------------------------------------------------------

    def put(self, item: Any, timeout: float | None = None) -> None:
        """Puts one item; waits for room.

        Raises:
            TimeoutError: there was none in time. From another node than the channel's, the item is
                on its way then, and goes in when there is room.
            LayoutError, ValueError: it is not like the example; nothing is put.
            ClosedError: the channel was closed.
            ConnectionClosedError: its process died.
        """
        self.put_batch([item], timeout)

    def put_batch(self, items: Sequence[Any], timeout: float | None = None) -> None:
        """Puts items, one after another; see `put`. All are checked before the first is put."""
        timeout = seconds_or_none("timeout", timeout)
        encoded = [self._items.carried.pack_one(self._items.encode(item)) for item in items]
        queue = self._shared()
        if queue is None:
            self._send(encoded, timeout)
            return
        self._check()  # or what is put would be put nowhere
        deadline = None if timeout is None else time.monotonic() + timeout
        for record in encoded:
            self._submit(queue, record, timeout, deadline)

    def _submit(
        self, queue: BatchQueue, record: Any, timeout: float | None, deadline: float | None
    ) -> None:
        while True:
            if queue.native.closed:
                raise ClosedError("this channel was closed")
            seen = queue.native.space_word
            if queue.native.accept_records(record, 0, 0)[1]:
                return
            left = _SLICE_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no room in the channel within {timeout} s: nobody gets")
            queue.native.wait_space(seen, min(left, _SLICE_S))
            self._check()

    def _send(self, records: list[Any], timeout: float | None) -> None:
        try:
            with self._lock:
                client = self._client = self._client or self._connect()
            for record in records:
                client.send(self._items.carried.unpack(record))
            client.wait(timeout)
        except TimeoutError:
            raise TimeoutError(
                f"no room in the channel within {timeout} s: nobody gets; what was sent to its "
                "node goes in when there is"
            ) from None
        except ConnectionClosedError:
            self._check_open()
            raise

    def _connect(self) -> TcpClient:
        self._check_open()
        at, layout = self._place, self._items.carried
        return TcpClient(at.host, at.port, layout, reconnect_s=_RECONNECT_S, token=at.token)

    def _check_open(self) -> None:
        if self._asked(self._actor.closing.remote()):
            raise ClosedError("this channel was closed")

    # -- getting ------------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> Any:
        """The oldest item, in arrays of its own; waits for one.

        Raises:
            TimeoutError: none came in time.
            ClosedError: the channel was closed, and is empty.
            ConnectionClosedError: its process died.
        """
        return self.get_batch(1, timeout)[0]

    def get_batch(self, n: int, timeout: float | None = None) -> list[Any]:
        """The n oldest items; fewer, but at least one, if the others do not come in time or the
        channel is closed. See `get`."""
        whole("n", n, 1, "items")
        timeout = seconds_or_none("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        blocks: list[Any] = []
        while len(blocks) < n:
            left = _SLICE_S if deadline is None else max(deadline - time.monotonic(), 0.0)
            found, closed = self._take(n - len(blocks), min(left, _SLICE_S))
            blocks += found
            if found:
                continue
            if closed or (deadline is not None and time.monotonic() >= deadline):
                break
        if not blocks and closed:
            raise ClosedError("this channel was closed, and is empty")
        if not blocks:
            raise TimeoutError(f"nothing was put into the channel within {timeout} s")
        return [self._items.decode(block) for block in blocks]

    def _take(self, n: int, timeout_s: float) -> tuple[list[Any], bool]:
        queue = self._shared()
        if queue is None:
            return self._asked(self._actor.take.remote(n, timeout_s))  # type: ignore[no-any-return]
        closed = bool(queue.native.closed)  # before: what was put before it is there
        found = _take(queue, n, timeout_s)
        if not found and not closed:
            self._check()
        return found, closed

    # -- life ---------------------------------------------------------------------------------

    def qsize(self) -> int:
        """How many items are in it now."""
        queue = self._shared()
        if queue is None:
            return int(self._asked(self._actor.size.remote()))
        self._check()
        return _size(queue)

    def close(self) -> None:
        """Nothing is put any more, by anybody; what is there can still be got."""
        self._asked(self._actor.close.remote())

    def _asked(self, ref: Any) -> Any:
        try:
            return ray.get(ref)
        except ray.exceptions.RayActorError as error:
            raise ConnectionClosedError(f"the channel's process died: {error}") from error

    def _shared(self) -> BatchQueue | None:
        """The queue itself, on its own node; None elsewhere."""
        with self._lock:
            if self._queue is None and own_node() == self._place.node:
                try:
                    self._found = FoundServer(self._place.server)
                    self._queue = BatchQueue.attach(f"{self._place.server}.queue")
                except (ConnectionRefusedError, FileNotFoundError):
                    return None  # it is closed, or gone: the actor knows
            return self._queue

    def _check(self) -> None:
        """Raises if the channel's process died."""
        assert self._found is not None and self._queue is not None
        if self._found.gone and not self._queue.native.closed:
            raise ConnectionClosedError("the channel's process died; what was in it is lost")


def _channel_at(actor: Any, items: Items, place: _Place) -> RayChannel:
    channel = RayChannel.__new__(RayChannel)
    channel._open(actor, items, place)
    return channel
