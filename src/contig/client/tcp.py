"""TcpClient: sends items to a server's table.

    send(tree)                    one item into a queue; one row into a tape
    send_trajectory(tree)         one whole trajectory, one append
    writer() .append .end_episode step by step

Every call copies what it is given before it returns. Thread-safe; what one thread sends keeps its
order. A client belongs to its process: in a forked child every call raises.

A client that is dropped, or whose process ends, without `close` sends what it has for 5 seconds at
most; what was not acked by then is counted on the log.
"""

from __future__ import annotations

import secrets
import struct
import threading
import time
from functools import partial
from typing import Any

import numpy as np

from ..accumulate import Built
from ..arguments import check_kind, port_number, seconds, seconds_or_none, whole
from ..batch import Batch
from ..convert import plain_tree
from ..layout import Layout, as_bytes
from ..weights.board import Weights, check_version, unpack_weights
from ..wire import Type, parse_described
from ..wire.tls import client_context
from .handshake import Address
from .link import Link, LinkOptions
from .remote_tape import RemoteTape
from .stream import StreamWriter

__all__ = ["TcpClient"]

_SLICE_S = 0.25
_ANSWER_S = 60.0


class TcpClient:
    """A producer of items for one table of a server.

    Args:
        host, port: the server.
        data_sample: an item (or, of a tape, a row), or its `Layout`; None takes the server's.
        max_inflight_msgs: frames that may be unacked before `send` waits.
        reconnect_s: how long a call waits for a lost or silent server before it raises; 0: never
            reconnect. Making the client is such a call: it waits for a server that is not there.
        table: its name.
        token: what the server wants to be proven.
        tls: True, the path of a certificate authority (PEM), or an `ssl.SSLContext`.
        ack: what an ack means: "received" (in the server's memory), "committed" (in the table).
        on_full: "block" or "raise" when too much is in flight.
        send_timeout_s: how long a blocked `send` waits; None: for ever.

    Raises:
        ConnectionClosedError: there is no server.
        ValueError: what answers is no contig server, or it refuses the token, table or layout.
    """

    def __init__(
        self,
        host: str,
        port: int,
        data_sample: Any = None,
        max_inflight_msgs: int = 32,
        reconnect_s: float = 30.0,
        *,
        table: str = "default",
        token: str | None = None,
        tls: Any = None,
        ack: str = "committed",
        on_full: str = "block",
        send_timeout_s: float | None = None,
    ) -> None:
        port = port_number("port", port, 1)
        for name, text in (("host", host), ("table", table), ("token", token)):
            if name != "token" or token is not None:
                check_kind(name, text, str, "give text")
        max_inflight_msgs = whole("max_inflight_msgs", max_inflight_msgs, 1, "frames")
        layout = _layout_of(data_sample)
        options = LinkOptions(ack, max_inflight_msgs, reconnect_s, on_full, send_timeout_s)
        self.producer = secrets.randbelow(2**63 - 1) + 1
        opening = {
            "producer": self.producer,
            "layout": None if layout is None else layout.to_json(),
        }
        address = Address(host, port, table, token, client_context(tls))
        self._link = Link(address, opening, options)
        self._asking: Link | None = None
        self._opening_asking = threading.Lock()
        self._reading = threading.Lock()  # one GET at a time
        self._tape: RemoteTape | None = None
        try:
            if self._link.kind == "tape":
                self._tape = RemoteTape(self._link, self._link.schema, self.producer)
                self.layout = self._tape.schema.layout
            else:
                assert self._link.schema is not None
                self.layout = Layout.from_json(self._link.schema["layout"])
                if layout is not None:
                    self.layout = layout  # equal, but with the containers of the sample
            self._link.begin(self.layout.record_size, self.layout.padded)
        except BaseException:
            self._link.abandon()
            raise
        self._plan = self.layout.plan
        self._lock, self._flight = self._link.lock, self._link.flight
        self._session = self._link.session

    # -- sending ------------------------------------------------------------------------------

    def send(self, tree: Any) -> None:
        """Sends one item; of a tape, one row that goes on with this client's trajectory.

        Raises:
            LayoutError: the tree does not fit; nothing is sent.
            ConnectionClosedError: the server is gone.
            OverloadError: too much is in flight and `on_full="raise"`.
        """
        if self._tape is not None:
            self._tape.add(tree)
            return
        session, flight = self._session, self._flight
        with self._lock:
            if session.ready and type(tree) is not Built and not flight.send(self._plan, tree):
                if flight.idle:
                    session.kick()
                return
        self._link.add(partial(self._put, tree))

    def _put(self, tree: Any) -> None:
        """What is packed already, or no plain tree; or when too much was in flight."""
        outbox = self._link.outbox
        if type(tree) is Built and tree.layout == self.layout:
            outbox.add_records(tree.record)
        elif not outbox.pack(self._plan, tree):
            outbox.add_records(self.layout.pack_one(plain_tree(tree)[0]))

    def send_many(self, tree: Any) -> None:
        """Sends n items, ``[n, ...]`` each leaf; of a tape, n rows as `extend` takes them."""
        if self._tape is not None:
            self._tape.extend(tree)
            return
        plain = tree.stored(self.layout.by_path) if isinstance(tree, Batch) else plain_tree(tree)[0]
        columns, batch = self.layout.columns(plain, 1)
        records = self.layout.join([as_bytes(c) for c in columns], batch[0])
        size = self.layout.record_size
        per_frame = max(min(256 << 10, self._link.frame_bytes) // size, 1)
        outbox = self._link.outbox
        for at in range(0, batch[0], per_frame):
            part = records[at * size : (at + per_frame) * size]
            self._link.add(partial(outbox.add_records, part))

    def extend(self, data: Any, *, continues: bool | None = None) -> None:
        """Sends rows to a tape as `ReplayBuffer.extend` takes them."""
        self._need_tape().extend(data, continues)

    def add_step(self, step: Any, env_ids: Any = None, mask: Any = None) -> None:
        """Sends one step of B envs, or of some of them, to a tape as `ReplayBuffer.add_step` takes
        it. Those of some are refused once this client has used `send` or `extend`."""
        self._need_tape().add_step(step, env_ids, mask)

    def send_trajectory(self, tree: Any, **end: Any) -> None:
        """Sends one whole trajectory ``[T, ...]``: one frame, one append.

        Args:
            tree: its rows.
            end: `terminated`, `truncated`, `traj_id`, `policy_version`, as `extend_trajectory`
                of a ReplayBuffer takes them.
        """
        self._need_tape().extend_trajectory(tree, **end)

    def writer(self) -> StreamWriter:
        """A writer of single steps, which are grouped by trajectory; for one thread."""
        return StreamWriter(self._need_tape())

    def _need_tape(self) -> RemoteTape:
        if self._tape is None:
            raise TypeError(
                "this table is a queue of single items: use send; trajectories need a server "
                "with a ReplayBuffer"
            )
        return self._tape

    def wait(self, timeout: float | None = None) -> None:
        """Returns when everything sent so far is acked.

        Raises:
            TimeoutError: it took longer.
            ConnectionClosedError: the server is gone.
        """
        self._link.wait(seconds_or_none("timeout", timeout))

    @property
    def pending(self) -> int:
        """Items not acked yet."""
        return self._link.pending

    @property
    def resends(self) -> int:
        """Frames that were sent again after a reconnect."""
        return self._link.resends

    @property
    def blocked(self) -> int:
        """How often a call found too much in flight."""
        return self._link.blocked

    @property
    def portable_arguments(self) -> dict[str, Any] | None:
        """Arguments for another one in any process; None if its TLS context cannot leave this."""
        server = self._link.address
        if server.tls is not None:
            return None
        place = {"host": server.host, "port": server.port, "table": server.table}
        return {**place, "token": server.token, "reconnect_s": self._link.options.reconnect_s}

    # -- weights ------------------------------------------------------------------------------

    def weights(self, newer_than: int = -1, timeout_s: float = 0.0) -> Weights | None:
        """The newest published weights if they are newer than a version; None if none came."""
        check_version(newer_than, -(2**63), "newer_than")
        deadline = time.monotonic() + seconds("timeout_s", timeout_s)
        self._link.check()
        while True:
            # In slices: several threads may wait, and one of them asks at a time.
            left = max(deadline - time.monotonic(), 0.0)
            with self._reading:
                wait = struct.pack("<d", min(left, _SLICE_S))
                asked = self.asking.ask(Type.GET, wait, newer_than)
                _, number, payload = self.asking.collect(asked, _ANSWER_S)
            version = number - 2**64 if number >= 2**63 else number
            if payload and version > newer_than:  # not what an interrupted call had asked for
                break
            if left <= _SLICE_S:
                return None
            time.sleep(0.001)  # another thread's turn
        head, record = parse_described(payload)
        layout = Layout.from_json(head["layout"])
        owned = np.frombuffer(record, np.uint8).copy()
        return Weights(version, unpack_weights(layout, owned))

    @property
    def asking(self) -> Link:
        """A connection for requests, so that items that wait for room do not hold them up."""
        link = self._link
        link.check()
        with self._opening_asking:
            if self._asking is None:
                opening = {"producer": secrets.randbelow(2**63 - 1) + 1, "layout": None}
                asking = Link(link.address, opening, link.options, link)
                asking.begin(1, False)
                self._asking = asking  # whole, or not at all: a signal may come at any time
            return self._asking

    # -- life ---------------------------------------------------------------------------------

    def close(self, timeout: float | None = 30.0) -> None:
        """Sends what is left, waits for its acks, and disconnects.

        Raises:
            TimeoutError, ConnectionClosedError: some items were not acked.
        """
        timeout = seconds_or_none("timeout", timeout)
        if self._session.forked:
            return  # the connection is the parent's
        try:
            self._link.close(timeout)
        finally:
            with self._opening_asking:
                if self._asking is not None:
                    try:
                        self._asking.close(1.0)
                    except (ConnectionError, TimeoutError):
                        pass  # it had nothing to lose

    def __enter__(self) -> TcpClient:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close(1.0)
        except (TimeoutError, ConnectionError):
            pass  # the first error is the one to see

    def __reduce__(self) -> Any:
        raise TypeError("a TcpClient belongs to its process; make one in each")


def _layout_of(sample: Any) -> Layout | None:
    if sample is None or isinstance(sample, Layout):
        return sample
    tree = dict(sample) if isinstance(sample, Built) else plain_tree(sample)[0]
    return Layout(tree)
