"""What samplers have given out of a shard on disk is known when it comes back elsewhere."""

from __future__ import annotations

import os
import pickle
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from contig import (
    DiskStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    RayReplayBuffer,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSamplerWithoutReplacement,
    TrajectorySampler,
    WindowSampler,
)
from contig.cluster.place import ShardSpec
from contig.cluster.progress import Progress
from contig.cluster.shard import Shard
from contig.replay.shard_reader import ShardReader
from contig.sample import Request, Rng, Sampler

from .rows import OF_TRAJECTORY, trajectory

STEPS, TRAJECTORIES = 5, 12
EACH_ONCE: dict[str, tuple[Callable[[], Sampler], int, int]] = {  # sampler, length, how often
    "rows": (SamplerWithoutReplacement, 1, 1),
    "rows in a window": (
        lambda: WindowSampler(SamplerWithoutReplacement(), where=lambda c: c["steps"] > 0),
        1,
        1,
    ),
    "slices": (lambda: SliceSamplerWithoutReplacement(slice_len=STEPS), STEPS, 1),
    "trajectories": (lambda: TrajectorySampler(1, consume=True), 1, 1),
    "rows twice": (lambda: RandomSampler(max_times_sampled=2), 1, 2),
}


class Learner:
    """Draws from one shard, and keeps what it was given, as a learner elsewhere does."""

    def __init__(self, storage: Any, make: Callable[[], Sampler], length: int) -> None:
        self.storage, self.make, self.length = storage, make, length
        self.rng, self.progress = Rng(3), Progress()
        self.seen = Counter[int]()
        self.come_back()

    def come_back(self) -> None:
        """The shard has another process."""
        self.reader = ShardReader(self.storage, self.make(), 0)
        pickle.loads(pickle.dumps(self.progress)).restore(self.reader)

    def begin_epoch(self) -> None:
        self.offer()
        self.reader.begin_epoch(self.rng.words.copy())
        self.progress.begin(self.reader.sampler.state())

    def offer(self) -> float:
        told = self.reader.sampler.agree([self.reader.survey()])
        return self.reader.offer(Request(1, self.length), told and told[0]).weight

    def take(self, groups: int, whole: bool = False, answered: bool = True) -> None:
        mark = self.reader.sampler.mark()
        share = self.reader.take(Request(groups, self.length), self.rng.words, float("inf"))
        assert share is not None
        if not answered:
            return
        if whole:
            self.progress.begin(self.reader.sampler.state())
        else:
            self.progress.take(self.reader.sampler.progress(mark))
        self.seen.update(share[0]["observation"][:, 0].tolist())


def filled() -> ReplayBuffer:
    buffer = ReplayBuffer(LazyTensorStorage(1000))
    for number in range(TRAJECTORIES):
        buffer.extend_trajectory(trajectory(1, number, STEPS), terminated=True)
    return buffer


@pytest.mark.parametrize("kind", EACH_ONCE)
def test_nothing_twice_and_nothing_lost(kind: str) -> None:
    make, length, times = EACH_ONCE[kind]
    buffer = filled()
    learner = Learner(buffer.storage, make, length)
    if learner.reader.sampler.drops_last is not None:
        learner.begin_epoch()
    learner.take(2)
    learner.take(1)
    learner.take(3, answered=False)  # nobody has these: they come again
    learner.come_back()
    learner.take(2)
    learner.come_back()
    learner.take(1, whole=True)
    learner.take(1)
    learner.come_back()
    while learner.offer() > 0:
        learner.take(1)
    assert len(learner.seen) == STEPS * TRAJECTORIES
    assert set(learner.seen.values()) == {times}


def test_a_shard_that_comes_back_with_fewer_rows() -> None:
    """What it has not is not drawn: the machine went down before it was on the disk."""
    learner = Learner(filled().storage, SamplerWithoutReplacement, 1)
    learner.begin_epoch()
    learner.take(10)
    before = set(learner.seen)
    shorter = ReplayBuffer(LazyTensorStorage(1000))
    shorter.extend_trajectory(trajectory(1, 0, STEPS), terminated=True)
    learner.storage = shorter.storage
    learner.come_back()
    while learner.offer() > 0:
        share = learner.reader.take(Request(1), learner.rng.words, float("inf"))
        if share is not None:
            learner.seen.update(share[0]["observation"][:, 0].tolist())
    there = set(trajectory(1, 0, STEPS)["observation"][:, 0].tolist())
    assert there <= set(learner.seen) and set(learner.seen.values()) == {1}
    assert len(learner.seen) == 10 + len(there - before)


