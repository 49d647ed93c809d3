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

import json
import secrets
import struct
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..accumulate import Built
from ..arguments import check_kind, port_number, seconds, seconds_or_none, whole
from ..convert import plain_tree
from ..layout import Layout
from ..tape.fields import fields_layout
from ..tape.schema import Schema
from ..weights.board import Weights, check_version, unpack_weights
from ..wire import Accepted, Type, parse_described
from ..wire.tls import client_context
from .connecting import ServerAddress, wait_for_server
from .items import NO_FIELDS, layout_of, records_of, stacks_of
from .publishing import publication, with_version
from .remote_tape import RemoteTape
from .replies import read_reply
from .session import Session
from .session_thread import SessionOptions, SessionThread
from .stream import StreamWriter

__all__ = ["NoLayoutYet", "TcpClient", "asking_session"]

_SLICE_S = 0.25
_ANSWER_S = 60.0


class NoLayoutYet(ValueError):
    """The table has no layout yet, and the client gave none."""


class TcpClient:
    """A producer of items for one table of a server.

    Args:
        host, port: the server.
        data_sample: an item (or, of a tape, a row), or its `Layout`; None takes the server's.
        max_inflight_msgs: frames that may be unacked before `send` waits.
        reconnect_s: how long a call waits for a lost or silent server before it raises; 0: never
            reconnect. Making the client is such a call: it waits for a server that is not there.
        table: its name; None: the table `default`, or the only one of the server.
        fields: an example of trajectories' fields, to be checked, or taken by a table that has no
            layout yet; None takes the server's.
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
        table: str | None = None,
        fields: Any = None,
        token: str | None = None,
        tls: Any = None,
        ack: str = "committed",
        on_full: str = "block",
        send_timeout_s: float | None = None,
    ) -> None:
        port = port_number("port", port, 1)
        for name, text in (("host", host), ("table", table), ("token", token)):
            if name == "host" or text is not None:
                check_kind(name, text, str, "give text")
        max_inflight_msgs = whole("max_inflight_msgs", max_inflight_msgs, 1, "frames")
        layout = layout_of(data_sample)
        wanted = None if fields is None else fields_layout(fields)
        address = ServerAddress(host, port, table, token, client_context(tls))
        options = SessionOptions(ack, max_inflight_msgs, reconnect_s, on_full, send_timeout_s)
        options.check()
        self.producer = secrets.randbelow(2**63 - 1) + 1
        opening = _opening(self.producer, layout, ack)
        if wanted is not None:
            opening["fields"] = wanted.to_json()
        stacks = stacks_of(data_sample)
        if stacks:
            opening["stack"] = stacks
        first = wait_for_server(address, opening, options.reconnect_s)
        address = address._replace(table=first.accepted.table)
        try:
            schema, self.layout = _what_it_takes(first.accepted, layout)
            self._thread = SessionThread(first, address, opening, options, self.layout)
        except BaseException:
            first.sock.close()
            raise
        self._session = Session(self._thread)
        self._tape = None if schema is None else RemoteTape(self._session, schema, self.producer)
        self._writers: weakref.WeakSet[StreamWriter] = weakref.WeakSet()
        self._asking: Session | None = None
        self._opening_asking = threading.Lock()
        self._reading = threading.Lock()  # one GET at a time
        self._plan = self.layout.plan
        self._lock, self._inflight = self._session.lock, self._session.inflight

    # -- sending ------------------------------------------------------------------------------

    def send(self, tree: Any, fields: Any = None) -> None:
        """Sends one item; of a tape, one row that goes on with this client's trajectory, and some
        of its fields.

        Raises:
            LayoutError: the tree, or a field, does not fit; nothing is sent.
            ConnectionClosedError: the server is gone.
            OverloadError: too much is in flight and `on_full="raise"`.
        """
        if self._tape is not None:
            self._tape.add(tree, fields)
            return
        if fields is not None:
            raise TypeError(NO_FIELDS)
        thread, inflight = self._thread, self._inflight
        with self._lock:
            if thread.ready and type(tree) is not Built and not inflight.send(self._plan, tree):
                if inflight.idle:
                    thread.kick()
                return
        self._session.add(partial(self._put, tree))

    def _put(self, tree: Any) -> None:
        """What is packed already, or no plain tree; or when too much was in flight."""
        builder = self._session.builder
        if type(tree) is Built and tree.layout == self.layout:
            builder.add_records(tree.record)
        elif not builder.pack(self._plan, tree):
            builder.add_records(self.layout.pack_one(plain_tree(tree)[0]))

    def send_many(self, tree: Any) -> None:
        """Sends n items, ``[n, ...]`` each leaf; of a tape, n rows as `extend` takes them."""
        if self._tape is not None:
            self._tape.extend(tree)
            return
        records, size = records_of(self.layout, tree), self.layout.record_size
        step = max(min(256 << 10, self._session.frame_bytes) // size, 1) * size
        add_records = self._session.builder.add_records
        for at in range(0, len(records), step):
            self._session.add(partial(add_records, records[at : at + step]))

    def extend(self, data: Any, *, continues: bool | None = None, fields: Any = None) -> None:
        """Sends rows to a tape as `ReplayBuffer.extend` takes them."""
        self._need_tape().extend(data, continues, fields)

    def add_step(
        self, step: Any, env_ids: Any = None, mask: Any = None, fields: Any = None
    ) -> None:
        """Sends one step of B envs, or of some of them, to a tape as `ReplayBuffer.add_step` takes
        it. Those of some are refused once this client has used `send` or `extend`."""
        self._need_tape().add_step(step, env_ids, mask, fields)

    def send_trajectory(self, tree: Any, **end: Any) -> None:
        """Sends one whole trajectory ``[T, ...]``: one frame, one append.

        Args:
            tree: its rows.
            end: `terminated`, `truncated`, `traj_id`, `policy_version`, `fields`, as
                `extend_trajectory` of a ReplayBuffer takes them.
        """
        self._need_tape().extend_trajectory(tree, **end)

    def writer(self) -> StreamWriter:
        """A writer of single steps, which are grouped by trajectory; for one thread."""
        writer = StreamWriter(self._need_tape())
        self._writers.add(writer)
        return writer

    @property
    def fields(self) -> Layout | None:
        """What trajectories of the table have besides their rows; None: nothing."""
        return None if self._tape is None else self._tape.schema.fields

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
        self._session.wait(seconds_or_none("timeout", timeout))

    @property
    def pending(self) -> int:
        """Items not acked yet."""
        return self._thread.pending

    @property
    def acked(self) -> int:
        """Items that were acked."""
        return int(self._thread.inflight.acked)

    def move_to(self, host: str, port: int) -> None:
        """From the next connection on, the server is elsewhere; what is not acked goes there.

        For a server that came back at another address. Another one, which knows nothing of this
        client, takes what was not acked as if nothing had been before it.
        """
        port = port_number("port", port, 1)
        check_kind("host", host, str, "give text")
        self._thread.move(host, port)

    def wait_for_server(self, reconnect_s: float) -> None:
        """From now on, how long calls wait for a lost server, as `reconnect_s` says it."""
        self._session.be_patient(seconds("reconnect_s", reconnect_s))

    def server_is_there(self) -> bool:
        """Whether the server is, at the moment. Raises if it has been away for `reconnect_s`."""
        return self._session.is_there()

    @property
    def resends(self) -> int:
        """Frames that were sent again after a reconnect."""
        return self._thread.resends

    @property
    def blocked(self) -> int:
        """How often a call found too much in flight."""
        return self._session.blocked

    @property
    def table(self) -> str | None:
        """The name of the table that items go to, as the server knows it."""
        return self._session.address.table

    @property
    def portable_arguments(self) -> dict[str, Any] | None:
        """Arguments for another one in any process; None if its TLS context cannot leave this."""
        server = self._session.address
        if server.tls is not None:
            return None
        place = {"host": server.host, "port": server.port, "table": server.table}
        return {**place, "token": server.token, "reconnect_s": self._session.options.reconnect_s}

    # -- weights ------------------------------------------------------------------------------

    def weights(self, newer_than: int = -1, timeout_s: float = 0.0) -> Weights | None:
        """The newest published weights if they are newer than a version; None if none came."""
        check_version(newer_than, -(2**63), "newer_than")
        deadline = time.monotonic() + seconds("timeout_s", timeout_s)
        self._session.check()
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

    def publish(self, version: int | None, tree: Any, timeout_s: float = 60.0) -> int:
        """Makes weights (a pytree or state dict) the newest for all clients; returns the version.

        It returns when the server has them. A copy is kept: a server that is started anew gets it
        when this client is back.

        Args:
            version: of the weights; None: the version after the newest that the server has, 0 at
                first. It is given once, however often the connection is lost meanwhile.
            tree: the weights.
            timeout_s: how long to wait for the server.

        Raises:
            ValueError: the version is negative, or not larger than the one before; or the server
                takes no weights, or none so large.
            LayoutError: a tree of another layout than the ones before.
        """
        seconds("timeout_s", timeout_s)
        session = self.asking
        if not session.thread.first.accepted.takes_weights:
            raise ValueError(
                "this server takes no weights from clients: make it with "
                "TcpTransport(takes_weights=True), as contig serve does"
            )
        payload = publication(version, tree, session.max_frame)
        asked = session.ask(Type.PUBLISH, payload, timeout=timeout_s)
        kind, _, answer = session.collect(asked, timeout_s)
        published = int(read_reply(kind, answer)["version"])
        session.stand(asked, with_version(payload, published))
        return published

    @property
    def asking(self) -> Session:
        """A connection for requests, so that items that wait for room do not hold them up."""
        session = self._session
        session.check()
        with self._opening_asking:
            if self._asking is None:
                # Whole, or not at all: a signal may come at any time.
                self._asking = asking_session(session.address, session.options, session.check)
            return self._asking

    # -- life ---------------------------------------------------------------------------------

    def close(self, timeout: float | None = 30.0) -> None:
        """Sends what is left, what its writers hold included, waits for its acks, and disconnects.

        Raises:
            TimeoutError, ConnectionClosedError: some items were not acked.
        """
        timeout = seconds_or_none("timeout", timeout)
        if self._thread.forked:
            return  # the connection is the parent's
        try:
            try:
                for writer in list(self._writers):
                    writer.close_now()
            finally:
                self._session.close(timeout)
        finally:
            with self._opening_asking:
                if self._asking is not None:
                    try:
                        self._asking.close(1.0)
                    except (ConnectionError, TimeoutError):
                        pass  # it had nothing to lose

    @property
    def closed(self) -> bool:
        """Whether it was closed, by either side, or has given up."""
        return self._thread.closing or self._thread.failure is not None

    def place(self) -> str:
        """Which table, and where; the server is not asked."""
        server = self._session.address
        return f"table {server.table!r} of {server.host}:{server.port}"

    def __repr__(self) -> str:
        return f"<TcpClient{' closed' if self.closed else ''}: {self.place()}>"

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


def asking_session(
    address: ServerAddress, options: SessionOptions, check: Callable[[], None] = lambda: None
) -> Session:
    """A connection that asks, and sends no items.

    Args:
        address, options: see there.
        check: raises to end the wait for a server that is not there.

    Raises:
        ConnectionClosedError: there is no server.
        ValueError: it refuses the token or the table.
    """
    opening = _opening(secrets.randbelow(2**63 - 1) + 1, None, options.ack)
    first = wait_for_server(address, opening, options.reconnect_s, check)
    return Session(SessionThread(first, address, opening, options, None))


def _opening(producer: int, layout: Layout | None, ack: str) -> dict[str, Any]:
    """What OPEN says, for a client that has sent nothing yet."""
    content = None if layout is None else layout.to_json()
    return {"producer": producer, "layout": content, "ack": ack, "next": 0}


def _what_it_takes(accepted: Accepted, own: Layout | None) -> tuple[Schema | None, Layout]:
    """The schema of a table that is a tape, and the layout of what is sent."""
    if accepted.schema is None:
        raise NoLayoutYet(
            "the table has no layout yet: give the client a data_sample, or the server's "
            "storage an example"
        )
    if accepted.kind == "tape":
        schema = Schema.from_bytes(json.dumps(accepted.schema).encode())
        return schema, schema.layout
    # The client's is equal, but with the containers of the sample.
    return None, Layout.from_json(accepted.schema["layout"]) if own is None else own
