"""n-step transitions, made when they are sampled."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import number, whole
from ..tape import FoldedSteps, Recipe
from .at_once import UniformRows
from .base import Draw, Index, OuterSampler, Request, Rng, Sampler
from .uniform import RandomSampler

__all__ = ["NStepSampler"]


class NStepSampler(OuterSampler):
    """Rows with the reward of up to n steps and what came after the last of them.

    reward = sum of gamma^i r_i over k <= n rows; `next` and its flags from row k;
    `steps_to_next_obs` = k, so bootstrap with gamma^k. At a done, or where the trajectory still
    goes on, k is shorter.

    Args:
        n: steps.
        gamma: discount.
        sampler: what draws the rows; RandomSampler if None. Any sampler of single rows.
    """

    def __init__(self, n: int, gamma: float, sampler: Sampler | None = None) -> None:
        n = whole("n", n, 1, "a number of steps")
        self.n, self.gamma = n, number("gamma", gamma, 0, 1)
        self._rows, self._made_of = _folded(n, self.gamma), (n, self.gamma)
        super().__init__(RandomSampler() if sampler is None else sampler)

    def request(self, batch_size: int) -> Request:
        request = super().request(batch_size)
        if request.length != 1:
            raise ValueError("NStepSampler needs a sampler of single rows, not of slices")
        return request

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self._fold(index, self.sampler.draw(index, rng, request))

    def take(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self._fold(index, self.sampler.take(index, rng, request))

    def _fold(self, index: Index, inner: Draw | None) -> Draw | None:
        if inner is None:
            return None
        if inner.aside:
            raise ValueError("NStepSampler needs a sampler of stored rows, not HindsightRelabel")
        recipe = self._folded().recipe
        assert recipe is not None
        rows, lengths = index.view.follow(inner.seqs, self.n)
        # The rows are folded into one while they are gathered.
        return inner._replace(steps=FoldedSteps(rows, lengths, recipe))

    def _folded(self) -> UniformRows:
        if self._made_of != (self.n, self.gamma):  # they may be changed between samples
            self._rows, self._made_of = _folded(self.n, self.gamma), (self.n, self.gamma)
        return self._rows

    def at_once(self) -> UniformRows | None:
        how = self.sampler.at_once()
        plain = isinstance(how, UniformRows) and how.recipe is None
        if not plain or type(self).draw is not NStepSampler.draw:
            return None
        return self._folded()

    def agree(self, surveys: list[Any]) -> list[Any] | None:
        inner = self.sampler.agree(surveys) or [None] * len(surveys)
        return [(self.n, self.gamma, i) for i in inner]

    def adopt(self, told: Any) -> None:
        self.n, self.gamma, inner = told
        if inner is not None:
            self.sampler.adopt(inner)


def _folded(n: int, gamma: float) -> UniformRows:
    return UniformRows(Recipe(tuple((gamma ** np.arange(n)).tolist())))
