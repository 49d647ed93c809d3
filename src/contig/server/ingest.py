"""The ingest process.

It is started by a Server with a channel to it, and ends when that closes. The first message is the
configuration; then these go both ways:

    learner -> ingest   {"op": "stats", "id": 1} {"op": "board", "name": ...} {"op": "published"}
                        {"op": "stop", "final": true}
    ingest -> learner   {"op": "ready"} {"op": "stats", "id": 1, ...} {"op": "failed", "error": ...}
                        {"op": "counted", "counters": ...}

Requests to sample go to the learner's process and back over a second socket, as they came.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ..arguments import is_loopback
from ..process.channel import encode_message, read_message
from ..process.spawn import enter
from ..process.trace import tell_failure
from ..replay import Ingress
from ..tape.queue import BatchQueue
from ..weights.board import WeightsBoard
from ..wire.tls import server_context
from .acceptor import Acceptor, raise_descriptor_limit
from .answers import ANSWER, REQUEST, Forward
from .budget import Limits
from .connection import Connection
from .core import ServerCore
from .logs import log_lines
from .metrics import MetricsPage, core_stats
from .statistics import Counters
from .tables import QueueTable, Table, TapeTable

__all__ = ["Ingest"]

_COUNT_S = 0.5


class Ingest:
    """A core with its listening socket and its lines to the learner.

    Args:
        config: as `Server` makes it.
        loop: the event loop to run in.
        tables: by name.
        forward: hands requests to the learner's sampling service.
    """

    def __init__(
        self,
        config: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        tables: dict[str, Table],
        forward: Forward,
    ) -> None:
        self.config = config
        limits, counters = Limits(**config["limits"]), Counters.going_on(config.get("counters"))
        told = (config["token"], limits, forward, counters, config["takes_weights"])
        self.core = ServerCore(loop, tables, *told)
        self._listeners: list[Acceptor] = []  # of clients, and then of metrics

    async def listen(self, listening: socket.socket) -> None:
        tls = self.config["tls"]
        context = None if tls is None else server_context(tls)
        self._accept(listening, lambda: Connection(self.core), context)
        if self.config["metrics"] is not None:
            guarded = self.config["metrics_guarded"]
            public = socket.socket(fileno=self.config["metrics"])
            token = self.config["token"] if guarded else None
            page = MetricsPage(self.core, token, is_local=is_loopback(public.getsockname()[0]))
            self._accept(public, page.protocol, context if guarded else None)

    def _accept(
        self, listening: socket.socket, factory: Callable[[], Any], tls: ssl.SSLContext | None
    ) -> None:
        core = self.core

        def rejected(reason: str) -> None:
            core.stats.rejected[reason] += 1

        handshake_s = core.limits.handshake_s
        acceptor = Acceptor(core.loop, listening, factory, tls, handshake_s, rejected)
        self._listeners.append(acceptor)

    def fork(self) -> None:
        """In a forked child: closes its copies of sockets that are no connection's."""
        for listener in self._listeners:
            listener.fork()

    async def close(self, final: bool) -> None:
        clients, *metrics = self._listeners
        clients.close()
        await self.core.close(final)
        for listener in metrics:  # until here they say that it is not ready
            listener.close()


# For a table's lock, which the loop waits for: whoever holds it for longer may be stopped, and is
# waited for as for room.
_LOCK_S = 0.02


def _table(config: dict[str, Any]) -> Table:
    if config["kind"] == "queue":
        queue = BatchQueue.attach(config["name"])
        queue.native.lock_timeout_s = _LOCK_S
        return QueueTable(queue)
    ingress = Ingress.attach(config, config.get("fd", -1))
    ingress.storage.tape.lock_timeout_s = _LOCK_S
    return TapeTable(ingress)


class _Process:
    """What the ingest process does, beside its core: it talks to the learner's."""

    def __init__(self, config: dict[str, Any], control: asyncio.StreamWriter) -> None:
        self._config = config
        self._control = control

    async def run(self, orders: asyncio.StreamReader) -> None:
        """Serves until it is told to stop, or the learner is gone."""
        config, loop = self._config, asyncio.get_running_loop()
        line = socket.socket(fileno=config["service"])
        answers, self._requests = await asyncio.open_connection(sock=line)
        tables = {name: _table(table) for name, table in config["tables"].items()}
        ingest = Ingest(config, loop, tables, self._forward)
        self._core = ingest.core
        beside = (self._watch_parent(), self._count(), self._pass_on(answers))
        tasks = [loop.create_task(each) for each in beside]
        if config["board"] is not None:
            self._core.weights.published(WeightsBoard.attach(config["board"]))
        await ingest.listen(socket.socket(fileno=config["listening"]))
        self._say(op="ready")
        final = await self._obey(orders)
        for task in tasks:
            task.cancel()
        await ingest.close(final)
        self._say(op="stopped", stats=core_stats(self._core))
        await self._control.drain()

    async def _obey(self, orders: asyncio.StreamReader) -> bool:
        """Does what the learner says, until that is to stop; whether for good."""
        core = self._core
        while (asked := await read_message(orders)) is not None:
            if asked["op"] == "stats":
                self._say(op="counted", counters=vars(core.stats))
                self._say(op="stats", id=asked["id"], stats=core_stats(core))
            elif asked["op"] == "board":
                core.weights.published(WeightsBoard.attach(asked["name"]))
            elif asked["op"] == "published":
                core.weights.published()
            elif asked["op"] == "stop":
                return bool(asked["final"])
        return False  # a learner that is gone without a word will be started again

    def _say(self, **content: Any) -> None:
        self._control.write(encode_message(content))

    def _forward(self, token: int, table: str, kind: int, request: int, payload: bytes) -> None:
        name = table.encode()
        self._requests.write(REQUEST.pack(token, len(name), kind, request, len(payload)))
        self._requests.write(name + payload)

    async def _pass_on(self, answers: asyncio.StreamReader) -> None:
        try:
            while True:
                token, size, rows = ANSWER.unpack(await answers.readexactly(ANSWER.size))
                self._core.answers.answer(token, rows, await answers.readexactly(size))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the learner is gone: the control socket says so too

    async def _watch_parent(self) -> None:
        # A child of the learner may hold the control socket open after the learner died.
        while os.getppid() == self._config["parent"]:
            await asyncio.sleep(1.0)
        os._exit(0)

    async def _count(self) -> None:
        # Another process, if this one dies, goes on from there.
        while True:
            await asyncio.sleep(_COUNT_S)
            self._say(op="counted", counters=vars(self._core.stats))


async def _serve(control: socket.socket) -> None:
    orders, writer = await asyncio.open_connection(sock=control)
    config = await read_message(orders)
    if config is not None:
        if config["log"] is not None:
            log_lines(**config["log"])
        await _Process(config, writer).run(orders)


def _fast_loop() -> Any:
    """uvloop's, if it is there."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _give_way() -> None:
    """What comes in wakes this process without interrupting whom it shares a processor with.

    The learner, mostly. Where there is a processor to spare, nothing changes.
    """
    if hasattr(os, "SCHED_BATCH"):
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        except OSError:
            pass  # not allowed here


def main() -> None:
    channel, _ = enter()
    # A service's manager tells all of its processes to end: the server decides, as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING)
    _give_way()
    raise_descriptor_limit(Limits().max_connections)
    try:
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            runner.run(_serve(channel.line))
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # the learner is gone
    except Exception:
        if not tell_failure(channel):
            traceback.print_exc()
        sys.exit(1)
