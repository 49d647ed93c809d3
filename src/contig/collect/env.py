"""The Env: what collectors step. B lanes side by side, whatever runs behind them.

    reset(seed)      -> observations of all lanes
    step(actions)    -> Step: true next observations, and those to act on
    reset_lanes(...) -> new episodes in some lanes

An Env is a recipe until its first reset: it can be pickled, and each process makes its own. Not
thread-safe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from ..layout import ShapeDtype
from ..tree import Path
from .specs import Array, Spec, nest

__all__ = ["Env", "Step"]


class Step(NamedTuple):
    """What one step of all lanes gave; arrays are ``[B, ...]`` and the receiver's own.

    Attributes:
        next: the true next observation, leaf by leaf; at an episode's end the final one.
        reward, terminated, truncated: of the step.
        obs: what to act on next: the same, but the first observation after a reset.
        stepped: which lanes made a step; None: all. The others only reset.
    """

    next: list[Array]
    reward: Array
    terminated: Array
    truncated: Array
    obs: list[Array]
    stepped: Array | None = None


class Env(ABC):
    """Base of all environments here.

    Attributes:
        num_envs: B, the lanes.
        batch_shape: ``()`` for a single environment, else ``(B,)``.
        primers: values that a policy's hidden state starts from at every reset, by path.
    """

    num_envs: int = 1
    batch_shape: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.primers: dict[Path, Array] = {}
        self.marks_init = False

    @property
    @abstractmethod
    def spec(self) -> Spec:
        """The leaves of an observation."""

    @property
    @abstractmethod
    def action_space(self) -> Any:
        """Of one lane; None if the environment does not say."""

    @abstractmethod
    def reset(self, seed: int | None = None) -> list[Array]:
        """Starts a new episode in every lane; lane i is seeded with ``seed + i``."""

    @abstractmethod
    def reset_lanes(self, lanes: Array) -> list[Array]:
        """Starts new episodes in the lanes of a mask; only those are valid in what it returns."""

    @abstractmethod
    def step(self, action: Any) -> Step:
        """Steps every lane with a tree of ``[B, ...]`` actions; lanes that end are reset."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def probe(self) -> Env:
        """An environment of its own with one lane like those here, to learn its specs from."""

    def single(self) -> Any:
        """The one raw environment behind this, if stepping it alone is all a step does."""
        return None

    @property
    def full_observation_spec(self) -> dict[str, Any]:
        """Shapes and dtypes of everything a policy may read that the environment emits."""
        leaves = dict(self.spec.leaves)
        if self.marks_init:
            leaves["is_init",] = ShapeDtype((), np.dtype(np.bool_))
        return nest(leaves)

    @property
    def full_state_spec(self) -> dict[str, Any]:
        """Shapes and dtypes of the hidden states that it starts."""
        return nest({p: ShapeDtype(v.shape, v.dtype) for p, v in self.primers.items()})

    def rollout(self, max_steps: int, policy: Any = None, *, seed: int | None = None) -> Any:
        """Steps from a reset until some lane is done, at most `max_steps` times.

        Returns:
            a Batch ``[T]``, or ``[B, T]`` of a batched environment.
        """
        from .rollout import rollout

        return rollout(self, max_steps, policy, seed)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
