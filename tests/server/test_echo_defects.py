"""What echo gets wrong, as SEMANTICS.md names it; each must not happen here."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from contig import (
    ConnectionClosedError,
    LayoutError,
    Server,
    SharedClient,
    TcpClient,
    TcpTransport,
)
from tests.server import items
from tests.server.actors import Actor
from tests.waiting import Threads, until

# -- "acked samples lost on disconnect under back-pressure" ---------------------------------------


@pytest.mark.parametrize("ack", ["committed", "received"])
def test_acked_items_survive_their_client(ack: str) -> None:
    """6 clients x 40 items, a small queue and a slow consumer; all clients gone before the end."""
    clients, each, batch = 6, 40, 8
    transport = TcpTransport()
    with Server(items.example(), batch, transport, num_buffers=2) as server:

        def produce(who: int) -> None:
            address = ("127.0.0.1", server.port)
            with TcpClient(*address, items.example(), 4, ack=ack) as client:
                if ack == "received":
                    client.send_many(items.many(who, range(each)))  # one frame
                else:
                    for n in range(each):
                        client.send(items.item(who, n))
                client.wait(30)

        threads = Threads(*(lambda w=w: produce(w) for w in range(clients)))
        until(lambda: server.info().queue_depth_sum > 0, "back-pressure")
        if ack == "received":
            threads.join(30)  # all acked, all gone, before the first batch is taken
            assert server.info().samples_inserted_total == 2 * batch
        seen: list[tuple[int, int]] = []
        while len(seen) < clients * each:
            time.sleep(0.005)
            sample = server.sample(timeout=20)
            assert sample is not None
            assert sample.info.push_blocked_count > 0
            seen += items.read(sample.batch)
        threads.join(30)
        items.check_all(seen, {who: each for who in range(clients)})
        assert server.info().samples_inserted_total == clients * each
        until(lambda: server.info().active_connections == 0, "the last disconnect")


# -- "send / wait hang for ever when the server dies" ----------------------------------------------


@pytest.mark.parametrize("whom", ["tree", "ingest"])
def test_calls_end_when_the_server_is_killed(whom: str) -> None:
    """`tree`: learner and ingest process; `ingest`: the sockets only, and nobody restarts them."""
    with Actor("serve") as actor:
        told = actor.hear()
        address = ("127.0.0.1", told["port"])
        sender = TcpClient(*address, items.example(), 1, reconnect_s=1)
        waiter = TcpClient(*address, items.example(), reconnect_s=1)
        late = TcpClient(*address, items.example(), reconnect_s=0.5)
        ended: dict[str, BaseException | None] = {}

        def run(name: str, call: Any) -> None:
            try:
                call()
                ended[name] = None
            except BaseException as error:
                ended[name] = error

        def send_for_ever() -> None:
            for n in range(1 << 30):
                sender.send(items.item(0, n))

        def wait() -> None:
            for n in range(20):
                waiter.send(items.item(1, n))
            waiter.wait()

        threads = Threads(lambda: run("send", send_for_ever), lambda: run("wait", wait))
        until(lambda: sender.blocked > 0, "a blocked send")
        until(lambda: waiter.pending > 0, "a blocked wait")
        time.sleep(0.05)
        assert not ended
        if whom == "tree":
            actor.signal(signal.SIGKILL)
        os.kill(told["pid"], signal.SIGKILL)
        threads.join(60)  # longer means for ever
        for name in ("send", "wait"):
            error = ended[name]
            assert isinstance(error, ConnectionClosedError), (name, error)
            assert isinstance(error, ConnectionError)
        if whom == "ingest":
            for client in (sender, waiter, late):
                client._session.thread.stop()  # nothing more to see: end without waiting
            return
        # Calls made after the death end as well, and say how much is missing.
        pending = sender.pending
        assert pending > 0
        for name, call in {
            "late send": lambda: late.send(items.item(2, 0)),
            "sender": sender.close,
            "waiter": waiter.close,
        }.items():
            threads.start(lambda n=name, c=call: run(n, c))
        threads.join(60)
        for name in ("late send", "sender", "waiter"):
            error = ended[name]
            assert isinstance(error, ConnectionClosedError), (name, error)
            assert "127.0.0.1" in str(error)
        assert f"{pending} items" in str(ended["sender"])
        late.close()  # has nothing that was not acked


def test_new_client_of_a_dead_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contig.client.connecting._PATIENCE_S", 0.3)
    with Server(items.example(), 2, TcpTransport()) as server:
        port, pid = server.port, server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        # The learner's process still has the listening socket: the kernel answers, nobody else.
        with pytest.raises(ConnectionClosedError):
            TcpClient("127.0.0.1", port, items.example(), reconnect_s=0.5)
    with pytest.raises(ConnectionClosedError):
        TcpClient("127.0.0.1", port, items.example(), reconnect_s=0.2)


def test_shared_client_of_a_killed_server() -> None:
    """The same promise without a socket."""
    with Actor("serve") as actor:
        told = actor.hear()
        client = SharedClient(told["name"], items.example())
        ended: list[BaseException] = []

        def send_for_ever() -> None:
            try:
                for n in range(1 << 30):
                    client.send(items.item(0, n))
            except BaseException as error:
                ended.append(error)

        threads = Threads(send_for_ever)
        until(lambda: client.blocked > 0, "a blocked send")
        actor.signal(signal.SIGKILL)
        threads.join(60)
        assert isinstance(ended[0], ConnectionClosedError)
        with pytest.raises(ConnectionClosedError):
            client.send(items.item(0, 0))
        client.close()


# -- "two threads on one client corrupt frames" ----------------------------------------------------


@pytest.mark.parametrize("threads", [2, 8])
def test_many_threads_on_one_client(threads: int) -> None:
    each, batch = 2000 // threads, 50
    with Server(items.example(), batch, TcpTransport()) as server:
        with TcpClient("127.0.0.1", server.port, items.example(), 4) as client:
            barrier = threading.Barrier(threads)

            def produce(who: int) -> None:
                barrier.wait(60)
                for n in range(each):
                    client.send(items.item(who, n))
                    if n % 97 == 0:
                        client.wait(20)

            work = Threads(*(lambda w=w: produce(w) for w in range(threads)))
            seen: list[tuple[int, int]] = []
            while len(seen) < threads * each:
                sample = server.sample(timeout=20)
                assert sample is not None
                seen += items.read(sample.batch)
            work.join(20)
        items.check_all(seen, {who: each for who in range(threads)})
        assert server.stats().rejected == {}


def test_send_copies_before_it_returns() -> None:
    with Server(items.example(), 10, TcpTransport()) as server:
        with TcpClient("127.0.0.1", server.port, items.example()) as client:
            tree = items.item(3, 0)
            tree["who"], tree["n"] = np.array(3), np.array(0)
            for n in range(100):
                tree["n"][...] = n
                tree["data"][...] = items.item(3, n)["data"]
                client.send(tree)
            tree["data"][...] = -1
            seen = [x for _ in range(10) for x in items.read(_batch(server))]
        assert seen == [(3, n) for n in range(100)]


def _batch(server: Server) -> Any:
    sample = server.sample(timeout=20)
    assert sample is not None
    return sample.batch


# -- "submit unvalidated" --------------------------------------------------------------------------


def test_submit_validates() -> None:
    good = items.item(1, 1)
    bad = {
        "a missing leaf": {"who": 1, "n": 1},
        "another leaf": {**good, "more": 1},
        "another shape": {**good, "data": np.zeros(items.WIDTH + 1, np.float32)},
        "only by broadcasting": {**good, "data": np.float32(1)},
        "a loss of values": {**good, "n": 1.5},
        "text": {**good, "n": "one"},
        "nothing": None,
        "no tree": 7,
    }
    with Server(items.example(), 2) as server:
        server.submit(good)
        for what, tree in bad.items():
            with pytest.raises((LayoutError, TypeError, ValueError)):
                server.submit(tree)
            assert server.info().samples_inserted_total == 1, what
        with pytest.raises(LayoutError, match="data"):
            server.submit(bad["another shape"])
        server.submit({**items.item(1, 2), "n": 2.0, "data": good["data"].astype(np.float64) + 31})
        assert items.read(_batch(server)) == [(1, 1), (1, 2)]


# -- "a view silently changes under the reader" ----------------------------------------------------


@pytest.mark.parametrize("tcp", [False, True], ids=["submit", "tcp"])
def test_views_never_change(tcp: bool) -> None:
    """Holds far more samples than there are buffers: the others are fresh copies."""
    batch, num_buffers, held = 4, 3, 12
    transport = TcpTransport() if tcp else None
    with Server(items.example(), batch, transport, num_buffers) as server:
        client = TcpClient("127.0.0.1", server.port, items.example()) if tcp else None
        numbers = iter(range(1 << 30))

        def put() -> None:
            for _ in range(batch):
                tree = items.item(0, next(numbers))
                server.submit(tree, timeout=20) if client is None else client.send(tree)

        kept: list[tuple[Any, np.ndarray[Any, Any]]] = []
        for i in range(held):
            put()
            sample = server.sample(timeout=20)
            assert sample is not None
            # Only an array of the sample is kept, not the sample.
            kept.append((sample.batch["data"], np.array(sample.batch["data"])))
            assert sample.info.fresh_blocks == max(i + 1 - (num_buffers - 1), 0)
            del sample
        for _ in range(3 * num_buffers):
            put()
            _batch(server)
        for view, copy in kept:
            np.testing.assert_array_equal(view, copy)
            with pytest.raises(ValueError, match="read-only"):
                view[0, 0] = 1
        fresh = server.info().fresh_blocks
        kept.clear()
        gc.collect()
        for _ in range(2 * num_buffers):  # with nothing held there are buffers again
            put()
            _batch(server)
        assert server.info().fresh_blocks == fresh
        if client is not None:
            client.close()


def test_views_outlive_the_server() -> None:
    server = Server(items.example(), 4, TcpTransport(), 3).start()
    with TcpClient("127.0.0.1", server.port, items.example()) as client:
        for n in range(12):
            client.send(items.item(5, n))
        client.wait(20)
    views = [_batch(server) for _ in range(2)]
    server.close()
    views.append(_batch(server))  # a complete batch is still delivered
    assert server.sample() is None
    expected = [[(5, n) for n in range(4 * i, 4 * i + 4)] for i in range(3)]
    assert [items.read(v) for v in views] == expected
    arrays = [v["data"] for v in views]
    copies = [np.array(a) for a in arrays]
    del server, views
    gc.collect()
    again = Server(items.example(), 4, None, 3)  # takes memory, perhaps the same
    for n in range(8):
        again.submit(items.item(9, n))
    for array, copy in zip(arrays, copies):
        np.testing.assert_array_equal(array, copy)
    again.close()


def test_views_of_a_server_that_was_dropped() -> None:
    """Garbage collected without a `close`."""
    server = Server(items.example(), 2)
    for n in range(2):
        server.submit(items.item(1, n))
    batch = _batch(server)
    name = server.name
    del server
    gc.collect()
    assert items.read(batch) == [(1, 0), (1, 1)]
    assert not os.path.exists(f"/dev/shm/contig-{name}.queue")
