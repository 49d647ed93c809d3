"""Demonstrations, interventions and the agent's own experience in one batch, as RLPD has it.

A point has to find its goal, and is told only when it is there. Half of every batch is of
demonstrations, half of what the agent did online (Ball et al., "Efficient Online Reinforcement
Learning with Offline Data"). A human looks on, and takes over when the point goes astray; what he
does is

    a leaf    `intervened`, of each row: whose action it was
    a field   `human`, of each trajectory: which share of its actions were his
    a demonstration more: his steps go to the demonstrations, too

The actor is drawn to what humans did, the more so where they corrected an agent that mostly managed
by itself.

Run: `python examples/demo_mixing.py [--episodes 60] [--seed 1] [--no-demos]`. With demonstrations
it finds eight to ten goals of ten after some ten seconds on one core; without, one. Needs torch.
"""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from contig import LazyTensorStorage, RandomSampler, ReplayBuffer, ReplayBufferEnsemble

DEMOS, STEPS, NEAR, STRIDE = 5, 40, 0.1, 0.1
BATCH, GAMMA, TAU, LR, HIDDEN = 128, 0.97, 0.01, 1e-3, 64
NOISE, PATIENCE, TAKEOVER = 0.3, 6, 8  # of the agent; steps that the human waits, and that he acts
CLONE, CORRECTION, LAST, SOLVED = 1.0, 2.0, 20, 0.7

Array = np.ndarray[Any, Any]


class Point:
    """A place and a goal in a square; an action is a stride."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.at, self.goal = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2)

    def look(self) -> Array:
        return np.concatenate([self.at, self.goal]).astype(np.float32)

    def distance(self) -> float:
        return float(np.linalg.norm(self.at - self.goal))

    def step(self, action: Array) -> bool:
        self.at = np.clip(self.at + STRIDE * np.clip(action, -1, 1), -1, 1)
        return self.distance() < NEAR


def expert(point: Point, rng: np.random.Generator) -> Array:
    """What a human does: towards the goal, not quite straight."""
    way = (point.goal - point.at) / STRIDE
    return np.clip(way + rng.normal(0, 0.2, 2), -1, 1).astype(np.float32)


def network(inputs: int, outputs: int) -> nn.Module:
    # The norm keeps values of actions that nobody has tried from growing: what RLPD rests on.
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN),
        nn.LayerNorm(HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.LayerNorm(HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, outputs),
    )


class Learner:
    """TD3 with a term that draws the actor to what humans did."""

    def __init__(self) -> None:
        self.actor, self.critics = network(4, 2), nn.ModuleList([network(6, 1), network(6, 1)])
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self.actor_steps = torch.optim.Adam(self.actor.parameters(), LR)
        self.critic_steps = torch.optim.Adam(self.critics.parameters(), LR)

    @torch.no_grad()
    def act(self, observation: Array) -> Array:
        return np.asarray(self.actor(torch.from_numpy(observation)).tanh())

    def step(self, rows: Any) -> None:
        observation, action, after = rows["observation"], rows["action"], rows["next"]
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5)
            then = (self.actor(after["observation"]).tanh() + noise).clamp(-1, 1)
            value = values(self.target, after["observation"], then).amin(0)
            goal = after["reward"] + GAMMA * ~after["terminated"] * value
        self._descend(
            self.critic_steps, (values(self.critics, observation, action) - goal).square().mean()
        )
        wanted = self.actor(observation).tanh()
        self.critics.requires_grad_(False)
        found = values(self.critics, observation, wanted).amin(0)
        self.critics.requires_grad_(True)
        share = rows["fields"]["human"]
        weight = rows["intervened"] * (1 + CORRECTION * (1 - share))
        clone = (weight * (wanted - action).square().sum(-1)).mean()
        self._descend(self.actor_steps, CLONE * clone - found.mean())
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.critics.parameters()):
                slow.lerp_(fast, TAU)

    def _descend(self, steps: Any, loss: Any) -> None:
        steps.zero_grad()
        loss.backward()
        steps.step()


def values(critics: Any, observation: Any, action: Any) -> Any:
    """``[2, N]``"""
    x = torch.cat([observation, action], -1)
    return torch.stack([critic(x).squeeze(-1) for critic in critics])


def episode(rng: np.random.Generator, learner: Learner | None, human: bool = True) -> Any:
    """One episode as columns: of the human alone without a learner, else of the agent, whom he
    corrects if he looks on."""
    point = Point(rng)
    rows: list[tuple[Any, ...]] = []
    best, since, his, there = point.distance(), 0, 0, False
    while len(rows) < STEPS and not there:
        before = point.look()
        if human and his == 0 and since >= PATIENCE:
            his = TAKEOVER
        acted = learner is None or his > 0
        if learner is None or his > 0:
            action, his = expert(point, rng), max(his - 1, 0)
        else:
            noise = rng.normal(0, NOISE if human else 0, 2)
            action = np.clip(learner.act(before) + noise, -1, 1).astype(np.float32)
        there = point.step(action)
        since = 0 if acted or point.distance() < best else since + 1
        best = min(best, point.distance())
        rows.append((before, action, acted, point.look(), there))
    observation, actions, whose, after, ends = map(np.array, zip(*rows))
    late = np.zeros(len(rows), bool)
    late[-1] = not there
    return {
        "observation": observation,
        "action": actions,
        "intervened": whose,
        "next": {
            "observation": after,
            "reward": ends.astype(np.float32),
            "terminated": ends,
            "truncated": late,
        },
    }


def keep(buffer: ReplayBuffer, rows: Any) -> None:
    """Stores an episode, and which share of it was a human's."""
    buffer.extend_trajectory(rows, fields={"human": np.float32(rows["intervened"].mean())})


