"""Returns and lengths of episodes over time, in a few hundred points whatever there are."""

from __future__ import annotations

from typing import Any

import numpy as np

from .curves import as_json

__all__ = ["returns_over_time"]

Array = np.ndarray[Any, Any]

_POINTS = 120


def returns_over_time(episodes: Array) -> dict[str, Any]:
    """Ended episodes in the order of their ends: each, or the mean and range of some.

    Args:
        episodes: as a storage's `episodes()` has them.
    """
    ended = episodes[episodes["terminated"] | episodes["truncated"]]
    ended = ended.take(np.argsort(ended["time"], kind="stable"))
    n = len(ended)
    out: dict[str, Any] = {"ended": n, "open": len(episodes) - n, "time": []}
    for name in ("return", "steps"):
        out[name] = {"mean": [], "low": [], "high": []}
    if not n:
        return out
    starts = np.unique(np.linspace(0, n, min(n, _POINTS), endpoint=False).astype(np.int64))
    sizes = np.diff(np.r_[starts, n])
    out["time"] = as_json(ended["time"][starts])
    for name in ("return", "steps"):
        values = ended[name].astype(np.float64)
        out[name] = {
            "mean": as_json(np.add.reduceat(values, starts) / sizes),
            "low": as_json(np.minimum.reduceat(values, starts)),
            "high": as_json(np.maximum.reduceat(values, starts)),
        }
    out["mean_return"] = as_json(ended["return"][-100:].mean(keepdims=True))[0]
    out["mean_steps"] = as_json(ended["steps"][-100:].astype(np.float64).mean(keepdims=True))[0]
    return out
