"""The way into a sharded buffer, for actors anywhere in the cluster.

    handle = buffer.client()              in the learner; picklable, an argument for any actor
    producer = handle.connect()           in the actor
    producer.extend_trajectory(...)       through shared memory on the shard's node, else by TCP
    producer.flush()                      everything is in the tape
    producer.close()

A producer stays with one shard: one of its own node if there is one, else the one with the fewest
producers. If that shard is lost, what was not acked goes to the shard that takes its place: one in
memory has lost all that was acked, one on disk comes back with it and drops what it has already.
Either way nothing is there twice, and a trajectory is there whole or not at all.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..arguments import seconds, seconds_or_none
from ..batch import Batch
from ..client import NoLayoutYet, SharedClient, TcpClient
from ..convert import plain_tree
from ..errors import ClosedError, ConnectionClosedError
from ..layout import Layout
from ..tape.boundaries import complete_flags
from ..tape.schema import row_layout
from .engine import own_node, ray
from .listening import LEAVE_S, answer
from .place import Place

__all__ = ["ShardClient", "ShardProducer"]

# A shard that does not answer may be lost or slow: how long for another one before it is asked
# again.
_OTHER_S = 2.0


class ShardClient:
    """Where producers find the shards. Picklable: pass it to actors.

    Args:
        directory: the actor that knows the shards.
        token: what the shards want to be proven.
        wait_s: how long a producer waits for a lost shard to be replaced.
    """

    def __init__(self, directory: Any, token: str, wait_s: float = 60.0) -> None:
        self._directory, self._token = directory, token
        self._wait_s = seconds("wait_s", wait_s)

    def connect(self, data_sample: Any = None, *, shard: int | None = None) -> ShardProducer:
        """A producer for this process.

        Args:
            data_sample: one row, or its `Layout`; None: the first write says what rows are.
            shard: the slot of a shard; None: one of this node, or the one with the fewest
                producers.
        """
        return ShardProducer(self._directory, self._token, data_sample, self._wait_s, shard)

    def __reduce__(self) -> Any:
        return ShardClient, (self._directory, self._token, self._wait_s)


class ShardProducer:
    """Appends to one shard of a buffer, exactly once. Thread-safe; belongs to its process.

    `add`, `add_step`, `extend` and `extend_trajectory` are those of a ReplayBuffer, without seqs.

    Args:
        directory: the actor that knows where shards are.
        token: what shards ask for.
        data_sample: a row; None: the shard's layout.
        wait_s: how long it looks for a shard, or waits for a lost one.
        shard: which one; None: one of this node if there is one.
    """

    def __init__(
        self,
        directory: Any,
        token: str,
        data_sample: Any = None,
        wait_s: float = 60.0,
        shard: int | None = None,
    ) -> None:
        self._directory, self._token, self._wait_s = directory, token, wait_s
        self._sample = data_sample
        self._lock = threading.RLock()
        self._client: SharedClient | TcpClient | None = None
        self._closed = False
        self._done = 0  # items of clients that were closed
        self._made = 0  # items appended through shared memory
        self._orphans: list[Any] = []  # trajectories that were open when their shard was lost
        found: Place | None = ray.get(directory.assign.remote(own_node(), shard, wait_s))
        if found is None:
            raise ConnectionClosedError(f"no shard to write to within {wait_s} s")
        self._place = found
        self._watcher: threading.Thread | None = None

    # -- writing ------------------------------------------------------------------------------

    def add(self, step: Any, fields: Any = None) -> None:
        """Appends one row, which goes on with the trajectory until a done row."""
        self._write("send", step, 0, (), fields=fields)

    def add_step(
        self, step: Any, env_ids: Any = None, mask: Any = None, fields: Any = None
    ) -> None:
        """Appends one step of B envs, ``[B, ...]``, or of some of them."""
        self._write("add_step", step, 1, (env_ids, mask), fields=fields)

    def extend(self, data: Any, *, continues: bool | None = None, fields: Any = None) -> None:
        """Appends rows as `ReplayBuffer.extend` does."""
        self._write("extend", data, 1, (), continues=continues, fields=fields)

    def extend_trajectory(self, data: Any, **end: Any) -> None:
        """Appends one whole trajectory ``[T, ...]``; see `ReplayBuffer.extend_trajectory`."""
        self._write("send_trajectory", data, 1, (), **end)

    def _write(
        self, verb: str, data: Any, batch_ndim: int, given: tuple[Any, ...], **named: Any
    ) -> None:
        with self._lock:
            while True:
                client = self._connected(data, batch_ndim)
                try:
                    getattr(client, verb)(data, *given, **named)
                except ConnectionClosedError:
                    if not isinstance(client, SharedClient):
                        raise
                    # Its check came before the append: nothing was appended.
                    self._orphans = client.open_trajectories
                    self._drop_client()
                    if not self._moves(lost := self._place, self._wait_s):
                        raise self._lost(lost) from None
                    continue
                if isinstance(client, SharedClient):
                    self._made += 1
                return

    def _connected(self, data: Any, batch_ndim: int) -> SharedClient | TcpClient:
        """The client, made when the first row says what rows are."""
        if self._closed:
            raise ClosedError("this producer is closed")
        until = time.monotonic() + self._wait_s
        while self._client is None:
            place = self._place
            try:
                if place.node == own_node() and place.kind == "shared":
                    self._client = self._shared_client(place)
                else:
                    self._client = self._tcp_client(place, data, batch_ndim)
            except ConnectionError as error:  # it was lost before we came, or is only slow
                left = until - time.monotonic()
                if not self._moves(place, min(left, _OTHER_S)) and left <= _OTHER_S:
                    raise self._lost(place) from error
        return self._client

    def _shared_client(self, place: Place) -> SharedClient:
        client = SharedClient(place.server, self._sample)
        if self._orphans:
            client.go_on_from(self._orphans)
            self._orphans = []
        return client

    def _tcp_client(self, place: Place, data: Any, batch_ndim: int) -> TcpClient:
        self._watch()
        try:
            client = self._client_of(place, self._sample)
        except NoLayoutYet:
            try:
                client = self._client_of(place, _row_layout(data, batch_ndim))
            except ValueError:  # another producer was faster: rows are cast to what it said
                client = self._client_of(place, None)
        client.wait_for_server(self._wait_s)
        now = self._place
        if now.life != place.life:
            client.move_to(now.host, now.port)
        return client

    def _client_of(self, place: Place, sample: Any) -> TcpClient:
        # Not for long: while the client is made, nobody tells it that the shard is elsewhere.
        return TcpClient(place.host, place.port, sample, token=self._token, reconnect_s=1.0)

    # -- a shard that is lost -----------------------------------------------------------------

    def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _moves(self, lost: Place, wait_s: float) -> bool:
        """Whether a lost shard's place was taken by now, or is in time."""
        if self._place.life > lost.life:
            return True
        wait = self._directory.successor.remote(lost.slot, lost.life, max(wait_s, 0.0))
        found: Place | None = ray.get(wait)
        if found is not None:
            self._place = found
        return found is not None

    def _lost(self, place: Place) -> ConnectionClosedError:
        return ConnectionClosedError(
            f"shard {place.slot} on node {place.node} was lost, and none took its place within "
            f"{self._wait_s} s"
        )

    def _watch(self) -> None:
        """Follows the shard when it comes back elsewhere, while its client waits for it."""
        if self._watcher is None:
            self._watcher = threading.Thread(
                target=_follow, args=(weakref.ref(self),), name="contig-shard", daemon=True
            )
            self._watcher.start()

    def _moved(self, place: Place) -> None:
        client, self._place = self._client, place
        if isinstance(client, TcpClient):
            client.move_to(place.host, place.port)

    # -- acks and life ------------------------------------------------------------------------

    @property
    def shard(self) -> int:
        """The slot of the shard it writes to."""
        return self._place.slot

    @property
    def shared(self) -> bool:
        """Whether it writes to shared memory of its own node."""
        return isinstance(self._client, SharedClient)

    @property
    def pending(self) -> int:
        """Items (rows of `add`, else runs of rows) that are not acked yet."""
        return self._client.pending if isinstance(self._client, TcpClient) else 0

    @property
    def acked(self) -> int:
        """Calls through shared memory, or items by TCP, that are in a tape."""
        client = self._client
        return self._made + self._done + (client.acked if isinstance(client, TcpClient) else 0)

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything given so far is in the tape.

        Raises:
            TimeoutError: it took longer.
            ConnectionClosedError: the shard was lost, and not replaced.
        """
        timeout = seconds_or_none("timeout", timeout)
        client = self._client
        if isinstance(client, TcpClient):  # what is in shared memory is committed
            client.wait(timeout)

    def close(self, timeout: float | None = 30.0) -> None:
        """Waits for acks and lets go of the shard."""
        with self._lock:
            if not self._closed:
                self._directory.release.remote(self._place.slot)
            self._closed = True
            client, self._client = self._client, None
            if client is not None:
                client.close(timeout)
                self._done += client.acked if isinstance(client, TcpClient) else 0
        if self._watcher is not None:
            self._watcher.join(LEAVE_S)

    def __enter__(self) -> ShardProducer:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a ShardProducer belongs to its process; pass buffer.client() instead")


_POLL_S = 10.0


def _follow(producer: weakref.ref[ShardProducer]) -> None:
    """A producer's thread; it does not keep the producer alive."""

    def left() -> bool:
        held = producer()
        return held is None or held._closed

    while True:
        held = producer()
        if held is None or held._closed:
            return
        place, directory = held._place, held._directory
        moved: Callable[[Place], None] = held._moved
        del held
        try:
            asked = directory.successor.remote(place.slot, place.life, _POLL_S)
            found = answer(asked, left)
        except Exception:  # the cluster is gone: the client says so when it has waited
            return
        if found is not None:
            moved(found)
        del moved


def _row_layout(data: Any, batch_ndim: int) -> Layout:
    """The layout of a row of some data, with the flags that every row has."""
    if isinstance(data, Batch):
        tree, batch_ndim = data.stored(), len(data.shape)
    elif isinstance(data, (list, tuple)) and batch_ndim:  # rows, one by one
        tree, batch_ndim = plain_tree(data[0])[0], 0
    else:
        tree, shape = plain_tree(data)
        batch_ndim = batch_ndim if shape is None else len(shape)
    return complete_flags(row_layout(tree, batch_ndim)[0])
