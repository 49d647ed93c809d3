"""A buffer of ours and one of stable-baselines3, written the same way."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

Array = np.ndarray[Any, Any]

BOX = spaces.Box(-1, 1, (3,), np.float32)
MOVE = spaces.Box(-1, 1, (2,), np.float32)


class Step(NamedTuple):
    obs: Any
    next_obs: Any
    action: Array
    reward: Array
    done: Array
    infos: list[dict[str, Any]]


def draw_from(space: Any, rng: np.random.Generator, n_envs: int) -> Any:
    """Values of a space, one for each env, as a VecEnv has them."""
    if isinstance(space, spaces.Dict):
        return {key: draw_from(part, rng, n_envs) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, n_envs)
    if isinstance(space, spaces.MultiDiscrete):
        return np.stack([rng.integers(0, space.nvec) for _ in range(n_envs)])
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, (n_envs, *space.shape)).astype(space.dtype)
    values = rng.random((n_envs, *space.shape)) * 100
    return values.astype(space.dtype)


class Stream:
    """Steps of several envs whose episodes end at random, terminated or by a time limit."""

    def __init__(self, obs: Any, action: Any, n_envs: int = 1, seed: int = 0) -> None:
        self.obs_space, self.action_space, self.n_envs = obs, action, n_envs
        self.rng = np.random.default_rng(seed)
        self._now = draw_from(obs, self.rng, n_envs)

    def step(self, ends: float = 0.15) -> Step:
        rng, n = self.rng, self.n_envs
        following = draw_from(self.obs_space, rng, n)
        done = rng.random(n) < ends
        late = done & (rng.random(n) < 0.5)
        infos = [
            {"TimeLimit.truncated": bool(late[i]), "env": i, "terminal_observation": "not for us"}
            for i in range(n)
        ]
        action = draw_from(self.action_space, rng, n)
        out = Step(self._now, following, action, rng.normal(size=n), done, infos)
        self._now = following
        return out

    def write(self, steps: int, *buffers: Any, ends: float = 0.15) -> None:
        for _ in range(steps):
            step = self.step(ends)
            for buffer in buffers:
                buffer.add(*step)


def equal(a: Any, b: Any, tolerance: float = 0.0) -> None:
    """Trees of tensors or arrays with the same dtypes, shapes and values."""
    if isinstance(b, dict):
        assert set(a) == set(b)
        for key in b:
            equal(a[key], b[key], tolerance)
    elif b is None:
        assert a is None
    else:
        assert a.dtype == b.dtype, (a.dtype, b.dtype)
        assert tuple(a.shape) == tuple(b.shape)
        x, y = (np.asarray(v.numpy() if torch.is_tensor(v) else v, np.float64) for v in (a, b))
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def same_samples(ours: Any, theirs: Any, size: int, env: Any = None, **options: Any) -> None:
    """With the same seed, numpy's, both draw the same."""
    drawn = []
    for buffer in (ours, theirs):
        np.random.seed(5)
        drawn.append(buffer.sample(size, env))
    a, b = drawn
    assert type(a) is type(b)
    for name in b._fields:
        equal(getattr(a, name), getattr(b, name), **options)


ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def same_arrays(ours: Any, theirs: Any, names: tuple[str, ...] = ARRAYS) -> None:
    assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
    for name in names:
        equal(getattr(ours, name), getattr(theirs, name))
