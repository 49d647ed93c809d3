"""RolloutFileBase: rollouts from files, handed out as vectorised environments would."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch.utils.data import IterableDataset

__all__ = ["RolloutFileBase"]


class RolloutFileBase(IterableDataset[Any], ABC):
    """What reads rollouts of `num_envs` envs. Iteration starts anew and ends with the data.

    A subclass keeps a cursor per env and implements `reset_all`, `refresh_handlers`, `get_buffer`
    and `fill_transition`. One thread at a time.

    Args:
        data_dir: where the data is.
        num_envs: envs that are read side by side.
        device: where batches go; None: cuda if there is one, else cpu.
    """

    def __init__(self, data_dir: Any, num_envs: int = 1, device: Any = None) -> None:
        super().__init__()
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: expected at least 1")
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.data_dir = data_dir
        self.num_envs = num_envs
        self.device = torch.device(device)
        self._ready = False

    @property
    def all_env_ids(self) -> torch.Tensor:
        """``[0, 1, ..., num_envs - 1]``."""
        return torch.arange(self.num_envs, device=self.device)

    def reset(self, env_ids: Any = None) -> None:
        """Starts anew, or gives some envs new trajectories."""
        if env_ids is None or not self._ready:
            self.reset_all()
            self._ready = True
        if env_ids is not None:
            self.refresh_handlers(env_ids)

    def get_batch(self, num_transitions_per_env: int | None = None) -> Any:
        """The next transition of every env, or that many, ``[T, num_envs, ...]``; always new
        tensors.

        Raises:
            StopIteration: the data has ended.
        """
        if not self._ready:
            self.reset()
        buffer = self.get_buffer(num_transitions_per_env)
        if num_transitions_per_env is None:
            self.fill_transition(buffer)
        else:
            for t in range(num_transitions_per_env):
                self.fill_transition(type(buffer)(*(None if x is None else x[t] for x in buffer)))
        return buffer

    def get_transition_batch(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As an environment's step: (observation, action, reward, done, info); `info` has
        `time_outs` if the data has them."""
        batch = self.get_batch()
        late = getattr(batch, "timeout", None)
        info = {} if late is None else {"time_outs": late}
        return batch.observation, batch.action, batch.reward, batch.done, info

    def __iter__(self) -> Any:
        self.reset()
        return self

    def __next__(self) -> Any:
        return self.get_batch()

    @abstractmethod
    def reset_all(self) -> None:
        """Forgets every cursor, and gives each env a trajectory."""

    @abstractmethod
    def refresh_handlers(self, env_ids: Any) -> None:
        """Gives some envs new trajectories."""

    @abstractmethod
    def get_buffer(self, num_transitions_per_env: int | None = None) -> Any:
        """A namedtuple of new tensors ``[num_envs, ...]`` or ``[T, num_envs, ...]``, or Nones."""

    @abstractmethod
    def fill_transition(self, buffer: Any, env_ids: Any = None) -> None:
        """Writes the next transition of some envs (None: of all) and moves their cursors."""
