"""What the demonstration trains: an agent with a memory, on a CartPole that hides its velocities.

The learner's rows come from policies a few versions old. V-trace corrects the values for that, and
the policy's step is bounded as in PPO, against the probabilities the actors really had.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn.functional import log_softmax

from ..collect import SerialEnv
from ..learn import GRUModule, VTrace, set_recurrent_mode

__all__ = ["Agent", "Learner", "make_envs"]

_HIDDEN = 64
_GAMMA, _TRACE, _CLIP = 0.99, 0.95, 0.2
_VALUE, _ENTROPY, _LR, _MAX_NORM = 0.5, 0.01, 1e-3, 0.5
_SCALE = 0.1  # of rewards, so that values stay within a few units


class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows where cart and pole are, not how fast they move."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.array([observation[0] / 2.4, observation[2] / 0.2], np.float32)


def make_env() -> Any:
    return Positions(gymnasium.make("CartPole-v1", disable_env_checker=True))


def make_envs(lanes: int) -> SerialEnv:
    """The environments of one actor."""
    return SerialEnv(lanes, make_env)


class Agent(nn.Module):
    """Observation -> GRU -> logits and value. As a policy, it draws actions."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, _HIDDEN), nn.Tanh())
        self.memory = GRUModule(
            _HIDDEN,
            _HIDDEN,
            in_keys=["encoded", "hidden", "is_init"],
            out_keys=["features", ("next", "hidden")],
        )
        self.actor, self.critic = nn.Linear(_HIDDEN, 2), nn.Linear(_HIDDEN, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def evaluate(self, rows: Any) -> Any:
        """The rows with `log_probs` ``[N, 2]`` and `state_value` ``[N]``."""
        out = self.memory({**rows, "encoded": self.encoder(rows["observation"])})
        out["log_probs"] = log_softmax(self.actor(out["features"]), -1)
        out["state_value"] = self.critic(out["features"]).squeeze(-1)
        return out

    def forward(self, rows: Any) -> Any:
        out = self.evaluate(rows)
        action = torch.multinomial(out["log_probs"].exp(), 1)
        return {
            "action": action.squeeze(-1),
            "log_prob": out["log_probs"].gather(-1, action).squeeze(-1),
            ("next", "hidden"): out["next", "hidden"],
        }


class Learner:
    """Takes gradient steps on batches of slices. Not thread-safe."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._optimizer = torch.optim.Adam(agent.parameters(), lr=_LR, eps=1e-5)
        values = set_recurrent_mode("recurrent")(agent.evaluate)
        # A trace below 1 is what lambda is to GAE.
        self._vtrace = VTrace(gamma=_GAMMA, c_clip=_TRACE, value_net=values, single_call=True)

    def step(self, batch: Any) -> None:
        """One step on a flat batch of slices, each from the hidden state stored at its start."""
        rows = batch.torch()
        rows["next"]["reward"] = _SCALE * rows["next"]["reward"].float()
        with set_recurrent_mode("recurrent"):
            out = self.agent.evaluate(rows)
        log_prob = out["log_probs"].gather(-1, rows["action"].unsqueeze(-1)).squeeze(-1)
        log_rho = log_prob - rows["log_prob"]
        rows = self._vtrace({**rows, "log_rho": log_rho.detach()})
        gain = rows["value_target"] - rows["state_value"]
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        ratio = log_rho.exp()
        clipped = torch.min(ratio * gain, ratio.clamp(1 - _CLIP, 1 + _CLIP) * gain)
        error = (out["state_value"] - rows["value_target"]).square()
        entropy = -(out["log_probs"].exp() * out["log_probs"]).sum(-1)
        loss = -clipped.mean() + _VALUE * error.mean() - _ENTROPY * entropy.mean()
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), _MAX_NORM)
        self._optimizer.step()
