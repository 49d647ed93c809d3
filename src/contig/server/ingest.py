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
import socket
import ssl
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ..process.channel import encode_message, read_message
from ..process.spawn import enter
from ..process.trace import tell_failure
from ..replay import Ingress
from ..tape.queue import BatchQueue
from ..weights.board import WeightsBoard
from ..wire.tls import server_context
from .acceptor import Acceptor, raise_descriptor_limit
from .connection import Connection
from .core import CoreStats, Limits, ServerCore
from .metrics import MetricsPage, core_stats
from .tables import QueueTable, Table, TapeTable

__all__ = ["Ingest", "REQUEST", "ANSWER"]

# Between the ingest process and the learner's, before each forwarded frame's parts.
REQUEST = struct.Struct("<QHHQQ")  # token, bytes of table's name, type, number, payload
ANSWER = struct.Struct("<QQ")  # token, bytes

_COUNT_S = 0.5


class Ingest:
    """A core with its listening socket and its lines to the learner.

    Args:
        config: as `Server` makes it.
        loop: the event loop to run in.
        tables: given when it runs in the learner's process; else made from the configuration.
    """

    def __init__(
        self,
        config: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        tables: dict[str, Table] | None = None,
        service: Any = None,
    ) -> None:
        self.config = config
        tables = {n: _table(t) for n, t in config["tables"].items()} if tables is None else tables
        limits = Limits(**config["limits"])
        self.core = ServerCore(loop, tables, config["token"], limits, service)
        self.core.handshake_s = config["handshake_s"]
        self.core.heartbeat_s = config["heartbeat_s"]
        self._listeners: list[Acceptor] = []

    async def listen(self, listening: socket.socket) -> None:
        tls = self.config["tls"]
        context = None if tls is None else server_context(tls)
        self._accept(listening, lambda: Connection(self.core), context)
        if self.config["metrics"] is not None:
            guarded = self.config["metrics_guarded"]
            page = MetricsPage(self.core, self.config["token"] if guarded else None)
            host, port = self.config["metrics"]
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            public = socket.create_server((host, port), family=family)
            self._accept(public, page.protocol, context if guarded else None)

    def _accept(
        self, listening: socket.socket, factory: Callable[[], Any], tls: ssl.SSLContext | None
    ) -> None:
        core = self.core

        def rejected(reason: str) -> None:
            core.stats.rejected[reason] += 1

        acceptor = Acceptor(core.loop, listening, factory, tls, core.handshake_s, rejected)
        self._listeners.append(acceptor)

    async def close(self, final: bool) -> None:
        for listener in self._listeners:
            listener.close()
        await self.core.close(final)


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


async def _serve(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection(sock=control)
    config = await read_message(reader)
    if config is None:
        return

    def say(**content: Any) -> None:
        writer.write(encode_message(content))

    answers, questions = await asyncio.open_connection(sock=socket.socket(fileno=config["service"]))

    def service(token: int, table: str, kind: int, request: int, payload: bytes) -> None:
        name = table.encode()
        questions.write(REQUEST.pack(token, len(name), kind, request, len(payload)))
        questions.write(name + payload)

    ingest = Ingest(config, loop, service=service)
    core = ingest.core
    core.stats = CoreStats.going_on(config["counters"])

    async def answer() -> None:
        try:
            while True:
                token, size = ANSWER.unpack(await answers.readexactly(ANSWER.size))
                core.answer(token, await answers.readexactly(size))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the learner is gone: the control socket says so too

    async def leave_with_parent() -> None:
        # A child of the learner may hold the control socket open after the learner died.
        while os.getppid() == config["parent"]:
            await asyncio.sleep(1.0)
        os._exit(0)

    async def count() -> None:
        # Another process, if this one dies, goes on from there.
        while True:
            await asyncio.sleep(_COUNT_S)
            say(op="counted", counters=vars(core.stats))

    watching = loop.create_task(leave_with_parent())
    counting = loop.create_task(count())
    answering = loop.create_task(answer())
    if config["board"] is not None:
        core.published(WeightsBoard.attach(config["board"]))
    await ingest.listen(socket.socket(fileno=config["listening"]))
    say(op="ready")
    final = False  # a learner that is gone without a word will be started again
    while (asked := await read_message(reader)) is not None:
        if asked["op"] == "stats":
            say(op="counted", counters=vars(core.stats))
            say(op="stats", id=asked["id"], stats=core_stats(core))
        elif asked["op"] == "board":
            core.published(WeightsBoard.attach(asked["name"]))
        elif asked["op"] == "published":
            core.published()
        elif asked["op"] == "stop":
            final = asked["final"]
            break
    answering.cancel()
    watching.cancel()
    counting.cancel()
    await ingest.close(final)
    say(op="stopped", stats=core_stats(core))
    await writer.drain()


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
