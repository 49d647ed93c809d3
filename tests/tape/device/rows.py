"""Rows for tests of DeviceStorage: the same data as tensors and as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from contig import DeviceStorage, LazyTensorStorage
from contig.testing import episode

Tree = Any


def tensors(tree: Tree, device: str = "cpu") -> Tree:
    """A tree of arrays as tensors of their own memory."""
    if isinstance(tree, dict):
        return {key: tensors(value, device) for key, value in tree.items()}
    return torch.tensor(np.asarray(tree)).to(device)


def same(one: Any, other: Any) -> None:
    """Asserts that two batches have the same leaves, byte by byte."""
    assert list(one.keys()) == list(other.keys())
    for path in one.keys():  # noqa: SIM118
        mine, theirs = np.asarray(one[path]), np.asarray(other[path])
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, path
        assert np.ascontiguousarray(mine).tobytes() == np.ascontiguousarray(theirs).tobytes(), path


def goals(number: int, length: int) -> Tree:
    """An episode with goals: what is achieved says which step it is."""
    rows = episode(number, length)
    where = np.stack([np.full(length, number), np.arange(length)], 1).astype(np.float32)
    wanted = np.full((length, 2), -1, np.float32)
    rows["achieved_goal"], rows["desired_goal"] = where, wanted
    rows["next"]["achieved_goal"] = where + np.float32([0, 1])
    rows["next"]["desired_goal"] = wanted
    return rows


def pair(capacity: int, **options: Any) -> Any:
    """A storage on the device and one in host memory."""
    here = LazyTensorStorage(capacity, share_next=False, stack={}, **options)
    return DeviceStorage(capacity, "cpu", **options), here


def marks_apart(tree: Tree, name: str = "") -> Tree:
    """A tree as tensors, of which only marks have values: whoever looks at others fails."""
    if isinstance(tree, dict):
        return {key: marks_apart(value, key) for key, value in tree.items()}
    tensor = torch.tensor(np.asarray(tree))
    return tensor if name in MARKS else tensor.to("meta")


MARKS = {"reward", "done", "terminated", "truncated", "traj_ids", "is_init", "policy_version"}


class Valueless(DeviceStorage):
    """Rows that have no values: what takes one to the host, or sends it, is an error or is seen."""

    needs_values = False

    def __init__(self, capacity: int, **options: Any) -> None:
        super().__init__(capacity, "meta", **options)


def rollout(device: str = "cpu", envs: int = 3, length: int = 4) -> Any:
    """A filled RolloutStorage: observations say which env and step they are of."""
    from contig import RolloutStorage

    out = RolloutStorage(envs, length, (2,), actions_shape=(1,), device=device)
    for t in range(length):
        step = RolloutStorage.Transition()
        step.observations = torch.tensor([[n, t] for n in range(envs)], dtype=torch.float32)
        step.actions = torch.zeros(envs, 1)
        step.rewards = torch.full((envs,), float(t))
        step.dones = torch.tensor([t == 2, *[False] * (envs - 1)])
        step.values = step.actions_log_prob = torch.zeros(envs, 1)
        step.action_mean = step.action_sigma = torch.zeros(envs, 1)
        for name, value in list(vars(step).items()):
            if isinstance(value, torch.Tensor):
                setattr(step, name, value.to(device))
        out.add_transitions(step)
    return out
