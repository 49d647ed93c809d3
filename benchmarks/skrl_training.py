"""A training step of skrl's DDPG on contig's memory and on skrl's: part of `adapters_rsl_rl`.

4 envs, observations of 17 and actions of 6 floats, hidden layers of 64, batches of 256: one step of
the envs, whose rows are recorded, and one update. Batches are drawn with replacement, from the same
seeds: parameters must be equal on both sides.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import gymnasium
import torch
from skrl.agents.torch.ddpg import DDPG, DDPG_CFG
from skrl.models.torch import DeterministicMixin, Model

ENVS, OBS, ACTIONS, BATCH, MEMORY = 4, 17, 6, 256, 5000


class Net(DeterministicMixin, Model):  # type: ignore[misc]
    """Of observations, and of actions if it is a critic."""

    def __init__(self, inputs: int, outputs: int, spaces: Any) -> None:
        Model.__init__(self, observation_space=spaces[0], action_space=spaces[1], device="cpu")
        DeterministicMixin.__init__(self)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(inputs, 64), torch.nn.ReLU(), torch.nn.Linear(64, outputs)
        )

    def compute(self, inputs: Any, role: str = "") -> Any:
        parts = [inputs["observations"], *([inputs["taken_actions"]] if "critic" in role else [])]
        return self.net(torch.cat(parts, -1)), {}


def make_agent(kind: Any) -> Any:
    spaces = gymnasium.spaces.Box(-1, 1, (OBS,)), gymnasium.spaces.Box(-1, 1, (ACTIONS,))
    nets = {name: Net(OBS, ACTIONS, spaces) for name in ("policy", "target_policy")}
    nets |= {name: Net(OBS + ACTIONS, 1, spaces) for name in ("critic", "target_critic")}
    config = DDPG_CFG(batch_size=BATCH, learning_starts=BATCH)
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    agent = DDPG(
        models=nets,
        memory=kind(memory_size=MEMORY, num_envs=ENVS, device="cpu", replacement=True),
        observation_space=spaces[0],
        action_space=spaces[1],
        device="cpu",
        cfg=config,
    )
    agent.init()
    agent.enable_training_mode(True)
    return agent


def train(kind: Any, steps: int) -> tuple[float, str]:
    """Microseconds of a training step, the best of parts of a hundred, and what the parameters are
    in the end."""
    torch.manual_seed(0)
    agent, now, spent = make_agent(kind), torch.randn(ENVS, OBS), []
    for t in range(steps):
        clock = {"timestep": t, "timesteps": steps}
        with torch.no_grad():
            actions = agent.act(now, None, **clock)[0]
        after = now + 0.1 * torch.randn(ENVS, OBS)
        start = time.perf_counter()
        agent.record_transition(
            observations=now,
            states=None,
            actions=actions,
            rewards=-after.square().mean(1, keepdim=True),
            next_observations=after,
            next_states=None,
            terminated=torch.rand(ENVS, 1) < 0.01,
            truncated=torch.zeros(ENVS, 1, dtype=torch.bool),
            infos={},
            **clock,
        )
        agent.post_interaction(**clock)
        spent.append(time.perf_counter() - start)
        now = after
    learnt = spent[BATCH:]
    parts = [learnt[i : i + 100] for i in range(0, len(learnt), 100)]
    digest = hashlib.sha256()
    for net in agent.models.values():
        for value in net.state_dict().values():
            digest.update(value.numpy().tobytes())
    return 1e6 * min(sum(part) / len(part) for part in parts), digest.hexdigest()[:16]
