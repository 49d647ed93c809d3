"""Environments: every kind, every auto-reset mode, true final observations, wrappers."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import dm_env
import gymnasium as gym
import numpy as np
import pytest

from contig import (
    Collector,
    GymEnv,
    InitTracker,
    ParallelEnv,
    RandomPolicy,
    SerialEnv,
    ShapeDtype,
    StepCounter,
    TensorDictPrimer,
    VectorEnv,
    WorkerError,
)
from tests.collect.envs import (
    DictSteps,
    Faulty,
    Steps,
    check_trajectory,
    make_steps,
    split,
    steps_of,
)

MODES = ["NEXT_STEP", "SAME_STEP", "DISABLED"]


def vector(mode: str, n: int = 3, make: Any = Steps, kind: str = "sync") -> Any:
    modes = gym.vector.AutoresetMode
    vec = gym.vector.SyncVectorEnv if kind == "sync" else gym.vector.AsyncVectorEnv
    return vec([make] * n, autoreset_mode=getattr(modes, mode))


def check_lanes(batch: Any, lanes: int) -> None:
    assert batch.shape[0] == lanes
    for lane in range(lanes):
        flat = batch[lane : lane + 1].reshape(-1)
        assert steps_of(flat) == sorted(set(steps_of(flat)))
        pieces = split(flat)
        for piece in pieces[:1]:
            check_trajectory(piece, starts_anywhere=True)
        for piece in pieces[1:]:
            check_trajectory(piece)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_true_final_observations_in_every_autoreset_mode(mode: str, kind: str) -> None:
    with Collector(
        vector(mode, kind=kind), frames_per_batch=60, total_frames=180, seed=5
    ) as collector:
        batches = list(collector)
    assert [b.shape for b in batches] == [(3, 20)] * 3
    for batch in batches:
        check_lanes(batch, 3)
    every = [s for b in batches for s in steps_of(b)]
    assert len(set(every)) == len(every) == 180
    assert {s[0] for s in every} == {5, 6, 7}
    # Each lane's steps are all there, from its first episode on.
    for lane in range(3):
        mine = [s for b in batches for s in steps_of(b[lane : lane + 1])]
        assert mine == sorted(mine) and mine[0] == (5 + lane, 0, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("trajs", [None, 4])
def test_batches_begin_and_end_with_the_episode_if_every_one_resets(
    mode: str, trajs: int | None
) -> None:
    """Also where faster lanes are ahead of the others, whose steps were resets."""
    with Collector(
        vector(mode),
        frames_per_batch=21,
        total_frames=21 * 40,
        reset_at_each_iter=True,
        trajs_per_batch=trajs,
        init_random_frames=100,
        policy=_fours,
        seed=5,
    ) as collector:
        batches = list(collector)
    if trajs is None:
        assert [b.shape for b in batches] == [(3, 7)] * 40
        for batch in batches:
            assert batch["is_init"][:, 0].all()
            assert batch["next", "done"][:, -1].all()
    flat = [b[i : i + 1].reshape(-1) for b in batches for i in range(3)] if not trajs else batches
    pieces = [piece for rows in flat for piece in split(rows)]
    for piece in pieces:
        check_trajectory(piece)
        assert piece["next", "done"][-1]
    ids = [int(p["collector", "traj_ids"][0]) for p in pieces]
    assert len(set(ids)) == len(ids)
    every = [s for p in pieces for s in steps_of(p)]
    assert len(set(every)) == len(every)
    drawn = [int(p["action"][i]) != 4 for p in pieces for i in range(len(p))]
    assert not any(drawn[100 + 60 :]) and sum(drawn) > 50
    if trajs is None:
        actions = np.concatenate([b["action"].reshape(-1) for b in batches])
        assert (actions[105:] == 4).all()  # frames 0 to 99 of the rows that are given out


def _fours(inputs: Any) -> Any:
    return np.full(len(inputs["is_init"]), 4, np.int64)


@pytest.mark.parametrize("mode", MODES)
def test_nested_observations_of_vector_environments(mode: str) -> None:
    collector = Collector(
        vector(mode, make=DictSteps), frames_per_batch=30, total_frames=60, seed=0
    )
    for batch in collector:
        assert batch["camera", "rgb"].dtype == np.uint8
        assert batch["action", "arm"].shape == (3, 10, 2)
        after = batch["next", "step"][..., 2]
        np.testing.assert_array_equal(after, batch["step"][..., 2] + 1)
        np.testing.assert_array_equal(batch["next", "camera", "rgb"][..., 0, 0, 0], after)


@pytest.mark.parametrize("wrap", [Steps, lambda: GymEnv(Steps), lambda: Steps])
def test_single_environments(wrap: Any) -> None:
    (batch,) = Collector(wrap(), frames_per_batch=50, total_frames=50, seed=3)
    assert batch.shape == (50,)
    for piece in split(batch):
        check_trajectory(piece)


def test_names_and_options() -> None:
    env = GymEnv("CartPole-v1", max_episode_steps=4)
    rows = env.rollout(10)
    assert rows.shape == (4,) and rows["next", "truncated"].tolist() == [False] * 3 + [True]
    assert rows["observation"].dtype == np.float32
    with pytest.raises(TypeError, match="gymnasium.make"):
        GymEnv(Steps, max_episode_steps=4)


def test_nested_single_environment() -> None:
    (batch,) = Collector(DictSteps(), frames_per_batch=20, total_frames=20, seed=0)
    assert batch["action", "grip"].shape == (20,)
    assert batch["next", "camera", "rgb"].shape == (20, 4, 4, 3)


class Old:
    """No spaces, no infos, four values."""

    def __init__(self) -> None:
        self.t = 0

    def reset(self) -> Any:
        self.t = 0
        return [0.0, 0.5]

    def step(self, action: Any) -> Any:
        self.t += 1
        return [float(self.t), 0.5], 1.0, self.t % 3 == 0, {"TimeLimit.truncated": self.t == 3}


def test_plain_objects() -> None:
    def policy(inputs: Any) -> Any:
        return np.zeros(1, np.int64)

    (batch,) = Collector(Old, policy, frames_per_batch=7, total_frames=7)
    assert batch["observation"][:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert batch["next", "observation"][:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert batch["next", "truncated"].tolist() == [False, False, True] * 2 + [False]
    with pytest.raises(ValueError, match="action_space"):
        Collector(Old, None, frames_per_batch=7)
    for nothing in (lambda: 3, 3):
        with pytest.raises(TypeError, match="reset"):
            GymEnv(nothing).reset()
        with pytest.raises(TypeError, match="reset.*got int"):
            Collector(nothing, frames_per_batch=7)


class Reuses(Steps):
    """Writes every observation into the same array, as many simulators do."""

    def _obs(self) -> Any:
        if not hasattr(self, "array"):
            self.array = np.zeros(3, np.int64)
        self.array[:] = self.id, self.episode, self.t
        return self.array


@pytest.mark.parametrize("wrap", [Reuses, lambda: StepCounter(Reuses()), lambda: lanes(Reuses)])
def test_environments_that_use_one_array_for_ever(wrap: Any) -> None:
    (batch,) = Collector(wrap(), frames_per_batch=40, total_frames=40, seed=0)
    if len(batch.shape) == 2:
        check_lanes(batch, 2)
        return
    for piece in split(batch):
        check_trajectory(piece)


def lanes(make: Any) -> Any:
    modes = gym.vector.AutoresetMode
    return gym.vector.SyncVectorEnv([make] * 2, copy=False, autoreset_mode=modes.NEXT_STEP)


class Rewarded(Steps):
    """Rewards as a given function makes them."""

    def __init__(self, reward: Any) -> None:
        super().__init__()
        self.reward = reward

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, self.reward(reward, self.t), *rest


def test_shapes_of_rewards() -> None:
    """One number is stored as one, also if it came in a list; several are several."""
    for make, shape in (
        (lambda r, t: np.array([r], np.float32), ()),
        (lambda r, t: int(r), ()),
        (lambda r, t: np.float16(r), ()),
        (lambda r, t: np.array([r, -r]), (2,)),
    ):
        for env in (Rewarded(make), StepCounter(Rewarded(make))):
            (batch,) = Collector(env, frames_per_batch=20, total_frames=20, seed=0)
            rewards = batch["next", "reward"]
            assert rewards.shape == (20, *shape) and rewards.dtype == np.float32
    for make in (
        lambda r, t: r if t < 2 else np.array([r, r]),
        lambda r, t: np.array([r, r]) if t < 2 else r,
    ):
        for env in (Rewarded(make), StepCounter(Rewarded(make))):
            with pytest.raises(ValueError, match="reward.*emitted shape"):
                list(Collector(env, frames_per_batch=60, total_frames=60, seed=0))


class DmSteps(dm_env.Environment):
    """Steps, in dm_env's words."""

    def __init__(self, seed: int = 7) -> None:
        self.inner = Steps()
        self.inner.id = seed

    def reset(self) -> Any:
        return dm_env.restart({"step": self.inner.reset()[0]})

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = self.inner.step(action)
        if terminated:
            return dm_env.termination(reward, {"step": obs})
        return (dm_env.truncation if truncated else dm_env.transition)(reward, {"step": obs})

    def observation_spec(self) -> Any:
        return {"step": dm_env.specs.Array((3,), np.int64)}

    def action_spec(self) -> Any:
        return dm_env.specs.DiscreteArray(5)


