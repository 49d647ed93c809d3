"""Groups of trajectories whose members lie on shards of several nodes."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from contig import (
    DiskStorage,
    NothingEligibleError,
    RayReplayBuffer,
    SharedStorage,
    TrajectorySampler,
    WindowSampler,
)
from contig.sample.shards import decode
from tests.sample.drawing import uniform

from .rows import OF_PRODUCER, OF_TRAJECTORY, trajectory

FIELDS = {"group": np.int64(0), "whose": np.zeros(2, np.int64), "bad": False}


def storage(slot: int) -> SharedStorage:
    return SharedStorage(5000, fields=FIELDS)


def write(to: Any, group: int, member: int, shard: int | None, steps: int = 0) -> None:
    """A group's member; its steps, if they are not given, say which it is."""
    data = trajectory(member, group, steps or 3 + (group + member) % 5)
    fields = {"group": group, "whose": [member, group]}
    where = {} if shard is None else {"shard": shard}
    to.extend_trajectory(data, terminated=True, fields=fields, **where)


def grouped(n: int, size: int = 3, **options: Any) -> TrajectorySampler:
    return TrajectorySampler(n, group="group", group_size=size, fields=("whose",), **options)


def members(batch: Any, size: int = 3) -> list[list[int]]:
    """Of each group of a batch, which members it has; every one whole, and all side by side."""
    at = batch["observation"]
    assert (at == at[:, :1]).all()
    member, group = at[:, 0] // OF_PRODUCER, at[:, 0] % OF_PRODUCER // OF_TRAJECTORY
    assert np.array_equal(batch["fields", "whose"], np.stack([member, group], 1))
    assert np.array_equal(batch["fields", "group"], group)
    assert np.array_equal(batch["next", "reward"], at[:, 0])
    firsts = np.flatnonzero(batch["is_init"])
    for a, b in zip(firsts, [*firsts[1:], len(batch)]):
        assert (at[a:b, 0] % OF_TRAJECTORY).tolist() == list(range(b - a))
        assert batch["next", "done"][a:b].tolist() == [False] * (b - a - 1) + [True]
        assert (batch["collector", "traj_length"][a:b] == b - a).all()
    of = group[firsts].reshape(-1, size)
    assert (of == of[:, :1]).all()
    return [sorted(m) for m in member[firsts].reshape(-1, size).tolist()]


def groups(batch: Any, size: int = 3) -> list[int]:
    assert all(m == list(range(size)) for m in members(batch, size))
    of = batch["fields", "group"][batch["is_init"]]
    return [int(g) for g in of[::size]]


def kill(buffer: Any, slot: int) -> None:
    """SIGKILL to a shard's process."""
    place = next(s.place for s in buffer._fleet.sources if s.place.slot == slot)
    os.kill(ray.get(place.actor.pid.remote()), signal.SIGKILL)


def replaced(buffer: Any, until: Any, lost: int = 1) -> None:
    until(
        lambda: buffer.stats().shards_lost == lost and None not in buffer.nodes,
        "the shard was not replaced",
    )


def everything(buffer: Any, size: int = 3) -> list[int]:
    """Groups until nothing is left."""
    found = []
    while True:
        try:
            found += groups(buffer.sample(), size)
        except NothingEligibleError:
            return found


@ray.remote(num_cpus=0)
class Producer:
    def run(self, handle: Any, member: int, many: int) -> int:
        with handle.connect() as to:
            for group in range(many):
                write(to, group, member, None)
            to.flush(60)
            return int(to.shard)


