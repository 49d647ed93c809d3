"""Environments that give the rows that they are told, and what acts in them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from contig.testing import RowSpec

__all__ = ["SCRIPT", "Scripted", "act", "make_env"]

SCRIPT = "CONTIG_TEST_SCRIPT"  # of `make_env`: how the rows of each lane end, as JSON


class Scripted(gym.Env[Any, Any]):
    """Episodes of a lane, one after another; the seed of the first reset says which lane it is."""

    def __init__(self, ends: Sequence[Sequence[str | None]]) -> None:
        self.observation_space = gym.spaces.Box(-1, 2**20, (2,), np.float32)
        self.action_space = gym.spaces.Box(0, 2**20, (), np.float64)
        self._ends, self._lane, self._t = ends, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self._lane, self._t = seed % len(self._ends), 0
        return self._observation(), {}

    def _observation(self) -> Any:
        return np.array([self._lane, self._t], np.float32)

    def step(self, action: Any) -> Any:
        assert float(action) == 1000 * self._lane + self._t
        mine = self._ends[self._lane]
        end = mine[self._t] if self._t < len(mine) else None  # nobody keeps what comes behind
        self._t += 1
        reward = 1000.0 * self._lane + self._t
        return self._observation(), reward, end == "terminated", end == "truncated", {}


def ends_of(lanes: Sequence[Sequence[RowSpec]]) -> list[list[str | None]]:
    """How rows end, lane by lane."""
    return [[row.end for row in lane] for lane in lanes]


def act(inputs: Any) -> Any:
    """The action that says which step it is of."""
    seen = np.asarray(inputs["observation"], np.float64)
    return 1000 * seen[:, 0] + seen[:, 1]


def make_env() -> Scripted:
    """For other processes, which have the script in their environment."""
    return Scripted(json.loads(os.environ[SCRIPT]))
