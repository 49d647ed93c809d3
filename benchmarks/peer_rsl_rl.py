"""The rollout cases with rsl_rl, in the peers' environment: `python -m benchmarks.peer_rsl_rl`.

Its storage and its PPO's `compute_returns` are called as they are; prints microseconds as JSON.
"""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from benchmarks.timing import Effort, best_us

ENVS, STEPS, OBS, ACTIONS, HIDDEN = 4096, 24, 48, 12, 256


def storage(envs: int, hidden: int = 0) -> RolloutStorage:
    draw = torch.Generator().manual_seed(0)

    def new(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=draw)

    example = TensorDict({"policy": new(envs, OBS)}, batch_size=[envs])
    out = RolloutStorage("rl", envs, STEPS, example, [ACTIONS])
    for _ in range(STEPS):
        step = RolloutStorage.Transition()
        step.observations = TensorDict({"policy": new(envs, OBS)}, batch_size=[envs])
        step.actions, step.rewards, step.values = new(envs, ACTIONS), new(envs), new(envs, 1)
        step.dones = new(envs) < 0.02
        step.actions_log_prob = new(envs)
        step.distribution_params = (new(envs, ACTIONS), new(envs, ACTIONS))
        if hidden:
            step.hidden_states = (new(1, envs, hidden), new(1, envs, hidden))
        out.add_transition(step)
    return out


def learner(of: RolloutStorage) -> Any:
    """As much of a PPO as `compute_returns` uses."""

    class Critic:
        def __call__(self, obs: Any) -> torch.Tensor:
            return torch.zeros(of.num_envs, 1)

        def get_hidden_state(self) -> None:
            return None

        def reset(self, hidden_state: Any = None) -> None:
            pass

    return SimpleNamespace(
        storage=of,
        critic=Critic(),
        gamma=0.99,
        lam=0.95,
        normalize_advantage_per_mini_batch=False,
    )


def consume(batches: Any) -> None:
    for _ in batches:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    effort = Effort.of(args.quick)
    envs = 256 if args.quick else ENVS
    flat = storage(envs)
    ppo = learner(flat)
    out = {"gae": best_us(lambda: PPO.compute_returns(ppo, None), effort)}
    out["minibatches"] = best_us(lambda: consume(flat.mini_batch_generator(4, 5)), effort)
    deep = storage(envs, HIDDEN)
    recurrent = best_us(lambda: consume(deep.recurrent_mini_batch_generator(4, 1)), effort)
    out["recurrent"] = out["recurrent packed"] = recurrent
    print(json.dumps(out))


if __name__ == "__main__":
    main()
