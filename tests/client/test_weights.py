"""Weights: published once, read by anybody, only newer versions, never torn."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from contig import ClosedError, LayoutError, RemoteReplayBuffer, Server, SharedClient, TcpTransport
from tests.client.serving import HOST, ROW, asking, client, serving, shared
from tests.waiting import WAIT_S, Task, until

KINDS = ["tcp", "shared"]


def connect(server: Server, kind: str, **options: Any) -> Any:
    return client(server, **options) if kind == "tcp" else SharedClient(server.name)


def sent(server: Server) -> int:
    """How many versions the server has sent over sockets."""
    return int(server._run.ingest.stats()["weights_sent"])  # type: ignore[union-attr]


def tree(version: int, size: int = 3) -> dict[str, Any]:
    return {"w": np.full(size, version, np.float32), "b": {"x": np.full(size, -version)}}


def check(weights: Any, version: int) -> None:
    assert weights is not None and weights.version == version
    assert (weights.tree["w"] == version).all() and (weights.tree["b"]["x"] == -version).all()


# -- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "process"), [("tcp", False), ("tcp", True), ("shared", False)])
def test_whenever_they_are_published(kind: str, process: bool) -> None:
    server = Server(buffer=shared(), transport=TcpTransport(in_process=not process))
    server.publish(1, tree(1))  # before the start
    with server:
        with connect(server, kind) as first:
            check(first.weights(), 1)
            assert first.weights(newer_than=1) is None
            server.publish(2, tree(2))
            check(first.weights(newer_than=1, timeout_s=20), 2)
            server.publish(10, tree(10))
            with connect(server, kind) as second:  # after the publishing
                check(second.weights(), 10)
            check(first.weights(newer_than=9, timeout_s=20), 10)
            check(first.weights(newer_than=2), 10)
            assert first.weights(newer_than=10) is None
            assert first.weights(newer_than=10**15, timeout_s=0.01) is None


@pytest.mark.parametrize(("kind", "process"), [("tcp", False), ("tcp", True), ("shared", False)])
def test_a_reader_waits_for_the_first_and_for_the_next(kind: str, process: bool) -> None:
    with serving(shared(), process=process) as server, connect(server, kind) as far:
        assert far.weights() is None
        assert far.weights(timeout_s=0.02) is None
        for version in (0, 1, 5):
            task = Task(far.weights, version - 1, 20.0)
            task.join(0.02)
            assert task.is_alive()
            server.publish(version, tree(version))
            check(task.result(), version)
            assert far.weights(newer_than=version, timeout_s=0.02) is None


def test_only_newer_versions_travel() -> None:
    with serving(shared()) as server, client(server) as a, client(server) as b:
        server.publish(1, tree(1))
        check(a.weights(), 1)
        for _ in range(5):
            assert a.weights(newer_than=1) is None
        assert sent(server) == 1
        check(b.weights(), 1)
        assert sent(server) == 2
        for version in range(2, 50):  # nobody asks
            server.publish(version, tree(version))
        assert sent(server) == 2
        check(a.weights(newer_than=1), 49)
        assert sent(server) == 3
        stats = server._run.ingest.stats()  # type: ignore[union-attr]
        assert stats["bytes_out"] < 3 * 1000


def test_a_queue_has_weights_too() -> None:
    with Server(ROW, 2, TcpTransport(in_process=True)) as server:
        server.publish(3, tree(3))
        for kind in KINDS:
            with connect(server, kind) as far:
                check(far.weights(), 3)


def test_versions_must_grow_and_layouts_stay() -> None:
    with serving(shared()) as server, client(server) as far, SharedClient(server.name) as near:
        server.publish(5, tree(5))
        for version in (5, 4, 0):
            with pytest.raises(ValueError, match=f"version {version} after 5"):
                server.publish(version, tree(version))
        for wrong, path in (
            ({"w": np.zeros(4, np.float32), "b": {"x": np.zeros(3, int)}}, "w"),
            ({"w": np.zeros(3, np.float32)}, "b"),
            ({**tree(6), "more": 1.0}, "more"),
        ):
            with pytest.raises(LayoutError, match=f"another layout.*{path}"):
                server.publish(6, wrong)
        with pytest.raises(ValueError, match="x.*0.5"):
            server.publish(6, {"w": np.zeros(3, np.float32), "b": {"x": np.full(3, 0.5)}})
        for x in (far, near):
            check(x.weights(), 5)
            assert x.weights(newer_than=5) is None
        server.publish(6, tree(6))
        for x in (far, near):
            check(x.weights(newer_than=5, timeout_s=20), 6)
    with pytest.raises(ClosedError):
        server.publish(7, tree(7))


def test_a_failed_first_publish_does_not_hide_the_next() -> None:
    with serving(shared()) as server, client(server) as far:
        with pytest.raises((TypeError, ValueError)):
            server.publish("one", tree(1))  # type: ignore[arg-type]
        server.publish(2, tree(2))
        check(far.weights(timeout_s=20), 2)


# -- trees ----------------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize("kind", KINDS)
def test_any_pytree(kind: str) -> None:
    given = {
        "tuple": (np.arange(3), (np.float64(0.5), [np.zeros((2, 2), np.uint8)])),
        "pair": Pair(np.ones(1, np.complex64), {"deep": {"er": np.array(True)}}),
        "empty": np.zeros((0, 3)),
        "number": 7,
    }
    with serving(shared()) as server, connect(server, kind) as far:
        server.publish(1, given)
        got = far.weights(timeout_s=20).tree
        assert isinstance(got["tuple"], tuple) and isinstance(got["tuple"][1], tuple)
        np.testing.assert_array_equal(got["tuple"][0], given["tuple"][0])
        assert got["tuple"][1][0] == 0.5 and got["tuple"][1][1][0].shape == (2, 2)
        assert got["pair"][0].dtype == np.complex64 and got["pair"][1]["deep"]["er"] == True  # noqa: E712
        assert got["empty"].shape == (0, 3) and got["number"] == 7


@pytest.mark.parametrize("kind", KINDS)
def test_a_torch_state_dict_with_bfloat16(kind: str) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    net[0].bfloat16()
    with serving(shared()) as server, connect(server, kind) as far:
        server.publish(1, net.state_dict())
        got = far.weights(timeout_s=20).tree
        assert sorted(got) == sorted(net.state_dict())
        for name, value in net.state_dict().items():
            mine = got[name]
            assert mine.shape == tuple(value.shape) and str(mine.dtype) in str(value.dtype), name
            np.testing.assert_array_equal(
                np.asarray(mine, np.float64), value.double().numpy(), err_msg=name
            )


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_reader_has_is_its_own(kind: str) -> None:
    with serving(shared()) as server, connect(server, kind) as far:
        given = tree(1)
        server.publish(1, given)
        given["w"][:] = 99  # the publisher's is copied, too
        old = far.weights(timeout_s=20)
        check(old, 1)
        for version in (2, 3, 4):
            server.publish(version, tree(version))
        check(far.weights(newer_than=1, timeout_s=20), 4)
        check(old, 1)
        old.tree["w"][:] = 7
        check(far.weights(), 4)


@pytest.mark.parametrize("kind", KINDS)
def test_fifty_megabytes(kind: str) -> None:
    big = {"w": np.arange(12 << 20, dtype=np.float32), "end": np.array(5)}
    with serving(shared(), process=kind == "tcp") as server, connect(server, kind) as far:
        server.publish(1, big)
        got = far.weights(timeout_s=20)
        assert np.array_equal(got.tree["w"], big["w"]) and got.tree["end"] == 5


def test_weights_larger_than_a_clients_largest_frame() -> None:
    with serving(shared(), max_frame=64 << 10) as server:
        with client(server, reconnect_s=0.2) as far:
            server.publish(1, tree(1, 200_000))
            check(Task(far.weights).result(), 1)


# -- many at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("process", [False, True])
def test_no_reader_sees_a_torn_version(process: bool) -> None:
    size, wanted = 20_000, 40
    stop = threading.Event()
    with serving(shared(), process=process) as server:

        def publish() -> int:
            version = 0
            while not stop.is_set():
                server.publish(version, tree(version, size))
                version += 1
            return version

        def read(kind: str) -> list[int]:
            seen = [-1]
            with connect(server, kind) as far:
                while len(seen) <= wanted:
                    got = far.weights(newer_than=seen[-1], timeout_s=20.0)
                    check(got, got.version)
                    seen.append(got.version)
            return seen[1:]

        publisher = Task(publish)
        readers = [Task(read, kind) for kind in ("tcp", "tcp", "shared")]
        for reader in readers:
            seen = reader.result()
            assert seen == sorted(set(seen))
        assert publisher.is_alive()
        stop.set()
        assert publisher.result() >= wanted
        assert sent(server) == 2 * wanted


def test_a_thread_that_waits_does_not_hold_up_another() -> None:
    with serving(shared()) as server, client(server) as far:
        server.publish(1, tree(1))
        waiting = Task(far.weights, 1, 4 * WAIT_S)
        until(lambda: asking(far))
        try:
            check(Task(far.weights).result(), 1)
            assert waiting.is_alive()
        finally:
            server.publish(2, tree(2))
            check(waiting.result(), 2)


def test_many_waiting_readers_are_all_woken() -> None:
    with serving(shared()) as server, contextlib.ExitStack() as stack:
        readers = [
            stack.enter_context(connect(server, kind)) for kind in ["tcp"] * 8 + ["shared"] * 3
        ]
        tasks = [Task(r.weights, -1, 20.0) for r in readers]
        until(lambda: all(asking(r) for r in readers[:8]))
        server.publish(1, tree(1))
        for task in tasks:
            check(task.result(), 1)
        assert sent(server) == 8


def test_rows_and_weights_share_a_connection() -> None:
    buffer = shared()
    with serving(buffer) as server, client(server) as far:

        def write() -> None:
            for _ in range(300):
                far.send(ROW)

        task = Task(write)
        for version in range(30):
            server.publish(version, tree(version))
            check(far.weights(newer_than=version - 1, timeout_s=20), version)
        task.result()
        far.wait(20)
        assert len(buffer) == 300


def test_a_closed_client_stays_closed() -> None:
    with serving(shared(batch_size=2)) as server:
        server.publish(1, tree(1))
        far = client(server)
        far.close()
        buffer = RemoteReplayBuffer(HOST, server.port)
        buffer.close()
        near = SharedClient(server.name)
        writer = near.writer()
        assert near.weights() is not None
        near.close()
        append = partial(writer.append, ROW)
        for call in (far.weights, buffer.stats, near.weights, append):
            with pytest.raises(ClosedError):
                call()
        until(lambda: server.stats().connections == 0)


def test_closing_ends_a_wait() -> None:
    with serving(shared()) as server:
        far = client(server)
        task = Task(far.weights, -1, 20.0)
        until(lambda: asking(far))
        far.close()
        with pytest.raises((ClosedError, ConnectionError)):
            task.result()


def test_after_a_restart_weights_are_served_as_before() -> None:
    with serving(shared(), process=True, max_restarts=2) as server:
        with client(server, reconnect_s=20.0) as far:
            for version in (1, 3):
                server.publish(version, tree(version))
                check(far.weights(newer_than=version - 1, timeout_s=20), version)
                task = Task(far.weights, version, 20.0)  # asked before, answered after
                until(lambda: asking(far))
                pid = server.pid
                os.kill(pid, signal.SIGKILL)
                until(lambda p=pid: server.pid != p)
                with client(server, reconnect_s=20.0) as other:
                    check(other.weights(timeout_s=20), version)
                server.publish(version + 1, tree(version + 1))
                check(task.result(), version + 1)
