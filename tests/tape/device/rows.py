"""Rows for tests of DeviceStorage: the same data as tensors and as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

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
    import contig

    here = contig.LazyTensorStorage(capacity, share_next=False, stack={}, **options)
    return contig.DeviceStorage(capacity, "cpu", **options), here
