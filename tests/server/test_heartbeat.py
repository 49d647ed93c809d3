"""Peers that are there and say nothing: behind a cable that was pulled, or stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from contig import (
    ConnectionClosedError,
    LazyTensorStorage,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    TcpClient,
    TcpTransport,
    wire,
)
from contig.client.connecting import Connected, ServerAddress, connect
from contig.wire import Type
from tests.server import items
from tests.server.actors import Actor
from tests.server.proxy import Proxy
from tests.waiting import Threads, until

BEAT_S = 0.5
RECONNECT_S = 0.5
LIMIT_S = 20.0  # far more than the two together; before there was a heartbeat, these were for ever


@contextmanager
def stopped(pid: int | None) -> Iterator[None]:
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def hushed(proxy: Proxy) -> Iterator[None]:
    proxy.hush()
    try:
        yield
    finally:
        proxy.speak()


def all_raise(calls: dict[str, Callable[[], object]]) -> None:
    """Every one of these calls ends with a ConnectionClosedError, while the others wait too."""
    ended: dict[str, BaseException | None] = {}

    def run(name: str, call: Callable[[], object]) -> None:
        try:
            call()
            ended[name] = None
        except BaseException as error:
            ended[name] = error

    Threads(*(lambda n=n, c=c: run(n, c) for n, c in calls.items())).join(LIMIT_S)
    for name, error in ended.items():
        assert isinstance(error, ConnectionClosedError), (name, error)


@pytest.mark.parametrize("how", ["cable", "stopped"])
def test_calls_end_though_the_server_says_nothing(how: str) -> None:
    storage = LazyTensorStorage(300_000, example=items.row_example())
    buffer = ReplayBuffer(storage, batch_size=4)
    transport = TcpTransport(heartbeat_s=BEAT_S)
    with Server(buffer=buffer, transport=transport) as server, Proxy(server.port) as proxy:
        address = ("127.0.0.1", proxy.port if how == "cable" else server.port)
        far = RemoteReplayBuffer(*address, reconnect_s=RECONNECT_S, prefetch=0)
        sender, waiter, reader = (TcpClient(*address, None, 4, RECONNECT_S) for _ in range(3))
        far.extend_trajectory(items.rows(0, 0, 20), terminated=True)
        far.flush(LIMIT_S)
        far.sample()
        assert reader.weights() is None
        sent = [0]

        def send_for_ever() -> None:
            for episode in range(1 << 30):
                sender.send_trajectory(items.rows(1, episode, 500), truncated=True)
                sent[0] += 1

        def wait() -> None:
            waiter.send_trajectory(items.rows(2, 0, 5), truncated=True)
            waiter.wait()

        def read_for_ever() -> None:
            while True:
                reader.weights(timeout_s=1000)

        with stopped(server.pid) if how == "stopped" else hushed(proxy):
            all_raise(
                {
                    "send": send_for_ever,
                    "wait": wait,
                    "sample": far.sample,
                    "weights": read_for_ever,
                }
            )
            assert sender.pending > 0 and waiter.pending == 1
        # And when it speaks again, everything goes on.
        for client in (sender, waiter):
            until(lambda c=client: c._session.thread.lost_at is None, "the way back")
            client.wait(LIMIT_S)
        assert len(far.sample()) == 4
        server.publish(1, {"w": 3.0})
        newest = reader.weights(timeout_s=LIMIT_S)
        assert newest is not None and newest.version == 1
        for client in (sender, waiter, reader, far):
            client.close()
        lengths = {(0, 0): 20, (2, 0): 5} | {(1, n): 500 for n in range(sent[0])}
        rows = items.scan(storage)
        for (who, episode), steps in lengths.items():
            got = [s for w, e, s in rows if (w, e) == (who, episode)]
            assert got == list(range(steps)), (who, episode)
        assert len(rows) == sum(lengths.values())


def connections(server: Server) -> int:
    return server.stats().connections_total


@pytest.mark.parametrize("in_process", [False, True])
def test_no_room_is_no_silence(in_process: bool) -> None:
    """A client that waits for room, and one that has nothing to say, for some heartbeats."""
    transport = TcpTransport(heartbeat_s=0.8, in_process=in_process)
    with Server(items.example(), 4, transport, num_buffers=2) as server:
        address = ("127.0.0.1", server.port)
        with TcpClient(*address, items.example()) as idle, TcpClient(*address) as busy:
            count = 500
            threads = Threads(lambda: [busy.send(items.item(0, n)) for n in range(count)])
            until(lambda: server.info().queue_depth_sum > 0, "back-pressure")
            time.sleep(3 * 0.8)
            assert connections(server) == 2
            got: list[tuple[int, int]] = []
            while len(got) < count:
                sample = server.sample(timeout=LIMIT_S)
                assert sample is not None
                got += items.read(sample.batch)
            threads.join(LIMIT_S)
            assert got == [(0, n) for n in range(count)]
            assert busy.resends == 0 and idle.pending == 0
        assert connections(server) == 2 and not server.stats().rejected


@pytest.mark.parametrize("call", ["sleep", "quiet"])
def test_a_client_whose_interpreter_is_busy(call: str) -> None:
    """Its beats come from a thread that needs no interpreter."""
    with Server(items.example(), 4, TcpTransport(heartbeat_s=2 * BEAT_S)) as server:
        with Actor("hold_interpreter", port=server.port, seconds=6 * BEAT_S, how=call) as actor:
            assert actor.hear()["holds"]
            assert actor.hear()["held"]
            assert connections(server) == 1 and not server.stats().rejected


def test_a_stopped_client_is_given_up_and_comes_back() -> None:
    with Server(items.example(), 4, TcpTransport(heartbeat_s=BEAT_S), num_buffers=64) as server:
        task = {"port": server.port, "who": 3, "count": 200, "every": 20, "waits_at": 20}
        with Actor("send_items", **task) as actor:
            while actor.hear().get("acked") != 20:
                pass
            actor.signal(signal.SIGSTOP)
            until(lambda: server.stats().rejected.get("silent", 0) >= 1, "that it is missed")
            until(lambda: server.info().active_connections == 0, "the end of its connection")
            actor.signal(signal.SIGCONT)
            actor.say(go=True)
            while "closed" not in actor.hear():
                pass
        got: list[tuple[int, int]] = []
        while len(got) < 200:
            sample = server.sample(timeout=LIMIT_S)
            assert sample is not None
            got += items.read(sample.batch)
        assert got == [(3, n) for n in range(200)]


# -- peers by hand -----------------------------------------------------------------------------


def by_hand(server: Server, **opening: Any) -> Connected:
    address = ServerAddress("127.0.0.1", server.port, "default", None, None)
    return connect(address, {"producer": 7, "layout": None, "ack": "committed", "next": 0}, 5.0)


class Beats:
    """Says that it is there, whatever happens; judges nobody."""

    def __init__(self, connected: Connected) -> None:
        self._sock = connected.sock
        self._stop = threading.Event()
        self.threads = Threads(self._run)

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S / 4):
            self._sock.sendall(wire.frame(Type.BEAT))

    def end(self) -> None:
        self._stop.set()
        self.threads.join(LIMIT_S)


def test_a_server_that_was_stopped_judges_nobody_by_that_time() -> None:
    with Server(items.example(), 4, TcpTransport(heartbeat_s=BEAT_S)) as server:
        connected = by_hand(server)
        assert connected.accepted.heartbeat_s == BEAT_S
        beats = Beats(connected)
        for _ in range(3):
            with stopped(server.pid):
                time.sleep(3 * BEAT_S)
            time.sleep(BEAT_S / 2)
        until(lambda: server.stats().connections == 1, "its connection")
        assert not server.stats().rejected
        beats.end()
        connected.sock.close()


def test_who_says_nothing_is_given_up() -> None:
    with Server(items.example(), 4, TcpTransport(heartbeat_s=BEAT_S)) as server:
        connected = by_hand(server)
        until(lambda: server.stats().rejected.get("silent", 0) >= 1, "that it is missed")
        heard = b""
        connected.sock.settimeout(LIMIT_S)
        with pytest.raises(ConnectionResetError):  # or an orderly end, by who wins
            while part := connected.sock.recv(4096):
                heard += part
            raise ConnectionResetError
        beat = wire.frame(Type.BEAT)
        assert heard and heard == beat * (len(heard) // len(beat))  # it had been told
        connected.sock.close()


def test_old_clients_hear_nothing_and_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of version 0.1 says nothing of a heartbeat in its OPEN."""
    whole = wire.json_frame

    def without(kind: int, content: Any, number: int = 0) -> bytes:
        content.pop("heartbeat", None)
        return whole(kind, content, number)

    with Server(items.example(), 4, TcpTransport(heartbeat_s=0.1)) as server:
        monkeypatch.setattr("contig.wire.handshake.json_frame", without)
        connected = by_hand(server)
        assert connected.accepted.heartbeat_s == 0
        connected.sock.settimeout(10 * 0.1)
        with pytest.raises(TimeoutError):
            connected.sock.recv(1)
        connected.sock.settimeout(LIMIT_S)
        connected.sock.sendall(wire.frame(Type.BYE))
        assert connected.sock.recv(100)[4] == Type.BYE
        assert not server.stats().rejected
        connected.sock.close()


def test_a_heartbeat_that_makes_no_sense() -> None:
    for seconds in (0, -1, 0.001, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="heartbeat_s"):
            Server(items.example(), 4, TcpTransport(heartbeat_s=seconds))
