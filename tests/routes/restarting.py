"""Ways into a table whose server goes away in the middle and comes back with what it had stored.

`tests/server/test_continuing.py` does the same to `contig serve`, with real signals and fewer rows.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from contig import (
    DiskStorage,
    RemoteReplayBuffer,
    Server,
    SharedStorage,
    TcpClient,
    TcpTransport,
)
from contig.tape import Storage
from contig.testing import OpenRoute, RouteNeeds, VerbKind, WriteRoute
from tests.client.serving import HOST, free_port
from tests.routes.clients import CLIENT_VERBS, WRITER_VERBS, ClientWay, WriterWay
from tests.routes.local import STORED_VERBS, keyed
from tests.waiting import until

__all__ = ["RESTARTING", "RestartRoute"]


class _Served(ABC):
    """A table with its server, which can go and come back at the same port."""

    def __init__(self, needs: RouteNeeds) -> None:
        self.needs, self.port = needs, free_port()
        self.storage: Storage
        self.server: Server

    def start(self, storage: Storage, **transport: Any) -> None:
        self.storage = storage
        told = TcpTransport(self.port, **transport)
        self.server = Server(buffer=keyed(storage, self.needs), transport=told).start()

    @abstractmethod
    def again(self) -> None:
        """Has the server go and come back."""

    def close(self) -> None:
        self.server.close()
        self.storage.close()


class _OnDisk(_Served):
    """A server that ends in good order, and another one of the same files."""

    event = "restart"

    def __init__(self, needs: RouteNeeds, path: Path) -> None:
        super().__init__(needs)
        self._path = path / "table"
        self.start(DiskStorage(self._path, 200), in_process=True)

    def again(self) -> None:
        self.server.close(final=False)
        self.storage.close()
        self.start(DiskStorage(self._path, 200), in_process=True)


class _Killed(_Served):
    """A server whose ingest process is killed, and which starts another one."""

    event = "kill"

    def __init__(self, needs: RouteNeeds, path: Path) -> None:
        super().__init__(needs)
        self.start(SharedStorage(200), max_restarts=1)

    def again(self) -> None:
        before = self.server.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)

        def is_back() -> bool:
            self.server.check()
            return self.server.pid not in (None, before)

        until(is_back, "another ingest process")


def _way(kind: type[ClientWay]) -> type[ClientWay]:
    """A way of a kind whose only event is that its server goes and comes back."""

    class Way(kind):  # type: ignore[misc, valid-type]
        def __init__(self, served: _Served, make: Callable[[_Served], Any]) -> None:
            super().__init__(served.storage, lambda: make(served))
            self._served = served

        @property
        def storage(self) -> Storage:
            return self._served.storage

        def happen(self, event: str) -> None:
            self.settle()
            self._served.again()

    return Way


class RestartRoute(WriteRoute):
    """Clients of a server that goes and comes back."""

    def __init__(
        self,
        name: str,
        served: type[_OnDisk] | type[_Killed],
        verbs: Mapping[str, VerbKind],
        make: Callable[[_Served], Any],
        way: type[ClientWay] = ClientWay,
    ) -> None:
        self.name, self.verbs, self._make = f"{name}, {served.event}", verbs, make
        self._served, self._way = served, _way(way)
        self.events = MappingProxyType({served.event: True})

    @contextlib.contextmanager
    def open(self, needs: RouteNeeds) -> Iterator[OpenRoute]:
        with tempfile.TemporaryDirectory() as path:
            served = self._served(needs, Path(path))
            way = self._way(served, self._make)
            try:
                yield way
            finally:
                way.close()
                served.close()


def _tcp(served: _Served) -> TcpClient:
    return TcpClient(HOST, served.port, served.needs.example)


def _far(served: _Served) -> RemoteReplayBuffer[Any]:
    return RemoteReplayBuffer(HOST, served.port, data_sample=served.needs.example)


RESTARTING: list[RestartRoute] = [
    route
    for served in (_OnDisk, _Killed)
    for route in (
        RestartRoute("TCP", served, CLIENT_VERBS, _tcp),
        RestartRoute("a TCP client's writer", served, WRITER_VERBS, _tcp, WriterWay),
        RestartRoute("a remote buffer", served, STORED_VERBS, _far),
    )
]
