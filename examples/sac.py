"""SAC on Pendulum, with two actors in processes of their own that never wait for the learner.

The actors append to the learner's buffer and take new weights as they are published. A rate limiter
keeps one gradient step for every two frames, however fast either side is.

Run: `python examples/sac.py [--frames 20000] [--seed 1]`. It stops when the mean return of the last
20 episodes is -200 or more: with seeds 1 and 2 after about 10,000 frames, a minute or two on two
cores. Needs torch and gymnasium.
"""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from contig import GymEnv, LazyTensorStorage, MultiCollector, RateLimiter, ReplayBuffer

ACTORS, BATCH, FRAMES_PER_UPDATE = 2, 256, 2
RANDOM, CAPACITY, PUBLISH = 1000, 50_000, 10  # frames; rows; updates between two versions
GAMMA, TAU, LR, HIDDEN = 0.99, 0.01, 1e-3, 64
SOLVED, LAST = -200.0, 20
BOUND = 2.0  # of Pendulum's torque


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, outputs),
    )


class Actor(nn.Module):
    """A squashed normal. As a policy, it draws actions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(3, 2)

    def draw(self, observation: Any) -> tuple[Any, Any]:
        """Actions, and their log-probabilities."""
        mean, log_std = self.net(observation).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        # log(1 - tanh(x)^2), as it does not overflow
        squash = 2 * (np.log(2) - raw - nn.functional.softplus(-2 * raw))
        return BOUND * raw.tanh(), (normal.log_prob(raw) - squash - np.log(BOUND)).squeeze(-1)

    def forward(self, rows: Any) -> Any:
        return {"action": self.draw(rows["observation"])[0]}


class Critic(nn.Module):
    """Two estimates of an action's value; the lower one counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = network(4, 1), network(4, 1)

    def forward(self, observation: Any, action: Any) -> Any:
        """``[2, N]``"""
        x = torch.cat([observation, action], -1)
        return torch.stack([self.first(x), self.second(x)]).squeeze(-1)


class Learner:
    def __init__(self) -> None:
        self.actor, self.critic = Actor(), Critic()
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.optimizers = [
            torch.optim.Adam(p, lr=LR)
            for p in (self.critic.parameters(), self.actor.parameters(), [self.log_alpha])
        ]

    def step(self, rows: Any) -> None:
        observation, after = rows["observation"], rows["next"]
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            action, log_prob = self.actor.draw(after["observation"])
            value = self.target(after["observation"], action).amin(0) - alpha * log_prob
            alive = ~after["terminated"]  # a time limit is no end: its next value counts
            goal = after["reward"].float() + GAMMA * alive * value
        error = self.critic(observation, rows["action"]) - goal
        self._descend(0, error.square().mean())
        self.critic.requires_grad_(False)
        action, log_prob = self.actor.draw(observation)
        self._descend(1, (alpha * log_prob - self.critic(observation, action).amin(0)).mean())
        self.critic.requires_grad_(True)
        # One action dim: the entropy is drawn towards -1.
        self._descend(2, -(self.log_alpha.exp() * (log_prob.detach() - 1)).mean())
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.critic.parameters()):
                slow.lerp_(fast, TAU)

    def _descend(self, number: int, loss: Any) -> None:
        self.optimizers[number].zero_grad()
        loss.backward()
        self.optimizers[number].step()


def returns(buffer: ReplayBuffer) -> Any:
    """Of the last episodes on the tape."""
    episodes = buffer.storage.episodes()
    complete = episodes[episodes["complete"]]
    return complete["return"][np.argsort(complete["time"], kind="stable")][-LAST:]


def main(frames: int, seed: int) -> float:
    """Trains, and returns the mean return of the last episodes."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    learner = Learner()
    rate = BATCH / FRAMES_PER_UPDATE
    buffer = ReplayBuffer(
        LazyTensorStorage(CAPACITY),
        batch_size=BATCH,
        limiter=RateLimiter(rate, min_size=RANDOM, error_buffer=200 * rate, timeout_s=600),
        seed=seed,
    )
    collector = MultiCollector(
        [GymEnv("Pendulum-v1")] * ACTORS,
        learner.actor,
        frames_per_batch=20,
        total_frames=-1,
        sync=False,
        replay_buffer=buffer,
        init_random_frames=RANDOM,
        step_timeout_s=60.0,
        seed=seed,
    )
    begun, mean, shown = time.perf_counter(), -np.inf, 0
    with collector:
        collector.start()
        for update in range(1, frames // FRAMES_PER_UPDATE + 1):
            learner.step(buffer.sample().torch())
            if update % PUBLISH:
                continue
            collector.update_policy_weights_()
            written, last = buffer.stats().rows_written, returns(buffer)
            mean = float(last.mean()) if len(last) else -np.inf
            spent = time.perf_counter() - begun
            if written >= shown + 1000:
                shown = written
                print(f"{written:6d} frames  {spent:5.0f} s  mean return {mean:7.1f}", flush=True)
            if len(last) == LAST and mean >= SOLVED:
                print(
                    f"mean return {mean:.1f} over {LAST} episodes after {written} frames, "
                    f"{spent:.0f} s"
                )
                break
            if written >= frames:
                break
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="SAC on Pendulum with asynchronous actors.")
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    reached = main(arguments.frames, arguments.seed)
    if reached < SOLVED:
        raise SystemExit(f"not solved: mean return {reached:.1f}, expected {SOLVED:.0f}")
