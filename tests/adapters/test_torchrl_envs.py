"""TorchRL's environments in contig's collectors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule as Mod
from tensordict.nn import TensorDictSequential as Seq
from torchrl import envs as trl
from torchrl.data import Composite, Unbounded
from torchrl.modules import LSTMModule

import contig
from contig import Collector, LayoutError, LazyTensorStorage, MultiCollector, ReplayBuffer
from contig.collect.torchrl_env import TorchRLEnv
from tests.adapters.torchrl_side import Counting, check_rows, counted, length


def test_rows_of_a_single_environment() -> None:
    with Collector(Counting, frames_per_batch=10, total_frames=40) as collector:
        batches = list(collector)
    assert [b.shape for b in batches] == [(10,)] * 4
    rows = np.concatenate([b["observation"] for b in batches])
    for batch in batches:
        check_rows(batch["observation"], batch)
    expected = [(e, t) for e in range(12) for t in range(length(e))][:40]
    assert [tuple(x) for x in rows[:, 1:]] == expected
    ids = np.concatenate([b["collector", "traj_ids"] for b in batches])
    assert (np.diff(rows[:, 1]) == (np.diff(ids) != 0)).all(), "an id for each episode"


def test_transforms_that_keep_something() -> None:
    with Collector(counted, frames_per_batch=20, total_frames=20) as collector:
        (batch,) = collector
    check_rows(batch["observation"], batch)
    t, episode = batch["observation"][:, 2], batch["observation"][:, 1]
    np.testing.assert_array_equal(batch["step_count"][:, 0], t)
    np.testing.assert_array_equal(batch["next", "step_count"][:, 0], t + 1)
    total = (t + 1) * 100 * episode + (t + 1) * (t + 2) / 2
    np.testing.assert_array_equal(batch["next", "episode_reward"][:, 0], total)
    np.testing.assert_array_equal(batch["episode_reward"][t == 0], 0)
    assert not {"done", "terminated", "truncated"} & set(batch.tree())


@pytest.mark.parametrize("kind", ["batched", "torchrl serial", "contig serial"])
def test_lanes(kind: str) -> None:
    make = {
        "batched": lambda: counted(3),
        "torchrl serial": lambda: trl.SerialEnv(3, counted),
        "contig serial": lambda: contig.SerialEnv(3, counted),
    }[kind]
    with Collector(make, frames_per_batch=30, total_frames=60) as collector:
        batches = list(collector)
    for lane in range(3):
        rows = np.concatenate([b["observation"][lane] for b in batches])
        assert rows.shape == (20, 3)
        expected = [(e, t) for e in range(6) for t in range(length(e))][:20]
        assert [tuple(x) for x in rows[:, 1:]] == expected
        for batch in batches:
            check_rows(batch["observation"][lane], batch[lane])
    if kind == "batched":
        assert batches[0]["observation"][:, 0, 0].tolist() == [0, 1, 2]


class Uneven(Counting):
    """Lane 0 is an episode ahead of the others."""

    def __init__(self) -> None:
        super().__init__(2)
        self.episode = self.episode + np.array([1, 0])


def test_some_lanes_are_reset() -> None:
    """Lanes that end at different steps, by the environment or by the collector."""
    with Collector(
        Uneven, frames_per_batch=24, total_frames=24, max_frames_per_traj=4
    ) as collector:
        (batch,) = collector
    for lane, first in ((0, 1), (1, 0)):
        rows, flags = batch["observation"][lane], batch["next", "truncated"][lane]
        expected = [(e, t) for e in range(first, 9) for t in range(min(length(e), 4))][:12]
        assert [tuple(x) for x in rows[:, 1:]] == expected
        ends = [min(length(e), 4) - 1 == t for e, t in expected]
        whole = [length(e) <= 4 and e % 2 == 0 for e, _ in expected]  # these terminate
        assert flags.tolist() == [end and not w for end, w in zip(ends, whole)]
        np.testing.assert_array_equal(batch["next", "observation"][lane][:, 2], rows[:, 2] + 1)


def by_time(inputs: Any) -> Any:
    """An action that says what it was for."""
    return {"action": (inputs["observation"][:, 2:].astype(np.int64)) % 5}


@pytest.mark.timeout(300)  # every worker imports torchrl
def test_workers_write_to_one_buffer() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(1000))
    collector = MultiCollector(
        [counted, lambda: TorchRLEnv(counted())],
        by_time,
        frames_per_batch=20,
        total_frames=60,
        replay_buffer=buffer,
    )
    with collector:
        assert list(collector) == [None] * 3
    table = buffer.storage.episodes()
    assert table["steps"].sum() == 60
    for row in table:
        episode = buffer.storage.read_episode(row["id"])
        check_rows(episode["observation"], episode)
        np.testing.assert_array_equal(episode["observation"][:, 2], np.arange(len(episode)))
        np.testing.assert_array_equal(episode["action"][:, 0], episode["observation"][:, 2] % 5)
        number = episode["observation"][0, 1]
        if row["terminated"] or row["truncated"]:
            assert row["steps"] == length(int(number))
            assert row["truncated"] == number % 2
            np.testing.assert_array_equal(row["return"], episode["next", "episode_reward"][-1, 0])


def test_seeds_and_gymnasium() -> None:
    """The same numbers as TorchRL's own rollout, and as Gymnasium's own loop."""

    def make() -> Any:
        return trl.GymEnv("Pendulum-v1")

    push = torch.tensor([0.7])
    with Collector(
        make, lambda inputs: push.numpy()[None], frames_per_batch=250, total_frames=250, seed=3
    ) as collector:
        (batch,) = collector
    raw = gymnasium.make("Pendulum-v1")
    raw.reset(seed=3)  # which is how TorchRL seeds it
    first, _ = raw.reset()
    np.testing.assert_array_equal(batch["observation"][0], first)
    ends = np.flatnonzero(batch["next", "truncated"])
    assert ends.tolist() == [199] and not batch["next", "terminated"].any()
    for t in range(200):
        obs, reward, _, cut, _ = raw.step(push.numpy())
        np.testing.assert_array_equal(batch["next", "observation"][t], obs)
        np.testing.assert_allclose(batch["next", "reward"][t], reward, rtol=1e-6)
    assert cut
    env = make()
    env.set_seed(3)
    rows = env.rollout(100, lambda td: td.set("action", push))
    np.testing.assert_array_equal(batch["observation"][:100], rows["observation"].numpy())
    assert (batch["observation"][200] != batch["next", "observation"][199]).any()


def test_random_actions_are_of_the_spec_and_leave_torch_alone() -> None:
    def make() -> Any:
        return trl.GymEnv("CartPole-v1")

    torch.manual_seed(0)
    before = torch.get_rng_state()
    found = []
    for _ in range(2):
        with Collector(make, frames_per_batch=50, total_frames=50, seed=5) as collector:
            (batch,) = collector
        found.append(batch["action"])
    assert found[0].shape == (50, 2) and found[0].sum(-1).tolist() == [1] * 50
    assert 5 < found[0][:, 0].sum() < 45
    np.testing.assert_array_equal(*found)
    assert torch.equal(torch.get_rng_state(), before)


def lstm() -> Any:
    module = LSTMModule(
        input_size=3,
        hidden_size=4,
        in_keys=["observation", "h", "c"],
        out_keys=["embed", ("next", "h"), ("next", "c")],
    )
    act = Mod(lambda x: x.sum(-1, keepdim=True).long() % 5, in_keys=["embed"], out_keys=["action"])
    return module, Seq(module, act)


@pytest.mark.parametrize("how", ["primer in the environment", "registered"])
def test_hidden_states_of_torchrl_modules(how: str) -> None:
    torch.manual_seed(0)
    module, policy = lstm()

    def make() -> Any:
        env = counted()
        if how == "registered":
            return env
        return env.append_transform(trl.InitTracker()).append_transform(
            module.make_tensordict_primer()
        )

    with Collector(
        make,
        policy,
        frames_per_batch=20,
        total_frames=20,
        auto_register_policy_transforms=how == "registered",
    ) as collector:
        (batch,) = collector
    first = batch["observation"][:, 2] == 0
    np.testing.assert_array_equal(batch["is_init"], first)
    assert batch["h"].shape == (20, 1, 4)
    assert (batch["h"][first] == 0).all() and (batch["c"][first] == 0).all()
    after = np.flatnonzero(~first)
    np.testing.assert_array_equal(batch["h"][after], batch["next", "h"][after - 1])
    assert (batch["next", "h"] != 0).any()


class Grouped(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((1,))))


class Wide(Counting):
    """Observes other shapes than it says."""

    def _observed(self) -> dict[str, Any]:
        out = super()._observed()
        if self.at[0] == 2:
            out["observation"] = out["observation"][..., :1]
        return out


def test_observations_that_do_not_fit_their_spec() -> None:
    with Collector(Wide, by_time, frames_per_batch=4, total_frames=8) as collector:
        with pytest.raises(LayoutError, match=r'"observation": shape \[1\], expected \[3\]'):
            list(collector)


def test_refused() -> None:
    with pytest.raises(LayoutError, match="the reward: expected.*RenameTransform"):
        Collector(Grouped, frames_per_batch=2)
    with pytest.raises(TypeError, match="single environment"):
        contig.SerialEnv(2, lambda: Counting(3)).reset()


@pytest.mark.timeout(300)  # every worker imports torchrl
def test_an_environment_object_for_several_workers() -> None:
    """Each worker gets its own, which starts with a reset."""
    env = counted()
    with MultiCollector([env, env], frames_per_batch=20, total_frames=20) as collector:
        (batch,) = collector
    assert batch.shape == (2, 10)
    for lane in range(2):
        check_rows(batch["observation"][lane], batch[lane])
    np.testing.assert_array_equal(batch["observation"][0], batch["observation"][1])
