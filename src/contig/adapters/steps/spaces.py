"""Shapes of what a gymnasium space holds, as stable-baselines3's buffers store it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

__all__ = ["action_size", "observation_shape"]


def observation_shape(space: Any) -> Any:
    """Of one observation; of a Dict, of each key's.

    Raises:
        TypeError: a space that buffers do not store.
    """
    if isinstance(space, spaces.Dict):
        return {key: observation_shape(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return (1,)
    if isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)):
        shape: tuple[int, ...] = space.shape
        return shape
    raise _no_space("observation_space", space)


def action_size(space: Any) -> int:
    """Numbers of one action.

    Raises:
        TypeError: a space that buffers do not store.
    """
    if isinstance(space, spaces.Discrete):
        return 1
    if isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)):
        return int(np.prod(space.shape, dtype=np.int64))
    raise _no_space("action_space", space)


def _no_space(what: str, space: Any) -> TypeError:
    or_dict = ", or a Dict of those" if what == "observation_space" else ""
    return TypeError(
        f"{what}: expected gymnasium's Box, Discrete, MultiDiscrete or MultiBinary{or_dict}, got "
        f"{space!r}; of several envs, give the space of one (envs.single_observation_space, "
        "envs.single_action_space)"
    )
