"""rsl_rl's answers: `python rsl_side.py IN.npz OUT.npz [IN.npz OUT.npz ...]`."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

import contig


class Critic:
    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def __call__(self, obs: object) -> torch.Tensor:
        return self.values

    def get_hidden_state(self) -> None:
        return None

    def reset(self, hidden_state: object = None) -> None:
        pass


def main(source: str, target: str) -> None:
    given = {k: torch.from_numpy(v) for k, v in np.load(source).items()}
    steps, envs = given["rewards"].shape
    gamma, lam = 0.97, 0.9
    example = TensorDict({"policy": given["obs"][0]}, batch_size=[envs])
    storage = RolloutStorage("rl", envs, steps, example, [2])
    for t in range(steps):
        step = RolloutStorage.Transition()
        step.observations = TensorDict({"policy": given["obs"][t]}, batch_size=[envs])
        step.actions, step.values = given["actions"][t], given["values"][t][:, None]
        late = given["time_outs"][t].float()
        step.rewards = given["rewards"][t] + gamma * given["values"][t] * late  # as its PPO does
        step.dones, step.actions_log_prob = given["dones"][t], given["rewards"][t]
        step.distribution_params = (given["actions"][t], given["actions"][t])
        step.hidden_states = (given["hidden"][t], (given["hidden"][t], given["hidden"][t] + 1))
        storage.add_transition(step)
    ppo = SimpleNamespace(
        storage=storage,
        critic=Critic(given["last"][:, None]),
        gamma=gamma,
        lam=lam,
        normalize_advantage_per_mini_batch=False,
    )
    PPO.compute_returns(ppo, None)
    out = {"returns": storage.returns, "advantages": storage.advantages}
    for i, batch in enumerate(storage.recurrent_mini_batch_generator(2, 1)):
        out[f"obs{i}"], out[f"masks{i}"] = batch.observations["policy"], batch.masks
        out[f"actor{i}"] = batch.hidden_states[0]
        out[f"critic{i}"], out[f"cell{i}"] = batch.hidden_states[1]
        out[f"actions{i}"], out[f"returns{i}"] = batch.actions, batch.returns
    # Its PPO on our storage: it writes returns step by step, and assigns advantages.
    ppo.storage = ours(given, storage.rewards)
    PPO.compute_returns(ppo, None)
    batches = list(ppo.storage.recurrent_mini_batch_generator(2, 1))
    for name in ("returns", "advantages"):
        out[f"ours_{name}"] = torch.cat([getattr(batch, name) for batch in batches], 1)
    np.savez(target, **{k: v.numpy() for k, v in out.items()})


def ours(given: dict[str, torch.Tensor], rewards: torch.Tensor) -> contig.RolloutStorage:
    steps, envs = given["rewards"].shape
    storage = contig.RolloutStorage(envs, steps, (3,), None, (2,))
    for t in range(steps):
        step = contig.RolloutStorage.Transition()
        step.observations, step.actions = given["obs"][t], given["actions"][t]
        step.rewards, step.dones = rewards[t], given["dones"][t]
        step.values = given["values"][t]
        storage.add_transition(step)
    return storage


if __name__ == "__main__":
    for i in range(1, len(sys.argv), 2):
        main(sys.argv[i], sys.argv[i + 1])
