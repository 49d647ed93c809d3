"""SB3's DQN with prioritized replay: weighs its loss, and sets priorities to the TD errors.

Schaul et al., Prioritized Experience Replay, https://arxiv.org/abs/1511.05952
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN
from torch.nn import functional

from .prioritized import PrioritizedReplayBuffer

__all__ = ["PrioritizedDQN"]


class PrioritizedDQN(DQN):
    """SB3's DQN, whose `replay_buffer_class` is `PrioritizedReplayBuffer` if none is given.

    `replay_buffer_kwargs` may have `alpha`, `beta` and `eps`; beta goes from there to 1 in the
    course of `learn`. `n_steps` and `gamma` are the buffer's too, unless they are there.
    """

    def _setup_model(self) -> None:
        if self.replay_buffer_class is None:
            self.replay_buffer_class = PrioritizedReplayBuffer
        if not issubclass(self.replay_buffer_class, PrioritizedReplayBuffer):
            raise TypeError(
                f"replay_buffer_class: {self.replay_buffer_class.__name__} has no priorities; give "
                "PrioritizedReplayBuffer or a subclass, or use stable_baselines3.DQN"
            )
        # For this call only: what a model is loaded with may differ from what it was saved with.
        # SB3, which does not know that the buffer has steps, would warn that they are left out.
        steps, given = self.n_steps, self.replay_buffer_kwargs
        self.replay_buffer_kwargs = {"n_steps": steps, "gamma": self.gamma, **given}
        self.n_steps = 1
        try:
            super()._setup_model()
        finally:
            self.n_steps, self.replay_buffer_kwargs = steps, given

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        buffer = self.replay_buffer
        assert isinstance(buffer, PrioritizedReplayBuffer)
        progress = 1 - max(self._current_progress_remaining, 0)  # rollouts go over the end
        buffer.beta = buffer.initial_beta + (1 - buffer.initial_beta) * progress
        losses = []
        for _ in range(gradient_steps):
            data = buffer.sample(batch_size, env=self._vec_normalize_env)
            values, targets = self._values(data)
            loss = (
                data.weights * functional.smooth_l1_loss(values, targets, reduction="none")
            ).mean()
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            buffer.update_priorities(data.indices, (targets - values).detach())
            losses.append(loss.item())
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
        self.logger.record("train/beta", buffer.beta)

    def _values(self, data: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the actions taken: the net's, and what they turned out to be worth, [n, 1]."""
        discounts = self.gamma if data.discounts is None else data.discounts
        with torch.no_grad():
            best = self.q_net_target(data.next_observations).amax(1, keepdim=True)
            targets = data.rewards + (1 - data.dones) * discounts * best
        return self.q_net(data.observations).gather(1, data.actions.long()), targets
