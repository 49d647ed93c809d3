"""RolloutFileBase: rollouts from files, handed out as vectorised environments would."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from .steps import part, rows_until, step_of, took

__all__ = ["RolloutFileBase"]


class RolloutFileBase(IterableDataset[Any], ABC):
    """What reads rollouts of `num_envs` envs. Iteration starts anew and ends with the data.

    A subclass keeps a cursor per env and implements `reset_all`, `refresh_handlers`, `get_buffer`
    and `fill_transition`. The last two deal in buffers: a named tuple, a dict, a TensorDict or the
    like of tensors. One that works env by env can leave `refresh_handlers` and `fill_transition`
    to those here (by `super()`), and implement the steps that these take:

        refresh_handlers   _refresh_traj_handler(env)   puts the cursor into a trajectory, and calls
                           _refresh_traj_data(env)      reads the file that the cursor is in
        fill_transition    _maintain_handler(env)       leaves a file or trajectory that has ended
                           _fill_transition_per_env(buffer, env)   writes a row, moves the cursor

    One thread at a time.

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
        """Starts anew, or gives some envs new trajectories.

        The first call starts anew, whichever envs it names: all of them then are at a start.
        """
        if env_ids is None or not self._ready:
            self._ready = False
            self.reset_all()
            self._ready = True
        else:
            self.refresh_handlers(env_ids)

    def get_batch(self, num_transitions_per_env: int | None = None) -> Any:
        """The next transition of every env, or that many, ``[T, num_envs, ...]``; always new
        tensors. Where the data ends before there are T, the last batch has fewer.

        Raises:
            StopIteration: the data has ended.
        """
        if not self._ready:
            self.reset()
        steps = num_transitions_per_env
        if steps is not None and steps < 1:
            raise ValueError(f"num_transitions_per_env={steps}: expected at least 1, or None")
        buffer = self.get_buffer(steps)
        if steps is None:
            self.fill_transition(buffer)
            return buffer
        for t in range(steps):
            row = step_of(buffer, t)
            try:
                self.fill_transition(row)
            except StopIteration:
                if t == 0:
                    raise
                return rows_until(buffer, t)
            took(buffer, t, row)
        return buffer

    def get_transition_batch(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As an environment's step: (observation, action, reward, done, info); `info` has
        `time_outs` if the data has them."""
        batch = self.get_batch()
        late = part(batch, "timeout", None)
        info = {} if late is None else {"time_outs": late}
        observation, action = part(batch, "observation"), part(batch, "action")
        return observation, action, part(batch, "reward"), part(batch, "done"), info

    def __iter__(self) -> Any:
        self.reset()
        return self

    def __next__(self) -> Any:
        return self.get_batch()

    def _env_numbers(self, env_ids: Any) -> np.ndarray[Any, Any]:
        """Envs by number, from numbers or a mask.

        Raises:
            ValueError: one that is not there, or is there twice.
        """
        if env_ids is None:
            return np.arange(self.num_envs)
        given = np.atleast_1d(np.asarray(torch.as_tensor(env_ids).cpu()))
        if given.dtype == bool and given.shape == (self.num_envs,):
            return np.flatnonzero(given)
        whole = given.size == 0 or given.dtype.kind in "iu"
        numbers = given.astype(np.int64)
        inside = whole and ((numbers >= 0) & (numbers < self.num_envs)).all()
        if given.ndim != 1 or not inside or len(set(numbers.tolist())) != numbers.size:
            raise ValueError(
                f"env_ids={given.tolist()}: expected numbers from 0 to {self.num_envs - 1}, each "
                f"once, or a mask of {self.num_envs}"
            )
        return numbers

    @abstractmethod
    def reset_all(self) -> None:
        """Forgets every cursor, and gives each env a trajectory."""

    @abstractmethod
    def refresh_handlers(self, env_ids: Any) -> None:
        """Gives some envs new trajectories."""
        for env in self._env_numbers(env_ids):
            self._refresh_traj_handler(int(env))

    @abstractmethod
    def get_buffer(self, num_transitions_per_env: int | None = None) -> Any:
        """New tensors ``[num_envs, ...]`` or ``[T, num_envs, ...]``, or Nones: in a named tuple, a
        dict, a TensorDict, or one alone."""

    @abstractmethod
    def fill_transition(self, buffer: Any, env_ids: Any = None) -> None:
        """Writes the next transition of some envs (None: of all) and moves their cursors.

        Raises:
            StopIteration: the data has ended; nothing was written.
        """
        envs = [int(env) for env in self._env_numbers(env_ids)]
        for env in envs:  # all of them first: the data may end here
            self._maintain_handler(env)
        for env in envs:
            self._fill_transition_per_env(buffer, env)

    def _refresh_traj_data(self, env_idx: int) -> None:
        """Reads the file that an env's cursor is in."""
        raise self._missing("_refresh_traj_data")

    def _refresh_traj_handler(self, env_idx: int) -> None:
        """Puts an env's cursor into its trajectory, and reads the file it is in."""
        raise self._missing("_refresh_traj_handler")

    def _maintain_handler(self, env_idx: int) -> None:
        """Before a row is read: moves an env on whose file or trajectory has ended."""

    def _fill_transition_per_env(self, buffer: Any, env_idx: int) -> None:
        """Writes the next row of one env, and moves its cursor."""
        raise self._missing("_fill_transition_per_env")

    def _missing(self, step: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no {step}: implement it, or the method of RolloutFileBase "
            "that calls it"
        )
