"""Prioritized replay for stable-baselines3, which has none: surprises are drawn more often.

buffer = PrioritizedReplayBuffer(..., alpha=0.6, beta=0.4)
data = buffer.sample(256)                     # also data.weights and data.indices
loss = (data.weights * td_error**2).mean()
buffer.update_priorities(data.indices, td_error)
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np
import torch

from ...arguments import number
from ...batch import Batch
from ...convert import as_array
from ...keys import INDEX, WEIGHT
from ...sample import PrioritizedSampler, Sampler
from .nstep import StepsReplayBuffer

__all__ = ["PrioritizedReplayBuffer", "PrioritizedReplayBufferSamples"]

log = logging.getLogger("contig.adapters")

Array = np.ndarray[Any, Any]

_DRAWS = 10  # batches without priorities: who sets them does it after each, or after a few


class PrioritizedReplayBufferSamples(NamedTuple):
    """SB3's ReplayBufferSamples; and importance weights [n, 1], the largest of which is 1, and the
    rows' numbers, int64 [n].

    Attributes:
        observations, actions, next_observations, dones, rewards, discounts: as SB3's.
        weights, indices: as above; `update_priorities` takes indices.
    """

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    indices: Array | None = None


class PrioritizedReplayBuffer(StepsReplayBuffer):
    """Rows in proportion to their priority, of one step or of several, of any observation space.

    New rows have the largest priority so far. An algorithm that does not set priorities draws
    uniformly, and the log says so once; `PrioritizedDQN` sets them.

    Args:
        args, kwargs: as in `ReplayBuffer`.
        alpha: how much priorities count, from 0 (not at all) on.
        beta: how much weights correct for it, from 0 to 1 (fully); may be changed between samples.
        eps: added to priorities, so that no row is forgotten.
        n_steps, gamma: as in `NStepReplayBuffer`.
    """

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-6,
        n_steps: int = 1,
        gamma: float = 0.99,
        **kwargs: Any,
    ) -> None:
        self.alpha, self.eps = alpha, eps
        self.initial_beta = self._beta = number("beta", beta, 0, 1)
        self._draws_unset = 0  # draws before anybody has set a priority
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **kwargs)

    def _row_sampler(self) -> Sampler:
        return PrioritizedSampler(alpha=self.alpha, beta=self._beta, eps=self.eps)

    @property
    def beta(self) -> float:
        """How much importance weights correct, from 0 to 1; may be set."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        sampler = self._drawn.sampler
        assert isinstance(sampler, PrioritizedSampler)
        sampler.beta = self._beta = number("beta", value, 0, 1)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        if 0 <= self._draws_unset < _DRAWS:
            self._draws_unset += 1
            if self._draws_unset == _DRAWS:
                log.warning(
                    "%s: %d batches were drawn and no priority was set, so rows are drawn "
                    "uniformly: use PrioritizedDQN, or call update_priorities(data.indices, "
                    "td_errors) after each batch",
                    type(self).__name__,
                    _DRAWS,
                )
        return self._samples(self._draw(batch_size), env)

    def _samples(self, batch: Batch, env: Any, **more: Any) -> Any:
        rows = len(batch)
        weights = batch[WEIGHT] if WEIGHT in batch else np.ones(rows, np.float32)
        weights = weights / weights.max()  # the least likely row of all would make all others small
        return super()._samples(
            batch,
            env,
            weights=self._tensors(weights.reshape(rows, 1)),
            indices=batch[INDEX],
            **more,
        )

    @property
    def _samples_type(self) -> Any:
        return PrioritizedReplayBufferSamples

    def update_priorities(self, indices: Any, td_errors: Any) -> None:
        """Sets priorities to the size of TD errors.

        Args:
            indices: `indices` of the samples; rows evicted meanwhile are left out.
            td_errors: one for each, or several (of each critic): the largest counts.
        """
        self._draws_unset = -1
        rows = as_array(indices)
        sizes = np.abs(as_array(td_errors)).reshape(len(rows), -1).max(-1)
        # A priority of 0 would mean never again.
        self._buffer.update_priority(rows, np.maximum(sizes, np.finfo(np.float32).tiny))
