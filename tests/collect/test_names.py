"""Observations whose names rows use themselves: moved, said once, and nothing is overwritten."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import textwrap
from typing import Any

import dm_env
import gymnasium as gym
import numpy as np
import pytest

from contig import (
    Collector,
    GymEnv,
    LazyTensorStorage,
    MultiCollector,
    ParallelEnv,
    ReplayBuffer,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
)
from contig.collect import places
from tests.collect.envs import Steps, check_trajectory

FLAGS = ("reward", "done", "terminated", "truncated")
OTHERS = ("action", "collector", "is_init", "next")


class Named(Steps):
    """Every key holds (env, episode, t) and the number of the key."""

    def __init__(self, *names: str, nested: str = "") -> None:
        super().__init__()
        self.names, self.nested = names, nested
        inside: dict[str, Any] = {n: gym.spaces.Box(-1, 2**40, (4,), np.int64) for n in names}
        if nested:
            inside[nested] = gym.spaces.Dict({"deep": gym.spaces.Box(-1, 2**40, (4,), np.int64)})
        self.observation_space = gym.spaces.Dict(inside)

    def _obs(self) -> Any:
        step = super()._obs()
        out: dict[str, Any] = {n: np.array([*step, i]) for i, n in enumerate(self.names)}
        if self.nested:
            out[self.nested] = {"deep": np.array([*step, 99])}
        return out


OWN = ["action", "is_init", ("collector", "traj_ids"), *[("next", n) for n in FLAGS]]


def check(batch: Any, found: dict[Any, int]) -> None:
    """The observations are whole at their places, and rows' own keys are theirs."""
    batch = batch.reshape(-1)
    assert batch["next", "reward"].dtype == np.float32
    ids = batch["collector", "traj_ids"]
    cuts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
    for path, number in found.items():
        now, after = batch[path], batch[("next", *path)]
        assert (now[:, 3] == number).all() and (after[:, 3] == number).all()
        for a, b in itertools.pairwise(cuts):
            rows = {k: batch[k][a:b] for k in OWN}
            rows["observation"], rows["next", "observation"] = now[a:b, :3], after[a:b, :3]
            check_trajectory(rows, starts_anywhere=a == 0)


def vector(mode: str) -> Any:
    modes = gym.vector.AutoresetMode
    return gym.vector.SyncVectorEnv(
        [lambda: Named("step", *FLAGS)] * 2, autoreset_mode=getattr(modes, mode)
    )


def named() -> Any:
    return Named("step", *FLAGS)


