"""Environments whose values say which step they are: env, episode and time, and what came of it.

An env's id is the seed of its first reset. How long an episode is, and how it ends, follows from
the id and the episode, so that a check needs nothing but the rows.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np


def plan(env: int, episode: int, longest: int) -> tuple[int, bool]:
    """The length of an episode, and whether it terminates (or is truncated)."""
    rng = np.random.default_rng((env, episode))
    return int(rng.integers(1, longest + 1)), bool(rng.random() < 0.5)


def reward_of(env: int, episode: int, t: int, action: float) -> float:
    return float((env * 7 + episode * 3 + t) % 101 + action)


class Steps(gym.Env[Any, Any]):
    """Observation: (env, episode, t). Never touched by the action, which the reward shows."""

    def __init__(self, longest: int = 6) -> None:
        self.observation_space = gym.spaces.Box(-1, 2**40, (3,), np.int64)
        self.action_space = gym.spaces.Discrete(5)
        self.longest = longest
        self.id, self.episode, self.t = -1, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.id, self.episode = seed, -1
        self.episode += 1
        self.t = 0
        return self._obs(), {}

    def _obs(self) -> Any:
        return np.array([self.id, self.episode, self.t], np.int64)

    def step(self, action: Any) -> Any:
        reward = reward_of(self.id, self.episode, self.t, float(action))
        length, terminates = plan(self.id, self.episode, self.longest)
        assert self.t < length, "stepped after its end"
        self.t += 1
        ended = self.t >= length
        return self._obs(), reward, ended and terminates, ended and not terminates, {}


class DictSteps(Steps):
    """The same with nested observations and actions, and an image."""

    def __init__(self, longest: int = 6) -> None:
        super().__init__(longest)
        self.observation_space = gym.spaces.Dict(
            {
                "step": gym.spaces.Box(-1, 2**40, (3,), np.int64),
                "camera": gym.spaces.Dict({"rgb": gym.spaces.Box(0, 255, (4, 4, 3), np.uint8)}),
            }
        )
        self.action_space = gym.spaces.Dict(
            {"arm": gym.spaces.Box(-1, 1, (2,), np.float32), "grip": gym.spaces.Discrete(2)}
        )

    def _obs(self) -> Any:
        picture = np.full((4, 4, 3), self.t % 256, np.uint8)
        return {"step": super()._obs(), "camera": {"rgb": picture}}

    def step(self, action: Any) -> Any:
        assert action["arm"].shape == (2,)
        return super().step(float(action["grip"]))


class Faulty(Steps):
    """Goes wrong at a step of an episode: 'raise', 'hang', 'nan', 'shape', 'kill'.

    Args:
        fault: what.
        at: in which episode.
        mark: a file that is made first; if it exists the env behaves.
        step_s: how long a step takes, after the fault.
    """

    def __init__(
        self, fault: str, at: int = 3, mark: str | None = None, step_s: float = 0.0
    ) -> None:
        super().__init__()
        self.step_s, self.broken = step_s, False
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.fault, self.at, self.mark = fault, at, mark

    def _obs(self) -> Any:
        return super()._obs().astype(np.float64)

    def step(self, action: Any) -> Any:
        out = super().step(action)
        behaves = self.mark is not None and os.path.exists(self.mark)
        if self.broken:
            time.sleep(self.step_s)
        if self.fault == "none" or self.episode != self.at or behaves:
            return out
        self.broken = True
        if self.mark is not None:
            open(self.mark, "w").close()
        if self.fault == "raise":
            raise ArithmeticError("the simulator broke")
        if self.fault == "hang":
            time.sleep(3600)
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        obs = np.array([np.nan, 0, 0]) if self.fault == "nan" else np.zeros(1)
        return (obs, *out[1:])


def make_steps() -> Steps:
    return Steps()


# -- checks -------------------------------------------------------------------------------------


def check_trajectory(rows: Any, longest: int = 6, starts_anywhere: bool = False) -> None:
    """Rows of one trajectory, as nested dicts or a Batch: what its env emitted, in order."""
    obs, after = rows["observation"], rows["next", "observation"]
    env, episode, first = (int(x) for x in obs[0])
    n = len(obs)
    assert (obs[:, 0] == env).all() and (obs[:, 1] == episode).all()
    assert (after[:, 0] == env).all() and (after[:, 1] == episode).all()
    assert starts_anywhere or first == 0
    np.testing.assert_array_equal(obs[:, 2], np.arange(first, first + n))
    np.testing.assert_array_equal(after[:, 2], np.arange(first + 1, first + n + 1))
    expected = [reward_of(env, episode, first + i, float(a)) for i, a in enumerate(rows["action"])]
    np.testing.assert_array_equal(rows["next", "reward"], np.array(expected, np.float32))
    np.testing.assert_array_equal(rows["is_init"], obs[:, 2] == 0)
    done, terminated = rows["next", "done"], rows["next", "terminated"]
    truncated = rows["next", "truncated"]
    np.testing.assert_array_equal(done, terminated | truncated)
    assert not done[:-1].any()
    length, terminates = plan(env, episode, longest)
    assert first + n <= length
    if first + n == length:
        assert terminated[-1] == terminates and truncated[-1] == (not terminates)
    else:
        assert not terminated[-1]
    assert len(np.unique(rows["collector", "traj_ids"])) == 1


def split(batch: Any) -> list[Any]:
    """A flat batch cut where ids change."""
    ids = batch["collector", "traj_ids"]
    cuts = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    edges = [0, *cuts.tolist(), len(ids)]
    return [batch[a:b] for a, b in itertools.pairwise(edges)]


def steps_of(batch: Any) -> list[tuple[int, int, int]]:
    """Which step each row is."""
    return [tuple(int(x) for x in row) for row in batch["observation"].reshape(-1, 3)]


def check_storage(storage: Any, *, anywhere: bool = False) -> list[Any]:
    """Everything a storage holds: trajectories in order, once, ids unique; returns them.

    The oldest one of a full storage may have lost its first rows.
    """
    episodes = storage.episodes()
    evicted = int(storage.tape.snapshot()[1]) > 0
    found = [storage.read_episode(int(e)) for e in episodes["id"]]
    seen: set[tuple[int, int, int]] = set()
    ids = []
    for number, (entry, rows) in enumerate(zip(episodes, found)):
        check_trajectory(rows, starts_anywhere=anywhere or (evicted and number == 0))
        assert bool(entry["terminated"]) == bool(rows["next", "terminated"][-1])
        assert bool(entry["truncated"]) == bool(rows["next", "truncated"][-1])
        mine = steps_of(rows)
        assert seen.isdisjoint(mine)
        seen.update(mine)
        ids.append(int(rows["collector", "traj_ids"][0]))
    assert len(set(ids)) == len(ids)
    return found


class ToldSteps(Steps):
    """Its last info says whose episode it was; infos before it say something else."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        last = terminated or truncated
        told = [self.id, self.episode] if last else [-1, -1]
        return obs, reward, terminated, truncated, {"told": np.array(told), "nested": {"t": self.t}}


class SilentSteps(Steps):
    """Says nothing but in its first episode."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"told": 7} if self.episode == 0 else {}
