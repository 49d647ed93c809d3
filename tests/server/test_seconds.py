"""Timeouts that are no number of seconds are refused, everywhere, before anything is waited for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import (
    DiskStorage,
    LazyTensorStorage,
    MultiCollector,
    ParallelEnv,
    RateLimiter,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    SharedClient,
    SharedStorage,
    TcpClient,
    TcpTransport,
)
from contig.arguments import seconds
from contig.weights.board import WeightsBoard
from tests.server import items

BAD = [math.nan, -1.0, -math.inf, "3", True, np.zeros(2), 1j]


class Parts:
    """A server and clients to call."""

    def __init__(self) -> None:
        rows = ReplayBuffer(SharedStorage(100, example=items.row_example()), batch_size=4)
        self.queue = Server(items.example(), 4, TcpTransport(in_process=True)).start()
        self.tape = Server(buffer=rows, transport=TcpTransport(in_process=True)).start()
        self.client = TcpClient("127.0.0.1", self.queue.port, items.example())
        self.near = SharedClient(self.queue.name)
        self.far = RemoteReplayBuffer("127.0.0.1", self.tape.port, prefetch=0)
        self.board = WeightsBoard.create({"w": np.zeros(2)})
        self.closes = [self.client, self.near, self.far, self.board, self.queue, self.tape]


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    made = Parts()
    yield made
    for part in made.closes:
        part.close()


Call = Callable[[Parts, Any], object]
CALLS: dict[str, tuple[str, Call]] = {
    "server.sample": ("timeout", lambda p, x: p.queue.sample(x)),
    "server.submit": ("timeout", lambda p, x: p.queue.submit(items.item(0, 0), x)),
    "client.wait": ("timeout", lambda p, x: p.client.wait(x)),
    "client.weights": ("timeout_s", lambda p, x: p.client.weights(-1, x)),
    "client.close": ("timeout", lambda p, x: p.client.close(x)),
    "near.wait": ("timeout", lambda p, x: p.near.wait(x)),
    "near.weights": ("timeout_s", lambda p, x: p.near.weights(-1, x)),
    "near.close": ("timeout", lambda p, x: p.near.close(x)),
    "far.flush": ("timeout", lambda p, x: p.far.flush(x)),
    "far.weights": ("timeout_s", lambda p, x: p.far.weights(-1, x)),
    "far.close": ("timeout", lambda p, x: p.far.close(x)),
    "board.read": ("timeout_s", lambda p, x: p.board.read(-1, x)),
    "reconnect_s": (
        "reconnect_s",
        lambda p, x: TcpClient("127.0.0.1", p.queue.port, reconnect_s=x),
    ),
    "send_timeout_s": (
        "send_timeout_s",
        lambda p, x: TcpClient("127.0.0.1", p.queue.port, send_timeout_s=x),
    ),
    "near's send_timeout_s": (
        "send_timeout_s",
        lambda p, x: SharedClient(p.queue.name, send_timeout_s=x),
    ),
    "far's sample_timeout_s": (
        "sample_timeout_s",
        lambda p, x: RemoteReplayBuffer("127.0.0.1", p.tape.port, sample_timeout_s=x),
    ),
    "heartbeat_s": (
        "heartbeat_s",
        lambda p, x: Server(items.example(), 4, TcpTransport(heartbeat_s=x)),
    ),
    "limiter": ("timeout_s", lambda p, x: RateLimiter(1.0, timeout_s=x)),
    "buffer": (
        "sample_timeout_s",
        lambda p, x: ReplayBuffer(LazyTensorStorage(4), sample_timeout_s=x),
    ),
    "multi's step_timeout_s": (
        "step_timeout_s",
        lambda p, x: MultiCollector([object()], frames_per_batch=4, step_timeout_s=x),
    ),
    "multi's start_timeout_s": (
        "start_timeout_s",
        lambda p, x: MultiCollector([object()], frames_per_batch=4, start_timeout_s=x),
    ),
    "parallel's step_timeout_s": (
        "step_timeout_s",
        lambda p, x: ParallelEnv(2, object, step_timeout_s=x),
    ),
    "parallel's start_timeout_s": (
        "start_timeout_s",
        lambda p, x: ParallelEnv(2, object, start_timeout_s=x),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_number_of_seconds(parts: Parts, name: str) -> None:
    argument, call = CALLS[name]
    for bad in BAD:
        with pytest.raises(ValueError, match=f"^{argument}: .*seconds"):
            call(parts, bad)
    # Nothing was closed by that, and nothing sent.
    for n in range(4):
        parts.client.send(items.item(1, n))
    parts.client.wait(20)
    sample = parts.queue.sample(20)
    assert sample is not None and items.read(sample.batch) == [(1, n) for n in range(4)]
    assert parts.near.weights() is None and parts.far.weights() is None


def test_a_storage_on_disk(tmp_path: Path) -> None:
    for bad in BAD:
        for argument in ("max_lag_s", "max_age_s"):
            with pytest.raises(ValueError, match=f"^{argument}: .*seconds"):
                DiskStorage(tmp_path / "x", **{argument: bad})
        with DiskStorage(tmp_path / "y", example=items.row_example()) as storage:
            with pytest.raises(ValueError, match=r"^timeout_s: .*seconds"):
                storage.flush(bad)
    assert not (tmp_path / "x").exists()


def test_numbers_of_every_kind() -> None:
    for good in (0, 1, 2.5, np.float32(0.5), np.int64(3), math.inf, 10**400):
        assert seconds("x", good) >= 0
    with pytest.raises(ValueError, match="x: expected seconds, got None"):
        seconds("x", None)
