"""Fields and leaves of any size, exactly once: connections are cut, servers and clients killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from contig import (
    LazyTensorStorage,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    SharedStorage,
    TcpClient,
    TcpTransport,
)
from tests.server import rich
from tests.server.actors import Actor
from tests.server.proxy import Proxy
from tests.waiting import WAIT_S, Threads, until

CLIENTS = 3


def table(count: int, kind: type = LazyTensorStorage, **options: Any) -> ReplayBuffer:
    storage = kind(count, example=rich.example(), fields=rich.FIELDS, **options)
    return ReplayBuffer(storage, batch_size=16, seed=0)


def send_all(client: Any, who: int, count: int) -> None:
    for episode in range(count):
        rich.send(client, who, episode)
        if episode % 97 == 96:
            client.wait(WAIT_S)
    client.wait(WAIT_S)


def through_a_proxy(count: int, seed: int) -> None:
    buffer = table(count * CLIENTS * 13)
    transport = TcpTransport(max_frame=96 << 10)  # so that clients make frames of 32 kB
    with Server(buffer=buffer, transport=transport) as server, Proxy(server.port, seed) as proxy:

        def produce(who: int) -> None:
            with TcpClient("127.0.0.1", proxy.port, None, 4, reconnect_s=WAIT_S) as client:
                ready.wait(WAIT_S)
                send_all(client, who, count)

        ready = threading.Barrier(CLIENTS, action=proxy.rage)
        Threads(*(lambda w=w: produce(w) for w in range(CLIENTS))).join(2 * WAIT_S)
        rich.check_tape(buffer.storage, {who: count for who in range(CLIENTS)})
        assert buffer.storage.episodes()["complete"].all()
        stats = server.stats()
        assert 0 < stats.resent_frames <= stats.duplicates_dropped and stats.lost_items == 0
        until(lambda: server.stats().bytes_held == 0, "all memory given back")


def test_connections_that_are_cut() -> None:
    through_a_proxy(200, 1)


def under_fire(kills: int, seed: int) -> None:
    """The ingest process is killed at random instants, while clients send and others sample."""
    # More than clients send until the last kill; only what is written takes memory.
    buffer = table(2_000_000, SharedStorage, blob_bytes=4 << 30)
    rng, stop = random.Random(seed), threading.Event()
    sent = dict.fromkeys(range(CLIENTS), 0)
    with Server(buffer=buffer, transport=TcpTransport(max_restarts=10 * kills)) as server:

        def produce(who: int) -> None:
            with TcpClient("127.0.0.1", server.port, reconnect_s=WAIT_S) as client:
                while not stop.is_set():
                    rich.send(client, who, sent[who])
                    sent[who] += 1
                    if sent[who] % 20 == 0:
                        time.sleep(0.01)
                client.close(WAIT_S)

        def sample() -> None:
            far = RemoteReplayBuffer(
                "127.0.0.1", server.port, reconnect_s=WAIT_S, sample_timeout_s=WAIT_S
            )
            with far:
                while not stop.is_set():
                    rich.check_rows(far.sample(32))

        threads = Threads(sample, *(lambda w=w: produce(w) for w in range(CLIENTS)))
        for _ in range(kills):
            then = dict(sent)
            until(lambda t=then: all(sent[w] > t[w] for w in sent), "something new of everybody")
            time.sleep(rng.uniform(0, 0.2))
            before = server.pid
            assert before is not None
            os.kill(before, signal.SIGKILL)
            until(lambda b=before: server.check() or server.pid != b, "another ingest process")
        stop.set()
        threads.join(2 * WAIT_S)
        assert buffer.storage.tape.snapshot()[1] == 0, "the table has too little room"
        rich.check_tape(buffer.storage, sent)
    buffer.storage.close()


def test_an_ingest_process_that_is_killed() -> None:
    under_fire(4, 2)


def test_clients_that_are_killed() -> None:
    """Whatever a client has sent before it died is whole; what it had not, is not there."""
    buffer = table(100_000)
    rng = random.Random(3)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        for who in range(4):
            with Actor("send_rich", port=server.port, who=who) as actor:
                actor.hear()
                time.sleep(rng.uniform(0.1, 0.4))
                actor.signal(signal.SIGKILL)
                actor.wait()
        until(lambda: server.stats().connections == 0, "all disconnects")
        episodes = buffer.storage.episodes()
        rows: list[tuple[int, int, int]] = []
        for entry in episodes:
            got = rich.check_rows(buffer.storage.read_episode(int(entry["id"])))
            who, episode, first = got[0]
            assert got == [(who, episode, first + i) for i in range(len(got))]
            rich.check_fields(entry, who, episode)
            rows += got
        assert len(set(rows)) == len(rows) and {who for who, _, _ in rows} == set(range(4))
        for who in range(4):  # without gaps, up to where it was
            mine = sorted((e, s) for w, e, s in rows if w == who)
            upto = mine[-1][0] + 1
            wanted = [(e, s) for e in range(upto) for s in range(rich.length(who, e))]
            assert mine == wanted[: len(mine)]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("how", [lambda s: through_a_proxy(3000, s), lambda s: under_fire(100, s)])
def test_soak(how: Callable[[int], None], seed: int) -> None:
    how(seed)
