"""The roads that rows take through the package: files and functions, in the order of their calls.

    python tools/roads.py [ROAD ...]

Each road is run once to warm up, so that imports and first-time set-up do not count, and then once
under a profiler hook. A function is listed where it is first called; C++ is one step (`_native`).
docs/design/roads.md is written from this.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import contig

PACKAGE = Path(contig.__file__).parent


class Road:
    """Functions of the package in the order in which they were first called."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, str], None] = {}
        self._known: dict[Any, str | None] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._known:
            path = Path(code.co_filename)
            inside = PACKAGE in path.parents
            self._known[code] = str(path.relative_to(PACKAGE)) if inside else None
        file = self._known[code]
        if file not in (None, "__init__.py") and not code.co_name.startswith("<"):
            self.steps.setdefault((file, code.co_qualname))


def traced(work: Callable[[], None]) -> Road:
    road = Road()
    sys.setprofile(road)
    try:
        work()
    finally:
        sys.setprofile(None)
    return road


def row(n: int) -> dict[str, Any]:
    return {
        "obs": np.full(4, n, np.float32),
        "action": n % 2,
        "next": {"reward": 1.0, "done": False},
    }


def collector() -> Road:
    """An environment's steps, none of them an end, to a batch of `Collector`."""
    import gymnasium

    made = contig.Collector(gymnasium.make("CartPole-v1"), frames_per_batch=3, total_frames=9)
    batches = iter(made)
    next(batches)
    road = traced(lambda: void(next(batches)))
    made.shutdown()
    return road


def add() -> Road:
    """`ReplayBuffer.add` to the tape."""
    buffer = contig.ReplayBuffer(contig.LazyTensorStorage(1000), batch_size=8)
    buffer.add(row(0))
    return traced(lambda: void(buffer.add(row(1))))


def sample() -> Road:
    """`ReplayBuffer.sample`: the tape to a batch."""
    buffer = contig.ReplayBuffer(contig.LazyTensorStorage(1000), batch_size=8)
    for n in range(20):
        buffer.add(row(n))
    buffer.sample()
    return traced(lambda: void(buffer.sample()))


def ingest() -> Road:
    """An accumulator's item to `Server.sample`; the ingest side in a thread, so that it shows."""
    road = Road()
    threading.setprofile(road)
    example = {"x": np.zeros(4, np.float32)}
    try:
        transport = contig.TcpTransport(in_process=True)
        with contig.Server(example, 1, transport, num_buffers=8) as server:
            with contig.TcpClient("127.0.0.1", server.port, example) as client:
                client.send(example)
                server.sample(20.0)
                road.steps.clear()
                sys.setprofile(road)
                client.send(example)
                server.sample(20.0)
                sys.setprofile(None)
                found = Road()
                found.steps = dict(road.steps)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)
    return found


def disk() -> Road:
    """A row to its commit on disk."""
    road = Road()
    threading.setprofile(road)
    try:
        with tempfile.TemporaryDirectory() as folder:
            with contig.DiskStorage(folder, 1000) as storage:
                buffer = contig.ReplayBuffer(storage)
                buffer.add(row(0))
                storage.flush()
                road.steps.clear()
                sys.setprofile(road)
                buffer.add(row(1))
                storage.flush()
                sys.setprofile(None)
                found = Road()
                found.steps = dict(road.steps)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)
    return found


def trajectory() -> Road:
    """`TrajectoryReplayBuffer.add_trajectories` to the tape."""
    import torch

    def made(n: int) -> contig.Trajectory:
        return contig.Trajectory(
            actions=torch.full((5, 2, 3), float(n)), rewards=torch.zeros(5, 2, 1)
        )

    buffer = contig.TrajectoryReplayBuffer(seed=0)
    buffer.add_trajectories([made(0)])
    buffer.flush()
    road = Road()
    threading.setprofile(road)  # of the thread that stores it
    try:
        sys.setprofile(road)
        buffer.add_trajectories([made(1)])
        sys.setprofile(None)
        buffer.flush()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)
    return road


def void(value: Any) -> None:
    """Drops a value."""


ROADS = {f.__name__: f for f in (collector, add, sample, ingest, disk, trajectory)}


def main() -> None:
    for name in sys.argv[1:] or ROADS:
        road = ROADS[name]()
        files = dict.fromkeys(file for file, _ in road.steps)
        print(f"## {name}: {ROADS[name].__doc__}")
        print(f"{len(road.steps)} functions in {len(files)} files\n")
        last = ""
        for file, function in road.steps:
            print(f"{file if file != last else '':<32} {function}")
            last = file
        print()


if __name__ == "__main__":
    main()
