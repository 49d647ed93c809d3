"""Ways into a server's table: shared memory, TCP, its writer, and a remote buffer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from contig import RemoteReplayBuffer, Server, SharedClient, SharedStorage, TcpClient
from contig.tape import Storage
from contig.testing import OpenRoute, RouteNeeds, VerbKind, WriteRoute
from tests.client.serving import HOST, serving
from tests.routes.local import STORED_VERBS, call, keyed

__all__ = ["CLIENTS", "CLIENT_VERBS", "WRITER_VERBS", "ClientRoute"]

CLIENT_VERBS: dict[str, VerbKind] = {
    "send": VerbKind.ROW,
    "send_many": VerbKind.ROWS,
    "add_step": VerbKind.STEP,
    "add_step(env_ids)": VerbKind.STEP,
    "add_step(mask)": VerbKind.STEP,
    "extend": VerbKind.ROWS,
    "extend(lanes)": VerbKind.LANES,
    "send_trajectory": VerbKind.WHOLE,
}
WRITER_VERBS: dict[str, VerbKind] = {"append": VerbKind.ROW, "append(end_episode)": VerbKind.ROW}

_WAIT_S = 60.0


class ClientWay(OpenRoute):
    """Each lane has a client."""

    def __init__(self, storage: Storage, make: Callable[[], Any]) -> None:
        self._storage, self._make = storage, make
        self._clients: dict[int, Any] = {}

    @property
    def storage(self) -> Storage:
        return self._storage

    def client(self, lane: int) -> Any:
        if lane not in self._clients:
            self._clients[lane] = self._make()
        return self._clients[lane]

    def write(self, verb: str, lane: int, data: Any) -> None:
        call(self.client(lane), verb, data)

    def settle(self) -> None:
        for client in self._clients.values():
            getattr(client, "flush", getattr(client, "wait", None))(_WAIT_S)

    def happen(self, event: str) -> None:
        self.settle()
        if event == "reconnect":
            for client in self._clients.values():
                lose_connection(getattr(client, "_client", client))
            return
        told = [getattr(client, "open_trajectories", None) for client in self._clients.values()]
        lanes = list(self._clients)
        self.close()
        for lane, orphans in zip(lanes, told):
            if event == "rejoin":
                self.client(lane).go_on_from(orphans)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients = {}


def lose_connection(client: TcpClient) -> None:
    """Has the network cut a client's connection."""
    client._thread._sock.shutdown(socket.SHUT_RDWR)


class WriterWay(ClientWay):
    """Each lane has a writer of one client."""

    def __init__(self, storage: Storage, make: Callable[[], Any]) -> None:
        super().__init__(storage, make)
        self._writers: dict[int, Any] = {}

    def write(self, verb: str, lane: int, data: Any) -> None:
        if lane not in self._writers:
            self._writers[lane] = self.client(0).writer()
        writer = self._writers[lane]
        if verb == "append":
            writer.append(data)
            return
        # The end is said behind the step, whose own flags say nothing.
        ends = {name: bool(data["next"][name]) for name in ("terminated", "truncated")}
        silent = dict.fromkeys(("done", *ends), np.array(False))
        writer.append({**data, "next": {**data["next"], **silent}})
        if any(ends.values()):
            writer.end_episode(**ends)

    def settle(self) -> None:
        for writer in self._writers.values():
            writer.close()
        super().settle()

    def close(self) -> None:
        super().close()
        self._writers = {}


class ClientRoute(WriteRoute):
    """Clients of a server in this process."""

    def __init__(
        self,
        name: str,
        verbs: Mapping[str, VerbKind],
        make: Callable[[Server, RouteNeeds], Any],
        events: Mapping[str, bool],
        way: type[ClientWay] = ClientWay,
    ) -> None:
        self.name, self.verbs, self._make = name, verbs, make
        self.events = MappingProxyType(dict(events))
        self._way = way

    @contextlib.contextmanager
    def open(self, needs: RouteNeeds) -> Iterator[OpenRoute]:
        storage = SharedStorage(200)
        buffer = keyed(storage, needs)
        storage.publish_example(needs.example)
        with serving(buffer) as server:
            way = self._way(storage, lambda: self._make(server, needs))
            try:
                yield way
            finally:
                way.close()
        storage.close()


def _tcp(server: Server, needs: RouteNeeds) -> TcpClient:
    return TcpClient(HOST, server.port, needs.example)


def _shared(server: Server, needs: RouteNeeds) -> SharedClient:
    return SharedClient(server.name, needs.example)


def _far(server: Server, needs: RouteNeeds) -> RemoteReplayBuffer[Any]:
    return RemoteReplayBuffer(HOST, server.port, data_sample=needs.example)


_NETWORK = {"reconnect": True, "replace": True}
CLIENTS: list[WriteRoute] = [
    ClientRoute("TCP", CLIENT_VERBS, _tcp, _NETWORK),
    ClientRoute("a TCP client's writer", WRITER_VERBS, _tcp, _NETWORK, WriterWay),
    ClientRoute("a remote buffer", STORED_VERBS, _far, _NETWORK),
    ClientRoute("shared memory", CLIENT_VERBS, _shared, {"rejoin": False, "replace": True}),
    ClientRoute("a shared client's writer", WRITER_VERBS, _shared, {"replace": True}, WriterWay),
]
