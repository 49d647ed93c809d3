"""Environments and collectors of one's own, and what `reset` and `step` give to those who call."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from contig import (
    BaseCollector,
    Collector,
    EnvBase,
    GymEnv,
    InitTracker,
    LazyTensorStorage,
    MultiCollector,
    ParallelEnv,
    ReplayBuffer,
    SerialEnv,
    SliceSampler,
    StepCounter,
    TensorDictPrimer,
    VectorEnv,
    WorkerError,
)
from contig.collect import Step
from tests.collect.envs import Steps, check_storage, check_trajectory, make_steps, split, steps_of
from tests.collect.policies import Counts


class Lanes(EnvBase):
    """Steps, all lanes in one object, which resets none of them by itself.

    Args:
        num_envs: lanes; None: a single environment.
        late: next-step auto-reset: a lane that ended spends its next step on the reset.
        broken: what `_step` returns wrong.
    """

    def __init__(self, num_envs: int | None = 3, late: bool = False, broken: str = "") -> None:
        super().__init__(
            gym.spaces.Box(-1, 2**40, (3,), np.int64), gym.spaces.Discrete(5), num_envs=num_envs
        )
        self.lanes = [Steps() for _ in range(self.num_envs)]
        self.late, self.broken, self.closed = late, broken, False
        self.ended = np.zeros(self.num_envs, bool)
        self.obs = np.zeros((self.num_envs, 3), np.int64)  # one array for ever

    def _reset(self, lanes: Any, seed: int | None) -> Any:
        for i in np.flatnonzero(lanes):
            self.obs[i] = self.lanes[i].reset(seed=None if seed is None else seed + int(i))[0]
        self.ended[lanes] = False
        return self.obs

    def _step(self, action: Any) -> Any:
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        stepped = ~self.ended
        for i, lane in enumerate(self.lanes):
            if not stepped[i]:
                self.obs[i] = lane.reset()[0]
                continue
            self.obs[i], reward[i], terminated[i], truncated[i], _ = lane.step(action[i])
        if self.broken == "raise":
            raise ArithmeticError("the simulator broke")
        if self.broken == "flags":
            return self.obs, reward, terminated[:1], truncated
        if self.broken == "reward":
            return self.obs, 1.0, terminated, truncated
        if self.broken == "values":
            return self.obs, reward, terminated | truncated
        if self.late:
            self.ended = terminated | truncated
            return Step(self.obs, reward, terminated, truncated, self.obs, stepped)
        return self.obs, reward, terminated, truncated

    def close(self) -> None:
        self.closed = True


def check(batch: Any) -> None:
    lanes = [batch] if len(batch.shape) == 1 else [batch[i : i + 1] for i in range(len(batch))]
    for lane in lanes:
        for number, piece in enumerate(split(lane.reshape(-1))):
            check_trajectory(piece, starts_anywhere=number == 0)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("lanes", [None, 1, 3])
def test_an_environment_of_ones_own(lanes: int | None, late: bool) -> None:
    env = Lanes(lanes, late)
    assert isinstance(env, EnvBase) and env.full_observation_spec["observation"].shape == (3,)
    n = lanes or 1
    with Collector(env, frames_per_batch=20 * n, total_frames=60 * n, seed=4) as collector:
        batches = list(collector)
    assert env.closed
    assert [b.shape for b in batches] == [(20,) if lanes is None else (n, 20)] * 3
    for batch in batches:
        check(batch)
    every = [s for b in batches for s in steps_of(b)]
    assert len(set(every)) == len(every) and {s[0] for s in every} == set(range(4, 4 + n))


@pytest.mark.parametrize(
    "options",
    [{"trajs_per_batch": 4}, {"max_frames_per_traj": 3}, {"reset_at_each_iter": True}],
)
def test_an_environment_of_ones_own_in_every_way(options: Any) -> None:
    for env in (Lanes(), StepCounter(Lanes(), max_steps=4), Lanes):
        buffer = ReplayBuffer(LazyTensorStorage(1000), SliceSampler(slice_len=3), batch_size=12)
        with Collector(
            env, frames_per_batch=30, total_frames=90, replay_buffer=buffer, seed=0, **options
        ) as collector:
            list(collector)
        check_storage(buffer.storage)
    (batch,) = Collector(
        SerialEnv(2, lambda: Lanes(None)), frames_per_batch=40, total_frames=40, seed=0
    )
    check(batch)


def test_an_environment_of_ones_own_in_workers() -> None:
    for env in (Lanes(2), lambda: Lanes(2)):
        buffer = ReplayBuffer(LazyTensorStorage(1000), batch_size=12)
        with MultiCollector(
            [env] * 2, frames_per_batch=40, total_frames=80, replay_buffer=buffer, seed=0
        ) as collector:
            list(collector)
        assert {s[0] for x in check_storage(buffer.storage) for s in steps_of(x)} == set(range(4))


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("flags", r"Lanes\._step: terminated: shape \[1\], expected \[3\]"),
        ("reward", r"Lanes\._step: reward: shape \[\], expected \[3, \.\.\.\]"),
        ("values", r"Lanes\._step: expected \(observation.*got 3 values"),
    ],
)
def test_what_an_environment_of_ones_own_returns_wrong(broken: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Lanes(broken=broken).rollout(3, seed=0)


def test_an_environment_of_ones_own_that_raises() -> None:
    env = Lanes(broken="raise")
    with Collector(env, frames_per_batch=30, seed=0) as collector:
        with pytest.raises(ArithmeticError, match="the simulator broke"):
            list(collector)
        with pytest.raises(WorkerError, match="the simulator broke"):  # and again, by any call
            list(collector)
    assert env.closed

    class Half(EnvBase):
        def _reset(self, lanes: Any, seed: int | None) -> Any:
            return 0

    with pytest.raises(TypeError, match="_step"):
        Half()  # type: ignore[abstract]


# -- what reset and step give -------------------------------------------------------------------


def primed(env: Any) -> Any:
    return TensorDictPrimer(InitTracker(env), {"state": np.full(2, 7.0), ("deep", "er"): (1,)})


KINDS = {
    "gym": (lambda: primed(make_steps()), ()),
    "counted": (lambda: StepCounter(primed(make_steps())), ()),
    "own": (lambda: primed(Lanes(None)), ()),
    "serial": (lambda: primed(SerialEnv(2, make_steps)), (2,)),
    "serial of primed": (lambda: SerialEnv(2, lambda: primed(make_steps())), (2,)),
    "parallel of primed": (lambda: ParallelEnv(2, lambda: primed(make_steps())), (2,)),
    "counted serial": (lambda: StepCounter(SerialEnv(2, lambda: primed(make_steps()))), (2,)),
    "vector": (lambda: primed(gym.vector.SyncVectorEnv([make_steps] * 2)), (2,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_reset_shows_hidden_states_at_their_defaults(kind: str) -> None:
    make, lead = KINDS[kind]
    with make() as env:
        found = env.reset(seed=3)
        assert found["observation"].shape == (*lead, 3)
        assert found["observation"].reshape(-1, 3)[:, 0].tolist() == [3, 4][: len(lead) + 1]
        assert found["is_init"].shape == lead and found["is_init"].all()
        assert found["state"].shape == (*lead, 2) and (found["state"] == 7).all()
        assert found["deep"]["er"].shape == (*lead, 1) and not found["deep"]["er"].any()
        found["state"][...] = -1  # the caller's own
        again = env.reset()
        assert (again["state"] == 7).all()
        # What reset gives is what the specs say, and what a policy reads.
        assert set(found) == {*env.full_observation_spec, *env.full_state_spec}


def test_reset_shows_what_a_policy_registers() -> None:
    found = GymEnv(make_steps, policy=Counts()).reset()
    assert found["state"].shape == (2,) and bool(found["is_init"])
    collector = Collector(
        SerialEnv(2, make_steps), Counts(), frames_per_batch=4, auto_register_policy_transforms=True
    )
    assert collector.env.reset()["state"].shape == (2, 2)
    assert set(VectorEnv(gym.vector.SyncVectorEnv([make_steps] * 2)).reset()) == {"observation"}


def test_step_for_those_who_call_it() -> None:
    env = GymEnv(make_steps)
    obs = env.reset(seed=5)["observation"]
    for t in range(40):
        step = env.step(3)
        assert step.next["observation"].tolist() == [5, obs[1], obs[2] + 1]
        assert step.reward.shape == step.terminated.shape == ()
        done = bool(step.terminated or step.truncated)
        obs = step.obs["observation"]
        assert (obs[2] == 0) == done, t
    lanes = Lanes(2)
    lanes.reset(seed=5)
    step = lanes.step(np.array([1, 2]))
    assert step.next["observation"].shape == (2, 3) and step.reward.shape == (2,)


# -- collectors ---------------------------------------------------------------------------------


class Recorded(BaseCollector):
    """Gives out rows that were recorded before, some at a time."""

    def __init__(
        self, rows: Any, count: int, replay_buffer: Any = None, fail: bool = False
    ) -> None:
        super().__init__(replay_buffer)
        self.rows, self.count, self.at, self.fail, self.closed = rows, count, 0, fail, False

    def _collect(self) -> Any:
        if self.at >= len(self.rows):
            if self.fail:
                raise ArithmeticError("the record ends too early")
            return self.END
        batch = self.rows[self.at : self.at + self.count]
        self.at += self.count
        if self.replay_buffer is None:
            return batch
        self._write(batch)
        return None

    def _close(self) -> None:
        self.closed = True


def test_a_collector_of_ones_own() -> None:
    (rows,) = Collector(Steps, frames_per_batch=60, total_frames=60, seed=0)
    with Recorded(rows, 25) as collector:
        assert [len(b) for b in collector] == [25, 25, 10]
        collector.update_policy_weights_()
    assert collector.closed
    buffer = ReplayBuffer(LazyTensorStorage(100), SliceSampler(slice_len=3), batch_size=12)
    with Recorded(rows, 25, buffer) as collector:
        assert list(collector) == [None] * 3
    check_storage(buffer.storage)
    other = ReplayBuffer(LazyTensorStorage(100), batch_size=12)
    collector = Recorded(rows, 25, other, fail=True)
    collector.start()
    with pytest.raises(WorkerError, match="ends too early"):
        while True:
            other.sample()
    collector.shutdown()
    assert collector.closed and len(other) == 60
    assert isinstance(Collector(Steps, frames_per_batch=1), BaseCollector)
