"""Rows whose observations come once, whatever happens on the way: connections that are cut, an
ingest process that is killed, a table that takes frames in in part."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import (
    DiskStorage,
    RateLimiter,
    RateLimitError,
    ReplayBuffer,
    Server,
    SharedStorage,
    TcpClient,
    TcpTransport,
)
from tests.server import items
from tests.server.proxy import Proxy
from tests.waiting import WAIT_S, Threads, until

CLIENTS, LONGEST, WIDTH = 3, 12, 100


def _following(rows: Any) -> Any:
    """What a step leads to: the observation that the next one has."""
    mix = np.asarray(rows["who"]) * 1009 + np.asarray(rows["episode"])
    return items.payload(np.atleast_1d(mix), np.atleast_1d(rows["step"]) + 1, WIDTH)


def trajectory(who: int, episode: int) -> Any:
    rows = items.rows(who, episode, items.length(who, episode, LONGEST), WIDTH)
    return {**rows, "next": {**rows["next"], "data": _following(rows)}}


def step(who: int, episode: int, number: int) -> Any:
    row = items.row(who, episode, number, WIDTH)
    return {**row, "next": {**row["next"], "data": _following(row)[0]}}


def table(name: str, disk: Path | None = None, **options: Any) -> ReplayBuffer:
    example = items.row_example(WIDTH)
    example["next"] = {**example["next"], "data": example["data"]}
    storage: Any
    if disk is None:
        storage = SharedStorage(200_000, name=name, example=example)
    else:
        storage = DiskStorage(disk, 200_000, example=example)
    assert storage.schema is not None and storage.schema.sharing is not None
    return ReplayBuffer(storage, batch_size=4, **options)


def check(buffer: ReplayBuffer, episodes: dict[int, int]) -> None:
    """Every row once and in order, with what it led to."""
    storage: Any = buffer.storage
    items.check_tape(storage, episodes, LONGEST)
    batch, lost = storage.gather(np.arange(len(buffer), dtype=np.int64))
    assert not lost
    np.testing.assert_array_equal(batch["next", "data"], _following(batch))


def _send(client: TcpClient, who: int, episode: int, writer: Any) -> None:
    if who == 0:
        client.send_trajectory(trajectory(who, episode), terminated=True)
        return
    for number in range(items.length(who, episode, LONGEST)):
        writer.append(step(who, episode, number))
    writer.end_episode(truncated=True)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_proxy_that_cuts(name: str, where: str, tmp_path: Path) -> None:
    """Frames come in part, twice, and again in other connections."""
    disk = tmp_path / "runs" if where == "disk" else None
    buffer, count = table(name, disk), 400 if disk is None else 150
    transport = TcpTransport(max_frame=64 << 10, in_process=disk is not None)
    with (
        Server(buffer=buffer, transport=transport) as server,
        Proxy(server.port, 3) as proxy,
    ):

        def produce(who: int) -> None:
            with TcpClient("127.0.0.1", proxy.port, None, 8, reconnect_s=WAIT_S) as client:
                assert client._thread.compact
                writer = client.writer()
                for episode in range(count):
                    _send(client, who, episode, writer)
                    if episode == 20:
                        proxy.rage()
                client.wait(WAIT_S)

        Threads(*(lambda w=w: produce(w) for w in range(CLIENTS))).join(2 * WAIT_S)
        assert proxy.counts["cut"] > 0
        assert server.stats().duplicates_dropped > 0
        check(buffer, {who: count for who in range(CLIENTS)})
    buffer.storage.close()


def test_an_ingest_process_that_is_killed(name: str) -> None:
    """At random instants, in the middle of appends, too: slots of half an append are nobody's."""
    buffer, kills = table(name), 4
    rng, done = random.Random(5), []
    with Server(buffer=buffer, transport=TcpTransport(max_restarts=10 * kills)) as server:
        episodes = {who: 0 for who in range(CLIENTS)}

        def produce(who: int) -> None:
            with TcpClient("127.0.0.1", server.port, None, 4, reconnect_s=WAIT_S) as client:
                writer = client.writer()
                while not done:
                    _send(client, who, episodes[who], writer)
                    episodes[who] += 1
                    time.sleep(0.0005)

        threads = Threads(*(lambda w=w: produce(w) for w in range(CLIENTS)))
        for _ in range(kills):
            time.sleep(rng.uniform(0.1, 0.5))
            before = server.pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(before or 0, signal.SIGKILL)
            until(lambda b=before: server.check() or server.pid != b, "another ingest process")
        done.append(True)
        threads.join(WAIT_S)
        check(buffer, episodes)
    buffer.storage.close()


@pytest.mark.parametrize("where", ["here", "process", "disk"])
def test_a_table_that_takes_a_part(name: str, where: str, tmp_path: Path) -> None:
    """A limiter lets rows in bit by bit: slots of items that are in serve those behind them."""
    limiter = RateLimiter(1.0, min_size=1, error_buffer=5, timeout_s=0.2)
    buffer = table(name, tmp_path / "runs" if where == "disk" else None, limiter=limiter)
    transport = TcpTransport(in_process=where != "process")
    with Server(buffer=buffer, transport=transport) as server:
        with TcpClient("127.0.0.1", server.port) as client:
            writer = client.writer()
            for episode in range(40):
                _send(client, 1, episode, writer)
            until(lambda: len(buffer) > 0, "the first rows")
            while client.pending:
                with contextlib.suppress(RateLimitError):  # its last rows are in, not yet acked
                    buffer.sample()
            assert server.stats().frames_in < len(buffer) / 3
        check(buffer, {1: 40})
    buffer.storage.close()
