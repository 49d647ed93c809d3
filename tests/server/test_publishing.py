"""Weights that a learner elsewhere publishes through a server."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

from contig import (
    ConnectionClosedError,
    LayoutError,
    LazyTensorStorage,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    TcpClient,
    TcpTransport,
    wire,
)
from contig.client.publishing import publication
from contig.server import server as server_module
from contig.server.ingest_process import IngestProcess
from contig.server.publications import Publications
from contig.wire import Type
from tests.client.serving import free_port
from tests.server import items
from tests.waiting import Task, until

HOST = "127.0.0.1"
LIMIT_S = 60.0


def weights(value: float) -> dict[str, Any]:
    return {"layer": {"w": np.full((3, 2), value, np.float32)}, "steps": np.array(int(value))}


def ingest_of(server: Server) -> IngestProcess:
    ingest = server._run.ingest
    assert isinstance(ingest, IngestProcess)
    return ingest


def same(tree: Any, value: float) -> bool:
    return bool((tree["layer"]["w"] == value).all() and tree["steps"] == int(value))


@pytest.mark.parametrize("in_process", [False, True])
def test_through_a_queue_and_a_table(in_process: bool) -> None:
    transport = TcpTransport(takes_weights=True, in_process=in_process)
    row = {"x": 1.0, "next": {"done": False}}
    buffer = ReplayBuffer(LazyTensorStorage(100, example=row), batch_size=4)
    queue = Server(items.example(), 4, transport)
    for server in (queue, Server(buffer=buffer, transport=transport)):
        with server, TcpClient(HOST, server.port) as actor:
            learner: Any = TcpClient(HOST, server.port)
            if server.buffers:
                learner.close()
                learner = RemoteReplayBuffer(HOST, server.port)
            waiting = Task(actor.weights, -1, LIMIT_S)  # it hears of it without asking again
            learner.publish(7, weights(7))
            assert waiting.result().version == 7 and same(waiting.result().tree, 7)
            learner.publish(9, weights(9))
            assert server.weights_version == 9
            newest = actor.weights(7, LIMIT_S)
            assert newest is not None and newest.version == 9 and same(newest.tree, 9)
            learner.close()


@pytest.mark.parametrize("in_process", [False, True])
def test_the_version_after_the_newest(in_process: bool) -> None:
    """A learner that was started again need not know the last version."""
    transport = TcpTransport(takes_weights=True, in_process=in_process)
    row = {"x": 1.0, "next": {"done": False}}
    buffer = ReplayBuffer(LazyTensorStorage(100, example=row), batch_size=4)
    with Server(buffer=buffer, transport=transport) as server:
        with TcpClient(HOST, server.port) as one, RemoteReplayBuffer(HOST, server.port) as other:
            assert one.publish(None, weights(0)) == 0
            assert other.publish(None, weights(1)) == 1
            assert server.publish(None, weights(2)) == 2
            assert other.publish(7, weights(7)) == 7
            assert one.publish(None, weights(8)) == 8 == server.weights_version
            newest = one.weights(7, LIMIT_S)
            assert newest is not None and newest.version == 8 and same(newest.tree, 8)


def test_the_version_after_the_newest_is_given_once() -> None:
    """Connections that are lost give no version twice, and leave none out."""
    with Server(items.example(), 4, TcpTransport(takes_weights=True, max_restarts=100)) as server:
        with TcpClient(HOST, server.port) as learner:
            for version in range(12):
                publishing = Task(learner.publish, None, weights(version), LIMIT_S)
                if version % 3 == 0 and (pid := server.pid) is not None:
                    os.kill(pid, signal.SIGKILL)
                assert publishing.result() == version == server.weights_version


def test_the_version_after_the_newest_goes_on_when_the_server_is_started_anew() -> None:
    """Actors have seen the last one: a server that knows none does not begin at 0 again."""
    transport = TcpTransport(port=free_port(), takes_weights=True)
    first = Server(items.example(), 4, transport).start()
    with TcpClient(HOST, transport.port) as learner:
        for version in range(3):
            assert learner.publish(None, weights(version)) == version
        first.close(final=False)
        waiting = Task(learner.publish, None, weights(3), LIMIT_S)  # asked while none is there
        with Server(items.example(), 4, transport) as second:
            assert waiting.result() == 3 == second.weights_version
            assert learner.publish(None, weights(4)) == 4


def test_what_is_refused() -> None:
    with Server(items.example(), 4, TcpTransport(takes_weights=True, max_frame=4096)) as server:
        with TcpClient(HOST, server.port) as client:
            client.publish(3, weights(3))
            for version in (3, 2):
                with pytest.raises(ValueError, match=f"version {version} after 3"):
                    client.publish(version, weights(3))
            with pytest.raises(ValueError, match="version -1"):
                client.publish(-1, weights(3))
            with pytest.raises(LayoutError, match="another layout"):
                client.publish(4, {"other": 1.0})
            with pytest.raises(ValueError, match="max_frame"):
                client.publish(4, {"layer": np.zeros(4096)})
            client.publish(4, weights(4))  # the connection goes on
            assert server.weights_version == 4


def test_a_server_that_takes_none() -> None:
    with Server(items.example(), 4, TcpTransport()) as server:
        with TcpClient(HOST, server.port) as client:
            with pytest.raises(ValueError, match="takes_weights=True"):
                client.publish(1, weights(1))
            client.send(items.item(0, 0))
            client.wait(LIMIT_S)
        with TcpClient(HOST, server.port) as client:  # one that does not listen to that
            payload = publication(1, weights(1), 1 << 20)
            with pytest.raises(ConnectionClosedError, match="type"):
                client.asking.request(Type.PUBLISH, payload, LIMIT_S)
        assert server.weights_version is None
        assert server.stats().rejected["type"] == 1


def test_what_makes_no_sense() -> None:
    taken: list[int] = []

    def take(version: int | None, tree: Any) -> int:
        taken.append(len(taken) + 1 if version is None else version)
        return taken[-1]

    publications = Publications(lambda: take)

    def payload(head: dict[str, Any], record: bytes) -> bytes:
        return b"".join(wire.described(head, record, Type.PUBLISH, 0))[wire.HEADER_BYTES :]

    whole = publication(1, weights(1), 1 << 20)
    head, record = wire.parse_described(whole)
    for broken in (
        payload({**head, "version": "1"}, bytes(record)),
        payload({**head, "version": True}, bytes(record)),
        payload({**head, "publication": 0}, bytes(record)),
        payload({**head, "layout": None}, bytes(record)),
        payload({**head, "layout": {"structure": "leaf", "leaves": []}}, bytes(record)),
        payload(head, bytes(record)[:-1]),
        payload(head, bytes(record) + b"x"),
    ):
        with pytest.raises(ValueError):
            publications.take(broken)
    for broken in (b"", whole[:5], b"\xff" * 8 + whole[8:]):
        with pytest.raises(wire.Refused):
            publications.take(broken)
    assert not taken
    assert publications.take(whole) == 1
    assert publications.take(whole) == 1  # asked for again after a loss
    assert taken == [1]
    after = publication(None, weights(2), 1 << 20)
    assert publications.take(after) == 2
    assert publications.take(whole) == 1  # though another learner has published since
    assert publications.take(after) == 2
    assert taken == [1, 2]


def test_a_server_that_is_gone() -> None:
    with pytest.raises(RuntimeError, match="closed"):
        Publications(lambda: None).take(publication(1, weights(1), 1 << 20))


def test_the_ingest_process_is_killed_meanwhile() -> None:
    """Asked for again by the client: each is done once, and none is refused."""
    with Server(items.example(), 4, TcpTransport(takes_weights=True, max_restarts=100)) as server:
        with TcpClient(HOST, server.port) as learner, TcpClient(HOST, server.port) as actor:
            for version in range(1, 13):
                publishing = Task(learner.publish, version, weights(version), LIMIT_S)
                if version % 3 == 0 and (pid := server.pid) is not None:
                    os.kill(pid, signal.SIGKILL)
                publishing.result()
                assert server.weights_version == version
            newest = until(lambda: actor.weights(11, 1.0), "the newest weights")
            assert newest.version == 12 and same(newest.tree, 12)


def test_orders_while_the_ingest_process_is_started_again() -> None:
    """What it is told first is its configuration, whoever publishes and asks for counters then."""
    kills, stop = 4, threading.Event()
    with Server(items.example(), 4, TcpTransport(max_restarts=3 * kills)) as server:

        def publish() -> int:
            version = 0
            while not stop.is_set():
                server.publish(version := version + 1, weights(version))
            return version

        publishing = Task(publish)
        for kill in range(1, kills + 1):
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: server.pid not in (None, pid), "it is started again")  # noqa: B023
            with TcpClient(HOST, server.port) as actor:
                assert actor.weights(-1, LIMIT_S) is not None
            assert ingest_of(server).restarts == kill, "it died of what it was told"
        stop.set()
        newest = publishing.result()
        with TcpClient(HOST, server.port) as actor:
            last = actor.weights(newest - 1, LIMIT_S)
        assert last is not None and last.version == newest and same(last.tree, newest)


@pytest.mark.parametrize("rows", [8, 3 << 20], ids=["small", "more than requests may have"])
def test_a_server_that_is_started_anew_has_them_again(rows: int) -> None:
    """Whoever joins it gets the learner's last weights, while the learner waits for a batch."""
    port, row = free_port(), {"x": 1.0, "next": {"done": False}}
    tree = {"w": np.arange(rows, dtype=np.float32)}

    def server(takes_weights: bool = True) -> Server:
        buffer = ReplayBuffer(LazyTensorStorage(100, example=row), batch_size=4)
        transport = TcpTransport(port=port, takes_weights=takes_weights)
        return Server(buffer=buffer, transport=transport).start()

    first = server()
    with RemoteReplayBuffer(HOST, port) as learner:
        learner.publish(6, {"w": np.zeros(rows, np.float32)})
        learner.publish(7, tree)
        waiting = Task(learner.sample)
        first.close(final=False)
        second = server()
        with TcpClient(HOST, port) as actor:
            newest = until(lambda: actor.weights(-1, 1.0), "the weights are there again")
            assert newest.version == 7 and np.array_equal(newest.tree["w"], tree["w"])
            actor.extend({"x": np.arange(8), "next": {"done": np.zeros(8, bool)}})
            assert len(waiting.result()) == 4  # what was asked before is answered, too
        learner.publish(8, tree)
        assert second.weights_version == 8
        second.close(final=False)
        third = server(takes_weights=False)  # it is not told what it would refuse
        with TcpClient(HOST, port) as actor:
            actor.extend({"x": np.arange(8), "next": {"done": np.zeros(8, bool)}})
            actor.wait(LIMIT_S)
        assert len(learner.sample()) == 4 and third.weights_version is None
    third.close()


