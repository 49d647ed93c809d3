"""Two learners, one replay buffer: torch.distributed over the shards of a Ray cluster.

    rank 0 ──┐                       ┌── shard 0
             ├── RayReplayBuffer ────┤
    rank 1 ──┘   name="replay"       └── shard 1

Both name the same buffer: the first makes its shards, the other one joins. With one seed, each rank
has its own stream of batches, and an epoch is divided between them. Gradients are averaged by DDP.

Run: `python examples/data_parallel.py [--steps 200]`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from contig import RayReplayBuffer

WEIGHTS = np.array([1.0, -2.0, 0.5, 3.0], np.float32)


def trajectory(rng: np.random.Generator) -> dict[str, Any]:
    """Steps whose reward is a linear function of the observation, which is to be learned."""
    observation = rng.standard_normal((50, 4)).astype(np.float32)
    done = np.zeros(50, np.bool_)
    done[-1] = True
    return {"observation": observation, "next": {"reward": observation @ WEIGHTS, "done": done}}


def learn(rank: int, world_size: int, address: str, store: str, steps: int) -> None:
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world_size)
    ray.init(address=address, namespace="learners", log_to_driver=False, logging_level="ERROR")
    buffer = RayReplayBuffer(
        2,
        50_000,
        name="replay",
        batch_size=64,
        prefetch=2,
        seed=0,
        output="torch",
        rank=rank,
        world_size=world_size,
    )
    if rank == 0:
        rng = np.random.default_rng(0)
        for _ in range(100):
            buffer.extend_trajectory(trajectory(rng), terminated=True)
        buffer.flush()
    dist.barrier()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(steps):
        batch = buffer.sample()
        predicted = model(batch["observation"])[:, 0]
        loss = torch.nn.functional.mse_loss(predicted, batch["next", "reward"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    if rank == 0:
        print(f"final loss {loss.item():.6f}, weights {model.module.weight.data[0].tolist()}")
    dist.barrier()  # the shards end with the process that made them
    buffer.close()
    ray.shutdown()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learners", type=int, default=2)
    steps, learners = (vars(parser.parse_args())[k] for k in ("steps", "learners"))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    context = ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=100 << 20,
        include_dashboard=False,
        logging_level="ERROR",
    )
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        address = context.address_info["address"]
        mp.spawn(learn, (learners, address, store, steps), nprocs=learners)
    ray.shutdown()


if __name__ == "__main__":
    main()
