"""Steps whose values say which they are: value = step * 1000 + env."""

from __future__ import annotations

from typing import Any

import torch

from contig.rollout import RolloutStorage, Transition


def identity(step: int, envs: int, *shape: int) -> torch.Tensor:
    """``[envs, *shape]``, every number of a row the same."""
    ids = step * 1000.0 + torch.arange(envs)
    return ids.reshape(envs, *(1 for _ in shape)).expand(envs, *shape).clone()


def transition(step: int, envs: int, done: Any = None, **more: Any) -> Transition:
    """One step of every field that is always there."""
    flags = torch.zeros(envs, dtype=torch.bool) if done is None else done
    return Transition(
        observations=identity(step, envs, 3),
        actions=identity(step, envs, 2),
        rewards=identity(step, envs),
        dones=flags,
        values=identity(step, envs, 1),
        actions_log_prob=identity(step, envs),
        action_mean=identity(step, envs, 2),
        action_sigma=identity(step, envs, 2),
        **more,
    )


def filled(steps: int = 5, envs: int = 4, dones: Any = None, **options: Any) -> RolloutStorage:
    """A storage full of steps; `dones` is ``[steps, envs]``."""
    storage = RolloutStorage(envs, steps, (3,), None, (2,), seed=0, **options)
    for step in range(steps):
        storage.add_transitions(transition(step, envs, None if dones is None else dones[step]))
    return storage


def random_dones(steps: int, envs: int, seed: int = 0, rate: float = 0.3) -> torch.Tensor:
    return torch.rand(steps, envs, generator=torch.Generator().manual_seed(seed)) < rate
