"""Advantages and returns of trajectories that lie one after another.

For all: ``time_dim=0`` is flat ``[N]`` or ``[T, B]``, 1 is ``[B, T]``; dims after these are rewards
or agents, and flags may lack them. `reward`, `value` and `next_value` have one shape; nothing is
broadcast. `terminated` says where there is no next state, so its value does not count; None: it is
`done`. `done` says where an episode ends, so what comes after does not count. `cut` is True on the
last row of a run that is no end of an episode: its next value counts, the row after it does not.

numpy arrays and CPU tensors go through native scans, tensors elsewhere through vectorised ones.
float64 stays float64, all else is float32. Results are new arrays without gradients. Thread-safe.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _native
from .steps import Array, ScanInput, number

__all__ = [
    "gae",
    "td0_return",
    "td_lambda_return",
    "discounted_return",
    "vtrace",
    "nstep_return",
]


def gae(
    *,
    reward: Any,
    value: Any,
    next_value: Any,
    done: Any,
    terminated: Any = None,
    gamma: float,
    lmbda: float,
    time_dim: int = 0,
    cut: Any = None,
) -> tuple[Any, Any]:
    """Generalized advantages, and the value targets ``advantage + value``.

    ``d = r + gamma (1 - terminated) V' - V``, ``A = d + gamma lmbda (1 - done) A_next``.

    Raises:
        ValueError: shapes that differ, or a number out of range, with the argument's name.
    """
    gamma, lmbda = number("gamma", gamma, 0, 1), number("lmbda", lmbda, 0, 1)
    floats = {"value": value, "next_value": next_value}
    s = ScanInput(reward, floats, (done, terminated, cut), time_dim)
    v, v2 = s.floats["value"], s.floats["next_value"]
    if not s.on_host:
        from .vectorised import gae as run

        advantage, target = run(s.reward, v, v2, s.stop, s.terminated, gamma, lmbda)
    else:
        advantage, target = s.new(), s.new()
        _native.scan_gae(s.reward, v, v2, s.stop, s.terminated, gamma, lmbda, advantage, target)
    return s.result(advantage), s.result(target)


def td0_return(
    *,
    reward: Any,
    next_value: Any,
    done: Any,
    terminated: Any = None,
    gamma: float,
    time_dim: int = 0,
    cut: Any = None,
) -> Any:
    """One-step targets, ``r + gamma (1 - terminated) V'``."""
    steps = ScanInput(reward, {"next_value": next_value}, (done, terminated, cut), time_dim)
    return _lambda(steps, gamma, 0.0)


def td_lambda_return(
    *,
    reward: Any,
    next_value: Any,
    done: Any,
    terminated: Any = None,
    gamma: float,
    lmbda: float,
    time_dim: int = 0,
    cut: Any = None,
) -> Any:
    """Targets ``r + gamma ((1 - lmbda) V' + lmbda G_next)``; where a run ends, ``r + gamma V'``."""
    steps = ScanInput(reward, {"next_value": next_value}, (done, terminated, cut), time_dim)
    return _lambda(steps, gamma, number("lmbda", lmbda, 0, 1))


def discounted_return(
    *,
    reward: Any,
    done: Any,
    terminated: Any = None,
    gamma: float,
    next_value: Any = None,
    time_dim: int = 0,
    cut: Any = None,
) -> Any:
    """Discounted sums of rewards up to the end of each run.

    With `next_value` a run that does not end terminated goes on with the value of its next state;
    without it nothing is added there.
    """
    steps = ScanInput(reward, {"next_value": next_value}, (done, terminated, cut), time_dim)
    return _lambda(steps, gamma, 1.0)


def _lambda(s: ScanInput, gamma: float, lmbda: float) -> Any:
    gamma, value = number("gamma", gamma, 0, 1), s.floats["next_value"]
    if not s.on_host:
        from .vectorised import lambda_return as run

        return s.result(run(s.reward, value, s.stop, s.terminated, gamma, lmbda))
    target = s.new()
    _native.scan_lambda(s.reward, value, s.stop, s.terminated, gamma, lmbda, target)
    return s.result(target)


def vtrace(
    *,
    reward: Any,
    value: Any,
    next_value: Any,
    done: Any,
    terminated: Any = None,
    gamma: float,
    log_rho: Any = None,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    time_dim: int = 0,
    cut: Any = None,
) -> tuple[Any, Any]:
    """V-trace advantages and targets.

    ``v = V + x``, ``x = rho (r + gamma V' - V) + gamma c x_next``; the advantage is
    ``rho (r + gamma v' - V)``, v' being the next row's target, or V' where a run ends. rho and c
    are ``exp(log_rho)``, clipped.

    Args:
        log_rho: log-probability of the action under the learner's policy, less that under the
            policy that acted; may lack dims as flags may. None: both are the same.
        others: as everywhere here.
    """
    gamma = number("gamma", gamma, 0, 1)
    rho_clip = number("rho_clip", rho_clip, 0, float("inf"))
    c_clip = number("c_clip", c_clip, 0, float("inf"))
    floats = {"value": value, "next_value": next_value, "log_rho": log_rho}
    s = ScanInput(reward, floats, (done, terminated, cut), time_dim, partial=("log_rho",))
    v, v2, log = s.floats["value"], s.floats["next_value"], s.floats["log_rho"]
    if not s.on_host:
        from .vectorised import vtrace as run

        advantage, target = run(s.reward, v, v2, s.stop, s.terminated, gamma, log, rho_clip, c_clip)
    else:
        ratio = np.ones(s.dims, s.dtype) if log is None else _exp(log)
        rho: Array = np.minimum(ratio, s.dtype.type(rho_clip))
        c: Array = np.minimum(ratio, s.dtype.type(c_clip))
        advantage, target = s.new(), s.new()
        _native.scan_vtrace(s.reward, v, v2, s.stop, s.terminated, gamma, rho, c, advantage, target)
    return s.result(advantage), s.result(target)


def _exp(log: Array) -> Array:
    with np.errstate(over="ignore"):  # it is clipped next
        return np.asarray(np.exp(log))


def nstep_return(
    *,
    reward: Any,
    next_value: Any,
    done: Any,
    terminated: Any = None,
    gamma: float,
    n: int,
    time_dim: int = 0,
    cut: Any = None,
) -> Any:
    """Targets of k rewards and the value after them, k = n or fewer up to the end of the run."""
    gamma = number("gamma", gamma, 0, 1)
    if int(n) != n or n < 1:
        raise ValueError(f"n: expected a number of steps, at least 1, got {n}")
    s = ScanInput(reward, {"next_value": next_value}, (done, terminated, cut), time_dim)
    value = s.floats["next_value"]
    if not s.on_host:
        from .vectorised import nstep as run

        return s.result(run(s.reward, value, s.stop, s.terminated, gamma, int(n)))
    target = s.new()
    _native.scan_nstep(s.reward, value, s.stop, s.terminated, gamma, int(n), target)
    return s.result(target)
