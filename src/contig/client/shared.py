"""SharedClient: the same interface as TcpClient, for processes of the server's own host.

Items are appended straight to the server's shared memory: no socket, no copy in between, no ack to
wait for. What was appended is committed; a client killed in the middle of it leaves nothing.

Nobody tells a client that the server's process was killed, so it looks: before an append that comes
0.1 s or 256 appends after the last look. That many, at most, go to a server that is dead.
"""

from __future__ import annotations

import secrets
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..accumulate import Built
from ..arguments import check_kind, seconds, seconds_or_none
from ..convert import plain_tree
from ..errors import (
    ClosedError,
    ConnectionClosedError,
    LayoutError,
    OverloadError,
    RateLimitError,
)
from ..layout import Layout
from ..replay import Ingress
from ..tape import BatchQueue, Storage
from ..tape.fields import check_fields, fields_layout
from ..weights.board import Weights, WeightsBoard, check_version
from ..wire import find_table
from ..wire.announce import FoundServer
from .items import NO_FIELDS, layout_of, records_of
from .stream import StreamWriter, TrajectoryPart

__all__ = ["SharedClient"]

_SLICE_S = 0.1
_PATIENCE_S = 0.01
_LOOK_S, _LOOK_EVERY = 0.1, 256


class SharedClient:
    """A producer for one table of a server on this host.

    Args:
        server: its `name`.
        data_sample: an item (or a row), or its `Layout`, to be checked; None: whatever it takes.
        table: its name; None: the table `default`, or the only one of the server.
        fields: an example of trajectories' fields, to be checked, or taken by a table that has no
            layout yet; None: whatever it has.
        on_full: "block" or "raise" when a queue has no room.
        send_timeout_s: how long a blocked `send` waits; None: for ever.

    Thread-safe. Raises ConnectionRefusedError if no such server runs.
    """

    def __init__(
        self,
        server: str,
        data_sample: Any = None,
        *,
        table: str | None = None,
        fields: Any = None,
        on_full: str = "block",
        send_timeout_s: float | None = None,
    ) -> None:
        if sys.platform != "linux":
            raise OSError("SharedClient needs shared memory between processes: Linux only")
        if on_full not in ("block", "raise"):
            raise ValueError(f'on_full {on_full!r}: "block" or "raise"')
        check_kind("server", server, str, "give its name, as server.name has it")
        send_timeout_s = seconds_or_none("send_timeout_s", send_timeout_s)
        self._found = FoundServer(server)
        tables = self._found.tables
        found = find_table(table, tables)
        if found is None:
            asked = "of no name: give table=" if table is None else repr(table)
            raise ValueError(f"no table {asked}; the server has: {', '.join(sorted(tables))}")
        table = found
        self._server, self._table = server, table
        self._said = self._found.said_closed
        self._look_at, self._unlooked = time.monotonic() + _LOOK_S, 0
        self._on_full, self._timeout_s = on_full, send_timeout_s
        # For room, before it is worth a look whether the server is still there.
        self._patience_s = _PATIENCE_S if on_full == "block" and send_timeout_s is None else 0.0
        self._board: WeightsBoard | None = None
        self._queue: BatchQueue | None = None
        self._ingress: Ingress | None = None
        self._writers: weakref.WeakSet[StreamWriter] = weakref.WeakSet()
        self._closed = self._gone = False
        self.blocked = 0
        layout = layout_of(data_sample)
        wanted = None if fields is None else fields_layout(fields)
        if tables[table]["kind"] == "queue":
            if wanted is not None:
                raise TypeError(NO_FIELDS)
            self._queue = BatchQueue.attach(tables[table]["name"])
            if layout is not None and layout != self._queue.layout:
                diff = self._queue.layout.diff(layout)
                self._queue.close()
                raise LayoutError(f"the client's layout differs from the server's:\n{diff}")
            self.layout: Layout | None = self._queue.layout if layout is None else layout
        else:
            self._attach_tape(table, tables[table], data_sample, wanted)

    def _attach_tape(
        self, table: str, config: dict[str, Any], sample: Any, fields: Layout | None
    ) -> None:
        if config["name"] is None:
            raise ValueError(
                f"table {table!r} is a LazyTensorStorage, which has no name to attach to: make the "
                "server's buffer of a SharedStorage, or use TcpClient"
            )
        timeout_s = 1e9 if self._timeout_s is None else self._timeout_s
        self._ingress = Ingress.attach(config, block=self._on_full == "block", timeout_s=timeout_s)
        storage = self._ingress.storage
        if isinstance(sample, Layout):
            storage.publish(sample, fields)
        elif sample is not None:
            storage.publish_example(dict(sample) if isinstance(sample, Built) else sample, fields)
        elif storage.schema is not None:
            check_fields(storage.schema.fields, fields)
        self.layout = storage.layout

    # -- sending ------------------------------------------------------------------------------

    def send(self, tree: Any, fields: Any = None) -> None:
        """Appends one item; of a tape, one row that goes on with this thread's trajectory, and
        some of its fields."""
        if self._queue is None:
            try:
                self._ready().add(tree, self._check_server, fields=fields)
            except RateLimitError as error:
                raise self._no_room(error) from error
            return
        if fields is not None:
            raise TypeError(NO_FIELDS)
        native = self._open_queue().native
        if type(tree) is Built and tree.layout == self.layout:
            self._accept(tree.record)
            return
        outcome = native.submit(self._queue.layout.plan, tree, self._patience_s)
        if outcome == 2:
            self.blocked += 1
        elif outcome != 1:
            self._accept(self._queue.layout.pack_one(plain_tree(tree)[0]))

    def send_many(self, tree: Any) -> None:
        """Appends n items, ``[n, ...]`` each leaf; of a tape, n rows as `extend` takes them."""
        if self._queue is None:
            self.extend(tree)
            return
        self._accept(records_of(self._open_queue().layout, tree))

    def _accept(self, records: np.ndarray[Any, Any]) -> None:
        queue = self._open_queue()
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        counted = False
        while len(records):
            seen = queue.native.space_word
            _, added, _, full = queue.native.accept_records(records, 0, 0)
            records = records[added * queue.record_size :]
            if not full:
                return
            self.blocked += not counted
            counted = True
            if queue.native.closed:
                self._gone = True
            self._check_server()
            if self._on_full == "raise":
                raise OverloadError("the server's queue is full: nobody samples")
            left = _SLICE_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no room in the queue within {self._timeout_s} s")
            queue.native.wait_space(seen, min(left, _SLICE_S))

    def extend(self, data: Any, *, continues: bool | None = None, fields: Any = None) -> None:
        """Appends rows to a tape as `ReplayBuffer.extend` takes them."""
        self._append(Ingress.extend, data, continues, fields=fields)

    def add_step(
        self, step: Any, env_ids: Any = None, mask: Any = None, fields: Any = None
    ) -> None:
        """Appends one step of B envs to a tape as `ReplayBuffer.add_step` does."""
        self._append(Ingress.add_step, step, env_ids, mask, fields=fields)

    def send_trajectory(self, tree: Any, **end: Any) -> None:
        """Appends one whole trajectory ``[T, ...]``; arguments as in `extend_trajectory`."""
        self._append(Ingress.extend_trajectory, tree, **end)

    @property
    def open_trajectories(self) -> list[Any]:
        """Of the calling thread: those that its next rows go on with."""
        return [] if self._ingress is None else self._ingress.writer.open_trajectories

    def go_on_from(self, orphans: list[Any]) -> None:
        """Before the calling thread's first row: trajectories that it began with another client."""
        self._ready().go_on_from(orphans)

    def writer(self) -> StreamWriter:
        """A writer of single steps, which are grouped by trajectory; for one thread."""
        writer = StreamWriter(_SharedTape(self, self._ready().storage))
        self._writers.add(writer)
        return writer

    def _append(self, verb: Callable[..., Any], *given: Any, **end: Any) -> None:
        """One append to a tape, as soon as its limiter lets it through."""
        ingress = self._ready()
        try:
            verb(ingress, *given, go_on=self._check_server, **end)
        except RateLimitError as error:
            raise self._no_room(error) from error

    def _no_room(self, error: RateLimitError) -> Exception:
        self.blocked += 1
        return (OverloadError if self._on_full == "raise" else TimeoutError)(str(error))

    def _ready(self) -> Ingress:
        """The way to a tape. Raises if nothing can be appended any more."""
        if self._closed:
            raise ClosedError("this client is closed")
        if self._ingress is None:
            raise TypeError("this table is a queue of single items: use send")
        self._look()
        return self._ingress

    def _look(self) -> None:
        """Raises if the server is gone. Before each append, so most of the time it only counts."""
        self._unlooked += 1
        if self._unlooked >= _LOOK_EVERY or self._said[0] or time.monotonic() >= self._look_at:
            self._check_server()

    def _check_server(self) -> None:
        self._unlooked, self._look_at = 0, time.monotonic() + _LOOK_S
        if self._gone or self._found.gone:
            self._gone, self._look_at = True, 0.0  # for good
            self._let_go()  # of names that the next server may want
            raise ConnectionClosedError("the server was closed, or its process died")

    def _open_queue(self) -> BatchQueue:
        if self._closed:
            raise ClosedError("this client is closed")
        assert self._queue is not None
        if self._queue.native.closed:
            self._gone = True
            self._check_server()
        self._look()
        return self._queue

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once: what was sent is committed. Raises if the server is gone."""
        seconds_or_none("timeout", timeout)
        if not self._closed:
            self._check_server()

    # -- weights and life ---------------------------------------------------------------------

    def weights(self, newer_than: int = -1, timeout_s: float = 0.0) -> Weights | None:
        """The newest published weights if they are newer than a version; None if none came."""
        check_version(newer_than, -(2**63), "newer_than")
        deadline = time.monotonic() + seconds("timeout_s", timeout_s)
        if self._closed:
            raise ClosedError("this client is closed")
        if self._gone:
            self._check_server()
        while self._board is None:
            try:
                self._board = WeightsBoard.attach(f"{self._server}.weights")
            except FileNotFoundError:
                self._look()
                if time.monotonic() >= deadline:
                    return None
                time.sleep(0.005)
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            newest = self._board.read(newer_than, min(left, _SLICE_S))
            if newest is not None:
                return newest
            self._look()  # there may be nobody left to publish
            if left <= _SLICE_S:
                return None

    def close(self, timeout: float | None = None) -> None:
        """Appends what its writers hold and lets go of the server's memory; there is nothing to
        wait for.

        Raises:
            ConnectionClosedError: the server is gone, and a writer held a step.
        """
        seconds_or_none("timeout", timeout)
        try:
            for writer in list(self._writers):
                writer.close_now()
        finally:
            self._closed = True
            self._let_go()
            self._found.close()

    def _let_go(self) -> None:
        storage = None if self._ingress is None else self._ingress.storage
        for part in (self._queue, storage, self._board):
            if part is not None:
                part.close()

    def __repr__(self) -> str:
        name = f"SharedClient{' closed' if self._closed else ''}"
        return f"<{name}: table {self._table!r} of server {self._server!r}>"

    def __enter__(self) -> SharedClient:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class _SharedTape:
    """Where a StreamWriter's steps go: one append each."""

    def __init__(self, client: SharedClient, storage: Storage) -> None:
        schema = storage.schema
        if schema is None:
            raise ValueError("the table has no layout yet: give the client a data_sample")
        self.schema = schema
        self._client = client
        self._native = storage.native_writer(schema)
        self._ids = secrets.randbelow(2**63 - 1)

    def check(self) -> None:
        self._client._ready()

    def next_id(self) -> int:
        self._ids = (self._ids + 1) & (2**63 - 1)
        return self._ids

    def send_part(self, part: TrajectoryPart, wait: bool = True) -> None:
        self._client._append(Ingress.await_room, 1 if wait else 0)
        told = (part.flags, part.traj_id, part.version)
        self._native.append_part(part.record, *told, part.blobs, part.fields)
