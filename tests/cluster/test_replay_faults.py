"""Shards, nodes, producers and learners that are killed."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from contig import (
    DiskStorage,
    NothingEligibleError,
    PrioritizedSampler,
    RayReplayBuffer,
    SamplerWithoutReplacement,
    ServerError,
    SliceSampler,
)
from contig.cluster.client import ShardProducer

from .rows import OF_PRODUCER, OF_TRAJECTORY, trajectory

STEPS = 20


def fill(buffer: Any, trajectories: int, producer: int = 1) -> None:
    for number in range(trajectories):
        buffer.extend_trajectory(trajectory(producer, number, STEPS), terminated=True)
    buffer.flush(60)


def kill(buffer: Any, slot: int) -> None:
    """SIGKILL to a shard's process."""
    place = next(s.place for s in buffer._fleet.sources if s.place.slot == slot)
    os.kill(ray.get(place.actor.pid.remote()), signal.SIGKILL)


def every_row(buffer: Any) -> Counter[int]:
    """How often each row is there, by its identity: one epoch of everything."""
    buffer._fleet.ask("reset")  # a new epoch
    left, found = len(buffer), Counter[int]()
    while left > 0:
        batch = buffer.sample()
        left -= len(batch)
        found.update(batch["observation"][:, 0].tolist())
    return found


