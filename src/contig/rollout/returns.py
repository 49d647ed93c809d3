"""The advantages of a rollout: contig.learn's, with what follows a time-out filled in."""

from __future__ import annotations

import torch

from .. import learn

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
    after = torch.cat([values[1:], last_values.unsqueeze(0)])
    terminated = done
    if time_out is not None:
        after = torch.where(done, values if final_values is None else final_values, after)
        terminated = done & ~time_out
    advantages, _ = learn.gae(
        reward=rewards,
        value=values,
        next_value=after,
        done=done,
        terminated=terminated,
        gamma=gamma,
        lmbda=lam,
    )
    return advantages.to(rewards.dtype)  # type: ignore[no-any-return]


def normalized(advantages: Tensor) -> Tensor:
    """(A - mean) / (std + 1e-8) for each kind of reward, in place; zeros for a single row."""
    flat = advantages.view(-1, advantages.shape[-1])
    if len(flat) < 2:
        return advantages.zero_()
    std, mean = torch.std_mean(flat, 0)  # unbiased
    return advantages.sub_(mean).div_(std + 1e-8)
