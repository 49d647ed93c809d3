"""The learner of r2d2.py on a Ray cluster: actors and shards on its nodes, training on one.

    actors ──shared memory──> shard of their node ──┐
    actors ──shared memory──> shard of their node ──┴──slices──> learner
       ^                                                            │
       └───────────── weights: one object for each version <───────┘

Network, loss and environment are those of r2d2.py. What is different is where things are: a
RayReplayBuffer in place of the ReplayBuffer, a RayCollector that runs beside the learner in place
of the Collector, and `update_policy_weights_` to tell the actors.

Run: `python examples/ray_r2d2.py [--seconds 20] [--actors 2] [--address auto]`. Without an address
Ray starts on this machine; it stops after the time given, with what was reached. Needs torch,
gymnasium and ray. On a real cluster, `r2d2.py` must be where the actors find it
(`runtime_env={"working_dir": "examples"}`).
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque

import numpy as np
import torch
from r2d2 import (
    BURN_IN,
    CAPACITY,
    EXPLORE_FRAMES,
    LEAST_EPSILON,
    SLICE,
    SLICES,
    Learner,
    QNet,
    make_env,
)

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

from contig import RayCollector, RayReplayBuffer, SerialEnv, SliceSampler

WARM_UP, PUBLISH_EVERY = 1000, 10  # rows; updates


def main(seconds: float, actors: int, shards: int, seed: int) -> int:
    """Trains, and returns how many versions of the weights were published."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    net = QNet()
    learner = Learner(net)
    sampler = SliceSampler(slice_len=SLICE, burn_in=BURN_IN, over="steps", span=True)
    buffer = RayReplayBuffer(
        shards, CAPACITY // shards, sampler, batch_size=SLICES * SLICE, prefetch=2, seed=seed
    )
    collector = RayCollector(
        [SerialEnv(4, make_env)] * actors,
        net,
        frames_per_batch=32 * actors,
        replay_buffer=buffer,
        auto_register_policy_transforms=True,
        max_restarts=3,
        num_cpus=0.5,
        seed=seed,
    )
    collector.start()
    while len(buffer) < WARM_UP:
        collector.check()
        time.sleep(0.05)
    begun = shown = time.perf_counter()
    ends: deque[float] = deque(maxlen=50)
    while time.perf_counter() - begun < seconds:
        batch = buffer.sample()
        ends.append(float(np.mean(batch["next", "terminated"])))
        learner.step(batch.torch())
        if learner.updates % PUBLISH_EVERY == 0:
            net.epsilon.fill_(max(LEAST_EPSILON, 1 - collector.frames / EXPLORE_FRAMES))
            collector.update_policy_weights_()
        if time.perf_counter() - shown > 5:
            shown = time.perf_counter()
            print(
                f"{collector.frames:7d} frames  {learner.updates:5d} updates  version "
                f"{collector.policy_version:4d}  mean episode {1 / max(np.mean(ends), 1e-3):5.1f}",
                flush=True,
            )
    collector.shutdown()
    buffer.close()
    return collector.policy_version


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="R2D2 on a Ray cluster.")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--address", help="of a cluster; without, one on this machine")
    arguments = parser.parse_args()
    if arguments.address is None:
        ray.init("local", num_cpus=2, object_store_memory=100 << 20, include_dashboard=False)
    else:
        ray.init(arguments.address)
    if main(arguments.seconds, arguments.actors, arguments.shards, arguments.seed) < 2:
        raise SystemExit("the actors never got new weights")
    ray.shutdown()
