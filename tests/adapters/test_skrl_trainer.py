"""A script as skrl's users write it: its wrapper, its trainer, its DQN and DDPG, with contig's
memory in the place of RandomMemory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from skrl.agents.torch.ddpg import DDPG, DDPG_CFG
from skrl.agents.torch.dqn import DQN, DQN_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer, SequentialTrainerCfg
from skrl.utils import set_seed

from contig.adapters.skrl import Memory

ENVS, SIZE, STEPS = 2, 20, 60


class Counting(gymnasium.Env[Any, Any]):
    """Observations are (episode, step); every fifth step ends an episode, by turns for good."""

    def __init__(self, action_space: Any) -> None:
        self.observation_space = gymnasium.spaces.Box(-100, 100, (2,))
        self.action_space = action_space
        self.episode, self.at = -1, 0

    def _now(self) -> Any:
        return np.array([self.episode, self.at], np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.episode, self.at = self.episode + 1, 0
        return self._now(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        ended = self.at == 5
        terminated = ended and self.episode % 2 == 0
        return self._now(), float(self.at), terminated, ended and not terminated, {}


class Net(DeterministicMixin, Model):
    def __init__(self, env: Any, inputs: int, outputs: int) -> None:
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        Model.__init__(self, **spaces, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = torch.nn.Linear(inputs, outputs)

    def compute(self, inputs: Any, role: str = "") -> Any:
        parts = [inputs["observations"], *([inputs["taken_actions"]] if "critic" in role else [])]
        return self.net(torch.cat(parts, -1)), {}


def trained(kind: Any, which: str) -> tuple[Any, dict[str, Any]]:
    """The memory after a training, and what was learnt."""
    actions: Any = gymnasium.spaces.Discrete(3)
    if which == "DDPG":
        actions = gymnasium.spaces.Box(-1, 1, (1,))
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: Counting(actions)] * ENVS, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    env = wrap_env(envs, verbose=False)
    set_seed(3)
    memory = kind(memory_size=SIZE, num_envs=env.num_envs, device=env.device, replacement=True)
    options: Any = {"batch_size": 16, "learning_starts": 4}
    agent: Any = DQN
    config: Any = DQN_CFG(**options)
    if which == "DQN":
        models = {name: Net(env, 2, 3) for name in ("q_network", "target_q_network")}
    else:
        agent, config = DDPG, DDPG_CFG(**options)
        models = {name: Net(env, 2, 1) for name in ("policy", "target_policy")}
        models |= {name: Net(env, 3, 1) for name in ("critic", "target_critic")}
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    made = agent(
        models=models,
        memory=memory,
        cfg=config,
        observation_space=env.observation_space,
        action_space=env.action_space,
        device=env.device,
    )
    options = {"timesteps": STEPS, "headless": True, "disable_progressbar": True}
    options["close_environment_at_exit"] = False
    SequentialTrainer(cfg=SequentialTrainerCfg(**options), env=env, agents=made).train()
    env.close()
    learnt = {f"{n}.{k}": v for n, net in models.items() for k, v in net.state_dict().items()}
    return memory, learnt


@pytest.mark.filterwarnings("ignore")  # of skrl's own, about tensorboard and gymnasium
@pytest.mark.parametrize("which", ["DQN", "DDPG"])
def test_a_script_with_another_memory_learns_the_same(which: str) -> None:
    (mine, learnt), (other, expected) = (trained(kind, which) for kind in (Memory, RandomMemory))
    assert learnt.keys() == expected.keys()
    assert all(torch.equal(learnt[name], expected[name]) for name in expected)
    assert mine.filled and mine.get_tensor_names() == other.get_tensor_names()
    for name in other.get_tensor_names():
        assert torch.equal(mine.get_tensor_by_name(name), other.get_tensor_by_name(name)), name
    rewards = mine.get_tensor_by_name("rewards").unique().tolist()
    assert rewards == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert mine.get_tensor_by_name("terminated").any()
