"""RandomPolicy: actions drawn uniformly from a space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .specs import Array, stack_lanes

__all__ = ["RandomPolicy"]

_CHUNK = 1024  # numpy draws many numbers in the time of one


class RandomPolicy:
    """A policy that ignores what it sees. Not thread-safe.

    Args:
        action_space: a Gymnasium space.
        seed: of its random numbers; None: fresh ones.
    """

    def __init__(self, action_space: Any, seed: int | None = None) -> None:
        if action_space is None:
            raise ValueError(
                "the environment has no action_space to draw random actions from: give a policy, "
                "or give the environment an action_space"
            )
        self.action_space = action_space
        self._rng = np.random.default_rng(seed)
        self._many = _sampler(action_space, self._rng)
        self._drawn: Array = np.empty(0)
        self._at = 0
        if self._many is None and seed is not None:
            action_space.seed(seed)

    def one(self) -> Any:
        """An action of one environment."""
        if self._many is None:
            return self.action_space.sample()
        if self._at >= len(self._drawn):
            self._drawn, self._at = self._many(_CHUNK), 0
        self._at += 1
        return self._drawn[self._at - 1]

    def batch(self, n: int) -> Any:
        """Actions of n environments, ``[n, ...]``."""
        if self._many is None:
            return stack_lanes([self.action_space.sample() for _ in range(n)])
        if self._at + n > len(self._drawn):
            self._drawn, self._at = self._many(max(_CHUNK, n)), 0
        self._at += n
        return self._drawn[self._at - n : self._at]

    def __call__(self, inputs: Any) -> dict[str, Any]:
        return {"action": self.batch(len(np.asarray(inputs["is_init"])))}


def _sampler(space: Any, rng: np.random.Generator) -> Callable[[int], Array] | None:
    """Draws n actions of a space at once, or None for a space only it can sample."""
    kind, dtype = type(space).__name__, getattr(space, "dtype", None)
    if kind == "Discrete":
        return lambda n: rng.integers(space.start, space.start + space.n, n, dtype=dtype)
    if kind == "MultiDiscrete":
        high = space.start + space.nvec
        return lambda n: rng.integers(space.start, high, (n, *space.shape), dtype=dtype)
    if kind == "MultiBinary":
        return lambda n: rng.integers(0, 2, (n, *space.shape), dtype=dtype)
    if kind == "Box" and np.dtype(dtype).kind == "f":
        if np.isfinite(space.low).all() and np.isfinite(space.high).all():
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            return lambda n: rng.uniform(low, high, (n, *space.shape)).astype(dtype)
    return None
