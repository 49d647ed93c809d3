"""Clients and servers in processes that fork, and that end without closing them."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import socket
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from contig import (
    LazyTensorStorage,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    SharedClient,
    TcpClient,
    TcpTransport,
)
from tests.processes import alive
from tests.server import items
from tests.server.actors import Actor
from tests.waiting import until

LIMIT_S = 30.0


def tape_server(**transport: Any) -> Server:
    storage = LazyTensorStorage(1 << 20, example=items.row_example())
    return Server(buffer=ReplayBuffer(storage, batch_size=4), transport=TcpTransport(**transport))


# -- forks -----------------------------------------------------------------------------------------


def test_a_forked_child_is_told_at_once() -> None:
    count = 8
    with tape_server() as server:
        with Actor("fork_with_client", port=server.port, count=count) as actor:
            for _ in range(count):
                told = actor.hear()
                for name, raised in told["raised"].items():
                    assert raised.startswith("ClosedError"), (name, raised)
                    assert str(actor.pid) in raised and str(told["pid"]) in raised, raised
            sent = actor.hear()["sent"]
            assert actor.wait() == 0
        storage = server.buffers["default"].storage
        rows = items.scan(storage)
        for child in range(1, count + 1):  # with a client of its own
            assert [x for x in rows if x[0] == child] == [(child, 0, n) for n in range(3)]
        mine = [x[1:] for x in rows if x[0] == 0]
        assert mine == [(e, n) for e in range(sent) for n in range(items.length(0, e))]


@pytest.mark.parametrize("in_process", [False, True])
@pytest.mark.parametrize("end", ["leaves", "exits"])
def test_a_forked_child_does_not_end_the_server(in_process: bool, end: str) -> None:
    with Actor("fork_with_server", in_process=in_process, end=end) as actor:
        with TcpClient("127.0.0.1", actor.hear()["port"], items.example()) as client:
            client.send(items.item(0, 0))
            client.wait(LIMIT_S)
            actor.say(connected=True)
            assert actor.hear()["child"]
            for n in range(1, 8):
                client.send(items.item(0, n))
            actor.say(items=8)
            assert actor.hear()["got"] == [[0, n] for n in range(8)]
            assert client.resends == 0


@pytest.mark.parametrize(("in_process", "accepted"), [(False, False), (True, False), (True, True)])
def test_a_forked_child_keeps_neither_port_nor_connections(
    in_process: bool, accepted: bool
) -> None:
    with Actor("fork_with_server", in_process=in_process, end="stays", accepted=accepted) as actor:
        port = actor.hear()["port"]
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(b"contig/1")
            actor.say(connected=True)
            child = actor.hear()["child"]
            actor.say(items=0)
            actor.hear()
            assert actor.hear()["closed"]
            raw.settimeout(LIMIT_S)
            # Its end is heard, though the child lives; as a reset if nobody had read the above.
            with contextlib.suppress(ConnectionResetError):
                while raw.recv(4096):
                    pass
        assert alive(child)
        with Server(items.example(), 4, TcpTransport(port)) as again:
            with TcpClient("127.0.0.1", port, items.example()) as client:
                for n in range(4):
                    client.send(items.item(0, n))
            assert items.drain(again, 4) == [(0, n) for n in range(4)]
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("in_process", [False, True])
def test_a_forked_child_does_not_ask_for_its_parents_server(in_process: bool) -> None:
    with Actor("fork_and_ask", in_process=in_process) as actor:
        told = actor.hear()
        for name, raised in told["raised"].items():
            assert raised.startswith("ClosedError"), (name, raised)
            assert str(actor.pid) in raised and str(told["pid"]) in raised, raised
        assert actor.hear() == {"version": 1, "connections": 0}
        assert actor.wait() == 0, actor.errors()


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["process", "child", "threads"])
@pytest.mark.parametrize("code", [0, 3])
def test_what_a_process_had_sent_arrives_though_it_ends(how: str, code: int) -> None:
    count = 1000
    with Server(items.example(), 4, TcpTransport(), num_buffers=500) as server:
        with Actor("exit_unsent", port=server.port, how=how, count=count, code=code) as actor:
            assert actor.hear()["done"]
            assert actor.wait(LIMIT_S) == code
            assert actor.errors() == ""
        assert items.drain(server, count) == [(1, n) for n in range(count)]


def test_what_is_not_acked_at_the_end_is_said() -> None:
    with Server(items.example(), 4, TcpTransport(), num_buffers=2) as server:
        actor = Actor("exit_unsent", port=server.port, how="process", count=300, code=3)
        with actor:
            assert actor.hear()["done"]
            assert actor.wait(LIMIT_S) == 3
            errors = actor.errors()
        found = re.search(r"(\d+) items .*127\.0\.0\.1.* were not acked when ", errors)
        assert found and 0 < int(found[1]) <= 300 and len(errors.splitlines()) == 1, errors
        assert server.info().samples_inserted_total >= 300 - int(found[1])


def test_the_step_a_writer_holds_arrives_though_the_process_ends() -> None:
    with tape_server() as server:
        with Actor("exit_unsent", port=server.port, how="steps", count=30, code=0) as actor:
            assert actor.hear()["done"]
            assert actor.wait(LIMIT_S) == 0
            assert actor.errors() == ""
        storage = server.buffers["default"].storage
        assert items.scan(storage) == [(1, 0, n) for n in range(30)]


# -- clients that are dropped ----------------------------------------------------------------------


def links() -> int:
    return sum(t.name == "contig-session" for t in threading.enumerate())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_dropped_clients_leave_nothing_behind() -> None:
    with tape_server() as server:
        gc.collect()
        threads, fds = links(), descriptors()
        for turn in range(10):
            client = TcpClient("127.0.0.1", server.port)
            client.send_trajectory(items.rows(turn, 0, 20), truncated=True)
            writer = client.writer()
            writer.append(items.row(turn, 1, 0))
            writer.close()
            assert client.weights() is None  # a second connection
            far = RemoteReplayBuffer("127.0.0.1", server.port)
            far.sample()
            del client, writer, far
        until(lambda: links() == threads, "the end of their threads")
        until(lambda: server.stats().connections == 0, "the end of their connections")
        until(lambda: descriptors() <= fds, "their descriptors closed")
        rows = items.scan(server.buffers["default"].storage)
        for turn in range(10):
            wanted = [(turn, 0, n) for n in range(20)] + [(turn, 1, 0)]
            assert [x for x in rows if x[0] == turn] == wanted


def test_a_writer_keeps_its_client() -> None:
    with tape_server() as server:
        writer = TcpClient("127.0.0.1", server.port).writer()
        gc.collect()
        for step in range(5):
            writer.append(items.row(0, 0, step))
        writer.end_episode(terminated=True)
        storage = server.buffers["default"].storage
        until(lambda: storage.tape.snapshot()[0] == 5, "its rows")
        assert items.scan(storage) == [(0, 0, n) for n in range(5)]


def test_a_dropped_client_says_what_was_not_acked(caplog: pytest.LogCaptureFixture) -> None:
    with Server(items.example(), 4, TcpTransport(), num_buffers=2) as server:
        threads = links()
        client = TcpClient("127.0.0.1", server.port, items.example(), max_inflight_msgs=100)
        for n in range(50):
            client.send(items.item(0, n))
        left = 50 - 2 * 4  # the queue has room for two batches of 4
        seen = weakref.ref(client)
        until(lambda: seen().pending == left, "acks of what there was room for")  # type: ignore[union-attr]
        del client
        until(lambda: links() == threads, "the end of its thread")
        assert f"{left} items" in caplog.text and "dropped" in caplog.text


def test_a_dropped_writer_sends_what_it_holds_and_so_does_a_closed_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with tape_server() as server:
        with TcpClient("127.0.0.1", server.port) as client:
            for episode in range(3):
                writer = client.writer()
                writer.append(items.row(0, episode, 0))
                del writer
            held = client.writer()
            held.append(items.row(0, 3, 0))
        assert items.scan(server.buffers["default"].storage) == [(0, e, 0) for e in range(4)]
        del held
        assert not caplog.text


def test_dropped_shared_clients_leave_nothing_behind() -> None:
    with Server(items.example(), 4) as server:
        SharedClient(server.name, items.example()).close()
        gc.collect()
        fds = descriptors()
        for n in range(4):
            client = SharedClient(server.name, items.example())
            client.send(items.item(0, n))
            del client
        gc.collect()
        until(lambda: descriptors() <= fds, "their descriptors closed")
        assert items.drain(server, 4) == [(0, n) for n in range(4)]


# -- servers that are dropped ----------------------------------------------------------------------


@pytest.mark.parametrize("in_process", [False, True])
@pytest.mark.parametrize("kind", ["queue", "tape"])
def test_a_dropped_server_leaves_nothing_behind(kind: str, in_process: bool) -> None:
    gc.collect()
    threads, fds = threading.active_count(), descriptors()
    transport = TcpTransport(in_process=in_process)
    storage = LazyTensorStorage(100, example=items.row_example())
    buffer = ReplayBuffer(storage, batch_size=1)
    if kind == "queue":
        server = Server(items.example(), 4, transport).start()
    else:
        server = Server(buffer=buffer, transport=transport).start()
    port, pid, name, seen = server.port, server.pid, server.name, weakref.ref(server)
    with TcpClient("127.0.0.1", port) as client:
        if kind == "tape":
            client.send_trajectory(items.rows(0, 0, 1), truncated=True)
        else:
            client.send(items.item(0, 0))
    with pytest.warns(ResourceWarning, match=f"{name}.*port {port} was dropped without close"):
        del server
    assert seen() is None  # at once: its threads, and a buffer that lives on, do not hold it
    if pid is not None:
        until(lambda: not alive(pid), "the end of its process")
    until(lambda: threading.active_count() <= threads, "the end of its threads")
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free
    assert list(Path("/dev/shm").glob(f"contig-{name}*")) == []
    if kind == "tape":
        assert buffer.sample()["step"].tolist() == [0]  # nor does it wait for a feeder any more
    storage.close()
    del storage, buffer
    gc.collect()
    until(lambda: descriptors() <= fds, "its descriptors closed")


def test_a_server_in_a_cycle_that_is_dropped() -> None:
    held: dict[str, Any] = {"server": tape_server().start()}
    held["self"] = held
    pid, seen = held["server"].pid, weakref.ref(held["server"])
    del held
    with pytest.warns(ResourceWarning, match="dropped without close"):
        gc.collect()
    assert seen() is None
    until(lambda: not alive(pid), "the end of its process")


def test_a_process_ends_with_a_server_that_it_dropped() -> None:
    with Actor("drop_server") as actor:
        told = actor.hear()
        assert actor.wait() == 0
        assert not alive(told["pid"]), "it was waited for"
        assert "ResourceWarning" in actor.errors()
