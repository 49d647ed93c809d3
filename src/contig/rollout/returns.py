"""The advantages and returns of a rollout, with what follows a time-out filled in.

On the host, native scans write where the results belong; on other devices contig.learn computes.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _native, learn

__all__ = ["gae", "normalize"]

Tensor = torch.Tensor

_EPSILON = 1e-8


def gae(
    rewards: Tensor,
    values: Tensor,
    last_values: Tensor,
    done: Tensor,
    gamma: float,
    lam: float,
    time_out: Tensor | None = None,
    final_values: Tensor | None = None,
    *,
    advantages: Tensor,
    returns: Tensor,
) -> None:
    """Fills advantages ``[T, N, R]`` and returns, of rows in time order.

    Args:
        rewards, values: ``[T, N, R]``.
        last_values: of the states behind the last row, ``[N, R]``.
        done: ``[T, N, 1]``; nothing flows over it.
        time_out: ``[T, N, 1]``, also a done, of a state that had a value yet: of `final_values`
            ``[T, N, R]``, or of the row's own state if that is None.
        advantages, returns: what to fill, of one dtype, in which all is computed.
    """
    dtype = advantages.dtype
    rewards, values, last_values = rewards.to(dtype), values.to(dtype), last_values.to(dtype)
    final_values = None if final_values is None else final_values.to(dtype)
    floats = [rewards, values, last_values, advantages, returns]
    if final_values is not None:
        floats.append(final_values)
    if all(_on_host(tensor) for tensor in floats):
        _native.rollout_gae(
            _rows(rewards),
            _rows(values),
            last_values.view(-1).numpy(),
            _rows(done.expand(rewards.shape)),
            None if time_out is None else _rows(time_out.expand(rewards.shape)),
            None if final_values is None else _rows(final_values),
            gamma,
            lam,
            _rows(advantages),
            _rows(returns),
        )
        return
    after = torch.cat([values[1:], last_values.unsqueeze(0)])
    terminated = done
    if time_out is not None:
        after = torch.where(time_out, values if final_values is None else final_values, after)
        done, terminated = done | time_out, done & ~time_out
    found, targets = learn.gae(
        reward=rewards,
        value=values,
        next_value=after,
        done=done,
        terminated=terminated,
        gamma=gamma,
        lmbda=lam,
    )
    advantages.copy_(found)
    returns.copy_(targets)


def normalize(advantages: Tensor) -> None:
    """(A - mean) / (std + 1e-8) for each kind of reward, in place; zeros for a single row."""
    flat = advantages.view(-1, advantages.shape[-1])
    if _on_host(flat):
        _native.standardize(flat.numpy(), _EPSILON)
        return
    if len(flat) < 2:
        flat.zero_()
        return
    std, mean = torch.std_mean(flat, 0)  # unbiased
    flat.sub_(mean).div_(std + _EPSILON)


def _on_host(tensor: Tensor) -> bool:
    """Whether the native scans can work in its memory."""
    return (
        tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.float64)
        and tensor.is_contiguous()
    )


def _rows(tensor: Tensor) -> Any:
    """``[T, N, R]`` as an array ``[T, N * R]``."""
    return tensor.contiguous().view(len(tensor), -1).numpy()