@pytest.mark.parametrize("given", [DmSteps, DmSteps(), lambda: GymEnv(DmSteps())])
def test_dm_env_environments(given: Any) -> None:
    (batch,) = Collector(given, frames_per_batch=60, total_frames=60, seed=0)
    assert batch["next", "terminated"].any() and batch["next", "truncated"].any()
    # The rows are those of the environment itself, whose observations are not in a dict.
    plain = batch.with_leaves(
        {"observation": batch["step"], ("next", "observation"): batch["next", "step"]}
    )
    for piece in split(plain):
        check_trajectory(piece)
    assert set(batch["action"].tolist()) == set(range(5))


def test_dm_env_environments_in_lanes_and_without_shimmy(monkeypatch: Any) -> None:
    (batch,) = Collector(SerialEnv(2, DmSteps), frames_per_batch=40, total_frames=40)
    assert batch["step"].shape == (2, 20, 3)
    monkeypatch.setitem(sys.modules, "shimmy.utils.dm_env", None)
    with pytest.raises(ImportError, match="pip install shimmy"):
        GymEnv(DmSteps()).reset()


def test_serial_and_parallel_step_alike() -> None:
    found = []
    for kind in (SerialEnv, ParallelEnv):
        with Collector(
            kind(2, make_steps), _repeat, frames_per_batch=40, total_frames=80, seed=11
        ) as collector:
            found.append(list(collector))
    for serial, parallel in zip(*found):
        assert serial.shape == (2, 20)
        check_lanes(serial, 2)
        for key in serial.layout.by_path:
            if key != ("collector", "traj_ids"):
                np.testing.assert_array_equal(serial[key], parallel[key])


