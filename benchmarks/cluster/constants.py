"""Constants of this machine, each from a short run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.rows import ACTION_DIM, OBSERVATION_DIM
from contig import (
    Collector,
    LazyTensorStorage,
    ReplayBuffer,
    Server,
    SharedClient,
    SharedStorage,
    TcpClient,
    TcpTransport,
)
from contig.layout import Layout

STEPS = 100  # of a trajectory
CAPACITY = 200_000


def trajectory(number: int = 0) -> Any:
    """Of the rows that all benchmarks have."""
    values = np.full((STEPS, OBSERVATION_DIM), number, np.float32)
    flags = np.zeros(STEPS, bool)
    return {
        "observation": values,
        "action": np.zeros((STEPS, ACTION_DIM), np.float32),
        "next": {
            "observation": values,
            "reward": np.zeros(STEPS, np.float32),
            "done": flags,
            "terminated": flags,
            "truncated": flags,
        },
    }


def row() -> Any:
    one = trajectory()
    return {
        key: {k: v[0] for k, v in value.items()} if isinstance(value, dict) else value[0]
        for key, value in one.items()
    }


def row_bytes() -> int:
    return Layout(row()).record_size


def rate(call: Callable[[], Any], seconds: float, units: int = 1) -> float:
    """Units a second: the best of three stretches, after a first one that does not count."""
    best = 0.0
    for attempt in range(4):
        calls, begun = 0, time.perf_counter()
        while (spent := time.perf_counter() - begun) < seconds / 4:
            call()
            calls += 1
        best = max(best, calls * units / spent) if attempt else 0.0
    return best


def copy_bytes_per_s(seconds: float) -> float:
    source, target = np.ones(64 << 20, np.uint8), np.empty(64 << 20, np.uint8)
    return rate(lambda: np.copyto(target, source), seconds, source.nbytes)


def steps_per_s(seconds: float) -> float:
    """CartPole with random actions: what a cheap environment makes of a core."""
    import gymnasium

    with Collector(gymnasium.make("CartPole-v1"), frames_per_batch=200, seed=0) as collector:
        batches = iter(collector)
        return rate(lambda: next(batches), seconds, 200)


def shared_rows_per_s(seconds: float) -> float:
    data = trajectory()
    with SharedStorage(CAPACITY, example=row()) as storage:
        with Server(buffer=ReplayBuffer(storage)) as server, SharedClient(server.name) as client:
            return rate(lambda: client.send_trajectory(data), seconds, STEPS)


def tcp_rows_per_s(seconds: float) -> float:
    data = trajectory()
    with SharedStorage(CAPACITY, example=row()) as storage:
        with Server(buffer=ReplayBuffer(storage), transport=TcpTransport()) as server:
            with TcpClient("127.0.0.1", server.port) as client:

                def send() -> None:
                    for _ in range(50):
                        client.send_trajectory(data)
                    client.wait()

                return rate(send, seconds, 50 * STEPS)


def sample_s(batch: int, seconds: float) -> float:
    buffer = ReplayBuffer(LazyTensorStorage(CAPACITY, example=row()), batch_size=batch, seed=0)
    for number in range(CAPACITY // STEPS):
        buffer.extend_trajectory(trajectory(number), truncated=True)
    return 1 / rate(buffer.sample, seconds)