def test_members_on_three_nodes(cluster: Any) -> None:
    """Each actor writes its member of every group to the shard of its node."""
    sampler = grouped(6, consume=True)
    with RayReplayBuffer(3, storage, sampler, seed=4) as buffer:
        made = [
            Producer.options(resources={f"node{i}": 1}).remote()  # type: ignore[attr-defined]
            for i in range(3)
        ]
        shards = ray.get([p.run.remote(buffer.client(), i, 40) for i, p in enumerate(made)])
        assert sorted(shards) == [0, 1, 2]
        write(buffer, 40, 0, 0)
        write(buffer, 41, 0, 1)
        write(buffer, 41, 1, 2)
        buffer.flush(60)
        batch = buffer.sample()
        assert len(set(decode(batch["index"])[0])) == 3
        first = groups(batch)
        assert len(set(first)) == 2
        assert sorted(first + everything(buffer)) == list(range(40))
        assert sampler.stats() == (0, 2, 3, 120, 0, 0, 0)
        with pytest.raises(NothingEligibleError, match="0 groups are ready, 6 traj.*2 wait"):
            buffer.sample()
        write(buffer, 40, 1, 1)
        write(buffer, 40, 2, 1)
        write(buffer, 41, 2, 0)
        buffer.flush(60)
        assert sorted(groups(buffer.sample())) == [40, 41]


def test_again_and_again(cluster: Any) -> None:
    """Complete groups are all alike; `where` is asked by the shards; windows hold."""
    sampler = grouped(8, 2, where=lambda c: ~c["bad"] & (c["steps"] < 100))
    with RayReplayBuffer(3, storage, sampler, seed=4) as buffer:
        for group, member in itertools.product(range(12), range(2)):
            write(buffer, group, member, (group * member + group) % 3)
        buffer.flush(60)
        counts = Counter(g for _ in range(100) for g in groups(buffer.sample(), 2))
        uniform(counts.elements(), range(12))
        episodes = buffer.episodes()
        bad = episodes[(episodes["group"] % 4 == 1) & (episodes["whose"][:, 0] == 1)]
        assert buffer.set_fields(bad["id"], {"bad": True}) == 3
        left = [g for g in range(12) if g % 4 != 1]
        counts = Counter(g for _ in range(100) for g in groups(buffer.sample(), 2))
        uniform(counts.elements(), left)
        assert sampler.stats()[:3] == (9, 3, 3)
    window = WindowSampler(grouped(4, 2), last_trajectories=8)
    with RayReplayBuffer(2, storage, window, seed=4) as buffer:
        for group, member in itertools.product(range(12), range(2)):
            write(buffer, group, member, member)
        buffer.flush(60)
        assert {g for _ in range(30) for g in groups(buffer.sample(), 2)} == {8, 9, 10, 11}


def test_a_group_that_waits_too_long(cluster: Any) -> None:
    for on_timeout in ("release", "drop"):
        sampler = grouped(2, 2, consume=True, timeout_s=1000.0, on_timeout=on_timeout)
        ahead = 0.0
        sampler.clock = lambda: time.time() + ahead  # noqa: B023
        with RayReplayBuffer(2, storage, sampler, seed=4) as buffer:
            write(buffer, 0, 0, 0)
            write(buffer, 1, 0, 0)
            write(buffer, 1, 1, 1)
            buffer.flush(60)
            assert groups(buffer.sample(), 2) == [1]
            assert sampler.stats() == (0, 1, 1, 2, 0, 0, 0)
            ahead = 1001.0
            if on_timeout == "release":
                assert members(buffer.sample(), 1) == [[0]]
                assert sampler.stats() == (0, 0, 0, 3, 1, 0, 0)
            else:
                with pytest.raises(NothingEligibleError, match="0 wait"):
                    buffer.sample()
                assert sampler.stats() == (0, 0, 0, 2, 0, 1, 0)


def test_evicted_members(cluster: Any) -> None:
    """While shards turn over: groups are whole or not there at all."""

    def small(slot: int) -> SharedStorage:
        return SharedStorage(60, fields=FIELDS)

    sampler = grouped(4, 2, consume=True)
    with RayReplayBuffer(2, small, sampler, seed=4) as buffer:
        seen: list[int] = []
        for group in range(60):
            write(buffer, group, 0, 0, 5)
            write(buffer, group, 1, 1, 5)
            if group % 3 == 0:  # more than a shard has room for, now and then
                write(buffer, 1000 + group, 0, 0, 30)
            buffer.flush(60)
            if group % 5 == 4:
                seen += everything(buffer, 2)
        assert len(seen) == len(set(seen)) and set(seen) <= set(range(60)) and len(seen) > 20
        stats = sampler.stats()
        assert stats.consumed == 2 * len(seen) and stats.evicted > 0


