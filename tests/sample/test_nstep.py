"""NStepSampler against a loop in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import contig
from contig import (
    NothingEligibleError,
    NStepSampler,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    WindowSampler,
)
from contig.testing import World
from tests.sample.drawing import SCENES, uniform

scenes = pytest.mark.parametrize("scene", SCENES)


def reference(
    rewards: list[Any], done: list[bool], start: int, n: int, gamma: float
) -> tuple[Any, int]:
    """Discounted reward of up to n steps and how many they are, of one trajectory."""
    total: Any = 0.0
    for k in range(n):
        total = total + gamma**k * np.asarray(rewards[start + k], np.float64)
        if done[start + k] or start + k + 1 == len(rewards):
            return total, k + 1
    return total, n


@scenes
@pytest.mark.parametrize("n", [1, 2, 4, 50])
@pytest.mark.parametrize("gamma", [0.0, 0.97, 1.0])
def test_against_the_loop(scene: str, n: int, gamma: float) -> None:
    world = SCENES[scene]()
    buffer = ReplayBuffer(world.storage, NStepSampler(n, gamma), batch_size=200, seed=0)
    batch = buffer.sample()
    assert len(batch) == 200
    episodes = world.episodes()
    for i, seq in enumerate(batch["index"].tolist()):
        number, t = world.step_at[seq]
        seqs = episodes[number]
        rewards = [1000.0 * number + world.step_at[s][1] + 1 for s in seqs]
        ends = [s == seqs[-1] and world.ended[number] is not None for s in seqs]
        reward, k = reference(rewards, ends, seqs.index(seq), n, gamma)
        np.testing.assert_allclose(batch["next", "reward"][i], reward, rtol=1e-13)
        assert batch["steps_to_next_obs"][i] == k
        assert batch["observation"][i].tolist() == [number, t]
        assert batch["next", "observation"][i].tolist() == [number, t + k]
        final = seqs.index(seq) + k == len(seqs)
        how = world.ended[number] if final else None
        assert batch["next", "terminated"][i] == (how == "terminated")
        assert batch["next", "truncated"][i] == (how == "truncated")
        assert batch["next", "done"][i] == (how is not None)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_any_form_of_reward(dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    rows, n, gamma = 40, 5, 0.9
    reward = rng.normal(size=(rows, *shape)).astype(dtype)
    done = rng.random(rows) < 0.15
    buffer = ReplayBuffer(
        contig.LazyTensorStorage(100), NStepSampler(n, gamma), batch_size=100, seed=0
    )
    buffer.extend({"x": np.arange(rows), "next": {"reward": reward, "done": done}})
    batch = buffer.sample()
    assert batch["next", "reward"].dtype == dtype
    assert batch["next", "reward"].shape == (100, *shape)
    tolerance = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-13}[np.dtype(dtype).name]
    for i, at in enumerate(batch["x"].tolist()):
        expected, k = reference(list(reward), done.tolist(), at, n, gamma)
        got = batch["next", "reward"][i]
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
        assert batch["steps_to_next_obs"][i] == k


def test_whole_number_rewards_are_not_cut_off() -> None:
    # 1 + 0.5 + 0.25 does not fit an int: it must come out whole, never as 1.
    buffer = ReplayBuffer(contig.LazyTensorStorage(20), NStepSampler(3, 0.5), batch_size=50, seed=0)
    data = {"reward": np.ones(6, np.int64), "done": np.arange(6) == 5}
    buffer.extend({"next": data})
    batch = buffer.sample()
    first = batch["next", "reward"][batch["index"] == 0]
    assert len(first) and first.tolist() == [1.75] * len(first)


def test_a_done_row_within_a_told_trajectory_ends_the_sum() -> None:
    # An explicit traj_key decides alone; the reward still stops at a done row.
    sampler = NStepSampler(4, 1.0)
    sampler.traj_key = "lane"
    buffer = ReplayBuffer(contig.LazyTensorStorage(20), sampler, batch_size=60, seed=0)
    done = np.array([False, False, True, False, False, False])
    data = {"lane": np.zeros(6, np.int64), "next": {"reward": np.ones(6), "done": done}}
    buffer.extend(data)
    assert len(buffer.storage.episodes()) == 1
    batch = buffer.sample()
    got = dict(zip(batch["index"].tolist(), batch["next", "reward"].tolist()))
    assert got == {0: 3, 1: 2, 2: 1, 3: 3, 4: 2, 5: 1}


def test_open_end_grows_with_the_trajectory() -> None:
    world = World(contig.LazyTensorStorage(100))
    world.extend(3, number=1, end=None)
    buffer = ReplayBuffer(world.storage, NStepSampler(4, 1.0), batch_size=60, seed=0)

    def steps() -> dict[int, int]:
        batch = buffer.sample()
        return dict(zip(batch["index"].tolist(), batch["steps_to_next_obs"].tolist()))

    assert steps() == {0: 3, 1: 2, 2: 1}
    world.extend(2)  # rows of another trajectory lie between its parts
    world.extend(2, number=1, start=3)
    assert steps() == {0: 4, 1: 4, 2: 3, 3: 2, 4: 1, 5: 2, 6: 1}


def test_rows_are_those_of_the_sampler_inside() -> None:
    world = SCENES["linked"]()
    inner = SamplerWithoutReplacement()
    buffer = ReplayBuffer(world.storage, NStepSampler(3, 0.9, inner), batch_size=7, seed=0)
    rows = len(world.stored())
    seqs: list[int] = []
    while len(seqs) < rows:
        seqs += buffer.sample()["index"].tolist()
    assert sorted(seqs) == sorted(world.stored())


@scenes
def test_rows_are_uniform(scene: str) -> None:
    world = SCENES[scene]()
    buffer = ReplayBuffer(world.storage, NStepSampler(3, 0.9), batch_size=10_000, seed=0)
    uniform(buffer.sample()["index"].tolist(), world.stored())


def test_over_priorities() -> None:
    world = SCENES["linked"]()
    inner = PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
    buffer = ReplayBuffer(world.storage, NStepSampler(3, 0.9, inner), batch_size=300, seed=0)
    rows = np.array(sorted(world.stored()))
    buffer.update_priority(rows, np.where(rows < 4, 1.0 + rows, 0.0))
    batch = buffer.sample()
    assert set(batch["index"].tolist()) == {0, 1, 2, 3}
    np.testing.assert_allclose(batch["priority_weight"], 1 / (1 + batch["index"]), rtol=1e-6)


def test_stats_see_the_priorities_inside() -> None:
    world = World(contig.LazyTensorStorage(4))
    world.extend(4)
    buffer = ReplayBuffer(world.storage, NStepSampler(3, 0.9, PrioritizedSampler()), batch_size=3)
    windowed = ReplayBuffer(
        world.storage, WindowSampler(PrioritizedSampler(), last_rows=4), batch_size=3
    )
    world.extend(2)
    for b in (buffer, windowed):
        b.update_priority([0, 1, 2], [1.0, 1.0, 1.0])
        assert b.stats().stale_priority_updates == 2


def test_slices_inside_are_refused() -> None:
    world = SCENES["plain"]()
    sampler = NStepSampler(3, 0.9, SliceSampler(slice_len=4))
    with pytest.raises(ValueError, match="single rows"):
        ReplayBuffer(world.storage, sampler, batch_size=8).sample()


def test_data_without_reward_is_refused() -> None:
    buffer = ReplayBuffer(contig.LazyTensorStorage(20), NStepSampler(3, 0.9), batch_size=8)
    buffer.extend({"x": np.arange(5.0), "next": {"done": np.arange(5) == 4}})
    with pytest.raises(NothingEligibleError, match="reward"):
        buffer.sample()


@pytest.mark.parametrize("arguments", [(0, 0.9), (3, -0.1), (3, 1.1), (3, float("nan"))])
def test_arguments_that_make_no_sense(arguments: tuple[int, float]) -> None:
    with pytest.raises(ValueError):
        NStepSampler(*arguments)
