"""Too much data, too little time, servers that go away: every call ends, and says what happened."""

from __future__ import annotations

import re
import signal
import socket
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from contig import (
    ClosedError,
    ConnectionClosedError,
    OverloadError,
    ReplayBuffer,
    Server,
    SharedClient,
    SharedStorage,
    TcpClient,
    TcpTransport,
)
from tests.processes import alive
from tests.server import items
from tests.server.actors import Actor
from tests.waiting import Threads, raises, until

IN_PROCESS = TcpTransport(in_process=True)
CAPACITY = 8  # items of the server below


def small(transport: TcpTransport | None = IN_PROCESS) -> Server:
    """A server that takes `CAPACITY` items while nobody samples."""
    return Server(items.example(), CAPACITY // 2, transport, num_buffers=2)


def connect(server: Server, **options: Any) -> TcpClient:
    return TcpClient("127.0.0.1", server.port, items.example(), **options)


def overload(client: TcpClient) -> int:
    """Sends until it is too much; the number of items that were taken."""
    with pytest.raises((OverloadError, TimeoutError)):
        for n in range(1 << 30):
            client.send(items.item(0, n))
    return n


def fill(client: TcpClient) -> int:
    """Sends until no ack can come any more, and the client has no room; the number of items sent.

    A client may be refused before the server is full, because acks are on their way: it goes on
    then.
    """
    sent = 0

    def full() -> bool:
        nonlocal sent
        acked = client.pending == sent - CAPACITY
        try:
            client.send(items.item(0, sent))
        except (OverloadError, TimeoutError):
            return acked
        sent += 1
        return False

    until(full, "the server and the client's window are full")
    return sent


# -- a full server ---------------------------------------------------------------------------------


def test_raise_instead_of_waiting() -> None:
    with small() as server:
        client = connect(server, max_inflight_msgs=2, on_full="raise", send_timeout_s=None)
        sent = fill(client)
        before = client.blocked
        for again in (1, 2):
            with pytest.raises(OverloadError, match="max_inflight_msgs=2"):
                client.send(items.item(0, sent))
            assert client.blocked == before + again
        assert client.pending == sent - CAPACITY
        # A refused item was not sent; the client is as good as before.
        rest = -sent % CAPACITY or CAPACITY
        received: list[tuple[int, int]] = []
        threads = Threads(lambda: received.extend(items.drain(server, sent + rest)))
        for n in range(sent, sent + rest):
            _send_when_possible(client, n)
        client.close()
        threads.join(60)
        items.check_all(received, {0: sent + rest})


def _send_when_possible(client: TcpClient, n: int) -> None:
    def sent() -> bool:
        try:
            client.send(items.item(0, n))
        except OverloadError:
            return False
        return True

    until(sent, "the server takes an item again")


def test_a_blocked_send_counts_once() -> None:
    with small() as server:
        with connect(server, max_inflight_msgs=1, send_timeout_s=0.5) as client:
            sent = fill(client)
            before = client.blocked
            with pytest.raises(TimeoutError):
                client.send(items.item(0, sent))
            assert client.blocked == before + 1
            items.drain(server, sent // 4 * 4)


def test_send_has_a_timeout() -> None:
    with small() as server:
        with connect(server, max_inflight_msgs=1, send_timeout_s=0.2) as client:
            sent = overload(client)
            with pytest.raises(TimeoutError, match=rf"0\.2 s.*{client.pending} items"):
                client.send(items.item(0, sent))
            with pytest.raises(TimeoutError, match="items"):
                client.wait(0.1)
            received = items.drain(server, sent // 4 * 4)
            client.wait(20)
        server.close(flush=True)
        received += [x for s in server.dataset_iter() for x in items.read(s.batch)]
        items.check_all(received, {0: sent})


def test_submit_has_a_timeout() -> None:
    with small(None) as server:
        for n in range(CAPACITY):
            server.submit(items.item(0, n))
        with pytest.raises(TimeoutError, match="0.1 s"):
            server.submit(items.item(0, CAPACITY), timeout=0.1)
        with pytest.raises(TimeoutError):
            server.submit(items.item(0, CAPACITY), timeout=0)
        assert items.drain(server, CAPACITY) == [(0, n) for n in range(CAPACITY)]
        with pytest.raises(TimeoutError, match="0 of 4 items"):
            server.sample(timeout=0)
        with pytest.raises(TimeoutError, match="0.05 s"):
            server.sample(timeout=0.05)


def test_submit_that_waits_ends_with_the_server() -> None:
    server = small(None)
    ended: list[BaseException | None] = []

    def submit() -> None:
        try:
            for n in range(1 << 30):
                server.submit(items.item(0, n))
        except ClosedError as error:
            ended.append(error)

    threads = Threads(submit)
    until(lambda: server.info().push_blocked_count > 0, "a blocked submit")
    server.close()
    threads.join(60)
    assert len(ended) == 1
    assert items.drain(server, CAPACITY) == [(0, n) for n in range(CAPACITY)]
    assert server.sample() is None


# -- close() of a client ---------------------------------------------------------------------------


def test_close_says_what_is_missing() -> None:
    with small() as server:
        client = connect(server)
        for n in range(CAPACITY + 13):
            client.send(items.item(0, n))
        until(lambda: client.pending == 13, "the acks of what fits")
        with pytest.raises(TimeoutError, match="13 items"):
            client.close(timeout=0.2)
        # Closed, for good; and every call says so instead of waiting for ever.
        client.close()
        for call in (lambda: client.send(items.item(0, 0)), client.weights):
            with pytest.raises(ClosedError):
                call()
        ended = Threads(lambda: raises((ClosedError, ConnectionError), client.wait))
        ended.join(60)


def test_wait_in_another_thread_ends_with_close() -> None:
    with small() as server:
        client = connect(server)
        for n in range(CAPACITY + 1):
            client.send(items.item(0, n))
        threads = Threads(lambda: raises((ClosedError, ConnectionError, TimeoutError), client.wait))
        time.sleep(0.05)
        with pytest.raises(TimeoutError):
            client.close(timeout=0.2)
        threads.join(60)


def test_the_first_error_is_the_one_to_see() -> None:
    with small() as server:
        with pytest.raises(KeyError):
            with connect(server) as client:
                for n in range(CAPACITY + 5):
                    client.send(items.item(0, n))
                raise KeyError


def test_close_flushes() -> None:
    with Server(items.example(), 100, IN_PROCESS) as server:
        client = connect(server, max_inflight_msgs=1)
        for n in range(100):
            client.send(items.item(0, n))
        client.close()
        assert items.drain(server, 100) == [(0, n) for n in range(100)]
        client.close()  # again: nothing


# -- close() of a server ---------------------------------------------------------------------------


@pytest.mark.parametrize("transport", [IN_PROCESS, TcpTransport()], ids=["thread", "process"])
def test_an_orderly_close_is_said(transport: TcpTransport) -> None:
    server = Server(items.example(), 4, transport).start()
    clients = [connect(server, reconnect_s=r) for r in (0, 1, 1000)]
    for client in clients:
        client.send(items.item(0, 0))
        client.wait(20)
    server.close()
    for client in clients:
        # BYE may be on its way.
        until(lambda c=client: c._session.thread.failure is not None, "the goodbye")
        for call in (lambda c=client: c.send(items.item(0, 1)), client.wait):
            with pytest.raises(ConnectionClosedError, match="server was closed") as caught:
                call()
            assert isinstance(caught.value, ConnectionError)
        client.close()  # everything was acked: nothing is missing, nothing to raise


@pytest.mark.parametrize("transport", [IN_PROCESS, TcpTransport()], ids=["thread", "process"])
def test_an_orderly_close_reaches_who_is_blocked(transport: TcpTransport) -> None:
    """Calls that wait end at once, not after reconnect_s, and say that it was a goodbye."""
    server = Server(items.example(2000), 2, transport, num_buffers=2).start()
    address = ("127.0.0.1", server.port)
    clients = [
        TcpClient(*address, items.example(2000), 16, reconnect_s=1000, send_timeout_s=1000)
        for _ in range(4)
    ]
    said: dict[int, BaseException | None] = {}

    def run(who: int) -> None:
        try:
            for n in range(1 << 30 if who % 2 else 100):
                clients[who].send(items.item(who, n, 2000))
            clients[who].wait()
        except Exception as error:
            said[who] = error

    threads = Threads(*(lambda w=w: run(w) for w in range(4)))
    until(lambda: all(c.blocked > 0 for c in clients[1::2]), "blocked sends")
    until(lambda: clients[0].pending > 0 and clients[2].pending > 0, "blocked waits")
    time.sleep(0.1)
    server.close()
    threads.join(60)
    for who in range(4):
        assert isinstance(said[who], ConnectionClosedError), said
        assert "server was closed" in str(said[who]), said
    for client in clients:
        with pytest.raises(ConnectionClosedError):
            client.close()


def test_close_that_waits_ends_with_the_server() -> None:
    """A client that flushes while the server says goodbye."""
    with small() as server:
        client = connect(server, reconnect_s=1000)
        for n in range(CAPACITY + 9):
            client.send(items.item(0, n))
        until(lambda: client.pending == 9, "the acks of what fits")
        ended: list[BaseException] = []

        def close() -> None:
            try:
                client.close(timeout=None)
            except Exception as error:
                ended.append(error)

        threads = Threads(close)
        time.sleep(0.1)
        server.close()
        threads.join(60)
        assert isinstance(ended[0], ConnectionClosedError)
        assert re.search(r"\b9\b", str(ended[0])), ended[0]


def test_batches_after_close() -> None:
    for flush in (False, True):
        with Server(items.example(), 4, IN_PROCESS, num_buffers=4) as server:
            with connect(server) as client:
                for n in range(10):
                    client.send(items.item(0, n))
            server.close(flush=flush)
            got = [items.read(s.batch) for s in server.dataset_iter()]
            complete = [[(0, n) for n in range(4)], [(0, n) for n in range(4, 8)]]
            assert got == complete + ([[(0, 8), (0, 9)]] if flush else [])
            assert server.sample() is None and server.sample(timeout=0) is None
            with pytest.raises(ClosedError):
                server.submit(items.item(0, 0))


def test_flushed_batch_is_like_the_others() -> None:
    with Server(items.example(), 4) as server:
        for n in range(3):
            server.submit(items.item(0, n))
        server.close(flush=True)
        sample = server.sample()
        assert sample is not None
        assert sample.batch.shape == (3,) and sample.batch["data"].shape == (3, items.WIDTH)
        for leaf in ("who", "n", "data"):
            assert sample.batch[leaf].flags.c_contiguous and not sample.batch[leaf].flags.writeable
        assert sample.info.store_size == 0
        assert server.sample() is None


def test_nothing_acked_is_lost_by_close() -> None:
    """Clients send for all they are worth while the server closes: what was acked is delivered."""
    for _ in range(3):
        batch = 7
        server = Server(items.example(), batch, TcpTransport()).start()
        acked: dict[int, int] = {}
        clients = [connect(server, max_inflight_msgs=2) for _ in range(3)]
        sent = [0, 0, 0]

        def produce(who: int, clients: Any = clients, acked: Any = acked, sent: Any = sent) -> None:
            try:
                while True:
                    clients[who].send(items.item(who, sent[who]))
                    sent[who] += 1
            except ConnectionClosedError:
                missing = clients[who].pending
                acked[who] = sent[who] - missing
            with pytest.raises(ConnectionClosedError) if missing else nullcontext():
                clients[who].close()

        got: list[tuple[int, int]] = []

        def consume(server: Server = server, got: Any = got) -> None:
            for sample in server.dataset_iter():
                got.extend(items.read(sample.batch))

        threads = Threads(consume, *(lambda w=w: produce(w) for w in range(3)))
        # A client counts an item as sent after it has become pending: never too many are acked.
        acks = [lambda w=w, s=sent, c=clients: s[w] - c[w].pending > 0 for w in range(3)]
        until(lambda acks=acks: all(ack() for ack in acks), "some acks of each")
        server.close(flush=True)
        threads.join(60)
        assert min(acked.values()) > 0
        for who, count in acked.items():
            mine = [n for w, n in got if w == who]
            assert mine == list(range(len(mine)))
            assert len(mine) >= count, f"client {who}: {count} acked, {len(mine)} delivered"


# -- after an error --------------------------------------------------------------------------------


def test_a_client_outlives_its_server() -> None:
    """The server is gone, calls fail; it comes back at its port, and nothing was forgotten."""
    first = Server(items.example(), 4, IN_PROCESS).start()
    port = first.port
    client = connect(first, reconnect_s=0.3)
    for n in range(4):
        client.send(items.item(0, n))
    client.wait(20)
    _vanish(first)
    for _ in range(2):
        with pytest.raises(ConnectionClosedError, match="0.3 s"):
            client.send(items.item(0, 4))
            client.wait()
    pending = client.pending
    first.close()
    with Server(items.example(), 4, TcpTransport(port=port, in_process=True)) as second:
        until(lambda: second.info().active_connections == 1, "the client's return")
        for n in range(4 + pending, 8):
            client.send(items.item(0, n))
        client.wait(20)
        assert items.drain(second, 4) == [(0, n) for n in range(4, 8)]
        client.close()


def _vanish(server: Server) -> None:
    """What a crash looks like from outside: connections end without a goodbye."""
    core = server._run.ingest._ingest.core  # type: ignore[union-attr]
    assert server._run.listening is not None

    def end() -> None:
        for listener in server._run.ingest._ingest._listeners:  # type: ignore[union-attr]
            listener.close()
        for connection in list(core.connections.values()):
            connection.transport.abort()

    core.loop.call_soon_threadsafe(end)
    server._run.listening.close()


def test_a_refused_item_changes_nothing() -> None:
    with small() as server:
        with connect(server) as client:
            client.send(items.item(0, 0))
            for bad in ({"who": 1}, {**items.item(0, 1), "n": 0.5}, 3, None):
                with pytest.raises((ValueError, TypeError)):
                    client.send(bad)
            for n in range(1, 4):
                client.send(items.item(0, n))
            assert items.drain(server, 4) == [(0, n) for n in range(4)]


def test_an_item_larger_than_a_frame() -> None:
    """Said at once, where the size is known, not by a connection that breaks."""
    transport = TcpTransport(in_process=True, max_frame=4096, max_bytes=1 << 20)
    big = {"x": np.zeros(4096, np.float32)}
    with pytest.raises(ValueError, match="max_frame"):
        Server(big, 2, transport)
    fits = {"x": np.zeros((4096 - 128) // 4, np.float32)}
    with Server(fits, 2, transport) as server:
        with TcpClient("127.0.0.1", server.port, fits, reconnect_s=0) as client:
            for _ in range(3):
                client.send(fits)
                client.send(fits)
                assert server.sample(timeout=20) is not None
        assert server.stats().rejected == {}


def test_frames_of_many_small_runs_fit() -> None:
    """Each run has an entry in its frame's table, larger than a small row."""
    transport = TcpTransport(in_process=True, max_frame=128 << 10, max_bytes=1 << 20)
    storage = SharedStorage(100_000, example={"x": np.int32(0), "next": {"done": False}})
    with Server(buffer=ReplayBuffer(storage, batch_size=2), transport=transport) as server:
        with TcpClient("127.0.0.1", server.port, reconnect_s=0) as client:
            rows = [{"x": np.array([n])} for n in range(20_000)]
            for row in rows:
                client.send_trajectory(row, terminated=True)
            client.wait(20)
        assert len(storage.episodes()) == len(rows)
        assert server.stats().rows_in == len(rows)
        assert server.stats().rejected == {}
    storage.close()


# -- what leaks ------------------------------------------------------------------------------------


def test_a_refused_client_leaves_nothing_open() -> None:
    """Warnings of unclosed sockets are errors here."""
    with small() as server:
        before = server.stats().connections
        for wrong in (
            {"data_sample": {"other": 1}},
            {"table": "none"},
            {"token": "x" * 8, "table": "none"},
        ):
            with pytest.raises(ValueError):
                TcpClient("127.0.0.1", server.port, **wrong)
        with pytest.raises(ValueError, match="on_full"):
            connect(server, on_full="sometimes")
        until(lambda: server.stats().connections == before, "their disconnects")
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    with pytest.raises(ConnectionClosedError, match=str(port)):
        TcpClient("127.0.0.1", port, items.example(), reconnect_s=0)


def test_a_client_without_layout_leaves_nothing_open() -> None:
    storage = SharedStorage(100)  # fixed by its first row
    with Server(buffer=ReplayBuffer(storage, batch_size=2), transport=IN_PROCESS) as server:
        with pytest.raises(ValueError, match="data_sample"):
            TcpClient("127.0.0.1", server.port)
        until(lambda: server.stats().connections == 0, "its disconnect")
    storage.close()


# -- Ctrl-C and the end of a process ---------------------------------------------------------------


def test_interrupt_a_sample() -> None:
    with Actor("blocked_sample") as actor:
        pid = actor.hear()["pid"]
        time.sleep(0.2)
        actor.signal(signal.SIGINT)
        assert actor.hear() == {"interrupted": True}
        assert actor.wait() == 0
        until(lambda: not alive(pid), "the end of the ingest process")


@pytest.mark.parametrize("call", ["send", "wait"])
def test_interrupt_a_client(call: str) -> None:
    with Server(items.example(2000), 2, TcpTransport(), num_buffers=2) as server:
        with Actor("blocked_client", port=server.port, call=call) as actor:
            until(lambda: server.info().queue_depth_sum > 0, "back-pressure")
            if call == "wait":
                while "waits" not in actor.hear():
                    pass
            time.sleep(0.3)
            actor.signal(signal.SIGINT)
            said = {}
            while "interrupted" not in said:
                said = actor.hear()
                assert "waits" not in said or call == "wait"
            # What it had is sent for some seconds more, in vain; that is said, and nothing else.
            assert actor.wait() == 0
            assert re.search(r"\b[1-9]\d* items .* were not acked", actor.errors())
        until(lambda: server.info().active_connections <= 1, "its disconnect")


@pytest.mark.parametrize("how", ["sample", "wait", "in_process"])
def test_a_process_ends_while_its_threads_wait(how: str) -> None:
    """Daemon threads in native code at the end of an interpreter: no abort, no process left."""
    with Actor("exit_while_waiting", how=how) as actor:
        actor.hear()
        code = actor.wait()
        assert code == 0, f"exit code {code}: {actor.errors()}"
        assert "terminate" not in actor.errors()


@pytest.mark.parametrize("in_process", [True, False])
def test_a_process_ends_without_closing_its_server(in_process: bool) -> None:
    """It does not wait for a sample that waits, and complains about nothing."""
    with Actor("exit_unclosed", in_process=in_process) as actor:
        said = actor.hear()
        code = actor.wait()
        assert code == 0 and actor.errors() == ""
        if not in_process:
            until(lambda: not alive(said["pid"]), "the end of its ingest process")


def test_shared_client_under_back_pressure() -> None:
    with small(None) as server:
        with SharedClient(server.name, items.example(), on_full="raise") as client:
            with pytest.raises(OverloadError):
                for n in range(CAPACITY + 1):
                    client.send(items.item(0, n))
            assert n == CAPACITY and client.blocked == 1
        patient = SharedClient(server.name, items.example(), send_timeout_s=0.35)
        with pytest.raises(TimeoutError, match="0.35 s"):
            patient.send(items.item(0, CAPACITY))
        assert patient.blocked == 1
        threads = Threads(
            lambda: raises(
                ConnectionClosedError,
                SharedClient(server.name, items.example()).send,
                items.item(0, CAPACITY),
            )
        )
        time.sleep(0.1)
        server.close()
        threads.join(60)
        with pytest.raises(ConnectionClosedError, match="closed"):
            patient.send(items.item(0, CAPACITY))
        patient.close()
        assert items.drain(server, CAPACITY) == [(0, n) for n in range(CAPACITY)]
