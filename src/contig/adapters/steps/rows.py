"""Rows as SB3 gives them, and as contig stores them.

observation            one leaf, or one for each key of a Dict space
action
next.observation       what the action led to: at an episode's end its last observation
next.reward
next.done, next.terminated, next.truncated
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from ...batch import Batch
from ...keys import DONE, NEXT, REWARD, TRUNCATED
from ...tree import Path

__all__ = ["ACTION", "OBSERVATION", "RowShape"]

Array = np.ndarray[Any, Any]

_BOOL, _FLOAT = np.dtype(np.bool_), np.dtype(np.float32)
OBSERVATION: Path = ("observation",)
ACTION: Path = ("action",)
(_OBSERVATION,), (_ACTION,), (_NEXT,) = OBSERVATION, ACTION, NEXT
_REWARD, _DONE, _TRUNCATED = REWARD[-1], DONE[-1], TRUNCATED[-1]


class RowShape:
    """What the rows of a buffer are.

    Args:
        observation_space, action_space: SB3's.
        obs_shape: of an observation, or of each key's.
        action_dim: numbers of an action.
        action_dtype: as actions are stored.
        n_envs: rows of a step.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        obs_shape: Any,
        action_dim: int,
        action_dtype: Any,
        n_envs: int,
    ) -> None:
        self._envs = n_envs
        self.fit = False  # whether every value is converted
        self.none = np.zeros(n_envs, np.bool_)  # flags of a step that ends nothing
        self._action = ((n_envs, action_dim), np.dtype(action_dtype))
        self._flat_actions = action_dim == 1  # they may come without that dim
        self._parts: dict[str, Any] | None = None
        self._whole: Any = None
        if isinstance(observation_space, spaces.Dict):
            self._parts = {
                key: ((n_envs, *shape), np.dtype(observation_space[key].dtype))
                for key, shape in obs_shape.items()
            }
        else:
            self._whole = ((n_envs, *obs_shape), np.dtype(observation_space.dtype))

    @property
    def keys(self) -> list[str] | None:
        """Keys of an observation, or None if it is one array."""
        return None if self._parts is None else list(self._parts)

    def taken(self, batch: Batch, parent: Path) -> Any:
        """Observations of a batch: those at the root, or below a parent."""
        if self._parts is None:
            return batch[(*parent, *OBSERVATION)]
        return {key: batch[(*parent, *OBSERVATION, key)] for key in self._parts}

    def flags(self, given: Any) -> Array:
        """One for each env."""
        return _fit(given, (self._envs,), _BOOL)

    def observation(self, given: Any) -> Any:
        """Of all envs, in the shape and dtype that is stored."""
        if self._parts is None:
            return _fit(given, *self._whole)
        return {key: _fit(given[key], *part) for key, part in self._parts.items()}

    def as_given(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, truncated: Array
    ) -> Any:
        """A step as it was given, but for what never comes as it is stored: rewards of float64, and
        actions that are one number each. Whoever stores it checks shapes and dtypes, and sets
        `fit` if they do not fit: the envs' values will not do so later either."""
        if self.fit:
            return self.step(obs, next_obs, action, reward, self.flags(done), truncated)
        if type(reward) is np.ndarray and reward.dtype is not _FLOAT:
            reward = reward.astype(_FLOAT)
        if self._flat_actions and type(action) is np.ndarray and action.ndim == 1:
            action = action[:, None]
        return {
            _OBSERVATION: obs,
            _ACTION: action,
            _NEXT: {
                _OBSERVATION: next_obs,
                _REWARD: reward,
                _DONE: done,
                _TRUNCATED: truncated,
            },
        }

    def step(self, obs: Any, next_obs: Any, action: Any, reward: Any, *flags: Array) -> Any:
        """A step of all envs, ``[n_envs, ...]``, of which `done` and `truncated` are given."""
        done, truncated = flags
        return {
            _OBSERVATION: self.observation(obs),
            _ACTION: _fit(action, *self._action),
            _NEXT: {
                _OBSERVATION: self.observation(next_obs),
                _REWARD: _fit(reward, (self._envs,), _FLOAT),
                _DONE: done,
                _TRUNCATED: truncated,
            },
        }

    def zeros(self) -> Any:
        """A step of zeros."""
        parts = {key: np.zeros(*part) for key, part in (self._parts or {}).items()}
        obs = parts if self._parts is not None else np.zeros(*self._whole)
        return self.step(
            obs, obs, np.zeros(*self._action), np.zeros(self._envs), self.none, self.none
        )

    def example(self) -> Any:
        """One row."""
        return _first(self.zeros())


def _first(tree: Any) -> Any:
    return {k: _first(v) for k, v in tree.items()} if isinstance(tree, dict) else tree[0]


def _fit(given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """As SB3's assignments do it: cast to what is stored, whatever is lost."""
    array = np.asarray(given)
    if array.dtype != dtype:
        array = array.astype(dtype)
    return array if array.shape == shape else array.reshape(shape)
