"""A server's life, its arguments, what a sample is; the same with sockets in a thread."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

from contig import (
    ClosedError,
    LayoutError,
    LazyTensorStorage,
    ReplayBuffer,
    Server,
    ServerError,
    SharedClient,
    TcpClient,
    TcpTransport,
    TrajectoryAccumulator,
)
from tests.processes import alive
from tests.server import items
from tests.server.actors import Actor
from tests.waiting import Threads, until

NESTED = {
    "obs": np.zeros((3, 2), np.float32),
    "pair": (np.int16(0), [np.zeros(5, np.uint8), np.float64(0)]),
    "flag": False,
}


@pytest.fixture(params=["process", "thread"])
def transport(request: Any) -> TcpTransport:
    return TcpTransport(in_process=request.param == "thread")


def connect(server: Server, example: Any = None, **options: Any) -> TcpClient:
    example = items.example() if example is None else example
    return TcpClient("127.0.0.1", server.port, example, **options)


def take(server: Server, **options: Any) -> Any:
    sample = server.sample(timeout=20, **options)
    assert sample is not None
    return sample


# -- life ------------------------------------------------------------------------------------------


def test_from_start_to_close(transport: TcpTransport) -> None:
    server = Server(items.example(), 4, transport)
    with pytest.raises(ServerError, match="not started"):
        _ = server.port
    assert server.pid is None
    assert server.start() is server
    port, pid = server.port, server.pid
    assert 0 < port < 65536
    assert (pid is None) == transport.in_process
    assert server.start() is server and (server.port, server.pid) == (port, pid)  # again: nothing
    with connect(server) as client:
        for n in range(6):
            client.send(items.item(1, n))
        client.wait(20)
        assert client.pending == 0
    assert items.read(take(server).batch) == [(1, n) for n in range(4)]
    with pytest.raises(TimeoutError, match="2 of 4 items"):
        server.sample(timeout=0.01)
    server.close()
    server.close()  # again: nothing
    assert server.sample() is None
    with pytest.raises(ClosedError):
        server.start()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)
    if pid is not None:
        assert not alive(pid)
    assert not os.path.exists(f"/dev/shm/contig-{server.name}")


def test_context_managers(transport: TcpTransport) -> None:
    with Server(items.example(), 2, transport) as server:
        with connect(server) as client:
            for n in range(2):
                client.send(items.item(0, n))
        with pytest.raises(ClosedError):
            client.send(items.item(0, 2))
        assert items.read(take(server).batch) == [(0, 0), (0, 1)]
    assert server.sample() is None
    with pytest.raises(ZeroDivisionError):
        with Server(items.example(), 2, transport) as server:
            raise ZeroDivisionError
    with pytest.raises(ClosedError):
        server.submit(items.item(0, 0))


def test_a_given_port(transport: TcpTransport) -> None:
    with Server(items.example(), 2, transport) as first:
        taken = transport._replace(port=first.port)
        second = Server(items.example(), 2, taken)
        with pytest.raises(OSError, match="[Aa]ddress already in use"):
            second.start()
        second.close()
        port = first.port
    with Server(items.example(), 2, taken) as third:  # free again at once
        assert third.port == port


def test_without_a_transport() -> None:
    server = Server(items.example(), 3)
    for n in range(3):
        server.submit(items.item(2, n))  # before start
    assert items.read(take(server).batch) == [(2, n) for n in range(3)]
    assert server.start() is server
    with pytest.raises(ServerError):
        _ = server.port
    assert server.pid is None
    server.check()
    assert server.stats().tables["default"]["rows_in"] == 3
    server.close()


def test_submit_beside_clients(transport: TcpTransport) -> None:
    with Server(items.example(), 10, transport) as server:
        with connect(server) as client, SharedClient(server.name, items.example()) as near:

            def run(who: int, send: Any) -> None:
                for n in range(100):
                    send(items.item(who, n))

            calls = enumerate((server.submit, client.send, near.send))
            threads = Threads(*(lambda w=w, s=s: run(w, s) for w, s in calls))
            seen = [x for _ in range(30) for x in items.read(take(server).batch)]
            threads.join(60)
        items.check_all(seen, {0: 100, 1: 100, 2: 100})


def test_dataset_iter(transport: TcpTransport) -> None:
    with Server(items.example(), 5, transport, num_buffers=4) as server:
        with connect(server) as client:
            client.send_many(items.many(0, range(18)))
        got: list[Any] = []
        for sample in server.dataset_iter(copy=True):
            got.append(sample)
            if len(got) == 2:
                server.close()
        assert [x for s in got for x in items.read(s.batch)] == [(0, n) for n in range(15)]
        assert list(server.dataset_iter()) == []


def test_sample_ends_when_another_thread_closes() -> None:
    server = Server(items.example(), 5, TcpTransport()).start()
    got: list[Any] = []
    threads = Threads(lambda: got.append(server.sample()), lambda: got.append(server.sample()))
    time.sleep(0.1)
    server.close()
    threads.join(60)
    assert got == [None, None]


def test_several_consumers() -> None:
    """Each batch goes to one of them."""
    with Server(items.example(), 4, TcpTransport()) as server:
        seen: list[list[tuple[int, int]]] = []

        def consume() -> None:
            for sample in server.dataset_iter():
                seen.append(items.read(sample.batch))

        threads = Threads(consume, consume, consume)
        with connect(server) as client:
            for n in range(400):
                client.send(items.item(0, n))
            client.wait(20)
        until(lambda: len(seen) == 100, "all batches")
        server.close()
        threads.join(60)
        assert sorted(seen) == [[(0, n) for n in range(i, i + 4)] for i in range(0, 400, 4)]


# -- what a sample is ------------------------------------------------------------------------------


def test_batches_are_contiguous_and_read_only(transport: TcpTransport) -> None:
    with Server(NESTED, 3, transport) as server:
        with connect(server, NESTED) as client:
            for n in range(3):
                client.send(
                    {
                        "obs": np.full((3, 2), n, np.float32),
                        "pair": (n, [np.full(5, n, np.uint8), n + 0.5]),
                        "flag": n == 1,
                    }
                )
        batch = take(server).batch
        tree = batch.tree()
        assert isinstance(tree["pair"], tuple) and isinstance(tree["pair"][1], list)
        leaves = {
            "obs": (tree["obs"], (3, 3, 2), np.float32),
            "int": (tree["pair"][0], (3,), np.int16),
            "bytes": (tree["pair"][1][0], (3, 5), np.uint8),
            "double": (tree["pair"][1][1], (3,), np.float64),
            "flag": (tree["flag"], (3,), np.bool_),
        }
        for name, (leaf, shape, dtype) in leaves.items():
            assert (leaf.shape, leaf.dtype) == (shape, dtype), name
            assert leaf.flags.c_contiguous, name
            assert not leaf.flags.writeable, name
            with pytest.raises(ValueError, match="read-only"):
                leaf[...] = 0
            with pytest.raises(ValueError):
                leaf.flags.writeable = True
        assert tree["obs"][:, 0, 0].tolist() == [0, 1, 2]
        assert tree["pair"][1][1].tolist() == [0.5, 1.5, 2.5]
        assert tree["flag"].tolist() == [False, True, False]
        assert batch["pair", 1, 0].shape == (3, 5)


def test_copies_are_ones_own() -> None:
    with Server(items.example(), 2, num_buffers=2) as server:
        copies = []
        for n in range(0, 20, 2):
            server.submit(items.item(0, n))
            server.submit(items.item(0, n + 1))
            sample = take(server, copy=True)
            assert sample.batch["data"].flags.writeable
            assert sample.info.fresh_blocks == 0  # asked for, not forced
            copies.append(sample.batch)
        for batch in copies:
            batch["data"][...] += 1
        for i, batch in enumerate(copies):
            n = np.array([2 * i, 2 * i + 1])
            expected = items.payload(np.zeros(2), n, items.WIDTH) + 1
            np.testing.assert_array_equal(batch["data"], expected)
            assert batch["n"].tolist() == n.tolist()


def test_info(transport: TcpTransport) -> None:
    with Server(items.example(), 4, transport, num_buffers=2) as server:
        with connect(server) as one, connect(server) as two:
            two.wait(0)
            one.send_many(items.many(0, range(15)))
            until(lambda: server.info().queue_depth_sum > 0, "back-pressure")
            info = server.info()
            assert info.store_size == 8
            assert info.samples_inserted_total == 8
            assert info.active_connections == 2
            assert info.push_blocked_count >= 1
            assert 7 <= info.queue_depth_sum <= 15 and info.queue_depth_max <= 15
            assert info.fresh_blocks == 0
            sample = take(server)
            assert sample.info._fields == info._fields
            assert sample.info.queue_dwell.count == 1
            for name in ("drain_round", "memcpy", "queue_dwell"):
                h = getattr(sample.info, name)
                assert h.count >= 1, name
                assert 0 <= h.min_ns <= h.mean_ns <= h.max_ns
                assert h.min_ns <= h.p50_ns <= h.p90_ns <= h.p99_ns <= h.max_ns, name
            server.reset_histograms()
            cleared = server.info()
            assert cleared.queue_dwell.count == 0 and cleared.queue_dwell.max_ns == 0
            assert cleared.samples_inserted_total >= 8  # counters are not histograms
            del sample
            take(server)
            assert server.info().queue_dwell.count == 1
            one.wait(20)
        until(lambda: server.info().active_connections == 0, "the disconnects")
        until(lambda: server.info().queue_depth_sum == 0, "an empty queue")


def test_accumulator_to_batch(transport: TcpTransport) -> None:
    """The example of the seed: a rollout of several timescales, built once, sent as it is."""
    example = {
        "transition": {"obs": np.zeros((4, 3), np.float32), "reward": np.zeros((4,), np.float32)},
        "bootstrap": {"obs": np.zeros((1, 3), np.float32)},
        "scalar": {"version": np.int64(0)},
    }
    with Server(example, 2, transport) as server:
        with connect(server, example) as client:
            acc = TrajectoryAccumulator(example)
            for rollout in range(4):
                for t in range(4):
                    obs = np.full(3, 10 * rollout + t, np.float32)
                    acc.add("transition", {"obs": obs, "reward": np.float32(t)})
                acc.add("bootstrap", {"obs": np.full(3, 10 * rollout + 4, np.float32)})
                acc.add("scalar", {"version": rollout})
                client.send(acc.build())
        for first in (0, 2):
            batch = take(server).batch
            assert batch["scalar", "version"].tolist() == [first, first + 1]
            assert batch["transition", "obs"].shape == (2, 4, 3)
            starts = batch["transition", "obs"][:, :, 0]
            assert starts.tolist() == [[10 * r + t for t in range(4)] for r in (first, first + 1)]
            assert batch["bootstrap", "obs"][:, 0, 0].tolist() == [10 * first + 4, 10 * first + 14]


# -- arguments and mismatches ----------------------------------------------------------------------


def test_bad_arguments() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10, example={"x": np.float32(0)}), batch_size=1)
    for wrong in (
        {},
        {"example": items.example()},
        {"batch_size": 3},
        {"example": items.example(), "batch_size": 2, "buffer": buffer},
        {"buffer": buffer, "tables": {"a": buffer}},
        {"tables": {}},
        {"example": items.example(), "batch_size": 0},
        {"example": items.example(), "batch_size": -1},
        {"example": items.example(), "batch_size": 2, "num_buffers": 1},
        {"example": {}, "batch_size": 2},
        {"example": {"a": "text"}, "batch_size": 2},
        {"example": items.example(), "batch_size": 2, "name": "a/b"},
        {"example": items.example(), "batch_size": 2, "name": ""},
    ):
        with pytest.raises((ValueError, TypeError)):
            Server(**wrong)
    example = items.example()
    for transport, text in (
        (TcpTransport(host="0.0.0.0"), "token"),
        (TcpTransport(host="example.org"), "token"),
        (TcpTransport(host="::"), "token"),
        (TcpTransport(token=""), "token"),
        (TcpTransport(port=-1), "port"),
        (TcpTransport(port=70000), "port"),
        (TcpTransport(max_frame=10), "max_frame"),
        (TcpTransport(max_frame=1 << 20, max_bytes=1 << 20), "max_frame"),
    ):
        with pytest.raises(ValueError, match=text):
            Server(example, 2, transport)
    for wrong, text in (
        ({"example": example, "batch_size": 1.5}, "batch_size: .*1.5"),
        ({"example": example, "batch_size": "3"}, "batch_size: .*'3'"),
        ({"example": example, "batch_size": 2, "num_buffers": 2.5}, "num_buffers: .*2.5"),
        ({"example": example, "batch_size": 2, "transport": 80}, "transport: .*TcpTransport"),
        ({"tables": {"a": 3}}, r"tables\['a'\]: expected a ReplayBuffer, got 3"),
        ({"tables": {3: buffer}}, "tables: the name 3"),
        ({"tables": [buffer]}, "tables: .*dict"),
        ({"buffer": LazyTensorStorage(3)}, "buffer: expected a ReplayBuffer"),
        *(
            ({"buffer": buffer, "transport": TcpTransport(**given)}, f"^{name}[: ]")
            for name, given in (
                ("port", {"port": "80"}),
                ("port", {"port": 1.5}),
                ("metrics_port", {"metrics_port": "80"}),
                ("host", {"host": 3}),
                ("token", {"token": b"x"}),
                ("max_frame", {"max_frame": "1"}),
                ("max_bytes", {"max_bytes": None}),
                ("max_restarts", {"max_restarts": -1}),
                ("heartbeat_s", {"heartbeat_s": None}),
            )
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            Server(**wrong)
    for wrong, text in (
        ({"port": "80"}, "^port: .*'80'"),
        ({"port": 0}, "^port: "),
        ({"host": None}, "^host: "),
        ({"reconnect_s": None}, "^reconnect_s: .*None"),
        ({"max_inflight_msgs": 1.5}, "^max_inflight_msgs: "),
        ({"table": 3}, "^table: "),
        ({"token": b"x"}, "^token: "),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            TcpClient(**{"host": "127.0.0.1", "port": 1, "data_sample": example, **wrong})
    with Server(example, 2, TcpTransport(in_process=True)) as server:
        clients = (TcpClient("127.0.0.1", server.port), SharedClient(server.name))
        for client in clients:
            for newer_than in (1.5, "1", None, 2**63):
                with pytest.raises(ValueError, match=r"^newer_than "):
                    client.weights(newer_than=newer_than)
            assert client.weights(newer_than=-2) is None
            client.close()
    with Server(buffer=buffer) as server:
        with pytest.raises(TypeError, match="sample from"):
            server.sample()
        with pytest.raises(TypeError):
            server.submit({"x": 1})
        with pytest.raises(TypeError):
            server.info()
    # A refused server leaves nothing behind.
    assert not [n for n in os.listdir("/dev/shm") if n.startswith("contig-a/")]


def test_a_mismatch_names_the_leaf(transport: TcpTransport) -> None:
    example = {"obs": np.zeros(3, np.float32), "next": {"reward": np.float32(0)}}
    with Server(example, 2, transport) as server:
        for wrong, said in (
            ({**example, "obs": np.zeros(3, np.int32)}, ("obs", "int32", "float32")),
            ({**example, "obs": np.zeros(4, np.float32)}, ("obs", "4", "3")),
            ({**example, "next": {"reward": np.float64(0)}}, ("reward", "float64", "float32")),
            ({"obs": example["obs"]}, ("reward",)),
            ({**example, "more": np.float32(0)}, ("more",)),
        ):
            with pytest.raises(LayoutError) as caught:
                connect(server, wrong)
            assert isinstance(caught.value, ValueError)
            for word in said:
                assert word in str(caught.value), caught.value
            with pytest.raises(LayoutError, match=said[0]):
                SharedClient(server.name, wrong)
        assert server.stats().rejected == {"layout": 5}
        with connect(server, example) as client:  # nobody else is affected
            client.send(example)
        with TcpClient("127.0.0.1", server.port) as client:  # takes the server's layout
            assert [x.path for x in client.layout.leaves] == [("next", "reward"), ("obs",)]
            client.send({"obs": [1.0, 2.0, 3.0], "next": {"reward": 1}} | {"obs": np.ones(3)})
        assert take(server).batch["obs"].tolist() == [[0, 0, 0], [1, 1, 1]]


def test_a_peer_that_is_no_server() -> None:
    def answer(listening: socket.socket) -> None:
        peer, _ = listening.accept()
        with peer:
            peer.recv(100)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threads = Threads(lambda: answer(listening))
        with pytest.raises(ValueError, match="magic"):
            TcpClient("127.0.0.1", listening.getsockname()[1], items.example())
        threads.join(60)
    with Server(items.example(), 2, TcpTransport()) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
            browser.settimeout(10)
            while browser.recv(4096):
                pass
        assert server.stats().rejected == {"magic": 1}


def test_names(name: str) -> None:
    with Server(items.example(), 2, name=name) as server:
        with pytest.raises(FileExistsError, match=name):
            Server(items.example(), 2, name=name)
        with SharedClient(name) as client:  # the first one is still whole
            for n in range(2):
                client.send(items.item(0, n))
        assert items.read(take(server).batch) == [(0, 0), (0, 1)]
    with Server(items.example(), 2, name=name):  # free again
        pass
    with pytest.raises(ConnectionRefusedError, match=name):
        SharedClient(name)
    buffer = ReplayBuffer(LazyTensorStorage(10, example={"x": np.float32(0)}), batch_size=1)
    with Server(buffer=buffer, name=name):
        with pytest.raises(FileExistsError, match=name):
            Server(items.example(), 2, name=name)
    assert not [n for n in os.listdir("/dev/shm") if name in n]


def test_casts_keep_values(transport: TcpTransport) -> None:
    example = {"f": np.float32(0), "i": np.int32(0), "b": False}
    with Server(example, 2, transport) as server:
        with connect(server, example) as client:
            client.send({"f": np.float64(0.5), "i": 3.0, "b": 1})
            for wrong in ({"f": 1, "i": 0.5, "b": 0}, {"f": 1, "i": 2**40, "b": 0}):
                with pytest.raises(ValueError, match='"i"'):
                    client.send(wrong)
            with pytest.raises(ValueError, match='"b"'):
                client.send({"f": 1, "i": 1, "b": 2})
            client.send({"f": True, "i": np.uint8(7), "b": 0.0})
        batch = take(server).batch
        assert batch["f"].tolist() == [0.5, 1.0]
        assert batch["i"].tolist() == [3, 7]
        assert batch["b"].tolist() == [True, False]


# -- the learner is busy ---------------------------------------------------------------------------


def test_ingest_goes_on_while_the_learner_holds_its_gil() -> None:
    """The main thread sleeps in C with the GIL, as a long computation would hold it."""
    libc = ctypes.PyDLL(None)  # calls keep the GIL
    libc.usleep.argtypes = [ctypes.c_uint]
    held_s = 0.7
    storage = LazyTensorStorage(100_000, example=items.row_example())
    buffer = ReplayBuffer(storage, batch_size=8)
    with Server(items.example(), 1000, TcpTransport(), num_buffers=20) as server:
        with Server(buffer=buffer, transport=TcpTransport()) as tape:
            with (
                Actor("send_items", port=server.port, who=1, count=1 << 30, every=50) as one,
                Actor("stream_rows", port=tape.port, who=2) as two,
            ):
                one.hear()
                two.hear()
                one.hear(), two.hear()  # under way
                ticks = [0]
                stop = threading.Event()

                def tick() -> None:
                    while not stop.wait(0.005):
                        ticks[0] += 1

                ticker = Threads(tick)
                until(lambda: ticks[0] > 2, "the other thread")
                while server.info().store_size >= 1000:  # a full queue would take nothing in
                    server.sample(20.0)
                before = server.info().samples_inserted_total
                rows_before = storage.tape.snapshot()[0]
                ticks_before = ticks[0]
                libc.usleep(int(held_s * 1e6))
                # Read at once, before any thread of ours can have done anything.
                after, rows_after = server.info().samples_inserted_total, storage.tape.snapshot()[0]
                assert ticks[0] - ticks_before <= 2, "the GIL was not held"
                stop.set()
                ticker.join(60)
                assert after - before >= 50, "nothing was taken in meanwhile"
                assert rows_after - rows_before >= 50
                assert server.stats().items_in >= after


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux knows it")
def test_the_ingest_process_gives_way() -> None:
    """What comes in wakes it, but does not interrupt the learner."""
    with Server({"x": np.zeros(2)}, 2, TcpTransport(port=0)) as server:
        assert server.pid != os.getpid()
        assert os.sched_getscheduler(server.pid) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.parametrize("how", ["buffer", "tables"])
def test_a_buffer_that_transforms_what_is_written_is_refused(how: str) -> None:
    """Clients' rows go past the buffer: to skip its transform would be to store other rows."""
    buffer = ReplayBuffer(LazyTensorStorage(10), transform=lambda batch: batch, batch_size=2)
    given: dict[str, Any] = {"buffer": buffer} if how == "buffer" else {"tables": {"a": buffer}}
    with pytest.raises(ValueError, match="transforms what is written.*on_sample"):
        Server(**given)

    class OnSample:
        def on_sample(self, batch: Any) -> Any:
            return batch

    plain = ReplayBuffer(LazyTensorStorage(10), transform=OnSample(), batch_size=2)
    Server(buffer=plain).close()
