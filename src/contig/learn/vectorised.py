"""The scans in torch, for tensors that are not on the CPU: no loop over time.

All are linear recurrences ``x_t = a_t + k_t x_(t+1)``, solved by doubling the distance: log2(T)
rounds of a few operations on whole tensors. Arguments are ``[outer, time, inner]``, as in
native/kernels/scan.h.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["gae", "lambda_return", "vtrace", "nstep"]


def _solve(a: Any, k: Any) -> Any:
    """x with ``x_t = a_t + k_t x_(t+1)``; k is 0 where nothing comes over from the next step."""
    a, k = a.clone(), k.clone()
    if a.shape[1]:
        k[:, -1] = 0
    distance = 1
    while distance < a.shape[1]:
        # where, not times 0: what is beyond an end may be anything.
        far = torch.where(k[:, :-distance] == 0, 0, k[:, :-distance] * a[:, distance:])
        a = torch.cat([a[:, :-distance] + far, a[:, -distance:]], 1)
        k = torch.cat([k[:, :-distance] * k[:, distance:], torch.zeros_like(k[:, -distance:])], 1)
        distance *= 2
    return a


def _bootstrap(next_value: Any, terminated: Any) -> Any:
    return torch.where(terminated, 0, next_value)


def _last(stop: Any) -> Any:
    """Where a lane stops, its last step included."""
    out = stop.clone()
    if out.shape[1]:
        out[:, -1] = True
    return out


def _next(x: Any) -> Any:
    """Every step's next one; at the last step anything."""
    return torch.roll(x, -1, 1)


def gae(
    reward: Any,
    value: Any,
    next_value: Any,
    stop: Any,
    terminated: Any,
    gamma: float,
    lmbda: float,
) -> tuple[Any, Any]:
    delta = reward + gamma * _bootstrap(next_value, terminated) - value
    advantage = _solve(delta, torch.where(stop, 0, torch.full_like(delta, gamma * lmbda)))
    return advantage, advantage + value


def lambda_return(
    reward: Any, next_value: Any, stop: Any, terminated: Any, gamma: float, lmbda: float
) -> Any:
    stop = _last(stop)
    k = torch.where(stop, 0, torch.full_like(reward, gamma * lmbda))
    if next_value is None:
        return _solve(reward, k)
    weight = torch.where(stop, 1, torch.full_like(reward, 1 - lmbda))
    return _solve(reward + gamma * weight * _bootstrap(next_value, terminated), k)


def vtrace(
    reward: Any,
    value: Any,
    next_value: Any,
    stop: Any,
    terminated: Any,
    gamma: float,
    log_rho: Any,
    rho_clip: float,
    c_clip: float,
) -> tuple[Any, Any]:
    ratio = torch.ones_like(reward) if log_rho is None else log_rho.exp()
    rho, c = ratio.clamp(max=rho_clip), ratio.clamp(max=c_clip)
    boot = _bootstrap(next_value, terminated)
    delta = rho * (reward + gamma * boot - value)
    target = _solve(delta, torch.where(stop, 0, gamma * c)) + value
    after = torch.where(_last(stop), boot, _next(target))
    return rho * (reward + gamma * after - value), target


def nstep(reward: Any, next_value: Any, stop: Any, terminated: Any, gamma: float, n: int) -> Any:
    stop = _last(stop)
    ends = reward + gamma * _bootstrap(next_value, terminated)
    out = ends
    for _ in range(min(n, max(1, reward.shape[1])) - 1):
        out = torch.where(stop, ends, reward + gamma * _next(out))
    return out
