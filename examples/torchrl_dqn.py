"""DQN on CartPole as a TorchRL script: its environment, transforms, modules and loss, with contig's
collector and a buffer with priorities. Against the script with TorchRL's own, one import changes.

Rows are trajectories on a tape all the while: in the end the episodes of the run are listed from
it, and read again from a checkpoint.

Run: `python examples/torchrl_dqn.py [--frames 10000] [--seed 1]`. A minute or two on two cores; the
return goes from 20 to 150 or more. Needs torchrl and gymnasium.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np
import torch
from tensordict.nn import TensorDictSequential
from torchrl.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

# before: from torchrl.collectors import Collector
#         from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
from contig.adapters.torchrl import (
    Collector,
    LazyTensorStorage,
    TensorDictPrioritizedReplayBuffer,
)

BATCH, UPDATES, FRAMES_PER_BATCH = 128, 16, 100
RANDOM, CAPACITY, GAMMA, LR, HIDDEN = 500, 50_000, 0.99, 1e-3, 64
LAST = 20  # episodes whose mean return is shown


def make_env() -> TransformedEnv:
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(), RewardSum()))


def main(frames: int = 10_000, seed: int = 1) -> float:
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # a small net: more threads only wait for one another
    spec = make_env().action_spec
    net = MLP(in_features=4, out_features=2, num_cells=[HIDDEN, HIDDEN])
    actor = QValueActor(net, in_keys=["observation"], spec=spec)
    explore = EGreedyModule(spec=spec, eps_end=0.05, annealing_num_steps=frames // 2)
    collector = Collector(
        create_env_fn=make_env,
        policy=TensorDictSequential(actor, explore),
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=frames,
        init_random_frames=RANDOM,
    )
    collector.set_seed(seed)
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6,
        beta=0.4,
        storage=LazyTensorStorage(max_size=CAPACITY),
        batch_size=BATCH,
        priority_key="td_error",
    )
    loss = DQNLoss(actor, action_space=spec, delay_value=True)
    loss.make_value_estimator(gamma=GAMMA)
    target = SoftUpdate(loss, eps=0.99)
    optim = torch.optim.Adam(loss.parameters(), lr=LR)

    returns: list[float] = []
    start = time.perf_counter()
    for number, data in enumerate(collector):
        buffer.extend(data.reshape(-1))
        explore.step(data.numel())
        done = data["next", "done"]
        returns.extend(data["next", "episode_reward"][done].tolist())
        if len(buffer) > RANDOM:
            for _ in range(UPDATES):
                sample = buffer.sample()
                value = loss(sample)["loss"]
                optim.zero_grad()
                value.backward()
                optim.step()
                target.step()
                buffer.update_tensordict_priority(sample)
            collector.update_policy_weights_()
        if number % 20 == 19:
            mean, spent = np.mean(returns[-LAST:]), time.perf_counter() - start
            print(f"{len(buffer):6} frames in {spent:3.0f} s: mean return {mean:6.1f}")
    collector.shutdown()

    table = buffer.storage.episodes()
    print(f"{len(table)} episodes, the longest {table['steps'].max()} steps")
    with tempfile.TemporaryDirectory() as folder:
        buffer.dumps(f"{folder}/replay")
        again = TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=LazyTensorStorage(CAPACITY), batch_size=BATCH
        )
        again.loads(f"{folder}/replay")
        assert torch.equal(again.sample()["index"], buffer.sample()["index"])
    return float(np.mean(returns[-LAST:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"mean return of the last {LAST} episodes: {main(args.frames, args.seed):.0f}")
