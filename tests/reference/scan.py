"""Advantages and returns of one lane, step by step, in Python floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Floats = Sequence[float]
Flags = Sequence[bool]


def _after(t: int, values: Floats, stop: Flags) -> float | None:
    """What comes over from the next step; None where nothing does."""
    return None if stop[t] or t + 1 == len(values) else values[t + 1]


def gae(
    r: Floats, v: Floats, v2: Floats, stop: Flags, term: Flags, gamma: float, lmbda: float
) -> tuple[list[float], list[float]]:
    out = [0.0] * len(r)
    for t in reversed(range(len(r))):
        out[t] = r[t] + gamma * (0 if term[t] else v2[t]) - v[t]
        after = _after(t, out, stop)
        out[t] += 0 if after is None else gamma * lmbda * after
    return out, [a + x for a, x in zip(out, v)]


def lambda_return(
    r: Floats, v2: Floats | None, stop: Flags, term: Flags, gamma: float, lmbda: float
) -> list[float]:
    out = [0.0] * len(r)
    for t in reversed(range(len(r))):
        boot = 0 if term[t] or v2 is None else v2[t]
        after = _after(t, out, stop)
        out[t] = r[t] + gamma * (boot if after is None else (1 - lmbda) * boot + lmbda * after)
    return out


def vtrace(
    r: Floats,
    v: Floats,
    v2: Floats,
    stop: Flags,
    term: Flags,
    gamma: float,
    rho: Floats,
    c: Floats,
) -> tuple[list[float], list[float]]:
    n = len(r)
    x, advantage = [0.0] * n, [0.0] * n
    for t in reversed(range(n)):
        after = _after(t, x, stop)
        boot = 0 if term[t] else v2[t]
        x[t] = rho[t] * (r[t] + gamma * boot - v[t])
        x[t] += 0 if after is None else gamma * c[t] * after
        later = boot if after is None else v[t + 1] + x[t + 1]
        advantage[t] = rho[t] * (r[t] + gamma * later - v[t])
    return advantage, [a + b for a, b in zip(x, v)]


def nstep(r: Floats, v2: Floats, stop: Flags, term: Flags, gamma: float, n: int) -> list[float]:
    out = []
    for t in range(len(r)):
        total, k = 0.0, 0
        while True:
            total += gamma**k * r[t + k]
            k += 1
            last = t + k - 1
            if k == n or stop[last] or last + 1 == len(r):
                break
        out.append(total + gamma**k * (0 if term[last] else v2[last]))
    return out


def by_lane(
    function: Callable[..., Any], dims: tuple[int, ...], *arrays: Any, **options: Any
) -> Any:
    """A function of one lane, for each lane of arrays ``[outer, time, inner]``; None stays so."""
    outer, _, inner = dims
    first = function(*(_lane(a, 0, 0) for a in arrays), **options) if math.prod(dims) else []
    several = isinstance(first, tuple)
    outs = [np.zeros(dims) for _ in range(len(first) if several else 1)]
    for o in range(outer):
        for i in range(inner):
            found = function(*(_lane(a, o, i) for a in arrays), **options)
            for out, values in zip(outs, found if several else (found,)):
                out[o, :, i] = values
    return tuple(outs) if several else outs[0]


def _lane(array: Any, o: int, i: int) -> Any:
    return array if array is None or not isinstance(array, np.ndarray) else array[o, :, i].tolist()
