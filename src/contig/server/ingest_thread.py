"""The ingest side in a thread of the learner's own process, for debugging: see `IngestProcess`."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

from ..errors import ServerError
from ..weights.board import WeightsBoard
from .ingest import Ingest
from .metrics import core_stats
from .sampling_service import SamplingService
from .tables import Table

__all__ = ["IngestThread"]


class IngestThread:
    """The core in a thread of this process. Thread-safe.

    Args:
        config: see `Ingest`.
        tables: by name.
        board: where weights are published, if there are any yet.
        listening: the socket to accept from; it stays open.
        service: answers requests.
    """

    def __init__(
        self,
        config: dict[str, Any],
        tables: dict[str, Table],
        board: WeightsBoard | None,
        listening: socket.socket,
        service: SamplingService,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._service = service
        if config["metrics"] is not None:
            config["metrics"] = socket.dup(config["metrics"])
        self._ingest = Ingest(config, self._loop, tables, self._forward)
        self._ingest.core.weights.published(board)
        self._failure: BaseException | None = None
        self._last: dict[str, Any] = {}
        self._stopped = False
        self._ready = threading.Event()
        self._copy = socket.socket(fileno=socket.dup(listening.fileno()))
        self._thread = threading.Thread(target=self._run, args=(self._copy,), name="contig-core")
        self._thread.daemon = True
        self._thread.start()
        self._ready.wait()
        self.check()

    def _run(self, listening: socket.socket) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._ingest.listen(listening))
        except BaseException as error:
            self._failure = error
            self._ready.set()
            return
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _forward(self, token: int, table: str, kind: int, request: int, payload: bytes) -> None:
        def answer(rows: int, parts: list[Any]) -> bool:
            call = self._ingest.core.answers.answer
            try:
                self._loop.call_soon_threadsafe(call, token, rows, *parts)
            except RuntimeError:
                return False  # the loop is closed, and so is its connection
            return True

        self._service.handle(None, token, table, kind, request, payload, answer)

    def fork(self) -> None:
        """In a forked child, which has no part in this: closes its copies of the sockets."""
        self._copy.close()
        self._ingest.fork()
        for connection in list(self._ingest.core.connections.values()):
            sock = getattr(connection.transport.get_extra_info("socket"), "_sock", None)
            if sock is not None:  # another kind of event loop may hide it
                sock.close()

    def check(self) -> None:
        if self._failure is not None:
            raise ServerError("the server's thread failed") from self._failure

    def tell(self, **content: Any) -> None:
        if content["op"] == "published":
            self._loop.call_soon_threadsafe(self._ingest.core.weights.published)

    def show(self, board: WeightsBoard, name: str) -> None:
        self._loop.call_soon_threadsafe(self._ingest.core.weights.published, board)

    def stats(self) -> dict[str, Any]:
        async def read() -> dict[str, Any]:
            return core_stats(self._ingest.core)

        if not self._stopped:
            self._last = asyncio.run_coroutine_threadsafe(read(), self._loop).result(5.0)
        return self._last

    def stop(self, final: bool) -> None:
        """Ends it; clients are told only if it is `final`."""
        asyncio.run_coroutine_threadsafe(self._ingest.close(final), self._loop).result(5.0)
        self.stats()
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