def whole_trajectories(rows: Counter[int]) -> set[tuple[int, int]]:
    """(producer, trajectory) of all that are there; each row once, and none in part."""
    assert set(rows.values()) <= {1}
    steps = Counter(at // OF_TRAJECTORY for at in rows)
    assert set(steps.values()) <= {STEPS}
    return {divmod(key, OF_PRODUCER // OF_TRAJECTORY) for key in steps}


@ray.remote(num_cpus=0)
class Producer:
    """Writes trajectories until it is told to stop, or killed; counts those that were acked."""

    def __init__(self, handle: Any, producer: int, shard: int | None = None) -> None:
        self.to = handle.connect(shard=shard)
        self.producer, self.acked, self.stop = producer, 0, threading.Event()
        self.pid_ = os.getpid()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            self.to.extend_trajectory(trajectory(self.producer, number, STEPS), terminated=True)
            number += 1
            if number % 10 == 0:
                self.to.flush(120)
                self.acked = number
                self.stop.wait(0.1)  # a test's buffer has room for as long as it takes
        self.to.flush(120)
        self.acked = number

    def progress(self) -> int:
        return self.acked

    def pid(self) -> int:
        return self.pid_

    def end(self) -> int:
        self.stop.set()
        self.thread.join(120)
        return self.acked


def test_killed_shard(cluster: Any, until: Any) -> None:
    with RayReplayBuffer(3, 20_000, PrioritizedSampler(), batch_size=64, seed=2) as buffer:
        fill(buffer, 30)
        index = np.concatenate([buffer.sample()["index"] for _ in range(20)])
        lost = np.unique(index[index >> 47 == 1])
        kill(buffer, 1)
        drawn = 0

        def replaced() -> bool:
            nonlocal drawn
            drawn += len(buffer.sample())
            return buffer.stats().shards == 3 and buffer.stats().shards_lost == 1

        until(replaced, "the shard was not replaced")
        assert drawn and len(buffer) == 2 * 10 * STEPS
        assert not (buffer.sample()["index"] >> 47 == 1).any()
        buffer.update_priority(lost, np.ones(len(lost)))
        assert buffer.stats().stale_priority_updates == len(lost)
        fill(buffer, 3, producer=2)  # one each
        until(lambda: 3 in buffer.sample()["index"] >> 47, "nothing of the new shard")


@pytest.mark.soak  # test_collector_shards.py has it with actors that collect
def test_node_removed(cluster: Any, until: Any) -> None:
    """While producers write and the learner samples: no error, and trajectories stay whole."""
    node = cluster.add("extra")
    there = [{"node0": 1}, {"extra": 1}]
    sampler = SamplerWithoutReplacement()
    gone = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and "extra" in n["Resources"])
    here = ray.get_runtime_context().get_node_id()
    with RayReplayBuffer(2, 200_000, sampler, placement=[here, gone], batch_size=64) as buffer:
        handle = buffer.client()
        made = Producer.options(resources=there[0])  # type: ignore[attr-defined]
        producers = [made.remote(handle, i, shard) for i, shard in enumerate((0, 1))]
        far = Producer.options(resources=there[1]).remote(handle, 9)  # type: ignore[attr-defined]
        until(lambda: min(ray.get([p.progress.remote() for p in producers])) >= 50, "no progress")
        assert ray.get(far.progress.remote()) >= 0
        buffer.feed(lambda: None)
        buffer.sample()
        cluster.remove(node)

        def replaced() -> bool:
            buffer.sample()
            return buffer.stats().shards_lost == 1 and None not in buffer.nodes

        until(replaced, "the shard was not replaced")
        assert gone not in buffer.nodes
        acked = ray.get([p.end.remote() for p in producers])
        rows = every_row(buffer)
        found = whole_trajectories(rows)
        # Shard 0 has all of its producer's; the new one what came after the loss, to the last.
        assert {(0, n) for n in range(acked[0])} <= found
        assert (1, acked[1] - 1) in found


def test_disk_shard_comes_back(cluster: Any, until: Any, tmp_path: Path) -> None:
    """With what it had; its producer, which waits for it, sends nothing twice."""

    def storage(slot: int) -> DiskStorage:
        return DiskStorage(tmp_path / f"shard-{slot}", capacity=100_000)

    sampler = SamplerWithoutReplacement()
    with RayReplayBuffer(2, storage, sampler, placement="local", batch_size=64) as buffer:
        handle = buffer.client()
        producers = [Producer.remote(handle, i, i) for i in range(2)]  # type: ignore[attr-defined]
        until(lambda: min(ray.get([p.progress.remote() for p in producers])) >= 30, "no progress")
        kill(buffer, 1)
        until(
            lambda: buffer.stats().shards_lost == 1 and None not in buffer.nodes,
            "the shard was not replaced",
        )
        before = ray.get(producers[1].progress.remote())
        until(lambda: ray.get(producers[1].progress.remote()) > before + 20, "it does not go on")
        acked = ray.get([p.end.remote() for p in producers])
        want = {(i, n) for i, count in enumerate(acked) for n in range(count)}
        until(lambda: len(buffer) == len(want) * STEPS, "rows are missing")
        assert whole_trajectories(every_row(buffer)) == want
        assert [s.number for s in buffer._fleet.sources] == [0, 1]
    with RayReplayBuffer(2, storage, sampler, placement="local", batch_size=64) as buffer:
        assert len(buffer) == len(want) * STEPS  # and again, from their directories


@pytest.mark.parametrize(
    "far", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["memory", "tcp"]
)
def test_killed_producer(cluster: Any, until: Any, far: bool) -> None:
    """What was acked is there once; nothing is there in part."""
    sampler = SamplerWithoutReplacement()
    with RayReplayBuffer(1, 100_000, sampler, placement="local", batch_size=64) as buffer:
        node = {"node1": 1} if far else {"node0": 1}
        made = Producer.options(resources=node)  # type: ignore[attr-defined]
        producers = [made.remote(buffer.client(), i) for i in range(2)]
        until(lambda: min(ray.get([p.progress.remote() for p in producers])) >= 20, "no progress")
        acked = ray.get([p.progress.remote() for p in producers])
        os.kill(ray.get(producers[0].pid.remote()), signal.SIGKILL)
        acked[1] = ray.get(producers[1].end.remote())
        found = whole_trajectories(every_row(buffer))
        assert {(i, n) for i, count in enumerate(acked) for n in range(count)} <= found


def same(batch: Any, other: Any) -> None:
    for path in ("observation", ("next", "reward"), "priority_weight"):
        assert np.array_equal(batch[path], other[path])


def test_learner_restarts(cluster: Any, until: Any, tmp_path: Path) -> None:
    """One that is killed, and loads, gets the batches that it would have got."""
    options: dict[str, Any] = {"batch_size": 32, "prefetch": 2, "seed": 5}
    with RayReplayBuffer(3, 20_000, PrioritizedSampler(), **options) as buffer:
        fill(buffer, 30)
        for _ in range(3):
            batch = buffer.sample()
            buffer.update_priority(batch["index"], 1 + np.arange(32.0))
        buffer.save(tmp_path / "saved")
        want = [buffer.sample() for _ in range(5)]
        buffer.save(tmp_path / "saved-later")
    with RayReplayBuffer(3, 20_000, PrioritizedSampler(), **{**options, "seed": 6}) as buffer:
        buffer.load(tmp_path / "saved")
        for batch in want:
            same(buffer.sample(), batch)
        assert len(buffer) == 30 * STEPS


@pytest.mark.soak  # tests/replay/test_redistribute.py has it without actors
def test_other_number_of_shards(cluster: Any, until: Any, tmp_path: Path) -> None:
    """3 to 2: all trajectories, whole, with their priorities."""
    with RayReplayBuffer(3, 20_000, PrioritizedSampler(), batch_size=256, seed=5) as buffer:
        fill(buffer, 10)
        priorities: dict[int, float] = {}
        index: dict[int, int] = {}
        while len(index) < 10 * STEPS:
            batch = buffer.sample()
            index.update(zip(batch["observation"][:, 0].tolist(), batch["index"].tolist()))
        priorities = {at: 1.0 + at % 1000 % 7 for at in index}
        buffer.update_priority(list(index.values()), [priorities[at] for at in index])
        buffer.save(tmp_path / "saved")
        with pytest.raises(FileExistsError):
            buffer.save(tmp_path)
    q = {at: (p + 1e-8) ** 0.6 for at, p in priorities.items()}
    with RayReplayBuffer(2, 20_000, PrioritizedSampler(), batch_size=256) as buffer:
        buffer.load(tmp_path / "saved")
        assert len(buffer) == 10 * STEPS and buffer.stats().trajectories == 10
        for _ in range(5):
            batch = buffer.sample()
            want = [(q[at] / min(q.values())) ** -0.4 for at in batch["observation"][:, 0]]
            assert np.allclose(batch["priority_weight"], want, rtol=1e-5)
    with RayReplayBuffer(2, 20_000, SamplerWithoutReplacement(), batch_size=64) as buffer:
        with pytest.raises(Exception, match="saved with PrioritizedSampler"):
            buffer.load(tmp_path / "saved")


@pytest.mark.parametrize(
    "far", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["memory", "tcp"]
)
def test_rest_of_a_lost_trajectory(cluster: Any, until: Any, far: bool) -> None:
    """Its shard was lost in the middle: what comes after that is never a whole one."""
    other = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and "node1" in n["Resources"])
    place = [other] if far else "local"
    sampler = SliceSampler(slice_len=STEPS, complete_only=True, strict_length=True)
    with RayReplayBuffer(1, 20_000, sampler, placement=place, batch_size=STEPS) as buffer:
        data = trajectory(1, 0, 2 * STEPS)

        def add(step: int) -> None:
            row = {"observation": data["observation"][step]}
            flags = {k: v[step] for k, v in data["next"].items()}
            buffer.add({**row, "next": flags})

        for step in range(STEPS):
            add(step)
        buffer.flush(60)
        kill(buffer, 0)
        until(lambda: buffer.stats().shards_lost == 1 and None not in buffer.nodes, "not replaced")
        for step in range(STEPS, 2 * STEPS):
            add(step)
        buffer.flush(60)
        until(lambda: len(buffer) == STEPS, "rows are missing")
        with pytest.raises(NothingEligibleError):
            buffer.sample()
        fill(buffer, 1, producer=2)
        assert buffer.sample()["observation"][0, 0] // OF_PRODUCER == 2


def test_no_shard_left(cluster: Any) -> None:
    with RayReplayBuffer(1, 1000, batch_size=4, sample_timeout_s=0.2) as buffer:
        fill(buffer, 1)
        with buffer._turn:
            buffer._fleet.install([None])
            with pytest.raises(ServerError, match="all 1 shards were lost"):
                buffer.sample()


def test_a_shard_that_is_slow_is_not_lost(
    cluster: Any, until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who connects to one that does not answer asks it again: no other one will take its place."""
    asked = threading.Event()
    moves = ShardProducer._moves

    def noted(self: ShardProducer, lost: Any, wait_s: float) -> bool:
        asked.set()
        return moves(self, lost, wait_s)

    monkeypatch.setattr(ShardProducer, "_moves", noted)
    with RayReplayBuffer(1, lambda _: DiskStorage(tmp_path / "shard", 1000), seed=0) as buffer:
        pid = ray.get(buffer._fleet.sources[0].place.actor.pid.remote())
        with buffer.client().connect() as producer:
            os.kill(pid, signal.SIGSTOP)
            try:
                writing = threading.Thread(
                    target=producer.extend_trajectory,
                    args=(trajectory(1, 0, STEPS),),
                    kwargs={"terminated": True},
                )
                writing.start()
                until(asked.is_set, "nobody looked for another shard")
            finally:
                os.kill(pid, signal.SIGCONT)
            writing.join(60)
            producer.flush(60)
        assert len(buffer) == STEPS and buffer.stats().shards_lost == 0