def test_killed_shard(cluster: Any, until: Any, tmp_path: Path) -> None:
    """Nothing is given out in part, and nothing twice; checkpoints know which shard is which."""
    sampler = grouped(4, 2, consume=True)
    with RayReplayBuffer(3, storage, sampler, seed=4) as buffer:
        for group in range(30):  # a third of them on each pair of shards
            write(buffer, group, 0, group % 3)
            write(buffer, group, 1, (group + 1) % 3)
        buffer.flush(60)
        before = groups(buffer.sample(), 2) + groups(buffer.sample(), 2)
        kill(buffer, 1)
        replaced(buffer, until)
        rest = everything(buffer, 2)
        alone = [g for g in range(30) if g not in before and 1 in (g % 3, (g + 1) % 3)]
        want = [g for g in range(30) if g not in before and g not in alone]
        # Some may have been drawn before it was known to be lost: its memory was still there.
        assert len(before + rest) == len(set(before + rest))
        assert set(rest) <= {*want, *alone} and len(set(want) - set(rest)) < 2
        stats = sampler.stats()
        assert stats.consumed == 2 * len(before + rest)
        left = [g for g in alone if g not in rest]
        assert stats.waiting == len(left) and stats.evicted == len(left)
        for group in left:  # again, on the shard that was lost
            write(buffer, group, 0 if group % 3 == 1 else 1, 1)
        for group in range(30, 36):
            write(buffer, group, 0, 1)
            write(buffer, group, 1, 2)
        buffer.flush(60)
        drawn = groups(buffer.sample(), 2)
        assert {s.number for s in buffer._fleet.sources} == {0, 2, 3}
        buffer.save(tmp_path / "then")
        after = everything(buffer, 2)
        every = before + rest + drawn + after
        assert len(every) == len(set(every)) and len(every) >= 35
        end = sampler.stats()
    sampler = grouped(4, 2, consume=True)
    with RayReplayBuffer(3, storage, sampler, seed=9, prefetch=2) as buffer:
        buffer.load(tmp_path / "then")
        again = groups(buffer.sample(), 2)
        assert again == after[:2]
        buffer.save(tmp_path / "later")  # what was drawn ahead is thrown away
        assert again + everything(buffer, 2) == after
        assert sampler.stats().consumed == end.consumed
        buffer.empty()
        for group in range(2):
            write(buffer, group, 0, 0)
            write(buffer, group, 1, 1)
        buffer.flush(60)
        assert sorted(groups(buffer.sample(), 2)) == [0, 1]


def test_disk_shard_comes_back(cluster: Any, until: Any, tmp_path: Path) -> None:
    """With what it had: what was consumed of it stays so, and the rest comes once."""

    def on_disk(slot: int) -> DiskStorage:
        return DiskStorage(tmp_path / f"shard-{slot}", capacity=100_000, fields=FIELDS)

    far = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and "node1" in n["Resources"])
    here = ray.get_runtime_context().get_node_id()
    sampler = grouped(4, 2, consume=True)
    with RayReplayBuffer(2, on_disk, sampler, placement=[here, far], seed=4) as buffer:
        for group in range(20):
            write(buffer, group, 0, 0)
            write(buffer, group, 1, 1)
        buffer.flush(60)
        found: list[int] = []
        for slot, lost in ((1, 1), (0, 2)):
            for _ in range(3):
                found += groups(buffer.sample(), 2)
            kill(buffer, slot)
            replaced(buffer, until, lost)
        found += everything(buffer, 2)
        assert sorted(found) == list(range(20))
        assert sampler.stats() == (0, 0, 0, 40, 0, 0, 0)
        assert [s.number for s in buffer._fleet.sources] == [0, 1]