def _repeat(inputs: Any) -> Any:
    return {"action": inputs["observation"][:, 2] % 5}


def test_a_parallel_environment_that_fails_says_which() -> None:
    with pytest.raises(ValueError, match="environment 1 has other observations"):
        _ = ParallelEnv(2, [make_steps, lambda: Faulty("none")]).spec
    env = ParallelEnv(2, [lambda: Faulty("none"), lambda: Faulty("raise", at=1)])
    collector = Collector(env, frames_per_batch=100, total_frames=100, seed=0)
    with pytest.raises(WorkerError, match=r"environment 1 \(pid \d+\)(.|\n)*the simulator broke"):
        list(collector)
    collector.shutdown()


def test_recipes_are_pickled_until_the_first_reset() -> None:
    for env in (GymEnv("CartPole-v1"), SerialEnv(2, make_steps), ParallelEnv(2, make_steps)):
        again = pickle.loads(pickle.dumps(env))
        assert again.num_envs == env.num_envs
    env = GymEnv("CartPole-v1")
    assert env.full_observation_spec["observation"].shape == (4,)
    pickle.loads(pickle.dumps(env)).reset()  # looking at specs changes nothing
    env.reset()
    with pytest.raises(TypeError, match="function that makes it"):
        pickle.dumps(env)