def takeovers(rows: Any) -> list[Any]:
    """The steps in which the human acted, one piece for each time."""
    edges = np.flatnonzero(np.diff(rows["intervened"].astype(np.int8), prepend=0, append=0))
    out = []
    for first, end in edges.reshape(-1, 2).tolist():
        piece = {k: v[first:end] for k, v in rows.items() if k != "next"}
        piece["next"] = {k: v[first:end].copy() for k, v in rows["next"].items()}
        piece["next"]["truncated"][-1] = not piece["next"]["terminated"][-1]
        out.append(piece)
    return out


def main(episodes: int, seed: int, demonstrations: bool = True) -> float:
    """Trains, and returns how many of some episodes reach their goals without a human."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng, learner = np.random.default_rng(seed), Learner()
    demos, online = (
        ReplayBuffer(
            LazyTensorStorage(20_000, fields={"human": np.float32(0)}),
            RandomSampler(fields=("human",)),
            seed=seed + i,
        )
        for i in range(2)
    )
    both = ReplayBufferEnsemble(
        demos, online, sample_from_all=True, batch_size=BATCH, output="torch", seed=seed
    )
    if demonstrations:
        for _ in range(DEMOS):
            keep(demos, episode(rng, None))
    begun, reached = time.perf_counter(), []
    for number in range(episodes):
        rows = episode(rng, learner, human=demonstrations)
        keep(online, rows)
        for piece in takeovers(rows):
            keep(demos, piece)
        reached.append(bool(rows["next"]["terminated"][-1]))
        for _ in range(len(rows["action"])):
            learner.step(both.sample() if demonstrations else online.sample(BATCH).torch())
        if (number + 1) % LAST == 0:
            his = online.storage.episodes()["human"][-LAST:].mean()
            print(
                f"{number + 1:4d} episodes, {time.perf_counter() - begun:3.0f} s: "
                f"{np.mean(reached[-LAST:]):4.0%} reached, {his:4.0%} of the steps the human's"
            )
    alone = [episode(rng, learner, human=False)["next"]["terminated"][-1] for _ in range(100)]
    print(f"without a human: {np.mean(alone):.0%} of 100 episodes reach their goals")
    return float(np.mean(alone))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-demos", action="store_true", help="the agent's own steps only")
    args = parser.parse_args()
    score = main(args.episodes, args.seed, not args.no_demos)
    if score < SOLVED and not args.no_demos:
        raise SystemExit(f"not learned: {score:.0%}, expected {SOLVED:.0%}")
