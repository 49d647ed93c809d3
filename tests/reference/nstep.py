"""n-step transitions, from the rows that follow each other."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def fold(
    reward: Array, done: Array | None, lengths: Array, gamma: float
) -> tuple[Array, Array, Array]:
    """Groups of `lengths` rows, one after another: the rows at which they end (as places), how many
    rows count, and the discounted sums of rewards ``[groups, ...]``, in double precision."""
    last, steps, sums = [], [], []
    start = 0
    for length in lengths.tolist():
        k = length
        if done is not None:
            ended = np.flatnonzero(done[start : start + length].reshape(length, -1).any(-1))
            k = int(ended[0]) + 1 if len(ended) else length
        wide = np.complex128 if reward.dtype.kind == "c" else np.float64
        total = np.zeros(reward.shape[1:], wide)
        for i in range(k):
            total = total + reward[start + i].astype(wide) * gamma**i
        last.append(start + k - 1)
        steps.append(k)
        sums.append(total)
        start += length
    return np.array(last), np.array(steps), np.array(sums)
