"""Shards that say nothing for a while: sampling goes on without them, and with them again."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from contig import DiskStorage, RayReplayBuffer, SamplerWithoutReplacement, ServerError
from contig.cluster.remote_shard import RemoteShard

from .rows import trajectory

STEPS = 20


def far_node() -> str:
    return next(n["NodeID"] for n in ray.nodes() if n["Alive"] and "node1" in n["Resources"])


def fill(buffer: Any, trajectories: int) -> None:
    for number in range(trajectories):
        buffer.extend_trajectory(trajectory(1, number, STEPS), terminated=True)
    buffer.flush(60)


class Process:
    """The process of a shard, which can be stopped."""

    def __init__(self, buffer: Any, slot: int) -> None:
        place = next(s.place for s in buffer._fleet.sources if s.place.slot == slot)
        self.pid = int(ray.get(place.actor.pid.remote()))

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def test_sampling_goes_on_without_a_silent_shard(
    cluster: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    here = ray.get_runtime_context().get_node_id()
    with RayReplayBuffer(2, 1000, placement=[here, far_node()], batch_size=64, seed=1) as buffer:
        fill(buffer, 10)
        assert set(buffer.sample()["index"] >> 47) == {0, 1}
        process = Process(buffer, 1)
        process.stop()
        try:
            with caplog.at_level(logging.WARNING, "contig.cluster"):
                batch = buffer.sample()
            assert len(batch) == 64 and set(batch["index"] >> 47) == {0}
            assert "shard 1" in caplog.text and "without it until it answers" in caplog.text
            stats = buffer.stats()
            assert (stats.shards, stats.shards_silent, stats.shards_lost) == (1, 1, 0)
        finally:
            process.go_on()
        until(lambda: buffer.stats().shards_silent == 0, "it was not taken back")
        until(lambda: 1 in buffer.sample()["index"] >> 47, "nothing of the shard")
        assert buffer.stats().shards_lost == 0


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_rows_of_a_share_that_came_late_are_drawn_again(
    cluster: Any, until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A shard stops when it is asked for its share: nobody gets it, so it is given back."""
    here, sampler = ray.get_runtime_context().get_node_id(), SamplerWithoutReplacement()

    def on_disk(slot: int) -> DiskStorage:
        return DiskStorage(tmp_path / f"shard-{slot}", 1000)

    storage, placement = 1000 if kind == "memory" else on_disk, [here, far_node()]
    with RayReplayBuffer(2, storage, sampler, placement=placement, seed=1) as buffer:
        fill(buffer, 10)
        process, take = Process(buffer, 1), RemoteShard.take
        seen = Counter(buffer.sample(100)["observation"][:, 0].tolist())

        def stopped(self: RemoteShard, *given: Any) -> Any:
            process.stop()
            return take(self, *given)

        monkeypatch.setattr(RemoteShard, "take", stopped)
        try:
            seen.update(buffer.sample(10)["observation"][:, 0].tolist())
            assert buffer.stats().shards_silent == 1
        finally:
            monkeypatch.undo()
            process.go_on()
        until(lambda: buffer.stats().shards_silent == 0, "it was not taken back")
        while len(seen) < 10 * STEPS:
            seen.update(buffer.sample(10)["observation"][:, 0].tolist())
        assert set(seen.values()) == {1}


def test_rows_that_only_a_silent_shard_has(cluster: Any, until: Any) -> None:
    """They are waited for; what is drawn ahead and thrown away meanwhile is given back."""
    sampler = SamplerWithoutReplacement(drop_last=True)
    options: dict[str, Any] = {"placement": [far_node()], "sample_timeout_s": 0.5}
    with RayReplayBuffer(1, 1000, sampler, batch_size=20, prefetch=2, **options) as buffer:
        fill(buffer, 5)
        seen = [buffer.sample()["observation"][:, 0]]
        process = Process(buffer, 0)
        process.stop()
        try:
            with pytest.raises(ServerError, match="1 of 1 shards .* not answer"):
                for _ in range(5):
                    seen.append(buffer.sample()["observation"][:, 0])
            buffer._drain()
        finally:
            process.go_on()
        until(lambda: buffer.stats().shards_silent == 0, "it was not taken back")
        while len(seen) < 5:
            seen.append(buffer.sample()["observation"][:, 0])
        assert np.array_equal(np.sort(np.concatenate(seen)), np.sort(every_row(5)))


def every_row(trajectories: int) -> np.ndarray[Any, Any]:
    found = [trajectory(1, n, STEPS)["observation"][:, 0] for n in range(trajectories)]
    return np.concatenate(found)
