"""Generalized advantage estimation on any torch device."""

from __future__ import annotations

import torch

__all__ = ["gae", "normalized"]

Tensor = torch.Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    last_values: Tensor,
    done: Tensor,
    gamma: float,
    lam: float,
    time_out: Tensor | None = None,
    final_values: Tensor | None = None,
) -> Tensor:
    """Advantages ``[T, N, R]`` of rows in time order.

    Args:
        rewards, values: ``[T, N, R]``.
        last_values: of the states behind the last row, ``[N, R]``.
        done: ``[T, N, 1]``; nothing flows over it.
        time_out: ``[T, N, 1]``, where a done row's state had a value yet: of `final_values`
            ``[T, N, R]``, or of the row's own state if that is None.
    """
    going_on = (~done).to(rewards.dtype).expand_as(rewards)
    advantages = torch.empty_like(rewards)
    advantages[:-1] = values[1:]
    advantages[-1] = last_values
    if time_out is None:
        advantages.mul_(going_on)
    else:
        after = values if final_values is None else final_values
        # where, not a product: a value that is not wanted may be anything.
        behind = torch.where(time_out, after, torch.zeros_like(after))
        advantages = torch.where(done, behind, advantages)
    advantages.mul_(gamma).add_(rewards).sub_(values)  # the TD errors
    keep = going_on.mul(gamma * lam)
    for t in range(len(rewards) - 2, -1, -1):
        advantages[t].addcmul_(keep[t], advantages[t + 1])
    return advantages


def normalized(advantages: Tensor) -> Tensor:
    """(A - mean) / (std + 1e-8) for each kind of reward, in place; zeros for a single row."""
    flat = advantages.view(-1, advantages.shape[-1])
    if len(flat) < 2:
        return advantages.zero_()
    std, mean = torch.std_mean(flat, 0)  # unbiased
    return advantages.sub_(mean).div_(std + 1e-8)
