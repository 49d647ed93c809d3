"""What an environment must provide for a policy that remembers: its hidden states at a reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tree import Path

__all__ = ["HiddenState", "HiddenStates"]


@dataclass(frozen=True)
class HiddenState:
    """One leaf that a reset fills: its path, its shape in one environment, dtype and value."""

    key: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    default: float = 0.0

    def initial(self, batch: tuple[int, ...] = ()) -> Any:
        """The state at a reset, ``[*batch, *shape]``."""
        return np.full((*batch, *self.shape), self.default, self.dtype)


@dataclass(frozen=True)
class HiddenStates:
    """The hidden states of a module, and the leaf that must say where trajectories start."""

    states: tuple[HiddenState, ...]
    init_key: Path = ("is_init",)

    @property
    def keys(self) -> tuple[Path, ...]:
        return tuple(s.key for s in self.states)

    def initial(self, batch: tuple[int, ...] = ()) -> dict[Path, Any]:
        """All of them at a reset, by path."""
        return {s.key: s.initial(batch) for s in self.states}
