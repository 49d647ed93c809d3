"""stable-baselines3's DQN on CartPole, with prioritized replay.

SB3 trains; contig keeps the rows and draws those that surprised the net most. Against SB3's own
script two lines change: the import and the class.

Run: `python examples/sb3_dqn.py [--frames 20000] [--seed 1] [--uniform]`; `--uniform` is SB3's DQN
with contig's plain ReplayBuffer, for comparison. Half a minute on one core. Needs
stable-baselines3.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy

from contig.adapters.sb3 import PrioritizedDQN, ReplayBuffer

# Those of SB3's zoo of tuned agents, for this env.
OPTIONS: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 50_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
    "device": "cpu",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--uniform", action="store_true", help="draw every row alike")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a small net: more threads only wait for one another

    if args.uniform:
        model: Any = DQN(
            "MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer, seed=args.seed, **OPTIONS
        )
    else:
        priorities = {"alpha": 0.6, "beta": 0.4}
        model = PrioritizedDQN(
            "MlpPolicy", "CartPole-v1", replay_buffer_kwargs=priorities, seed=args.seed, **OPTIONS
        )
    start = time.perf_counter()
    model.learn(args.frames)
    spent = time.perf_counter() - start
    returns, _ = evaluate_policy(model, model.get_env(), 10, return_episode_rewards=True)
    print(f"{args.frames} frames in {spent:.0f} s; return of ten episodes {np.mean(returns):.0f}")

    buffer = model.replay_buffer
    table = buffer.storage.episodes()  # the rows are trajectories, too
    done = table["terminated"] | table["truncated"]
    print(f"{buffer.size()} rows, {len(table)} episodes, the longest {table['steps'].max()} steps")
    assert done.sum() >= len(table) - 1
    if not args.uniform:
        samples = buffer.sample(256)
        print(f"weights of a batch from {samples.weights.min():.3f} to {samples.weights.max():.3f}")


if __name__ == "__main__":
    main()
