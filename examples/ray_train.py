"""The same two learners under Ray Train: its workers join the buffer by name.

Run: `python examples/ray_train.py [--steps 200]`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import numpy as np
import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model

from contig import RayReplayBuffer

WEIGHTS = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
BUFFER: dict[str, Any] = {"shards": 2, "storage": 50_000, "name": "replay"}


def trajectory(rng: np.random.Generator) -> dict[str, Any]:
    """Steps whose reward is a linear function of the observation, which is to be learned."""
    observation = rng.standard_normal((50, 4)).astype(np.float32)
    done = np.zeros(50, np.bool_)
    done[-1] = True
    return {"observation": observation, "next": {"reward": observation @ WEIGHTS, "done": done}}


def learn(config: dict[str, Any]) -> None:
    """One worker. It joins the buffer that the driver made, as one of several ranks."""
    context = train.get_context()
    buffer = RayReplayBuffer(
        **BUFFER,
        batch_size=64,
        prefetch=2,
        seed=0,
        output="torch",
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
    )
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(config["steps"]):
        batch = buffer.sample()
        predicted = model(batch["observation"])[:, 0]
        loss = torch.nn.functional.mse_loss(predicted, batch["next", "reward"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if context.get_world_rank() == 0:
        print(f"final loss {loss.item():.6f}")
    train.report({"loss": loss.item()})
    buffer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",
        num_cpus=4,
        object_store_memory=100 << 20,
        include_dashboard=False,
        logging_level="ERROR",
        namespace="learners",
    )
    with RayReplayBuffer(**BUFFER) as buffer, tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        for _ in range(100):
            buffer.extend_trajectory(trajectory(rng), terminated=True)
        buffer.flush()
        trainer = TorchTrainer(
            learn,
            train_loop_config={"steps": steps},
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=folder),
        )
        trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
