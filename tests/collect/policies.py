"""Policies for worker processes, in a module that imports little."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np


def make_cartpole() -> Any:
    return gym.make("CartPole-v1")


def lean(inputs: Any) -> Any:
    """Pushes a CartPole to the side it leans to."""
    return (inputs["observation"][:, 2] > 0).astype(np.int64)


def straight(inputs: Any) -> Any:
    """The same action always: a policy without weights."""
    return np.zeros(len(inputs["is_init"]), np.int64)


class Holds:
    """A policy whose weights are those of a module that it holds."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, inputs: Any) -> Any:
        return straight(inputs)


class Weighted:
    """A policy whose action is its weight; all of its weights must be of one version.

    Args:
        first: the value of all its weights.
        size: how many there are.
    """

    def __init__(self, first: float = 0.0, size: int = 20_000) -> None:
        self.weights = {"a": np.full(size, first), "b": np.full(3, first)}

    def fill(self, value: float) -> None:
        self.weights = {k: np.full_like(v, value) for k, v in self.weights.items()}

    def get_weights(self) -> Any:
        return self.weights

    def set_weights(self, tree: Any) -> None:
        for key, value in tree.items():  # one after another, in place: it could be torn
            self.weights[key][...] = value

    def __call__(self, inputs: Any) -> Any:
        values = np.unique(np.concatenate([self.weights["a"], self.weights["b"]]))
        assert len(values) == 1, "torn"
        n = len(inputs["is_init"])
        return {"action": np.zeros(n, np.int64), "weight": np.full(n, values[0])}


class Counts:
    """A policy whose state counts its calls since the reset."""

    def make_tensordict_primer(self) -> Any:
        return {"state": (2,)}

    def __call__(self, inputs: Any) -> Any:
        state = inputs["state"]
        return {"action": np.zeros(len(state), np.int64), ("next", "state"): state + 1}


class Sleepy:
    """A policy that hangs when it sees an episode of some number."""

    def __init__(self, episode: int) -> None:
        self.episode = episode

    def __call__(self, inputs: Any) -> Any:
        if inputs["observation"][0, 1] == self.episode:
            time.sleep(3600)
        return np.zeros(len(inputs["is_init"]), np.int64)
