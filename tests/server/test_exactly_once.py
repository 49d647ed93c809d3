"""Every item once, in its client's order, whatever happens to the connections on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from contig import (
    LazyTensorStorage,
    ReplayBuffer,
    Server,
    TcpClient,
    TcpTransport,
)
from tests.server import items
from tests.server.proxy import Proxy
from tests.waiting import WAIT_S, Threads, until

CLIENTS = 4
ROLLOUTS, FEWER = 10_000, 4_000
WIDTH = 200  # 816 bytes an item
SMALL = TcpTransport(max_frame=96 << 10)  # so that clients make frames of 32 kB


def _send_all(client: TcpClient, send: Callable[[int], None], count: int) -> None:
    """Sends, now and then waiting for the acks, so that frames have many sizes."""
    for n in range(count):
        send(n)
        if n % 701 == 700:
            client.wait(WAIT_S)
    client.wait(WAIT_S)


def _through_queue(ack: str, count: int, seed: int) -> None:
    example = items.example(WIDTH)
    seen: list[tuple[int, int]] = []
    batch = 25
    assert count * CLIENTS % batch == 0

    with Server(example, batch, SMALL) as server, Proxy(server.port, seed) as proxy:

        def consume() -> None:
            while len(seen) < count * CLIENTS:
                sample = server.sample(timeout=WAIT_S)
                assert sample is not None
                seen.extend(items.read(sample.batch))
                if len(seen) % 1000 == 0:
                    time.sleep(0.05)  # the queue fills up, and frames wait in their connections

        def produce(who: int) -> None:
            address = ("127.0.0.1", proxy.port)
            with TcpClient(*address, example, 8, reconnect_s=WAIT_S, ack=ack) as client:
                ready.wait(WAIT_S)
                _send_all(client, lambda n: client.send(items.item(who, n, WIDTH)), count)

        ready = threading.Barrier(CLIENTS, action=proxy.rage)
        threads = Threads(consume, *(lambda w=w: produce(w) for w in range(CLIENTS)))
        threads.join(2 * WAIT_S)
        items.check_all(seen, {who: count for who in range(CLIENTS)})
        assert server.info().samples_inserted_total == count * CLIENTS
        _was_bad(proxy, server)


def _was_bad(proxy: Proxy, server: Server) -> None:
    """The proxy did all it can do, and resends were recognised."""
    for fault in ("cut", "reset", "half", "delay", "replay"):
        assert proxy.counts[fault] > 0, proxy.counts
    # Every client comes twice in any case: to begin with, and when the proxy begins to rage. How
    # often they come after that depends on how much goes through a connection at once.
    assert proxy.counts["connections"] > 3 * CLIENTS
    stats = server.stats()
    assert 0 < stats.resent_frames <= stats.duplicates_dropped
    assert stats.lost_items == 0
    _nothing_is_held(server)


def _nothing_is_held(server: Server) -> None:
    """Every buffer of every connection that ever was is accounted for."""
    until(lambda: server.stats().connections == 0, "all disconnects")
    until(lambda: server.stats().bytes_held == 0, "all memory given back")


def _into_tape(count: int, seed: int) -> None:
    storage = LazyTensorStorage(count * CLIENTS * 8, example=items.row_example())
    buffer = ReplayBuffer(storage, batch_size=32)
    longest = 12
    with (
        Server(buffer=buffer, transport=SMALL) as server,
        Proxy(server.port, seed) as proxy,
    ):

        def produce(who: int) -> None:
            address = ("127.0.0.1", proxy.port)
            with TcpClient(*address, items.row_example(), 4, reconnect_s=WAIT_S) as client:
                ready.wait(WAIT_S)

                def send(episode: int) -> None:
                    steps = items.length(who, episode, longest)
                    client.send_trajectory(
                        items.rows(who, episode, steps),
                        terminated=episode % 2 == 0,
                        truncated=episode % 2 == 1,
                        traj_id=episode,
                    )
                    if episode % 50 == 0:
                        time.sleep(0.01)  # frames of few trajectories too

                _send_all(client, send, count)

        ready = threading.Barrier(CLIENTS, action=proxy.rage)
        Threads(*(lambda w=w: produce(w) for w in range(CLIENTS))).join(2 * WAIT_S)
        sent = {who: count for who in range(CLIENTS)}
        assert items.check_tape(storage, sent, longest) == count * CLIENTS
        table = storage.episodes()
        assert len(table) == count * CLIENTS
        assert not table["trimmed"].any()
        assert (table["return"] == table["steps"]).all()
        assert (table["terminated"] != table["truncated"]).all()
        assert (table["terminated"] == (table["traj_id"] % 2 == 0)).all()
        _was_bad(proxy, server)


def test_queue() -> None:
    _through_queue("committed", ROLLOUTS // CLIENTS, seed=1)


def test_queue_acked_when_received() -> None:
    # Acked at once, so only few frames are sent again: more of them, that there be some.
    _through_queue("received", 2 * FEWER // CLIENTS, seed=2)


def test_tape() -> None:
    _into_tape(FEWER // CLIENTS, seed=3)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("kind", ["committed", "received", "tape"])
def test_soak(kind: str, seed: int) -> None:
    if kind == "tape":
        _into_tape(ROLLOUTS, seed)
    else:
        _through_queue(kind, ROLLOUTS, seed)


# -- single faults, each where it hurts ------------------------------------------------------------


def _fill(server: Server, client: TcpClient, batch: int, count: int) -> None:
    """Sends more than the queue holds, and returns when its connection waits for room."""
    for n in range(count):
        client.send(items.item(0, n))
    until(lambda: server.info().samples_inserted_total == 2 * batch, "a full queue")
    until(lambda: server.info().queue_depth_sum > 0, "a connection that waits")


def _drain(server: Server, count: int) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    while len(seen) < count:
        sample = server.sample(timeout=60)
        assert sample is not None
        seen += items.read(sample.batch)
    return seen


@pytest.mark.parametrize("ack", ["committed", "received"])
@pytest.mark.parametrize("cuts", [1, 2, 3])
def test_cut_while_the_queue_is_full(ack: str, cuts: int) -> None:
    """Frames that were received and wait for room belong to connections that are gone."""
    transport = TcpTransport(in_process=True)
    with (
        Server(items.example(), 10, transport, num_buffers=2) as server,
        Proxy(server.port) as proxy,
    ):
        client = TcpClient("127.0.0.1", proxy.port, items.example(), reconnect_s=30, ack=ack)
        with client:
            _fill(server, client, 10, 30)
            count = 30
            for _ in range(cuts):
                before = server.stats().connections_total
                proxy.cut_all()
                again = lambda n=before: server.stats().connections_total > n  # noqa: E731
                until(again, "a reconnect")
                for n in range(count, count + 10):
                    client.send(items.item(0, n))
                count += 10
                until(lambda: server.info().queue_depth_sum > 0, "a connection that waits")
                time.sleep(0.15)  # it is tried again and again meanwhile
            seen = _drain(server, count)
            items.check_all(seen, {0: count})
            client.wait(60)
        assert server.info().samples_inserted_total == count
        _nothing_is_held(server)


def test_seen_by_a_connection_is_not_committed() -> None:
    """After a reconnect, items that only wait in the old connection's memory are not acked."""
    transport = TcpTransport(in_process=True)
    with (
        Server(items.example(), 10, transport, num_buffers=2) as server,
        Proxy(server.port) as proxy,
    ):
        with TcpClient("127.0.0.1", proxy.port, items.example(), reconnect_s=30) as client:
            _fill(server, client, 10, 35)
            for _ in range(3):
                before = server.stats().connections_total
                proxy.cut_all()
                again = lambda n=before: server.stats().connections_total > n  # noqa: E731
                until(again, "a reconnect")
                with pytest.raises(TimeoutError):
                    client.wait(0.3)
                assert 35 - client.pending <= server.info().samples_inserted_total == 20
            client.send_many(items.many(0, range(35, 40)))
            items.check_all(_drain(server, 40), {0: 40})


def test_first_connection_is_tried_again() -> None:
    """A connection that is cut during the very first handshake is a lost one like any other."""
    with Server(items.example(), 4, TcpTransport(in_process=True)) as server:
        with Proxy(server.port) as proxy:
            # Cut the first connections at once: the proxy forwards nothing of them.
            proxy.refuse(3)
            with TcpClient("127.0.0.1", proxy.port, items.example(), reconnect_s=10) as client:
                for n in range(4):
                    client.send(items.item(0, n))
                sample = server.sample(timeout=60)
                assert sample is not None
                assert items.read(sample.batch) == [(0, n) for n in range(4)]
            assert proxy.counts["refused"] == 3