def test_only_what_is_committed_is_told(tmp_path: Path) -> None:
    """Rows that a learner has would else be lost with the shard's process."""
    spec = ShardSpec(1, storage_in(tmp_path), (None, None), "local", "", 0, "")
    shard = Shard(spec, 0, 0)
    shard.storage = storage = storage_in(tmp_path)(0)
    with ReplayBuffer(storage) as buffer:
        shard.open("learner", RandomSampler(), Progress())
        for number in range(50):
            buffer.extend_trajectory(trajectory(1, number, STEPS), terminated=True)
            shard.survey("learner")
            words = Rng(number).words
            assert shard.take("learner", number + 1, Request(4), words, 1.0, False, False)
            assert storage.settled == storage.ticket


def test_going_back_over_a_batch_that_the_shard_missed() -> None:
    """What it gave for later ones comes again."""
    learner = Learner(filled().storage, SamplerWithoutReplacement, 1)
    learner.begin_epoch()
    learner.reader.offer(Request(1), None, 5)  # batches 3 and 4 were drawn without it
    learner.take(10, answered=False)
    learner.reader.rewind(3)
    while learner.offer() > 0:
        learner.take(1)
    assert len(learner.seen) == STEPS * TRAJECTORIES


def test_a_long_progress_asks_for_a_state() -> None:
    progress = Progress({"at": 1})
    assert not progress.needs_state
    progress.update_priority(np.arange(2**17), np.ones(2**17))
    assert progress.needs_state
    progress.begin({"at": 2})
    assert not progress.needs_state
    progress.broke()
    assert progress.needs_state


def place_of(buffer: Any, slot: int) -> Any:
    return next(s.place for s in buffer._fleet.sources if s.place.slot == slot)


def far_node(resource: str = "node1") -> str:
    return next(n["NodeID"] for n in ray.nodes() if n["Alive"] and resource in n["Resources"])


def storage_in(path: Path) -> Callable[[int], DiskStorage]:
    return lambda slot: DiskStorage(path / f"shard-{slot}", capacity=10_000)


def fill(buffer: Any, trajectories: int) -> None:
    for number in range(trajectories):
        buffer.extend_trajectory(trajectory(1, number, STEPS), terminated=True)
    buffer.flush(60)


def replaced(buffer: Any, until: Any, lost: int) -> None:
    until(
        lambda: buffer.stats().shards_lost == lost and None not in buffer.nodes,
        "the shard was not replaced",
    )


def test_each_once_on_another_node(cluster: Any, until: Any, tmp_path: Path) -> None:
    """The shard's process is killed, and then its node: each trajectory comes once."""
    node = cluster.add("passing")
    here, sampler = ray.get_runtime_context().get_node_id(), TrajectorySampler(4, consume=True)
    placement, make = [here, far_node("passing")], storage_in(tmp_path)
    with RayReplayBuffer(2, make, sampler, placement=placement, seed=1) as buffer:
        fill(buffer, 40)
        seen = Counter[int]()

        def draw(batches: int) -> None:
            for _ in range(batches):
                first = buffer.sample()["observation"][:, 0] // OF_TRAJECTORY
                seen.update(np.unique(first).tolist())

        draw(4)
        os.kill(ray.get(place_of(buffer, 1).actor.pid.remote()), signal.SIGKILL)
        replaced(buffer, until, 1)
        draw(3)
        cluster.remove(node)
        replaced(buffer, until, 2)
        assert buffer.nodes[1] != placement[1]
        draw(3)
        assert len(seen) == 40 and set(seen.values()) == {1}


def test_priorities_on_the_other_side(cluster: Any, until: Any, tmp_path: Path) -> None:
    """All that were set hold when the shard is back, those set while it was away among them."""
    options: dict[str, Any] = {"placement": [far_node()], "batch_size": 64, "seed": 1}
    sampler = PrioritizedSampler(alpha=1.0, beta=1.0)
    with RayReplayBuffer(1, storage_in(tmp_path), sampler, **options) as buffer:
        fill(buffer, 4)
        index = np.unique(np.concatenate([buffer.sample()["index"] for _ in range(20)]))
        assert len(index) == 4 * STEPS
        buffer.update_priority(index, np.zeros(len(index)))
        place = place_of(buffer, 0)
        os.kill(ray.get(place.actor.pid.remote()), signal.SIGKILL)
        buffer.update_priority(index[3:4], np.array([1.0]))
        with buffer._turn:
            buffer._fleet.install([None])
            buffer.update_priority(index[4:5], np.array([3.0]))
        replaced(buffer, until, 1)
        batch = buffer.sample(256)
        assert set(batch["index"]) == set(index[3:5])
        assert buffer.stats().stale_priority_updates == 0
