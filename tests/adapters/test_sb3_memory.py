"""SB3's buffers store observations once, whatever `optimize_memory_usage` says, and exactly."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecTransposeImage

from contig.adapters.sb3 import DictReplayBuffer, HerReplayBuffer, ReplayBuffer
from tests.adapters.beside import BOX, MOVE, Stream, same_arrays, same_samples

MOVES = spaces.Discrete(3)
optimize = pytest.mark.parametrize("optimize", [False, True])


class Screen(gym.Env[Any, Any]):
    """Frames that say how many came before, of all episodes; episodes of 5 steps are truncated."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = space, MOVES
        self.count = self.t = 0

    def _box(self, space: Any) -> Any:
        values = np.arange(int(np.prod(space.shape))) + 7 * self.count
        return (values % 251).astype(np.uint8).reshape(space.shape)

    def _obs(self) -> Any:
        self.count += 1
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            return {key: self._box(part) for key, part in space.items()}
        return self._box(space)

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), float(self.t), False, self.t == 5, {}


def picture(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


LAST, FIRST, COLOUR = picture(36, 36, 1), picture(1, 36, 36), picture(36, 36, 3)
BOTH = spaces.Dict({"camera": LAST, "touch": picture(24)})
STACKED: dict[str, tuple[Any, Any]] = {
    "channels last": (LAST, "last"),
    "channels first": (FIRST, "first"),
    "transposed": (LAST, "transposed"),
    "colour": (COLOUR, "last"),
    "colour, transposed": (COLOUR, "transposed"),
    "dict": (BOTH, "last"),
}


def stacked_env(space: Any, order: str, n: int = 2) -> Any:
    env = DummyVecEnv([lambda: Screen(space)] * n)
    if isinstance(space, spaces.Dict):
        return VecFrameStack(env, 4, {"camera": order, "touch": "last"})
    if order == "transposed":
        return VecTransposeImage(VecFrameStack(env, 4, "last"))
    return VecFrameStack(env, 4, order)


def play(env: Any, steps: int, *buffers: Any) -> None:
    """As SB3's off-policy algorithms write: the last observation of an episode is in its info."""
    obs = env.reset()
    actions = np.zeros((env.num_envs, 1), np.int64)
    for _ in range(steps):
        new, rewards, dones, infos = env.step(actions[:, 0])
        following = {k: v.copy() for k, v in new.items()} if isinstance(new, dict) else new.copy()
        for i, done in enumerate(dones):
            if done:
                last = infos[i]["terminal_observation"]
                parts = last if isinstance(last, dict) else {None: last}
                for key, value in parts.items():
                    (following if key is None else following[key])[i] = value
        for buffer in buffers:
            buffer.add(obs, following, actions, rewards, dones, infos)
        obs = new


@pytest.mark.parametrize("which", STACKED)
@optimize
def test_frame_stacks(which: str, optimize: bool) -> None:
    space, order = STACKED[which]
    env = stacked_env(space, order)
    kinds = (
        (DictReplayBuffer, sb3.DictReplayBuffer)
        if which == "dict"
        else (ReplayBuffer, sb3.ReplayBuffer)
    )
    shared = {"n_envs": 2, "device": "cpu"}
    ours = kinds[0](200, env.observation_space, MOVES, optimize_memory_usage=optimize, **shared)
    theirs = kinds[1](200, env.observation_space, MOVES, **shared)
    play(env, 130, ours, theirs)
    same_arrays(ours, theirs)
    same_samples(ours, theirs, 64)
    schema = ours.storage.schema
    assert schema is not None and schema.sharing is not None
    frames = {x.path[-1]: x.frames for x in schema.sharing.leaves}
    assert frames.get("camera", frames.get("observation")) == 4
    leaves = list(theirs.observations.values()) if which == "dict" else [theirs.observations]
    plain = 2 * sum(x.nbytes for x in leaves)
    assert ours.storage.nbytes * 4 < plain  # a frame for each of eight, and rows and resets
    copy = pickle.loads(pickle.dumps(ours))
    same_arrays(copy, theirs)
    assert copy.storage.nbytes <= 1.1 * ours.storage.nbytes


@pytest.mark.parametrize("steps", [17, 20, 33])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_the_rows_that_sb3_draws_with_its_option(steps: int, n_envs: int) -> None:
    """Of a full buffer it leaves the oldest step out, from the same random numbers."""
    options = {"n_envs": n_envs, "device": "cpu", "handle_timeout_termination": False}
    ours, theirs = (
        cls(20 * n_envs, BOX, MOVE, optimize_memory_usage=True, **options)
        for cls in (ReplayBuffer, sb3.ReplayBuffer)
    )
    Stream(BOX, MOVE, n_envs).write(steps, ours, theirs)  # whose observations go on over resets
    same_samples(ours, theirs, 200)
    one = ReplayBuffer(1, BOX, MOVE, optimize_memory_usage=True, **{**options, "n_envs": 1})
    Stream(BOX, MOVE).write(2, one)
    assert len(one.sample(3).rewards) == 3  # there is no other: SB3 raises


def test_what_sb3_returns_where_an_episode_is_truncated() -> None:
    """SB3's option keeps one observation a step: after a truncation, the next episode's first."""
    env = DummyVecEnv([lambda: Screen(LAST)] * 2)
    options = {"n_envs": 2, "device": "cpu", "handle_timeout_termination": False}
    plain = sb3.ReplayBuffer(200, LAST, MOVES, **options)
    theirs = sb3.ReplayBuffer(200, LAST, MOVES, optimize_memory_usage=True, **options)
    ours = ReplayBuffer(200, LAST, MOVES, optimize_memory_usage=True, **options)
    play(env, 60, plain, theirs, ours)
    steps = np.arange(59)
    led_to = np.asarray(plain.next_observations)[steps]
    ended = np.asarray(plain.dones)[steps] != 0
    assert ended.sum() == 22
    wrong = (theirs.observations[steps + 1] != led_to).any((2, 3, 4))
    np.testing.assert_array_equal(wrong, ended)  # what its samples have as next observations
    np.testing.assert_array_equal(np.asarray(ours.next_observations)[steps], led_to)
    np.random.seed(3)
    sample = theirs._get_samples(np.flatnonzero(ended[:, 0]))
    np.random.seed(3)
    exact = ours._get_samples(np.flatnonzero(ended[:, 0]))
    assert (sample.observations == exact.observations).all()
    assert (sample.next_observations != exact.next_observations).flatten(1).any(1).all()


def test_goals_are_shared_too() -> None:
    part = spaces.Box(-1, 1, (24,), np.float32)
    space = spaces.Dict({k: part for k in ("observation", "achieved_goal", "desired_goal")})
    buffer = HerReplayBuffer(50, space, MOVES, env=None, device="cpu")
    rng = np.random.default_rng(0)

    def obs() -> Any:
        return {k: rng.random((1, 24), np.float32) for k in space}

    now, action = obs(), np.zeros((1, 1))
    for i in range(10):
        following = obs()
        done = np.array([i % 5 == 4])
        buffer.add(now, following, action, np.zeros(1), done, [{}])
        now = following
    assert buffer.storage.tape.slots_given == 2 * 6  # two episodes of five steps


@optimize
def test_before_the_first_step(optimize: bool) -> None:
    ours = ReplayBuffer(20, LAST, MOVES, n_envs=2, optimize_memory_usage=optimize, device="cpu")
    assert ours.observations.shape == (10, 2, 36, 36, 1) and not np.asarray(ours.observations).any()
    copy = pickle.loads(pickle.dumps(ours))
    env = DummyVecEnv([lambda: Screen(LAST)] * 2)
    theirs = sb3.ReplayBuffer(20, LAST, MOVES, n_envs=2, device="cpu")
    play(env, 15, copy, ours, theirs)
    same_arrays(copy, theirs)
    same_arrays(ours, theirs)
