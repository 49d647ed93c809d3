"""RLinf's rollout results, as structs of the same shape: every value says which step it is of.

action    1000 * t + 100 * env + 10 * i + a    of place i in the chunk, element a
reward    1000 * t + 100 * env + 10 * i
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from contig import LayoutError, TrajectoryReplayBuffer
from contig.trajectory import flatten_trajectory, from_chunk_steps, from_rollout_result

ENVS, K, DIM = 3, 4, 2


@dataclass(kw_only=True)
class ChunkStepResult:
    actions: Any = None
    prev_logprobs: Any = None
    prev_values: Any = None
    dones: Any = None
    truncations: Any = None
    terminations: Any = None
    rewards: Any = None
    forward_inputs: dict[str, Any] = field(default_factory=dict)
    versions: Any = None


@dataclass(kw_only=True)
class EmbodiedRolloutResult:
    max_episode_length: int = 0
    actions: list[Any] = field(default_factory=list)
    intervene_flags: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    terminations: list[Any] = field(default_factory=list)
    truncations: list[Any] = field(default_factory=list)
    dones: list[Any] = field(default_factory=list)
    prev_logprobs: list[Any] = field(default_factory=list)
    prev_values: list[Any] = field(default_factory=list)
    versions: list[Any] = field(default_factory=list)
    forward_inputs: list[dict[str, Any]] = field(default_factory=list)
    curr_obs: list[dict[str, Any]] = field(default_factory=list)
    next_obs: list[dict[str, Any]] = field(default_factory=list)


def action_of(t: int, sign: float = 1.0) -> torch.Tensor:
    """``[B, K * DIM]``, what a policy gives."""
    env, i, a = torch.meshgrid(*map(torch.arange, (ENVS, K, DIM)), indexing="ij")
    return (sign * (1000.0 * t + 100 * env + 10 * i + a)).reshape(ENVS, K * DIM)


def reward_of(t: int) -> torch.Tensor:
    return action_of(t).reshape(ENVS, K, DIM)[..., 0].clone()


def flags_of(t: int, which: int) -> torch.Tensor:
    """``[B, K]``: env `which` ends with the last action of step t, every third step."""
    out = torch.zeros(ENVS, K, dtype=torch.bool)
    out[which, -1] = t % 3 == 2
    return out


def observation(t: int) -> dict[str, Any]:
    env = torch.arange(ENVS)
    return {
        "states": (t * 10.0 + env)[:, None],
        "main_images": (t + env).to(torch.uint8).reshape(ENVS, 1, 1, 1).expand(ENVS, 2, 2, 3),
        "wrist_images": None,
        "task_descriptions": [f"task {b}" for b in range(ENVS)],
    }


def chunk_steps(steps: int, epochs: int) -> list[ChunkStepResult]:
    """As RLinf's env worker makes them: each epoch begins with flags before its first step, and
    ends with values after its last."""
    out = []
    for t in range(steps):
        if t % (steps // epochs) == 0:
            none = torch.zeros(ENVS, K, dtype=torch.bool)
            out.append(ChunkStepResult(dones=none, terminations=none, truncations=none))
        terminated, truncated = flags_of(t, 0), flags_of(t, 1)
        out.append(
            ChunkStepResult(
                actions=action_of(t),
                prev_logprobs=-action_of(t),
                prev_values=reward_of(t)[:, :1],
                rewards=reward_of(t),
                dones=terminated | truncated,
                terminations=terminated,
                truncations=truncated,
                versions=torch.full((ENVS, 1), float(t // 2)),
                forward_inputs={"action": action_of(t), "model_action": action_of(t) + 0.5},
            )
        )
        if (t + 1) % (steps // epochs) == 0:
            out.append(ChunkStepResult(prev_values=torch.full((ENVS, 1), -7.0)))
    return out


def rollout(steps: int, epochs: int, by_env: bool = False) -> EmbodiedRolloutResult:
    """What appending those one by one makes."""
    out = EmbodiedRolloutResult(max_episode_length=80)
    for step in chunk_steps(steps, epochs):
        for name, value in vars(step).items():
            if value is not None and not (isinstance(value, dict) and not value):
                getattr(out, name).append(value)
        if step.actions is not None:
            out.intervene_flags.append(torch.zeros(step.actions.shape, dtype=torch.bool))
    for t in range(steps):
        out.curr_obs.append(observation(t))
        out.next_obs.append(observation(t + 1))
    if by_env:
        for name in ("actions", "rewards", "dones", "intervene_flags", "versions"):
            entries = getattr(out, name)
            setattr(out, name, [[entry[b] for entry in entries] for b in range(ENVS)])
        for name in ("forward_inputs", "curr_obs", "next_obs"):
            entries = getattr(out, name)
            lists = [[one_env(entry, b) for entry in entries] for b in range(ENVS)]
            setattr(out, name, lists)
        for name in ("terminations", "truncations", "prev_logprobs", "prev_values"):
            setattr(out, name, [])
    return out


def one_env(entry: dict[str, Any], b: int) -> dict[str, Any]:
    return {k: None if v is None else v[b] for k, v in entry.items()}


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("kind", ["result", "steps"])
def test_every_value_is_where_it_belongs(kind: str, epochs: int) -> None:
    steps = 6
    if kind == "result":
        trajectory = from_rollout_result(rollout(steps, epochs))
    else:
        pairs = [(observation(t), observation(t + 1)) for t in range(steps)]
        trajectory = from_chunk_steps(
            chunk_steps(steps, epochs), transitions=pairs, max_episode_length=80
        )
    assert trajectory.max_episode_length == 80
    assert trajectory.actions.shape == (steps, ENVS, K * DIM)
    assert trajectory.dones.shape == (steps + epochs, ENVS, K)
    assert trajectory.prev_values.shape == (steps + epochs, ENVS, 1)
    assert not trajectory.intervene_flags.any() and trajectory.intervene_flags.dtype == torch.bool
    assert set(trajectory.curr_obs) == {"states", "main_images"}
    buffer = TrajectoryReplayBuffer(seed=0)
    buffer.add_trajectories([trajectory])
    batch = buffer.sample(500)
    t = batch["curr_obs"]["states"][:, 0].div(10, rounding_mode="floor").long()
    env = (batch["curr_obs"]["states"][:, 0] % 10).long()
    assert set(t.tolist()) == set(range(steps)) and set(env.tolist()) == set(range(ENVS))
    for i in range(len(t)):
        step, b = int(t[i]), int(env[i])
        assert torch.equal(batch["actions"][i], action_of(step)[b])
        assert torch.equal(batch["rewards"][i], reward_of(step)[b])
        assert torch.equal(batch["prev_logprobs"][i], -action_of(step)[b])
        assert batch["prev_values"][i].item() == reward_of(step)[b, 0]  # never the bootstrap's
        assert torch.equal(batch["terminations"][i], flags_of(step, 0)[b])
        assert torch.equal(batch["truncations"][i], flags_of(step, 1)[b])
        assert torch.equal(batch["dones"][i], (flags_of(step, 0) | flags_of(step, 1))[b])
        assert batch["versions"][i].item() == step // 2
        assert batch["next_obs"]["states"][i].item() == (step + 1) * 10 + b
        assert (batch["curr_obs"]["main_images"][i] == step + b).all()
        assert batch["forward_inputs"]["model_action"][i, 0] == action_of(step)[b, 0] + 0.5


def test_lists_by_env() -> None:
    by_step, by_env = (from_rollout_result(rollout(4, 1, by_env=x)) for x in (False, True))
    for name in ("actions", "rewards", "dones", "intervene_flags", "versions"):
        assert torch.equal(getattr(by_step, name), getattr(by_env, name))
    assert torch.equal(by_step.curr_obs["main_images"], by_env.curr_obs["main_images"])
    assert by_env.model_weights_id == by_step.model_weights_id and by_env.prev_values is None
    ragged = rollout(4, 1, by_env=True)
    ragged.rewards[1] = ragged.rewards[1][:-1]
    with pytest.raises(LayoutError, match=r'"rewards": envs with \[3, 4\] steps'):
        from_rollout_result(ragged)


def test_interventions() -> None:
    """A human takes over in part of a chunk: his actions, and a flag for each of them."""
    steps = chunk_steps(3, 1)
    flags = torch.zeros(ENVS, K, dtype=torch.bool)
    flags[1, 2:] = True
    given = [None, (action_of(1, -1.0), flags), None]
    trajectory = from_chunk_steps(steps, interventions=given)
    assert torch.equal(steps[2].actions, action_of(1))  # what came in stays as it is
    acted = trajectory.actions.reshape(3, ENVS, K, DIM)
    expected = torch.stack([action_of(t) for t in range(3)]).reshape(3, ENVS, K, DIM)
    expected[1, 1, 2:] *= -1
    assert torch.equal(acted, expected)
    marks = trajectory.intervene_flags.reshape(3, ENVS, K, DIM)
    assert torch.equal(marks[1], flags[..., None].expand(ENVS, K, DIM)) and not marks[[0, 2]].any()
    assert torch.equal(trajectory.forward_inputs["action"], trajectory.actions)
    assert set(trajectory.forward_inputs) == {"action"}  # nothing that the policy meant to do
    (demo,) = trajectory.extract_intervene_traj()
    assert demo.actions.shape == (1, 1, K * DIM)
    assert torch.equal(demo.actions[0, 0], trajectory.actions[1, 1])
    assert trajectory.extract_intervene_traj("all") == []


def test_one_flag_for_a_whole_chunk() -> None:
    flags = torch.ones(ENVS, dtype=torch.bool)
    trajectory = from_chunk_steps(chunk_steps(2, 1), interventions=[(action_of(9), flags)])
    assert torch.equal(trajectory.actions[0], action_of(9))
    assert trajectory.intervene_flags[0].all() and not trajectory.intervene_flags[1].any()


def test_a_result_in_which_a_human_acted() -> None:
    result = rollout(3, 1)
    del result.forward_inputs[1]["model_action"]  # as RLinf does then
    assert set(from_rollout_result(result).forward_inputs) == {"action"}


def test_chunks_of_actions() -> None:
    flags = torch.zeros(ENVS, K, dtype=torch.bool)
    flags[0, 1] = True
    trajectory = from_chunk_steps(
        chunk_steps(2, 1), interventions=[(action_of(5), flags), (action_of(5), flags)], chunk=K
    )
    assert trajectory.actions.shape == (2, ENVS, K, DIM)
    assert torch.equal(trajectory.intervene_flags, torch.stack([flags, flags]))
    assert trajectory.rewards.shape == (2, ENVS, K)
    assert flatten_trajectory(trajectory).columns["actions",].shape == (2 * ENVS, K, DIM)
    assert from_rollout_result(rollout(2, 1), chunk=K).actions[1, 2, 3, 1] == 1231
    with pytest.raises(LayoutError, match=r"actions: .* cannot be \[T, B, 3 \* A\]"):
        from_rollout_result(rollout(2, 1), chunk=3)


def test_weights_have_rlinfs_name() -> None:
    one = from_rollout_result(rollout(4, 1))
    versions = torch.stack([torch.full((ENVS, 1), float(t // 2)) for t in range(4)])
    name = versions.numpy().tobytes().hex()
    assert one.model_weights_id == str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    without = rollout(4, 1)
    without.versions = []
    assert from_rollout_result(without).model_weights_id != one.model_weights_id


def test_arrays_of_numpy() -> None:
    steps = [ChunkStepResult(actions=np.full((2, 3), t), rewards=np.zeros((2, 1))) for t in (0, 1)]
    trajectory = from_chunk_steps(steps)
    assert isinstance(trajectory.actions, np.ndarray) and trajectory.actions.shape == (2, 2, 3)
    assert not trajectory.intervene_flags.any()


def test_refusals() -> None:
    with pytest.raises(TypeError, match="got object with none of actions"):
        from_rollout_result(object())
    with pytest.raises(TypeError, match="rollout results"):
        from_chunk_steps([])
    short = rollout(3, 1)
    short.rewards[2] = short.rewards[2][:, :2]
    with pytest.raises(LayoutError, match=r'"rewards", step 2: shape \[3, 2\], in step 0 \[3, 4\]'):
        from_rollout_result(short)
    missing = rollout(3, 1)
    del missing.curr_obs[1]["states"]
    with pytest.raises(LayoutError, match=r'"states"\), step 1: expected an array'):
        from_rollout_result(missing)
    with pytest.raises(LayoutError, match="interventions, step 0: actions of shape"):
        bad = (torch.zeros(ENVS, 5), torch.zeros(ENVS, K))
        from_chunk_steps(chunk_steps(1, 1), interventions=[bad])
