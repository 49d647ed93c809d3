"""DQN with prioritized replay on CartPole, in plain JAX.

Double Q-learning with three-step targets. A `Batch` is a pytree: the jitted update takes what the
buffer samples as it is, by its paths, and returns the errors that become the rows' priorities.

Run: `python examples/jax_dqn.py [--frames 100000] [--seed 1]`. It stops when the mean return of the
last 30 episodes is 400 or more: with seed 1 after 43,000 frames, about a minute on one core. Needs
jax and gymnasium.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from contig import (
    Collector,
    GymEnv,
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    ReplayBuffer,
)

CAPACITY, BATCH, WARM_UP, TRAIN_EVERY, TARGET_EVERY = 30_000, 128, 1000, 4, 500
GAMMA, N_STEPS, LR, MAX_NORM = 0.99, 3, 5e-4, 10.0
EXPLORE_FRAMES, LEAST_EPSILON = 10_000, 0.02
SIZES = (4, 128, 128, 2)
SOLVED, LAST = 400.0, 30


class Learner(NamedTuple):
    """What an update changes: parameters, and Adam's means of gradients and of their squares."""

    net: Any
    target: Any
    mean: Any
    square: Any
    steps: Any


def make_learner(key: Any) -> Learner:
    net = []
    for inputs, outputs in pairwise(SIZES):
        key, drawn = jax.random.split(key)
        weight = jax.random.uniform(drawn, (inputs, outputs), minval=-1.0) * inputs**-0.5
        net.append((weight, jnp.zeros(outputs)))
    zeros = jax.tree.map(jnp.zeros_like, net)
    return Learner(net, net, zeros, zeros, jnp.zeros((), jnp.int32))


@jax.jit
def values(net: Any, observation: Any) -> Any:
    """A value for each action."""
    x = observation
    for weight, bias in net[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = net[-1]
    return x @ weight + bias


def errors_of(net: Any, target: Any, batch: Any) -> Any:
    """Of each row, how far its value is from what came after it."""
    after = batch["next", "observation"]
    best = values(net, after).argmax(-1, keepdims=True)
    value = jnp.take_along_axis(values(target, after), best, -1)[:, 0]
    alive = ~batch["next", "terminated"]  # a time limit is no end: its next value counts
    discount = GAMMA ** batch["steps_to_next_obs"]
    goal = batch["next", "reward"] + discount * alive * value
    q = jnp.take_along_axis(values(net, batch["observation"]), batch["action"][:, None], -1)
    return q[:, 0] - jax.lax.stop_gradient(goal)


@jax.jit
def update(learner: Learner, batch: Any) -> tuple[Learner, Any]:
    """One step of Adam. Returns the rows' errors, too."""

    def loss(net: Any) -> tuple[Any, Any]:
        error = errors_of(net, learner.target, batch)
        huber = jnp.where(jnp.abs(error) < 1, 0.5 * error**2, jnp.abs(error) - 0.5)
        return (batch["priority_weight"] * huber).mean(), error

    slope, error = jax.grad(loss, has_aux=True)(learner.net)
    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(slope)))
    slope = jax.tree.map(lambda g: g * jnp.minimum(1.0, MAX_NORM / (norm + 1e-6)), slope)
    steps = learner.steps + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, learner.mean, slope)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, learner.square, slope)
    rate = LR * jnp.sqrt(1 - 0.999**steps) / (1 - 0.9**steps)
    net = jax.tree.map(
        lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), learner.net, mean, square
    )
    return Learner(net, learner.target, mean, square, steps), jnp.abs(error)


class Policy:
    """Acts epsilon-greedily; collectors give it numpy arrays with an env dim."""

    def __init__(self, net: Any, seed: int) -> None:
        self.net, self.epsilon = net, 1.0
        self._random = np.random.default_rng(seed)

    def __call__(self, rows: Any) -> Any:
        envs = len(rows["is_init"])
        if self._random.random() < self.epsilon:
            return {"action": self._random.integers(0, SIZES[-1], envs)}
        return {"action": np.asarray(values(self.net, rows["observation"]).argmax(-1), np.int64)}


def returns(buffer: ReplayBuffer) -> Any:
    """Of the last episodes on the tape."""
    episodes = buffer.storage.episodes()
    complete = episodes[episodes["complete"]]
    return complete["return"][np.argsort(complete["time"], kind="stable")][-LAST:]


def main(frames: int, seed: int) -> float:
    """Trains, and returns the mean return of the last episodes."""
    learner = make_learner(jax.random.key(seed))
    policy = Policy(learner.net, seed)
    sampler = NStepSampler(N_STEPS, GAMMA, PrioritizedSampler(alpha=0.6, beta=0.4))
    buffer = ReplayBuffer(LazyTensorStorage(CAPACITY), sampler, batch_size=BATCH, seed=seed)
    collector = Collector(
        GymEnv("CartPole-v1"),
        policy,
        frames_per_batch=TRAIN_EVERY,
        total_frames=frames,
        replay_buffer=buffer,
        seed=seed,
    )
    begun, mean = time.perf_counter(), 0.0
    for _ in collector:
        frame = collector.frames
        policy.epsilon = max(LEAST_EPSILON, 1 - frame / EXPLORE_FRAMES)
        if frame > WARM_UP:
            batch = buffer.sample()
            learner, errors = update(learner, batch)
            buffer.update_priority(batch["index"], np.asarray(errors))
            policy.net = learner.net
        if frame % TARGET_EVERY:
            continue
        learner = learner._replace(target=learner.net)
        last = returns(buffer)
        mean = float(last.mean()) if len(last) else 0.0
        spent = time.perf_counter() - begun
        if frame % 5000 == 0:
            print(f"{frame:7d} frames  {spent:5.0f} s  mean return {mean:6.1f}", flush=True)
        if len(last) == LAST and mean >= SOLVED:
            print(
                f"mean return {mean:.1f} over {LAST} episodes after {frame} frames, {spent:.0f} s"
            )
            break
    collector.shutdown()
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="DQN with prioritized replay, in plain JAX.")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    reached = main(arguments.frames, arguments.seed)
    if reached < SOLVED:
        raise SystemExit(f"not solved: mean return {reached:.1f}, expected {SOLVED:.0f}")
