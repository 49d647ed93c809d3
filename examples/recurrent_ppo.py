"""Recurrent PPO on CartPole without velocities: the policy must remember to know how things move.

Eight environments act in step; what they did is cut into contiguous slices of 32 rows, each with
the hidden state the policy had at its first row. A minibatch is some slices, whole.

Run: `python examples/recurrent_ppo.py [--frames 400000] [--seed 1]`. It stops when the mean return
of the last 50 episodes is 400 or more: with seed 1 after 114,000 frames, about a minute on one
core. Needs torch and gymnasium.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from contig import GAE, Collector, GRUModule, SerialEnv, set_recurrent_mode

ENVS, STEPS, SLICE = 8, 128, 32
EPOCHS, MINIBATCH = 4, 8  # slices in a minibatch
GAMMA, LMBDA, CLIP, ENTROPY, VALUE, LR, MAX_NORM = 0.99, 0.95, 0.2, 0.01, 0.5, 1e-3, 0.5
HIDDEN, SOLVED, LAST = 64, 400.0, 50
SCALE = 0.1  # of rewards, so that values stay within a few units


class Positions(gymnasium.ObservationWrapper):
    """Shows where cart and pole are, not how fast they move."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.array([observation[0] / 2.4, observation[2] / 0.2], np.float32)


def make_env() -> Any:
    return Positions(gymnasium.make("CartPole-v1"))


class Agent(nn.Module):
    """Observation -> GRU -> logits and value. As a policy, it draws actions."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, HIDDEN), nn.Tanh())
        self.gru = GRUModule(
            HIDDEN,
            HIDDEN,
            in_keys=["encoded", "recurrent_state", "is_init"],
            out_keys=["features", ("next", "recurrent_state")],
        )
        self.actor, self.critic = nn.Linear(HIDDEN, 2), nn.Linear(HIDDEN, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def evaluate(self, rows: Any) -> Any:
        """The rows with `logits` and `state_value`."""
        out = self.gru({**rows, "encoded": self.encoder(rows["observation"])})
        out["logits"] = self.actor(out["features"])
        out["state_value"] = self.critic(out["features"]).squeeze(-1)
        return out

    def forward(self, rows: Any) -> Any:
        out = self.evaluate(rows)
        policy = Categorical(logits=out["logits"], validate_args=False)
        action = policy.sample()
        return {
            "action": action,
            "log_prob": policy.log_prob(action),
            ("next", "recurrent_state"): out["next", "recurrent_state"],
        }


class Returns:
    """The returns of the last episodes, from batches ``[ENVS, STEPS]``."""

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=LAST)
        self._running = np.zeros(ENVS)

    def look(self, batch: Any) -> float:
        """Takes a batch in; returns the mean."""
        reward, done = batch["next", "reward"], batch["next", "done"]
        for t in range(STEPS):
            self._running += reward[:, t]
            self.last.extend(self._running[done[:, t]])
            self._running[done[:, t]] = 0
        return float(np.mean(self.last)) if self.last else 0.0


def slices(rows: dict[str, Any]) -> dict[str, Any]:
    """``[ENVS, STEPS]`` as ``[slices, SLICE]``, what the loss needs of it."""
    names = ("observation", "recurrent_state", "is_init", "action", "log_prob")
    names += ("advantage", "value_target")
    return {k: rows[k].reshape(-1, SLICE, *rows[k].shape[2:]) for k in names}


def loss_of(agent: Agent, rows: dict[str, Any]) -> Any:
    with set_recurrent_mode("recurrent"):
        out = agent.evaluate(rows)
    policy = Categorical(logits=out["logits"])
    ratio = (policy.log_prob(rows["action"]) - rows["log_prob"]).exp()
    gain = rows["advantage"]
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    clipped = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
    error = (out["state_value"] - rows["value_target"]).square()
    return -clipped.mean() + VALUE * error.mean() - ENTROPY * policy.entropy().mean()


def main(frames: int, seed: int) -> float:
    """Trains, and returns the mean return of the last episodes."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    agent, returns = Agent(), Returns()
    optimizer = torch.optim.Adam(agent.parameters(), lr=LR, eps=1e-5)
    values = set_recurrent_mode("recurrent")(agent.evaluate)  # goes along each trajectory
    gae = GAE(gamma=GAMMA, lmbda=LMBDA, value_net=values, single_call=True, time_dim=1)
    collector = Collector(
        SerialEnv(ENVS, make_env),
        agent,
        frames_per_batch=ENVS * STEPS,
        total_frames=frames // (ENVS * STEPS) * ENVS * STEPS,
        auto_register_policy_transforms=True,
        seed=seed,
    )
    begun, mean = time.perf_counter(), 0.0
    for number, batch in enumerate(collector, 1):
        mean = returns.look(batch)
        rows = batch.torch()
        rows["next"]["reward"] = SCALE * rows["next"]["reward"].float()
        data = slices(gae(rows))
        for _ in range(EPOCHS):
            order = rng.permutation(ENVS * STEPS // SLICE)
            for at in range(0, len(order), MINIBATCH):
                some = torch.from_numpy(order[at : at + MINIBATCH])
                loss = loss_of(agent, {k: v[some] for k, v in data.items()})
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), MAX_NORM)
                optimizer.step()
        done, spent = collector.frames, time.perf_counter() - begun
        if number % 10 == 0:
            print(f"{done:7d} frames  {spent:5.0f} s  mean return {mean:6.1f}", flush=True)
        if len(returns.last) == LAST and mean >= SOLVED:
            print(f"mean return {mean:.1f} over {LAST} episodes after {done} frames, {spent:.0f} s")
            break
    collector.shutdown()
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Recurrent PPO on CartPole without velocities.")
    parser.add_argument("--frames", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    reached = main(arguments.frames, arguments.seed)
    if reached < SOLVED:
        raise SystemExit(f"not solved: mean return {reached:.1f}, expected {SOLVED:.0f}")
