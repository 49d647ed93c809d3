"""ReplayBuffer and DictReplayBuffer of stable-baselines3, with rows on a tape."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from ...batch import Batch
from ...tree import Path
from ..steps.buffer import StepBuffer

__all__ = ["DictReplayBuffer", "ReplayBuffer"]

Array = np.ndarray[Any, Any]


class ReplayBuffer(StepBuffer, sb3.ReplayBuffer):  # type: ignore[override]
    """SB3's ReplayBuffer, without its arrays.

    `observations`, `actions`, `rewards` and so on can be read as SB3's arrays can; flags of the
    last step (`dones`, `timeouts`) can be set, other rows do not change.

    Attributes:
        storage: where the rows are, as trajectories; `storage.episodes()` lists them.

    Args:
        buffer_size, observation_space, action_space, device, n_envs, handle_timeout_termination: as
            SB3's.
        optimize_memory_usage: changes nothing that is stored: observations, and frames of those
            that are stacked (`VecFrameStack`), are stored once in any case, and next observations
            are what the step led to. SB3's are the first of the next episode where one is
            truncated. It goes with `handle_timeout_termination`, Dict observations and n steps;
            without the first, the oldest step of a full buffer is not drawn, as in SB3.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
    ) -> None:
        sb3.BaseBuffer.__init__(
            self, buffer_size, observation_space, action_space, device, n_envs=n_envs
        )
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self._open()

    def _taken(self, batch: Batch, parent: Path, env: Any) -> Any:
        return self._normalize_obs(super()._taken(batch, parent, env), env)

    def _reward(self, batch: Batch, env: Any) -> Array:
        return self._normalize_reward(super()._reward(batch, env), env)

    @property
    def _samples_type(self) -> Any:
        return ReplayBufferSamples if self._rows.keys is None else DictReplayBufferSamples


class DictReplayBuffer(ReplayBuffer, sb3.DictReplayBuffer):  # type: ignore[override]
    """SB3's DictReplayBuffer: observations of several keys. Args as in `ReplayBuffer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self.obs_shape, dict), (
            "DictReplayBuffer must be used with Dict obs space only"
        )
