"""Trajectories whose values say which step they are: (trajectory, t, b) in every field."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from contig import Trajectory, TrajectoryReplayBuffer

Array = np.ndarray[Any, Any]


def identity(number: int, steps: int, envs: int) -> Array:
    """``[T, B, 3]``: trajectory, t, b."""
    t, b = np.meshgrid(np.arange(steps), np.arange(envs), indexing="ij")
    return np.stack([np.full_like(t, number), t, b], -1).astype(np.float32)


def made(
    number: int, steps: int = 4, envs: int = 2, epochs: int = 0, weights: str = "w", **more: Any
) -> Trajectory:
    """One trajectory. Bootstrap rows, `epochs` of them, hold -1 where nobody should look."""
    who = identity(number, steps, envs)
    value = who[..., :1] * 1000 + who[..., 1:2] * 10 + who[..., 2:]
    return Trajectory(
        max_episode_length=10 + number,
        model_weights_id=weights,
        actions=torch.from_numpy(who.copy()),
        rewards=torch.from_numpy(value.copy()),
        dones=torch.from_numpy(with_extra(value, epochs, first=True)),
        prev_values=torch.from_numpy(with_extra(value, epochs, first=False)),
        curr_obs={"states": torch.from_numpy(who.copy()), "deep": {"t": torch.from_numpy(value)}},
        **more,
    )


def with_extra(value: Array, epochs: int, first: bool) -> Array:
    """The rows with one more per epoch, at its beginning or at its end."""
    if not epochs:
        return value.copy()
    steps = len(value) // epochs
    parts = value.reshape(epochs, steps, *value.shape[1:])
    extra = np.full((epochs, 1, *value.shape[1:]), -1, value.dtype)
    joined = np.concatenate([extra, parts] if first else [parts, extra], 1)
    return np.ascontiguousarray(joined.reshape(epochs * (steps + 1), *value.shape[1:]))


def check(batch: dict[str, Any], n: int | None = None) -> Array:
    """Every row of a batch is one step, whole; returns who they are, ``[n, 3]``."""
    who = np.asarray(batch["actions"])
    assert n is None or len(who) == n
    value = who[:, :1] * 1000 + who[:, 1:2] * 10 + who[:, 2:]
    assert np.array_equal(np.asarray(batch["curr_obs"]["states"]), who)
    for field in (batch["rewards"], batch["curr_obs"]["deep"]["t"]):
        assert np.array_equal(np.asarray(field), value)
    for name in ("dones", "prev_values"):
        assert np.array_equal(np.asarray(batch[name]), value), name
    return who


def filled(count: int, steps: int = 4, envs: int = 2, **options: Any) -> TrajectoryReplayBuffer:
    buffer = TrajectoryReplayBuffer(**options)
    for number in range(count):
        buffer.add_trajectories([made(number, steps, envs)])
    return buffer


def drawn(buffer: TrajectoryReplayBuffer, batches: int = 3, n: int = 16) -> list[Any]:
    """Who was drawn, of some batches."""
    return [check(buffer.sample(n)).tolist() for _ in range(batches)]
