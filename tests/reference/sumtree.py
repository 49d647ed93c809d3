"""Weights drawn in proportion: the sum tree, without the tree."""

from __future__ import annotations

from typing import Any

import numpy as np


class Weights:
    def __init__(self, n: int) -> None:
        self.w = np.zeros(n)

    @property
    def total(self) -> float:
        return float(self.w.sum())

    @property
    def least(self) -> float:
        """The smallest positive weight."""
        return float(min(self.w[self.w > 0], default=np.inf))

    def update(self, leaves: Any, values: Any) -> None:
        for leaf, value in zip(leaves, values):  # one after another: the last one counts
            self.w[leaf] = value

    def fill(self, start: int, stop: int, value: float) -> None:
        for i in range(start, stop):
            self.w[i % len(self.w)] = value

    def at(self, u: float) -> int:
        """The leaf at that share of the total."""
        return int(np.searchsorted(np.cumsum(self.w), u * self.total, side="right"))

    def prioritize(
        self, seqs: Any, p: Any, tail: int, head: int, alpha: float, eps: float
    ) -> tuple[int, int, float]:
        """(place of the first bad priority or -1, rows left out, largest priority set)."""
        for i, x in enumerate(p):
            if not 0 <= x < np.inf:
                return i, 0, 0.0
        kept = [(s, x) for s, x in zip(seqs, p) if tail <= s < head]
        for s, x in kept:
            self.w[s % len(self.w)] = (x + eps) ** alpha if x > 0 else 0.0
        return -1, len(seqs) - len(kept), max((x for _, x in kept), default=0.0)

    def weights(self, seqs: Any, beta: float) -> Any:
        """How much rarer than the rarest row each was drawn: (q / least) ** -beta."""
        return [(self.w[s % len(self.w)] / self.least) ** -beta for s in seqs]