def test_the_same_object_several_times_is_several_environments() -> None:
    env = Steps()
    (batch,) = Collector(SerialEnv(2, [env, env]), frames_per_batch=40, total_frames=40, seed=1)
    check_lanes(batch, 2)


def test_step_counter_counts_and_cuts() -> None:
    env = StepCounter(GymEnv(lambda: Steps(longest=9)), max_steps=4)
    (batch,) = Collector(env, frames_per_batch=60, total_frames=60, seed=2)
    np.testing.assert_array_equal(batch["step_count"], batch["observation"][:, 2])
    np.testing.assert_array_equal(batch["next", "step_count"], batch["next", "observation"][:, 2])
    pieces = split(batch)
    assert max(len(p) for p in pieces) == 4
    for piece in pieces:
        check_trajectory(piece, longest=9)
    assert any(p["next", "truncated"][-1] and len(p) == 4 for p in pieces)


@pytest.mark.parametrize("mode", MODES)
def test_step_counter_over_vector_environments(mode: str) -> None:
    (batch,) = Collector(
        StepCounter(vector(mode), max_steps=3), frames_per_batch=60, total_frames=60, seed=2
    )
    check_lanes(batch, 3)
    np.testing.assert_array_equal(batch["step_count"], batch["observation"][..., 2])


def test_specs_show_what_wrappers_add_through_batches() -> None:
    def make() -> Any:
        return TensorDictPrimer(InitTracker(Steps()), {"state": ShapeDtype((2,), np.float32)})

    state = {"state": ShapeDtype((2,), np.dtype(np.float32))}
    for kind in (SerialEnv, ParallelEnv):
        env = kind(2, make)
        assert set(env.full_observation_spec) == {"observation", "is_init"}
        assert env.full_state_spec == state
        env.close()
    env = StepCounter(SerialEnv(2, make))
    assert set(env.full_observation_spec) == {"observation", "is_init", "step_count"}
    assert env.full_state_spec == state

    def policy(inputs: Any) -> Any:
        return {"action": np.zeros(2, np.int64), ("next", "state"): inputs["state"] + 1}

    (batch,) = Collector(
        StepCounter(SerialEnv(2, make)), policy, frames_per_batch=40, total_frames=40, seed=0
    )
    np.testing.assert_array_equal(batch["state"][..., 0], batch["step_count"])


def test_native_vector_environment_without_partial_resets() -> None:
    env = gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    (batch,) = Collector(env, frames_per_batch=100, total_frames=100, seed=0)
    assert batch.shape == (2, 50) and batch["next", "done"].any()
    env = VectorEnv(gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"))
    with pytest.raises(ValueError, match="max_frames_per_traj"):
        list(Collector(env, frames_per_batch=100, total_frames=100, max_frames_per_traj=15, seed=0))


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(3, start=5),
        gym.spaces.Box(-2, 3, (2,), np.float32),
        gym.spaces.Box(-np.inf, 3, (2,), np.float32),
        gym.spaces.MultiBinary(3),
        gym.spaces.MultiDiscrete([2, 5]),
        gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Box(0, 1, (1,))}),
    ],
)
def test_random_actions_are_of_the_space_and_repeat_with_the_seed(space: Any) -> None:
    first, again = RandomPolicy(space, 3), RandomPolicy(space, 3)
    inputs = {"is_init": np.zeros(4, bool)}
    for _ in range(3):
        assert space.contains(first.one())
    space.seed(3)
    first, again = RandomPolicy(space, 3), None
    drawn = first(inputs)["action"]
    again = RandomPolicy(space, 3)(inputs)["action"]
    np.testing.assert_equal(drawn, again)


def test_refused_shapes() -> None:
    env = Faulty("shape", at=0)
    with pytest.raises(ValueError, match=r"shape \[1\], expected \[3\]"):
        list(Collector(env, frames_per_batch=20, total_frames=20, seed=0))
