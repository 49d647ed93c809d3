"""Statistics of features, as LeRobot normalises by them: of each episode, and of all."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Stats", "joined", "of_images", "of_numbers"]

Array = np.ndarray[Any, Any]
#: By name: min, max, mean, std, count and quantiles; count is ``[1]``, the others a row's shape.
Stats = dict[str, Array]

_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_FRAMES = 100  # of an episode, that images' statistics are of
_PIXELS = 150  # of a side, likewise


def of_numbers(column: Array) -> Stats:
    """Of one episode, ``[T, ...]``."""
    return _of(column.astype(np.float64), len(column), 0)


def of_images(frames: Array) -> Stats:
    """Of one episode of images, uint8 ``[T, height, width, channels]``: per channel, from 0 to 1,
    ``[channels, 1, 1]``; of some frames and pixels, evenly spread."""
    which = np.unique(np.linspace(0, len(frames) - 1, _FRAMES).round().astype(int))
    high, wide = (max(side // _PIXELS, 1) for side in frames.shape[1:3])
    some = frames[which][:, ::high, ::wide] / 255.0
    stats = _of(some, len(some), (0, 1, 2))
    return {k: v if k == "count" else v.reshape(-1, 1, 1) for k, v in stats.items()}


def _of(values: Array, count: int, axis: Any) -> Stats:
    quantiles = np.quantile(values, list(_QUANTILES.values()), axis=axis)
    out = {
        "min": values.min(axis),
        "max": values.max(axis),
        "mean": values.mean(axis),
        "std": values.std(axis),
        **dict(zip(_QUANTILES, quantiles)),
    }
    named = {k: np.atleast_1d(np.asarray(v, np.float64)) for k, v in out.items()}
    return {**named, "count": np.array([count])}


def joined(one: Stats | None, other: Stats) -> Stats:
    """Of both together. Quantiles are weighted means of theirs, as LeRobot has them."""
    if one is None:
        return other
    a, b = (int(s["count"][0]) for s in (one, other))
    share = b / (a + b)
    mean = one["mean"] + (other["mean"] - one["mean"]) * share
    spread = sum(
        (s["std"] ** 2 + (s["mean"] - mean) ** 2) * w for s, w in ((one, 1 - share), (other, share))
    )
    out = {
        "min": np.minimum(one["min"], other["min"]),
        "max": np.maximum(one["max"], other["max"]),
        "mean": mean,
        "std": np.sqrt(spread),
        "count": np.array([a + b]),
    }
    return out | {q: one[q] + (other[q] - one[q]) * share for q in _QUANTILES}