PLACES = {("step",): 0, **{("observation", n): i + 1 for i, n in enumerate(FLAGS)}}
KINDS = {
    "single": named,
    "counted": lambda: StepCounter(named()),
    "serial": lambda: SerialEnv(2, named),
    "parallel": lambda: ParallelEnv(2, named),
    "next_step": lambda: vector("NEXT_STEP"),
    "same_step": lambda: vector("SAME_STEP"),
    "disabled": lambda: vector("DISABLED"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_flags_in_observations_are_moved_in_every_kind_of_environment(kind: str) -> None:
    with Collector(
        KINDS[kind], frames_per_batch=60, total_frames=120, seed=4, set_truncated=True
    ) as collector:
        for batch in collector:
            lanes = batch.shape[0] if len(batch.shape) == 2 else 0
            for lane in range(max(lanes, 1)):
                check(batch[lane : lane + 1] if lanes else batch, PLACES)


def test_workers_write_them_where_the_collector_said() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(1000), batch_size=8)
    with MultiCollector(
        [named] * 2, frames_per_batch=60, total_frames=60, replay_buffer=buffer, seed=0
    ) as collector:
        list(collector)
    episodes = buffer.storage.episodes()
    assert int(episodes["steps"].sum()) == 60
    for episode in episodes:
        rows = buffer.storage.read_episode(int(episode["id"]))
        check(rows, PLACES)
        # The storage read the flags and rewards of the rows, not those of the observation.
        assert float(episode["return"]) == pytest.approx(float(rows["next", "reward"].sum()))
    with MultiCollector([named] * 2, frames_per_batch=60, total_frames=60, seed=0) as collector:
        (batch,) = collector
    for worker in range(2):
        check(batch[worker : worker + 1], PLACES)


def test_policies_and_specs_see_the_moved_keys() -> None:
    seen = []

    def policy(inputs: Any) -> Any:
        seen.append({k: set(v) if isinstance(v, dict) else None for k, v in inputs.items()})
        assert (inputs["observation"]["reward"][:, 3] == 1).all()
        return np.zeros(len(inputs["is_init"]), np.int64)

    env = GymEnv(named)
    assert set(env.full_observation_spec) == {"step", "observation"}
    assert set(env.full_observation_spec["observation"]) == set(FLAGS)
    rows = env.rollout(5, policy, seed=1)
    assert seen[0] == {"step": None, "observation": set(FLAGS), "is_init": None}
    check(rows, PLACES)
    (batch,) = Collector(named, policy, frames_per_batch=40, total_frames=40, seed=0)
    check(batch, PLACES)


@pytest.mark.parametrize("name", [*FLAGS, *OTHERS])
def test_every_name_of_a_row_alone_and_nested(name: str) -> None:
    (batch,) = Collector(lambda: Named("x", name), frames_per_batch=30, total_frames=30, seed=0)
    check(batch, {("x",): 0, ("observation", name): 1})
    (batch,) = Collector(
        lambda: Named("x", nested=name), frames_per_batch=30, total_frames=30, seed=0
    )
    check(batch, {("x",): 0, ("observation", name, "deep"): 99})


def test_an_observation_named_observation_moves_too_if_others_do() -> None:
    (batch,) = Collector(
        lambda: Named("observation", "reward"), frames_per_batch=30, total_frames=30, seed=0
    )
    check(batch, {("observation", "observation"): 0, ("observation", "reward"): 1})
    (batch,) = Collector(
        lambda: Named("reward", nested="observation"), frames_per_batch=30, total_frames=30, seed=0
    )
    check(batch, {("observation", "reward"): 0, ("observation", "observation", "deep"): 99})
    (batch,) = Collector(
        lambda: Named("observation", "x"), frames_per_batch=30, total_frames=30, seed=0
    )
    check(batch, {("observation",): 0, ("x",): 1})  # alone it stays


class WithoutSpaces:
    """The same without spaces, with Gymnasium's five values."""

    def __init__(self) -> None:
        self.inner = named()
        self.inner.id = 7
        self.action_space = self.inner.action_space

    def reset(self, *, seed: int | None = None) -> Any:
        return self.inner.reset(seed=seed)

    def step(self, action: Any) -> Any:
        return self.inner.step(action)


class Dm(dm_env.Environment):
    def __init__(self) -> None:
        self.inner = named()
        self.inner.id = 7

    def reset(self) -> Any:
        return dm_env.restart(self.inner.reset(seed=None)[0])

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = self.inner.step(action)
        if terminated:
            return dm_env.termination(reward, obs)
        return (dm_env.truncation if truncated else dm_env.transition)(reward, obs)

    def observation_spec(self) -> Any:
        return {n: dm_env.specs.Array((4,), np.int64) for n in self.inner.names}

    def action_spec(self) -> Any:
        return dm_env.specs.DiscreteArray(5)


@pytest.mark.parametrize("make", [WithoutSpaces, Dm])
def test_other_libraries_environments(make: Any) -> None:
    (batch,) = Collector(make, frames_per_batch=40, total_frames=40, seed=0)
    check(batch, PLACES)


def test_what_was_moved_is_said_once(caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(places, "_said", set())
    with caplog.at_level(logging.WARNING, logger="contig.collect"):
        for _ in range(2):
            list(Collector(SerialEnv(3, named), frames_per_batch=9, total_frames=9, seed=0))
    (record,) = caplog.records
    assert '\'reward\' is at ("observation", "reward")' in record.getMessage()
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="contig.collect"):
        list(Collector(lambda: Named("x", "y"), frames_per_batch=9, total_frames=9, seed=0))
    assert not caplog.records


SCRIPT = """
    from contig import MultiCollector, ParallelEnv, LazyTensorStorage, ReplayBuffer
    from tests.collect.test_names import named

    buffer = ReplayBuffer(LazyTensorStorage(100)) if {buffer} else None
    with MultiCollector(
        [ParallelEnv(2, named)] * 2,
        frames_per_batch=8,
        total_frames=8,
        seed=0,
        replay_buffer=buffer,
    ) as collector:
        list(collector)
"""


@pytest.mark.parametrize("buffer", [True, False])
def test_workers_do_not_say_it_again(buffer: bool) -> None:
    script = textwrap.dedent(SCRIPT).format(buffer=buffer)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stderr.count("is at") == 4  # one line with the four of them
    assert len(done.stderr.strip().splitlines()) == 1


# -- others that share a place are refused ------------------------------------------------------


def outputs_of(*paths: Any) -> Any:
    def policy(inputs: Any) -> Any:
        n = len(inputs["is_init"])
        return {"action": np.zeros(n, np.int64), **{p: np.zeros((n, 2)) for p in paths}}

    return policy


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("collector", "traj_ids"), r'\("collector", "traj_ids"\).*the policy'),
        (("observation", "code"), r'\("observation", "code"\).*inside "observation"'),
        (("action", "arm"), r'\("action", "arm"\).*inside "action"'),
        (("is_init", "too"), r"inside"),
    ],
)
def test_outputs_of_a_policy_where_rows_have_something_else(path: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        list(Collector(Steps, outputs_of(path), frames_per_batch=9, total_frames=9, seed=0))


@pytest.mark.parametrize("name", ["step", "reward", "done", "is_init", "action", ("step", "deep")])
def test_hidden_states_where_rows_have_something_else(name: Any) -> None:
    env = TensorDictPrimer(Named("step"), {name: (2,)})
    path = name if isinstance(name, tuple) else (name,)
    policy = outputs_of(("next", *path))
    with pytest.raises(ValueError, match="rename"):
        list(Collector(env, policy, frames_per_batch=9, total_frames=9, seed=0))


def test_a_step_count_or_mask_of_the_environments_own() -> None:
    with pytest.raises(ValueError, match='"step_count".*rename'):
        list(
            Collector(StepCounter(Named("step_count")), frames_per_batch=9, total_frames=9, seed=0)
        )
    with pytest.warns(UserWarning, match="split_trajs"):
        collector = Collector(
            Named("mask"), frames_per_batch=9, total_frames=9, seed=0, split_trajs=True
        )
    with pytest.raises(ValueError, match='"mask".*rename'):
        list(collector)
