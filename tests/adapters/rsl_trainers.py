"""rsl_rl's algorithms and runners, small, on a storage of the caller's choice."""

from __future__ import annotations

import copy
from typing import Any

import torch
from rsl_rl.algorithms import PPO, Distillation
from rsl_rl.models import MLPModel, RNNModel
from tensordict import TensorDict

from contig.adapters import rsl_rl as ours

ENVS, STEPS, OBS, ACTIONS = 6, 8, 5, 3
GROUPS = {"actor": ["policy"], "critic": ["policy", "extra"], "student": ["policy"]}
GROUPS["teacher"] = GROUPS["critic"]
GAUSS = {"class_name": "GaussianDistribution", "init_std": 1.0}


class World:
    """Envs whose next observations depend on actions; some end at every step, some by time."""

    num_envs, num_actions, max_episode_length = ENVS, ACTIONS, 20
    device, cfg = "cpu", {}

    def __init__(self, seed: int = 0, ends: float = 0.15) -> None:
        self._draw, self._ends = torch.Generator().manual_seed(seed), ends
        self._state = self._new()
        self.episode_length_buf = torch.zeros(ENVS, dtype=torch.long)

    def _new(self) -> torch.Tensor:
        return torch.randn(ENVS, OBS, generator=self._draw)

    def get_observations(self) -> TensorDict:
        extra = self._state[:, :2].square()
        return TensorDict({"policy": self._state.clone(), "extra": extra}, batch_size=[ENVS])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, Any, Any, dict[str, Any]]:
        moved = 0.9 * self._state + 0.1 * self._new()
        moved[:, :ACTIONS] += 0.1 * actions
        dones = torch.rand(ENVS, generator=self._draw) < self._ends
        late = dones & (torch.rand(ENVS, generator=self._draw) < 0.5)
        self._state = torch.where(dones[:, None], self._new(), moved)
        rewards = -moved.square().mean(-1)
        return self.get_observations(), rewards, dones.long(), {"time_outs": late}


def mirror(env: Any, obs: Any, actions: Any) -> tuple[Any, Any]:
    """Symmetry: everything with the other sign; it works in place, as such functions may."""
    if obs is not None:
        twin = obs.clone()
        obs["policy"].mul_(1.0)
        obs = torch.cat([obs, twin.apply_(lambda x: x.neg_())])
    if actions is not None:
        actions = torch.cat([actions, -actions])
    return obs, actions


def ppo(storage: type, kind: str | None = None, **more: Any) -> Any:
    """PPO with a storage of that class; `kind`: "gru" or "lstm" for recurrent networks."""
    torch.manual_seed(1)
    obs = World().get_observations()
    made: dict[str, Any] = {"hidden_dims": [16], "obs_normalization": True}
    model: Any = MLPModel
    if kind is not None:
        model, made = RNNModel, {**made, "rnn_type": kind, "rnn_hidden_dim": 8, "rnn_num_layers": 2}
    actor = model(obs, GROUPS, "actor", ACTIONS, **made, distribution_cfg=dict(GAUSS))
    critic = model(obs, GROUPS, "critic", 1, **made)
    usual = {"num_learning_epochs": 3, "num_mini_batches": 2}
    kept = storage("rl", ENVS, STEPS, obs, [ACTIONS])
    return PPO(actor, critic, kept, **{**usual, **more})


def distillation(storage: type, recurrent: bool = False, **more: Any) -> Any:
    torch.manual_seed(1)
    obs = World().get_observations()
    made: dict[str, Any] = {"hidden_dims": [16], "distribution_cfg": dict(GAUSS)}
    model: Any = MLPModel
    if recurrent:
        model, made = RNNModel, {**made, "rnn_hidden_dim": 8}
    student = model(obs, GROUPS, "student", ACTIONS, **made)
    teacher = MLPModel(obs, GROUPS, "teacher", ACTIONS, hidden_dims=[16])
    kept = storage("distillation", ENVS, STEPS, obs, [ACTIONS])
    return Distillation(student, teacher, kept, gradient_length=4, **more)


def train(algorithm: Any, updates: int = 3, ends: float = 0.15) -> list[dict[str, float]]:
    """Losses of some updates."""
    torch.manual_seed(2)
    world, losses = World(ends=ends), []
    obs = world.get_observations()
    for _ in range(updates):
        with torch.inference_mode():
            for _ in range(STEPS):
                obs, rewards, dones, extras = world.step(algorithm.act(obs))
                algorithm.process_env_step(obs, rewards, dones, extras)
            algorithm.compute_returns(obs)
        losses.append(algorithm.update())
    return losses


def parameters(algorithm: Any) -> dict[str, torch.Tensor]:
    """Those of all networks, with what they normalise by, and of the optimizer."""
    out = {}
    for key, part in algorithm.save().items():
        state = part["state"] if "optimizer" in key else {"": part}
        for number, values in state.items():
            out.update({f"{key}/{number}/{name}": value for name, value in values.items()})
    return out


def runner_config(kind: str, recurrent: bool = False) -> dict[str, Any]:
    """For `OnPolicyRunner` or, with kind "distillation", for `DistillationRunner`."""
    model: dict[str, Any] = {"class_name": "MLPModel", "hidden_dims": [16]}
    if recurrent:
        model = {"class_name": "RNNModel", "hidden_dims": [16], "rnn_hidden_dim": 8}
    acting = {**model, "distribution_cfg": dict(GAUSS)}
    out: dict[str, Any] = {"num_steps_per_env": STEPS, "save_interval": 100}
    out["obs_groups"] = {k: list(v) for k, v in GROUPS.items()}
    if kind == "rl":
        more = {"algorithm": {"class_name": "PPO", "num_mini_batches": 2}}
        more |= {"actor": acting, "critic": dict(model)}
    else:
        more = {"algorithm": {"class_name": "Distillation", "gradient_length": 4}}
        more |= {"student": acting, "teacher": {"class_name": "MLPModel", "hidden_dims": [16]}}
    return copy.deepcopy({**out, **more})


def run(runner: type, config: dict[str, Any], own: bool) -> Any:
    """A runner after some iterations, on its own storage or on ours."""
    torch.manual_seed(3)
    if not own:
        ours.install()
    try:
        made = runner(World(), config)
        made.alg.teacher_loaded = True
        made.learn(3, init_at_random_ep_len=True)
    finally:
        ours.uninstall()
    return made
