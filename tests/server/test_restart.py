"""Servers that go and come back: what they say when they go, and what clients do then."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contig import (
    ConnectionClosedError,
    DiskStorage,
    Layout,
    ReplayBuffer,
    Server,
    SharedStorage,
    TcpClient,
    TcpTransport,
    wire,
)
from contig.client.connecting import ServerAddress, connect
from contig.wire import Type
from tests.client.serving import free_port
from tests.processes import alive
from tests.server import items
from tests.server.actors import Actor
from tests.server.proxy import Proxy
from tests.server.test_command import Command, rows
from tests.waiting import Threads, until

LIMIT_S = 30.0
ROW = {
    "number": {"shape": [], "dtype": "int64"},
    "next": {"reward": {"shape": [], "dtype": "float32"}, "done": {"shape": [], "dtype": "bool"}},
}


# -- ends that are not final -----------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_ended_and_started_again(tmp_path: Path, number: int) -> None:
    """With the defaults of a client: it goes on, and nothing is missing or there twice."""
    example = tmp_path / "row.json"
    example.write_text(json.dumps(ROW))
    options: list[Any] = ["--example", example, "--disk", tmp_path / "runs"]
    command = Command(*options)
    options += ["--port", command.port]
    with TcpClient("127.0.0.1", command.port) as client:
        for turn in range(3):
            for n in range(20):
                client.send_trajectory(rows(1000 * (20 * turn + n), 4))
            if turn:
                client.wait(LIMIT_S)
            command.end(number)
            command = Command(*options)
        client.wait(LIMIT_S)
    command.end()
    with DiskStorage(tmp_path / "runs" / "default") as storage:
        first = [int(storage.read_episode(int(e["id"]))["number"][0]) for e in storage.episodes()]
        assert first == [1000 * n for n in range(60)]


@pytest.mark.parametrize("how", ["kill", "raise", "exit", "not final"])
def test_a_learner_that_is_gone_and_started_again(how: str) -> None:
    with Actor("learner", how=how) as first:
        told = first.hear()
        client = TcpClient("127.0.0.1", told["port"], items.example())
        client.send(items.item(0, 0))
        client.wait(LIMIT_S)
        first.say(go=True)
        if how == "kill":
            os.kill(told["self"], signal.SIGKILL)
        until(lambda: client._session.thread.lost_at is not None, "the loss")
        first.wait()
        until(lambda: not alive(told["pid"]), "the end of its ingest process")
    threads = Threads(lambda: [client.send(items.item(0, n)) for n in range(1, 9)])
    with Server(items.example(), 4, TcpTransport(told["port"])) as again:
        threads.join(LIMIT_S)
        client.close(LIMIT_S)
        assert items.drain(again, 8) == [(0, n) for n in range(1, 9)]


@pytest.mark.parametrize("in_process", [False, True])
def test_only_close_is_final(in_process: bool) -> None:
    server = Server(items.example(), 4, TcpTransport(in_process=in_process)).start()
    client = TcpClient("127.0.0.1", server.port, items.example())
    client.send(items.item(0, 0))
    client.wait(LIMIT_S)
    server.close()
    until(lambda: client._session.thread.failure is not None, "the goodbye")
    with pytest.raises(ConnectionClosedError, match="server was closed"):
        client.send(items.item(0, 1))
    client.close()


# -- refusals that pass ----------------------------------------------------------------------------


class Moody:
    """A server by hand: refuses its first connections after the handshake, then takes items."""

    def __init__(self, refusals: list[str]) -> None:
        self._refusals = list(refusals)
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port = self._sock.getsockname()[1]
        self.numbers: list[int] = []
        self.opened = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                sock = self._sock.accept()[0]
            except OSError:
                return
            with sock:
                try:
                    self._serve(sock)
                except OSError:
                    pass  # the client is gone

    def _serve(self, sock: socket.socket) -> None:
        stream = sock.makefile("rb")
        stream.read(wire.HELLO_BYTES)
        sock.sendall(wire.Greeting(wire.VERSION, False, bytes(32), 1 << 20).pack())
        self._frame(stream)
        schema = {"layout": Layout(items.example()).to_json(), "keys": None}
        seen = len(self.numbers)
        answer = {"kind": "queue", "schema": schema, "ndim": 1, "seen": seen, "proof": ""}
        sock.sendall(wire.json_frame(Type.ACCEPT, {**answer, "max_inflight": 1 << 20}))
        self.opened += 1
        while True:
            kind, number, count = self._frame(stream)
            if kind == Type.BYE:
                sock.sendall(wire.frame(Type.BYE))
                return
            if kind == Type.ITEMS and self._refusals:
                reason = self._refusals.pop(0)
                told = {"reason": reason, "message": "not now"}
                sock.sendall(wire.json_frame(Type.REFUSE, told))
                return
            assert kind == Type.ITEMS, "a client that was told of no heartbeat says nothing else"
            self.numbers += range(number, number + count)
            sock.sendall(wire.frame(Type.ACK, number + count))

    @staticmethod
    def _frame(stream: Any) -> tuple[int, int, int]:
        head = stream.read(wire.HEADER_BYTES)
        if len(head) < wire.HEADER_BYTES:
            raise ConnectionResetError
        stream.read(int.from_bytes(head[24:32], "little"))
        rows = int.from_bytes(head[20:24], "little")
        return head[4], int.from_bytes(head[8:16], "little"), rows

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


@pytest.fixture
def moody() -> Any:
    made: list[Moody] = []

    def make(refusals: list[str]) -> Moody:
        made.append(Moody(refusals))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.mark.parametrize("reason", ["stalled", "internal", "busy", "deadline"])
def test_a_refusal_that_passes(moody: Callable[[list[str]], Moody], reason: str) -> None:
    server = moody([reason, reason])
    with TcpClient("127.0.0.1", server.port, items.example()) as client:
        for n in range(5):
            client.send(items.item(0, n))
        client.wait(LIMIT_S)
    assert server.numbers == list(range(5)) and server.opened == 3


@pytest.mark.parametrize("reason", ["frame", "gap", "shape"])
def test_a_refusal_that_does_not(moody: Callable[[list[str]], Moody], reason: str) -> None:
    server = moody([reason])
    client = TcpClient("127.0.0.1", server.port, items.example())
    client.send(items.item(0, 0))
    with pytest.raises(ConnectionClosedError, match=rf"{reason}.*1 items are not acked"):
        client.wait(LIMIT_S)
    with pytest.raises(ConnectionClosedError):
        client.close()
    assert server.opened == 1


def test_a_server_that_always_refuses_is_lost(moody: Callable[[list[str]], Moody]) -> None:
    """It is there again and again, so it is never away for `reconnect_s` at a time."""
    server = moody(["internal"] * 10_000)
    client = TcpClient("127.0.0.1", server.port, items.example(), reconnect_s=1.5)
    client.send(items.item(0, 0))
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            client.wait()
        except ConnectionClosedError as error:
            ended.append(error)

    Threads(wait).join(LIMIT_S)
    assert "internal" in str(ended[0]) and server.opened > 2
    with pytest.raises(ConnectionClosedError):
        client.close()


def test_a_table_whose_lock_is_held() -> None:
    """Its clients wait as for room; those of other tables do not notice."""
    held = SharedStorage(10_000, example=items.row_example())
    free = SharedStorage(10_000, example=items.row_example())
    tables = {"held": ReplayBuffer(held), "free": ReplayBuffer(free)}
    with Server(tables=tables, transport=TcpTransport()) as server:
        address = ("127.0.0.1", server.port)
        with contextlib.ExitStack() as stack:
            goes = stack.enter_context(TcpClient(*address, table="free"))
            others = [stack.enter_context(TcpClient(*address, table="held")) for _ in range(20)]
            with held.held():
                for episode, client in enumerate(others):
                    client.send_trajectory(items.rows(0, episode, 3), truncated=True)
                until(lambda: server.stats().blocked >= 20, "that they wait")
                for episode in range(50):
                    goes.send_trajectory(items.rows(1, episode, 3), truncated=True)
                    goes.wait(5)  # each of them, for half of what the lock was waited for
                assert all(client.pending == 1 for client in others)
            for client in (*others, goes):
                client.wait(LIMIT_S)
                assert client.resends == 0
        assert not server.stats().rejected
    assert sorted(x[1] for x in items.scan(held)[::3]) == list(range(20))
    held.close()
    free.close()


# -- the first connection ------------------------------------------------------------------------


def test_a_client_waits_for_its_first_server(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    made: list[TcpClient] = []
    threads = Threads(lambda: made.append(TcpClient("127.0.0.1", port, items.example())))
    until(lambda: "no contig server" in caplog.text, "a word about it")
    with Server(items.example(), 4, TcpTransport(port)):
        threads.join(LIMIT_S)
        made[0].close()


def test_a_client_waits_behind_a_balancer() -> None:
    """Which accepts, and hangs up, while there is no server behind it."""
    proxy = Proxy(free_port())
    proxy.refuse(1 << 30)
    made: list[TcpClient] = []
    threads = Threads(lambda: made.append(TcpClient("127.0.0.1", proxy.port, items.example())))
    time.sleep(4.0)  # longer than it once had patience for
    assert not made and proxy.counts["refused"] > 3
    with Server(items.example(), 4, TcpTransport(proxy.target)):
        proxy.refuse(0)
        threads.join(LIMIT_S)
        made[0].close()
    proxy.close()


def test_a_connection_to_itself_is_let_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may give a client that looks for a lost server that server's own port: it is
    connected then, to itself, and while it is, no server can have the port."""
    made: list[socket.socket] = []

    def connect_to_itself(address: tuple[str, int], timeout: float) -> socket.socket:
        sock = socket.socket()
        sock.bind(address)
        sock.connect(address)
        made.append(sock)
        return sock

    monkeypatch.setattr(socket, "create_connection", connect_to_itself)
    address = ServerAddress("127.0.0.1", free_port(), "default", None, None)
    with pytest.raises(ConnectionRefusedError, match="led to itself"):
        connect(address, {}, LIMIT_S)
    assert made[0].fileno() == -1
