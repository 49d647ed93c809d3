"""RayReplayBuffer on three raylets: where shards are, what comes in, what comes out."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
import ray

from contig import (
    EmptyBufferError,
    LazyTensorStorage,
    PrioritizedSampler,
    RayReplayBuffer,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SharedStorage,
    SliceSampler,
)
from contig.sample.shards import decode

from .rows import OF_PRODUCER, OF_TRAJECTORY, trajectory


@pytest.fixture(scope="module")
def buffer(cluster: Any) -> Any:
    """Empty for the first test that has it."""
    with RayReplayBuffer(3, 20_000, batch_size=64, seed=3) as made:
        yield made


def identities(buffer: Any) -> np.ndarray[Any, Any]:
    """Of every row, by an epoch over all shards."""
    return np.sort(np.concatenate([b["observation"][:, 0] for b in epoch(buffer)]))


def epoch(buffer: Any) -> Any:
    left = len(buffer)
    while left > 0:
        batch = buffer.sample()
        left -= len(batch)
        yield batch


@ray.remote(num_cpus=0)
class Producer:
    def run(self, handle: Any, producer: int, trajectories: int) -> tuple[int, bool, int, str]:
        with handle.connect() as to:
            for number in range(trajectories):
                to.extend_trajectory(trajectory(producer, number, 20), terminated=True)
            to.flush(60)
            found = (to.shard, to.shared, to.acked)
        return (*found, ray.get_runtime_context().get_node_id())


def test_spread_and_appends(cluster: Any) -> None:
    """A shard on each node; producers use the one of their node, through its memory."""
    with RayReplayBuffer(3, 20_000, SamplerWithoutReplacement(), batch_size=64, seed=1) as buffer:
        assert len(set(buffer.nodes)) == 3
        handle = buffer.client()
        made = [
            Producer.options(resources={f"node{i}": 1}).remote()  # type: ignore[attr-defined]
            for i in range(3)
        ]
        found = ray.get([p.run.remote(handle, i, 30) for i, p in enumerate(made)])
        assert sorted(shard for shard, *_ in found) == [0, 1, 2]
        for shard, shared, acked, node in found:
            assert shared and acked == 30 and buffer.nodes[shard] == node
        want = np.sort(
            np.concatenate(
                [trajectory(p, t, 20)["observation"][:, 0] for p in range(3) for t in range(30)]
            )
        )
        assert np.array_equal(identities(buffer), want)
        what = "3 shards, SamplerWithoutReplacement(), batches of 64, output='numpy'"
        assert repr(buffer) == f"<RayReplayBuffer: {what}>"
    assert repr(buffer) == f"<RayReplayBuffer closed: {what}>"


def test_placement(cluster: Any) -> None:
    here = ray.get_runtime_context().get_node_id()
    with RayReplayBuffer(2, 1000, placement="local") as buffer:
        assert buffer.nodes == [here, here]
    others = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != here]
    with RayReplayBuffer(2, 1000, placement=[{"node2": 1}, others[0]]) as buffer:
        resources = {n["NodeID"]: n["Resources"] for n in ray.nodes()}
        assert "node2" in resources[buffer.nodes[0]]
        assert buffer.nodes[1] == others[0]
    with pytest.raises(ValueError, match="placement: expected .spread."):
        RayReplayBuffer(2, 1000, placement="everywhere")
    with pytest.raises(ValueError, match="1 places for 2 shards"):
        RayReplayBuffer(2, 1000, placement=[here])
    with pytest.raises(ValueError, match="no node has the resources"):
        RayReplayBuffer(1, 1000, placement=[{"node9": 1}])
    with pytest.raises(ValueError, match="no node 'nowhere' is alive"):
        RayReplayBuffer(1, 1000, placement=["nowhere"])


def test_refused(cluster: Any, buffer: Any) -> None:
    with pytest.raises(ValueError, match="shards: expected"):
        RayReplayBuffer(0)
    with pytest.raises(TypeError, match="return a SharedStorage or a DiskStorage"):
        RayReplayBuffer(1, lambda slot: object())
    with pytest.raises(EmptyBufferError, match="its 3 shards have no rows"):
        buffer.sample()
    with pytest.raises(TypeError, match="has no priorities"):
        buffer.update_priority(np.arange(3), np.ones(3))
    with pytest.raises(TypeError, match="belongs to its process"):
        ray.put(buffer)


def test_rows_by_tcp(cluster: Any, buffer: Any) -> None:
    """The learner writes to shards of other nodes by TCP, to its own through memory; samples mix
    what it reads itself with what shards elsewhere answer."""
    for number in range(30):
        buffer.extend_trajectory(trajectory(7, number, 10 + number), terminated=True)
    buffer.flush(60)
    assert len(buffer) == sum(range(10, 40))
    seen = set()
    for _ in range(30):
        batch = buffer.sample()
        assert len(batch) == 64
        shard, _ = decode(batch["index"])
        at = batch["observation"][:, 0]
        assert np.array_equal(batch["next", "reward"], at.astype(float))
        assert np.array_equal(shard, (at % OF_PRODUCER // OF_TRAJECTORY) % 3)  # round and round
        seen.update(shard.tolist())
    assert seen == {0, 1, 2}


def test_producers_elsewhere_cast_as_others_do(cluster: Any) -> None:
    """Rows of float64 fit shards of float32, whichever way they take."""
    example = {"x": np.zeros(3, np.float32), "next": {"reward": np.float32(0), "done": False}}

    def make(slot: int) -> Any:
        return SharedStorage(100, example=example)

    with RayReplayBuffer(2, make, batch_size=8) as buffer:
        rows = {
            "x": np.arange(12.0).reshape(4, 3),
            "next": {"reward": np.arange(4.0), "done": np.arange(4) == 3},
        }
        for slot in range(2):
            buffer.extend_trajectory(rows, shard=slot)
        buffer.flush(60)
        assert buffer.episodes()["return"].tolist() == [6.0, 6.0]
        with pytest.raises(ValueError, match="y"):
            buffer.extend_trajectory({**rows, "y": np.zeros(4)}, shard=1)


def test_stacks_of_frames(cluster: Any) -> None:
    """Shards keep frames once, whether rows come through memory or by TCP."""
    frame = np.arange(44, dtype=np.int64)[:, None].repeat(50, 1)
    seen = np.stack([frame[i : i + 41] for i in range(4)], 1)
    flags = {"reward": np.zeros(40), "done": np.arange(40) == 39}
    rows = {"observation": seen[:-1], "next": {"observation": seen[1:], **flags}}
    names = [f"contig-shard-{os.getpid()}-{slot}" for slot in range(2)]

    def make(slot: int) -> Any:
        return SharedStorage(1000, names[slot], stack={"observation": 4})

    with RayReplayBuffer(2, make, batch_size=64, seed=1) as buffer:
        for _ in range(4):
            buffer.extend_trajectory(rows, terminated=True)
        buffer.flush(60)
        assert len(buffer) == 160
        batch = buffer.sample()
        at = batch["observation"][:, 0, 0]
        np.testing.assert_array_equal(batch["observation"], seen[at])
        np.testing.assert_array_equal(batch["next", "observation"], seen[at + 1])
        for name in names:
            with SharedStorage.attach(name) as shard:
                assert shard.schema is not None and shard.schema.sharing is not None
                assert shard.schema.sharing.leaves[0].frames == 4
                assert shard.tape.slots_given == 2 * 44


@pytest.mark.soak
def test_slices(cluster: Any) -> None:
    sampler = SliceSampler(slice_len=8)
    with RayReplayBuffer(3, 20_000, sampler, batch_size=64, prefetch=2, seed=1) as buffer:
        for number in range(12):
            buffer.extend_trajectory(trajectory(1, number, 12 + number), terminated=True)
        buffer.flush(60)
        for _ in range(20):
            slices = buffer.sample().reshape(8, 8)
            at = slices["observation"][..., 0]
            assert (np.diff(at, axis=1) == 1).all() and slices["is_init"][:, 0].all()
            assert slices["next", "done"][:, -1].all()


def test_priorities(cluster: Any) -> None:
    """They reach the right row of the right shard, and weights are those of the whole."""
    with RayReplayBuffer(3, 20_000, PrioritizedSampler(), batch_size=256, seed=1) as buffer:
        for number in range(6):
            buffer.extend_trajectory(trajectory(1, number, 10), terminated=True)
        buffer.flush(60)
        rows: dict[int, int] = {}
        while len(rows) < 60:
            batch = buffer.sample()
            rows.update(zip(batch["observation"][:, 0].tolist(), batch["index"].tolist()))
        index = np.array([rows[at] for at in sorted(rows)])
        wanted = 1.0 + np.arange(60)
        buffer.update_priority(index, wanted)
        q = dict(zip(sorted(rows), ((wanted + 1e-8) ** 0.6).tolist()))
        counts = dict.fromkeys(q, 0)
        for _ in range(40):
            batch = buffer.sample()
            at = batch["observation"][:, 0].tolist()
            for a in at:
                counts[a] += 1
            want = [(q[a] / min(q.values())) ** -0.4 for a in at]
            assert np.allclose(batch["priority_weight"], want, rtol=1e-5)
        expected = np.array([q[a] for a in q]) / sum(q.values()) * 40 * 256
        chi = ((np.array([counts[a] for a in q]) - expected) ** 2 / expected).sum()
        assert chi < 110  # 59 degrees of freedom: 1 in 20,000
        buffer.update_priority(np.array([index[0] + 10**6]), [2.0])
        assert buffer.stats().stale_priority_updates == 1


@pytest.mark.soak
def test_made_by_a_function(cluster: Any) -> None:
    row = {k: v for k, v in trajectory(0, 0, 1).items()}
    example = {"observation": row["observation"][0], "next": {"reward": 0.0, "done": False}}
    with RayReplayBuffer(
        2, lambda slot: SharedStorage(100 * (slot + 1), example=example), placement="local"
    ) as buffer:
        assert buffer.stats().capacity == 300
        for number in range(40):
            buffer.extend_trajectory(trajectory(1, number, 10), terminated=True)
        buffer.flush()
        stats = buffer.stats()
        assert (stats.rows, stats.rows_written, stats.trajectories) == (300, 400, 40)
        buffer.empty()
        assert len(buffer) == 0


def test_a_batch_size_that_the_sampler_cannot_make(cluster: Any) -> None:
    """When the buffer is made, and not at the first sample; as in ReplayBuffer."""
    sampler = SliceSampler(slice_len=8)
    with pytest.raises(ValueError) as here:
        ReplayBuffer(LazyTensorStorage(10), sampler, batch_size=12)
    with pytest.raises(ValueError) as elsewhere:
        RayReplayBuffer(1, 1000, sampler, batch_size=12)
    assert str(elsewhere.value) == str(here.value)


def test_how_long_a_sample_waits_for_a_feeder(cluster: Any) -> None:
    with RayReplayBuffer(1, 1000, batch_size=4, sample_timeout_s=0.2) as buffer:
        end = buffer.feed(lambda: None)
        with pytest.raises(EmptyBufferError, match=r"after 0\.2 s"):
            buffer.sample()
        end()
    with RayReplayBuffer(1, 1000, batch_size=4, sample_timeout_s=None) as buffer:
        assert buffer.sample_timeout_s == 60.0
        end = buffer.feed(lambda: None)
        writing = threading.Timer(
            0.3, lambda: buffer.extend_trajectory(trajectory(1, 0, 10), terminated=True)
        )
        writing.start()
        assert len(buffer.sample()) == 4
        end()


@ray.remote(num_cpus=0)
class Learner:
    """Another rank, in another process."""

    def epoch(self, name: str, rank: int, batches: int) -> list[int]:
        sampler = SamplerWithoutReplacement()
        options: dict[str, Any] = {"batch_size": 30, "seed": 1, "rank": rank, "world_size": 2}
        with RayReplayBuffer(2, 10, sampler, name=name, **options) as buffer:
            return [int(at) for _ in range(batches) for at in buffer.sample()["observation"][:, 0]]


def test_ranks(cluster: Any) -> None:
    """Learners that name the same buffer share its shards, and divide an epoch."""
    with RayReplayBuffer(2, 20_000, name="shared", batch_size=30) as buffer:
        for number in range(12):
            buffer.extend_trajectory(trajectory(1, number, 20), terminated=True)
        buffer.flush(60)
        learners = [Learner.remote() for _ in range(2)]  # type: ignore[attr-defined]
        parts = ray.get([p.epoch.remote("shared", i, 4) for i, p in enumerate(learners)])
        again = ray.get(learners[0].epoch.remote("shared", 0, 4))
        assert parts[0] == again  # reproducible
        want = np.concatenate([trajectory(1, n, 20)["observation"][:, 0] for n in range(12)])
        assert sorted(parts[0] + parts[1]) == sorted(want.tolist())  # and disjoint
        assert len(buffer.sample()) == 30  # others that close leave the shards alone
