"""NStepReplayBuffer of stable-baselines3: rewards of several steps, summed when sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common import buffers as sb3

from ...batch import Batch
from ...keys import INDEX, REWARD, STEPS
from ...sample import Draw, Index, NStepSampler, OuterSampler, RandomSampler, Request, Rng, Sampler
from ...tape.one_leaf import read_leaf
from .replay import ReplayBuffer

__all__ = ["NStepReplayBuffer", "StepsReplayBuffer"]

Array = np.ndarray[Any, Any]


class ChosenRows(OuterSampler):
    """Draws as another sampler does, unless rows were chosen for the next draw."""

    chosen: Array | None = None

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        if self.chosen is None:
            return self.sampler.draw(index, rng, request)
        rows, self.chosen = self.chosen, None
        return Draw(rows)


class StepsReplayBuffer(ReplayBuffer):
    """Rows of one step or of several, of any sampler of rows.

    Args:
        args, kwargs: as in `ReplayBuffer`.
        n_steps: steps; fewer at an episode's end, and where it has not gone on yet.
        gamma: discount.
    """

    def __init__(self, *args: Any, n_steps: int, gamma: float, **kwargs: Any) -> None:
        self.n_steps, self.gamma = n_steps, gamma
        super().__init__(*args, **kwargs)

    def _make_sampler(self) -> Sampler:
        self._drawn = ChosenRows(self._row_sampler())
        return NStepSampler(self.n_steps, self.gamma, self._drawn)

    def _row_sampler(self) -> Sampler:
        return RandomSampler()

    def _read(self, seqs: Array) -> Batch:
        self._drawn.chosen = seqs
        return self._draw(len(seqs))

    def _draw(self, batch_size: int) -> Batch:
        sampler = self._buffer.sampler
        assert isinstance(sampler, NStepSampler)
        sampler.n, sampler.gamma = self.n_steps, self.gamma  # they may be changed
        return self._buffer.draw(batch_size)

    def _samples(self, batch: Batch, env: Any, **more: Any) -> Any:
        discounts = self.gamma ** batch[STEPS].reshape(-1, 1).astype(np.float32)
        return super()._samples(batch, env, discounts=self._tensors(discounts), **more)

    def _reward(self, batch: Batch, env: Any) -> Array:
        if env is None or not env.norm_reward:
            return super()._reward(batch, None)
        # Each reward is normalised, and clipped, by itself. The next row of an env is one step of
        # all envs later.
        ahead = np.arange(self.n_steps)
        mask = ahead < batch[STEPS].reshape(-1, 1)
        rows = batch[INDEX].reshape(-1, 1) + np.where(mask, ahead, 0) * self.n_envs
        rewards = read_leaf(self.storage, rows.reshape(-1), REWARD)[0].reshape(rows.shape)
        discounts = self.gamma ** ahead.astype(np.float32)
        summed = (self._normalize_reward(rewards, env) * discounts * mask).sum(1, keepdims=True)
        return np.asarray(summed, np.float32)


class NStepReplayBuffer(StepsReplayBuffer, sb3.NStepReplayBuffer):  # type: ignore[override]
    """SB3's NStepReplayBuffer. Args as in `StepsReplayBuffer`.

    Args:
        n_steps: how many at most.
        gamma: the discount.
    """

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **kwargs: Any) -> None:
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **kwargs)
