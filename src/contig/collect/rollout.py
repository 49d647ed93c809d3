"""`env.rollout`: one stretch of steps, for a look at an environment or a test of a policy."""

from __future__ import annotations

from typing import Any

from ..batch import Batch
from .env import EnvBase
from .policy import PolicyRunner
from .roller import Roller

__all__ = ["rollout"]


def rollout(env: EnvBase, max_steps: int, policy: Any, seed: int | None) -> Batch:
    """Rows from a reset until some lane is done, at most `max_steps` of each lane."""
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    runner = PolicyRunner(policy, env.action_space, seed=seed)
    roller = Roller(env, runner, max_steps, seed=seed)
    roller.begin()
    rows = 0
    while rows < max_steps:
        step = roller.step()
        rows += 1
        if step.terminated.any() or step.truncated.any():
            break
    batch = roller.take_block(rows)
    return batch if env.batch_shape else batch.reshape(rows)