@pytest.mark.parametrize("kind", ["IngestProcess", "IngestThread"])
def test_weights_that_come_while_the_server_starts_are_shown(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is served before `start` is done, and a learner may be back by then."""
    arrived, done = threading.Event(), threading.Event()
    made, take = getattr(server_module, kind), Publications.take

    def make_slowly(*arguments: Any) -> Any:
        ingest = made(*arguments)
        assert arrived.wait(LIMIT_S)
        done.wait(0.3)  # it need not be: whoever publishes may have to wait for `start`
        return ingest

    def take_and_tell(publications: Publications, payload: bytes) -> int:
        arrived.set()
        version = take(publications, payload)
        done.set()
        return version

    port = free_port()
    transport = TcpTransport(port=port, takes_weights=True, in_process=kind == "IngestThread")
    first = Server(items.example(), 4, transport).start()
    with TcpClient(HOST, port) as learner:
        learner.publish(7, weights(7))
        first.close(final=False)
        monkeypatch.setattr(server_module, kind, make_slowly)
        monkeypatch.setattr(Publications, "take", take_and_tell)
        with Server(items.example(), 4, transport), TcpClient(HOST, port) as actor:
            newest = until(lambda: actor.weights(-1, 1.0), "the weights are there again", LIMIT_S)
            assert newest.version == 7 and same(newest.tree, 7)
            learner.publish(8, weights(8))
            assert until(lambda: actor.weights(7, 1.0), "those after them").version == 8


def test_weights_of_another_learner_are_not_put_back() -> None:
    """A connection that was lost is no reason to publish what is old by now."""
    transport = TcpTransport(takes_weights=True, max_restarts=10)
    with Server(items.example(), 4, transport) as server:
        with TcpClient(HOST, server.port) as one, TcpClient(HOST, server.port) as other:
            one.publish(1, weights(1))
            other.publish(2, weights(2))
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: server.pid not in (None, pid), "it is started again")
            one.weights(5, 0.0)  # answered: it is back, and so is what it asked for before
            assert server.weights_version == 2
            one.publish(3, weights(3))
            assert server.weights_version == 3


def test_a_server_that_is_dropped_is_not_kept() -> None:
    import gc
    import weakref

    server = Server(items.example(), 4, TcpTransport(takes_weights=True)).start()
    with TcpClient(HOST, server.port) as client:
        client.publish(1, weights(1))
    seen = weakref.ref(server)
    with pytest.warns(ResourceWarning, match="dropped without close"):
        del server
        gc.collect()
    assert seen() is None
