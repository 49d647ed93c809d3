"""Recurrent PPO on CartPole without velocities: the policy must remember to know how things move.

Eight environments act in step; what they did is cut into contiguous slices of 32 rows, each with
the hidden state the policy had at its first row. A minibatch is some slices, whole.

Run: `python examples/recurrent_ppo.py [--frames 400000] [--seed 1]`. It stops when the mean return
of the last 50 episodes is 400 or more: with seeds 1 to 3 after 100,000 to 120,000 frames, half a
minute on one core. Needs torch and gymnasium.
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

from contig import GAE, GRUModule, set_recurrent_mode

ENVS, STEPS, SLICE = 8, 128, 32
EPOCHS, MINIBATCH = 4, 8  # slices in a minibatch
GAMMA, LMBDA, CLIP, ENTROPY, VALUE, LR, MAX_NORM = 0.99, 0.95, 0.2, 0.01, 0.5, 1e-3, 0.5
HIDDEN, SOLVED, LAST = 64, 400.0, 50
SCALE = 0.1  # of rewards, so that values stay within a few units


class Agent(nn.Module):
    """observation -> GRU -> logits and value. Rows in, rows out."""

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

    def forward(self, rows: Any) -> Any:
        out = self.gru({**rows, "encoded": self.encoder(rows["observation"])})
        out["logits"] = self.actor(out["features"])
        out["state_value"] = self.critic(out["features"]).squeeze(-1)
        return out


class Envs:
    """CartPoles that show positions only, reset by hand: the last observation is never lost."""

    def __init__(self, seed: int) -> None:
        self.envs = [gymnasium.make("CartPole-v1") for _ in range(ENVS)]
        first = [env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)]
        self.observation = np.stack([self.seen(o) for o in first])
        self.is_init = np.ones(ENVS, bool)
        self.returns = np.zeros(ENVS)
        self.finished: deque[float] = deque(maxlen=LAST)

    @staticmethod
    def seen(state: Any) -> Any:
        return np.array([state[0] / 2.4, state[2] / 0.2], np.float32)

    def step(self, action: Any) -> dict[str, Any]:
        after, reward = np.empty((ENVS, 2), np.float32), np.empty(ENVS, np.float32)
        terminated, done = np.zeros(ENVS, bool), np.zeros(ENVS, bool)
        self.is_init = np.zeros(ENVS, bool)
        for i, env in enumerate(self.envs):
            state, reward[i], terminated[i], truncated, _ = env.step(int(action[i]))
            after[i] = self.observation[i] = self.seen(state)
            self.returns[i] += reward[i]
            done[i] = terminated[i] or truncated
            if done[i]:
                self.finished.append(self.returns[i])
                self.returns[i], self.is_init[i] = 0, True
                self.observation[i] = self.seen(env.reset()[0])
        return {
            "observation": after,
            "reward": SCALE * reward,
            "terminated": terminated,
            "done": done,
        }


def collect(agent: Agent, envs: Envs, state: Any) -> tuple[dict[str, Any], Any]:
    """Rows ``[ENVS, STEPS]`` and the hidden states to go on with."""
    steps: list[dict[str, Any]] = []
    for _ in range(STEPS):
        state[torch.from_numpy(envs.is_init)] = 0
        row: dict[str, Any] = {
            "observation": torch.from_numpy(envs.observation.copy()),
            "recurrent_state": state,
            "is_init": torch.from_numpy(envs.is_init),
        }
        with torch.no_grad():
            out = agent(row)
        policy = Categorical(logits=out["logits"])
        row["action"] = policy.sample()
        row["log_prob"] = policy.log_prob(row["action"])
        after = envs.step(row["action"].numpy())
        row["next"] = {k: torch.from_numpy(v) for k, v in after.items()}
        steps.append(row)
        state = out["next", "recurrent_state"].clone()
    return stack(steps), state


def stack(steps: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in steps[0].items():
        found = [s[key] for s in steps]
        out[key] = stack(found) if isinstance(value, dict) else torch.stack(found, 1)
    return out


def slices(rows: dict[str, Any]) -> dict[str, Any]:
    """``[ENVS, STEPS]`` as ``[slices, SLICE]``, what the loss needs of it."""
    names = ("observation", "recurrent_state", "is_init", "action", "log_prob")
    names += ("advantage", "value_target")
    return {k: rows[k].reshape(-1, SLICE, *rows[k].shape[2:]) for k in names}


def loss_of(agent: Agent, rows: dict[str, Any]) -> Any:
    with set_recurrent_mode("recurrent"):
        out = agent(rows)
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
    agent, envs = Agent(), Envs(seed)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LR, eps=1e-5)
    values = set_recurrent_mode("recurrent")(agent)  # the critic goes along each trajectory
    gae = GAE(gamma=GAMMA, lmbda=LMBDA, value_net=values, single_call=True, time_dim=1)
    state = torch.zeros(ENVS, 1, HIDDEN)
    begun, mean = time.perf_counter(), 0.0
    for done in range(ENVS * STEPS, frames + 1, ENVS * STEPS):
        rows, state = collect(agent, envs, state)
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
        mean = float(np.mean(envs.finished)) if envs.finished else 0.0
        if done // (ENVS * STEPS) % 10 == 0:
            spent = time.perf_counter() - begun
            print(f"{done:7d} frames  {spent:5.0f} s  mean return {mean:6.1f}", flush=True)
        if len(envs.finished) == LAST and mean >= SOLVED:
            spent = time.perf_counter() - begun
            print(f"mean return {mean:.1f} over {LAST} episodes after {done} frames, {spent:.0f} s")
            break
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Recurrent PPO on CartPole without velocities.")
    parser.add_argument("--frames", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    main(arguments.frames, arguments.seed)
