"""What is stepped: environments as collectors see them, and what a step of their lanes gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..tree import Path
from .specs import Array, Spec

__all__ = ["Leaves", "Step", "SteppedEnv", "wide"]


class Leaves(list[Array]):
    """An observation taken apart: its leaves in the spec's order, ``[B, ...]``, nobody else's."""


class Step(NamedTuple):
    """What one step of all lanes gave; arrays are ``[B, ...]``.

    Attributes:
        next: the true next observation; at an episode's end the final one.
        reward, terminated, truncated: of the step.
        obs: what to act on next: the same, but the first observation after a reset. None: lanes
            that ended are yet to be reset.
        stepped: which lanes made a step; None: all. The others only reset.
        infos: of each lane, what its environment said beside; None: nothing. Of lanes that did not
            end it may be left out (None).
    """

    next: Any
    reward: Any
    terminated: Any
    truncated: Any
    obs: Any = None
    stepped: Array | None = None
    infos: Sequence[Any] | None = None


class SteppedEnv(Protocol):
    """What `EnvBase` is for those that step it; its methods are described there."""

    num_envs: int
    batch_shape: tuple[int, ...]
    primers: dict[Path, Array]
    marks_init: bool

    @property
    def spec(self) -> Spec: ...

    @property
    def action_space(self) -> Any: ...

    def single(self) -> Any: ...

    def loop(self, policy: Any) -> Any: ...

    def begin(self, seed: int | None = None) -> Leaves: ...

    def begin_lanes(self, lanes: Array) -> Leaves: ...

    def advance(self, action: Any) -> Step: ...

    def hidden(self) -> dict[Path, Array]: ...

    def keep_infos(self) -> None: ...


def wide(mask: Array, like: Array) -> Array:
    """A mask of lanes with as many dims as an array."""
    return mask.reshape(mask.shape + (1,) * (like.ndim - 1))
