"""Several tables on one server: each with its layout, its sampler, its limiter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from contig import (
    ConnectionClosedError,
    EmptyBufferError,
    LayoutError,
    LazyTensorStorage,
    OverloadError,
    PrioritizedSampler,
    RateLimiter,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    ServerError,
    SharedClient,
    SharedStorage,
    SliceSampler,
    TcpClient,
    TcpTransport,
)
from contig.testing import steps
from tests.client.serving import HOST, ROW, Raw, client, serving, shared
from tests.waiting import Task, until

# -- which table ----------------------------------------------------------------------------------


@pytest.mark.parametrize("process", [False, True])
def test_a_client_that_names_no_table_means_the_only_one(process: bool) -> None:
    tables = {"online": shared()}
    with serving(tables, process=process) as server:
        with client(server) as far:
            far.send_trajectory(steps.episode(0, 5))
            far.wait(20)
            assert far.table == "online"
        with RemoteReplayBuffer(HOST, server.port, batch_size=4) as learner:
            assert (learner.table, len(learner)) == ("online", 5)
        with SharedClient(server.name, ROW) as near:
            near.send_trajectory(steps.episode(1, 5))
        assert len(tables["online"]) == 10


def test_a_client_that_names_no_table_means_the_default_one_of_several() -> None:
    tables = {"online": shared(), "default": shared()}
    with serving(tables) as server, client(server) as far:
        far.send_trajectory(steps.episode(0, 5))
        far.wait(20)
        assert far.table == "default"
        assert (len(tables["online"]), len(tables["default"])) == (0, 5)


def test_of_several_tables_one_has_to_be_named() -> None:
    with serving({"online": shared(), "demo": shared()}) as server:
        for make in (lambda: client(server), lambda: SharedClient(server.name, ROW)):
            with pytest.raises(ValueError, match="of no name: give table=.*demo, online"):
                make()


@pytest.mark.parametrize("process", [False, True])
def test_each_table_has_its_layout_sampler_and_limiter(process: bool) -> None:
    online = shared(sampler=SliceSampler(slice_len=4), batch_size=8)
    image = {"pixels": np.zeros((8, 8), np.uint8), "label": 0}
    demo = ReplayBuffer(LazyTensorStorage(50, example=image), PrioritizedSampler(), batch_size=4)
    limited = ReplayBuffer(
        LazyTensorStorage(100), batch_size=2, limiter=RateLimiter(1.0, 4, error_buffer=50)
    )
    tables = {"online": online, "demo": demo, "limited": limited}
    with serving(tables, process=process) as server:
        with (
            client(server, table="online") as a,
            client(server, image, table="demo") as b,
            client(server, {"x": 0.0}, table="limited") as c,
        ):
            for n in range(20):
                if n % 5 == 4:
                    a.send_trajectory(steps.episode(n, 5))
                b.send({"pixels": np.full((8, 8), n), "label": n})
                c.send({"x": float(n)})
            for far in (a, b, c):
                far.wait(20)
            assert [len(t) for t in tables.values()] == [20, 20, 20]
            assert len(online.sample()) == 8
            batch = demo.sample()
            assert (batch["pixels"][:, 3, 3] == batch["label"]).all() and "priority_weight" in batch
            assert limited.sample().shape == (2,)
            with RemoteReplayBuffer(HOST, server.port, "demo", prefetch=0) as far:
                assert "priority_weight" in far.sample()
        stats = server.stats().tables
        assert {n: t["rows_in"] for n, t in stats.items()} == dict.fromkeys(tables, 20)


def test_an_unknown_table_names_the_known_ones() -> None:
    with serving({"online": shared(), "demo": shared()}) as server:
        for table in ("default", "none", ""):
            with pytest.raises(ValueError, match="demo, online"):
                client(server, ROW, table=table)
            with pytest.raises(ValueError, match="demo, online"):
                SharedClient(server.name, ROW, table=table)
        assert server.stats().rejected == {"table": 3}
    with serving(shared()) as server, client(server, table="default") as far:
        far.send(ROW)


@pytest.mark.parametrize("kind", ["tcp", "shared"])
def test_the_first_clients_layout_is_the_tables(kind: str) -> None:
    def connect(sample: Any) -> Any:
        return client(server, sample) if kind == "tcp" else SharedClient(server.name, sample)

    buffer = ReplayBuffer(SharedStorage(100), batch_size=2)
    with serving(buffer) as server:
        assert buffer.storage.layout is None
        with connect({"x": 0.0, "next": {"done": False}}) as first:
            assert buffer.storage.layout is not None
            assert ("next", "terminated") in buffer.storage.layout.by_path
            for wrong, path in (
                ({"x": 0, "next": {"done": False}}, "x"),
                ({"x": np.zeros(2, np.float32), "next": {"done": False}}, "x"),
                ({"y": 0.0, "next": {"done": False}}, "y"),
            ):
                with pytest.raises(LayoutError, match=path):
                    connect(wrong)
            with connect({"x": 0.0, "next": {"terminated": False}}) as second:
                second.send({"x": 2.0, "next": {"truncated": True}})
            first.send({"x": 1.0, "next": {"done": True}})
        assert sorted(buffer[:]["x"].tolist()) == [1.0, 2.0]


def test_clients_that_race_for_the_layout_agree_on_one() -> None:
    samples = [{"x": 0.0}, {"y": 0.0}] * 4
    for _ in range(3):
        buffer = ReplayBuffer(SharedStorage(100))
        with serving(buffer) as server:

            def connect(sample: Any, server: Server = server) -> str:
                (name,) = sample
                try:
                    with client(server, sample) as far:
                        far.send({name: 1.0})
                        return name
                except LayoutError:
                    return ""

            won = {name for t in [Task(connect, s) for s in samples] if (name := t.result())}
            assert len(won) == 1
            assert len(buffer) == 4


def test_a_server_is_given_one_kind_of_thing() -> None:
    for given in ({}, {"buffer": shared(), "tables": {"a": shared()}}, {"tables": {}}):
        with pytest.raises(ValueError, match="either"):
            Server(**given)
    with pytest.raises(ValueError, match="either"):
        Server(ROW, 4, buffer=shared())


def test_names_of_servers() -> None:
    with pytest.raises(ConnectionRefusedError, match="no contig server"):
        SharedClient("nobody-of-this-name", ROW)
    with Server(buffer=shared(), name=f"tables-{os.getpid()}") as server:
        with pytest.raises(FileExistsError, match="is running"):
            Server(buffer=shared(), name=server.name)
        with SharedClient(server.name) as far:  # without any transport
            far.send(ROW)
        assert server.stats().tables["default"]["rows_in"] == 1
    with Server(buffer=ReplayBuffer(LazyTensorStorage(10))) as server:
        with pytest.raises(ValueError, match="LazyTensorStorage.*SharedStorage"):
            SharedClient(server.name)


# -- a fed buffer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("process", [False, True])
def test_a_sample_waits_for_the_first_rows(prefetch: int, process: bool) -> None:
    sampler = SliceSampler(slice_len=3, strict_length=True)
    buffer = ReplayBuffer(LazyTensorStorage(100), sampler, batch_size=3, prefetch=prefetch)
    with serving(buffer, process=process) as server, client(server, ROW) as far:
        task = Task(buffer.sample)
        far.send_trajectory(steps.episode(0, 2))  # rows, but none it may draw
        far.wait(20)
        assert task.is_alive()
        far.send_trajectory(steps.episode(1, 3))
        assert steps.identity(task.result()) == [(1, 0), (1, 1), (1, 2)]
    buffer.close()


def test_without_a_server_there_is_nothing_to_wait_for() -> None:
    buffer = shared(batch_size=2)
    with serving(buffer):
        pass
    with pytest.raises(EmptyBufferError):
        buffer.sample()


def test_a_sample_that_waited_in_vain_says_for_what() -> None:
    buffer = shared(batch_size=2, sample_timeout_s=0.05)
    with serving(buffer), pytest.raises(EmptyBufferError, match="after 0.05 s.*empty"):
        buffer.sample()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_waiting_sample_is_told_that_the_ingest_process_died(prefetch: int) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(100), batch_size=2, prefetch=prefetch)
    with serving(buffer, process=True) as server:
        task = Task(buffer.sample)
        until(task.is_alive)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ServerError, match="signal 9"):
            task.result()
        with pytest.raises(ServerError, match="died"):
            server.stats()
    buffer.close()


# -- limiters -------------------------------------------------------------------------------------

LIMIT = 9  # rows that may be written before somebody samples, with the limiter below


def limited(storage: Any, batch_size: int = 4) -> ReplayBuffer:
    limiter = RateLimiter(1.0, min_size=1, error_buffer=8, timeout_s=20.0)
    return ReplayBuffer(storage, batch_size=batch_size, limiter=limiter)


def write(far: Any, rows: int) -> None:
    """One row at a time, each acked before the next: no frame has more than one."""
    for t in range(rows):
        far.send(steps.row(0, t))
        far.wait(20)


@pytest.mark.parametrize(
    ("storage", "kind", "process"),
    [
        (LazyTensorStorage, "tcp", False),
        (LazyTensorStorage, "tcp", True),
        (SharedStorage, "tcp", True),
        (SharedStorage, "shared", False),
    ],
)
def test_writers_wait_for_the_learner_and_go_on(storage: Any, kind: str, process: bool) -> None:
    buffer = limited(storage(1000, example=ROW))
    with serving(buffer, process=process) as server:
        far: Any = client(server) if kind == "tcp" else SharedClient(server.name)
        with far:
            task = Task(write, far, 40)
            until(lambda: len(buffer) == LIMIT)
            if kind == "tcp":
                until(lambda: server.stats().blocked >= 1)
                assert server.stats().clients[0]["blocked"]
            assert len(buffer) == LIMIT and task.is_alive()
            for turn in range(1, 9):
                buffer.sample()
                until(lambda n=turn: len(buffer) == min(LIMIT + 4 * n, 40))
            task.result()
    assert buffer[:]["observation"][:, 1].tolist() == list(range(40))


def test_remote_samplers_make_room_too() -> None:
    buffer = limited(LazyTensorStorage(1000, example=ROW))
    with serving(buffer, process=True) as server, client(server) as far:
        with RemoteReplayBuffer(HOST, server.port, prefetch=0) as learner:
            task = Task(write, far, 40)
            for _ in range(8):
                assert len(learner.sample()) == 4
            task.result()


def test_frames_of_many_rows_do_not_stop_a_limited_table() -> None:
    row = {"x": 1.0}
    buffer = limited(LazyTensorStorage(1000, example=row))
    buffer.limiter.timeout_s = 0.3
    with serving(buffer) as server, Raw(server, 1, row) as far:
        far.items(0, 40, tape=True)  # as a client coalesces what was sent while it waited
        for _ in range(10):
            buffer.sample()
        until(lambda: len(buffer) == 40)
        far.items(40, 40, tape=True)
        for _ in range(10):
            buffer.sample()


def test_a_blocked_table_holds_up_no_other() -> None:
    tables = {
        "limited": limited(SharedStorage(1000, example=ROW)),
        "free": shared(batch_size=4),
    }
    with serving(tables, process=True) as server:
        with client(server, table="limited") as slow, client(server, table="free") as fast:
            task = Task(write, slow, 20)
            until(lambda: server.stats().blocked >= 1)
            write(fast, 100)
            assert len(tables["free"]) == 100
            with RemoteReplayBuffer(HOST, server.port, "free") as learner:
                for _ in range(10):
                    learner.sample()
            assert task.is_alive() and len(tables["limited"]) == LIMIT
            for _ in range(3):
                tables["limited"].sample()
            task.result()


def test_a_blocked_client_raises_if_it_was_told_to() -> None:
    buffer = limited(LazyTensorStorage(1000, example=ROW))
    with serving(buffer) as server:
        far = TcpClient(HOST, server.port, max_inflight_msgs=1, on_full="raise")
        write(far, LIMIT)
        far.send(steps.row(0, LIMIT))  # in flight, and blocked
        with pytest.raises(OverloadError, match="max_inflight_msgs"):
            until(lambda: far.send(steps.row(0, LIMIT + 1)))
        assert far.blocked >= 1
        patient = TcpClient(HOST, server.port, max_inflight_msgs=1, send_timeout_s=0.05)
        with pytest.raises(TimeoutError, match="room to send"):
            until(lambda: patient.send(steps.row(1, 0)))
        for turn in range(10):
            if turn < 2 or len(buffer) > LIMIT + 4 * turn - 4:
                buffer.sample()
        for x in (far, patient):
            x.close()


def test_a_blocked_client_still_gets_weights() -> None:
    buffer = limited(LazyTensorStorage(1000, example=ROW))
    with serving(buffer) as server, client(server) as far:
        server.publish(1, {"w": np.arange(3)})
        write(far, LIMIT)
        far.send(steps.row(0, LIMIT))
        until(lambda: server.stats().blocked >= 1)
        task = Task(far.weights)
        try:
            assert task.result().version == 1
        finally:
            buffer.sample()


def test_a_blocked_shared_client_keeps_its_timeout() -> None:
    buffer = limited(SharedStorage(1000, example=ROW))
    with serving(buffer) as server, SharedClient(server.name, send_timeout_s=0.05) as far:
        write(far, LIMIT)
        task = Task(write, far, 1)
        try:
            with pytest.raises(TimeoutError):
                task.result()
        finally:
            buffer.sample()


def test_a_shared_client_is_told_that_the_server_closed() -> None:
    buffer = shared()
    with serving(buffer) as server:
        far = SharedClient(server.name)
        far.send(ROW)
    with far, pytest.raises(ConnectionClosedError):
        far.send(ROW)


def test_a_blocked_shared_client_is_told_that_the_server_closed() -> None:
    buffer = limited(SharedStorage(1000, example=ROW))
    with serving(buffer) as server:
        far = SharedClient(server.name)
        task = Task(write, far, LIMIT + 1)
        until(lambda: len(buffer) == LIMIT)
    try:
        with pytest.raises(ConnectionClosedError):
            task.result()
    finally:
        buffer.sample()
        far.close()


def test_a_process_with_a_blocked_client_ends_as_it_should() -> None:
    code = """
        import time
        from contig import *
        row = {"x": 0.0}
        buffer = ReplayBuffer(LazyTensorStorage(100, example=row), limiter=RateLimiter(1.0))
        server = Server(buffer=buffer, transport=TcpTransport(in_process=True)).start()
        client = TcpClient("127.0.0.1", server.port)
        while not server.stats().blocked:
            client.send(row)
        time.sleep(0.1)  # the waker waits by now
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(command, check=False, capture_output=True, timeout=100)
    assert ended.returncode == 0, ended.stderr.decode()


def test_transport_none_means_no_port() -> None:
    with Server(buffer=shared()) as server:
        with pytest.raises(ServerError, match="not started"):
            _ = server.port
    server = Server(buffer=shared(), transport=TcpTransport(in_process=True))
    with pytest.raises(ServerError, match="not started"):
        _ = server.port
    with server:
        assert server.port > 0
