"""An environment and policies for `contig worker`, by import path."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from contig import EnvBase


class Counting(EnvBase):
    """Counts steps: an observation is how many came before it; episodes have 10."""

    def __init__(self) -> None:
        super().__init__(Box(0, 99, (1,), np.float32), Discrete(100))
        self.at = np.zeros((1, 1), np.float32)

    def _reset(self, lanes: Any, seed: Any) -> Any:
        self.at[lanes] = 0
        return self.at

    def _step(self, action: Any) -> Any:
        self.at += 1
        over = self.at[:, 0] >= 10
        return self.at, np.ones(1, np.float32), over, np.zeros(1, bool)


def make_env() -> Counting:
    return Counting()


class Constant:
    """Acts as its weights say."""

    def __init__(self) -> None:
        self.weights = {"action": np.zeros((), np.int64)}

    def get_weights(self) -> Any:
        return self.weights

    def set_weights(self, weights: Any) -> None:
        self.weights = weights

    def __call__(self, inputs: Any) -> Any:
        return np.full(len(inputs["observation"]), self.weights["action"], np.int64)


ready = Constant()


def act(inputs: Any) -> Any:
    """A policy without weights, which needs no making."""
    return np.full(len(inputs["observation"]), 3, np.int64)


class Failing(Counting):
    """Raises in its third step."""

    def _step(self, action: Any) -> Any:
        if self.at[0, 0] >= 2:
            raise FloatingPointError("the third step")
        return super()._step(action)
