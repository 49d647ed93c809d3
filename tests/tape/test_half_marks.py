"""Marks and rewards of two bytes: float16 and bfloat16 say the same as wider numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from contig import LazyTensorStorage, ReplayBuffer, SliceSampler

HALVES = [np.float16, ml_dtypes.bfloat16]


def rows(dtype: Any, mark: str) -> dict[str, Any]:
    n = np.arange(10)
    flags = (n % 5 == 4).astype(dtype)
    out: dict[str, Any] = {"x": n, "next": {"reward": (n * 0.25).astype(dtype)}}
    if mark == "is_init":
        return out | {"is_init": (n % 5 == 0).astype(dtype)}
    if mark == "episode":
        return out | {"episode": (n // 5 + 1).astype(dtype)}
    if mark == "root":
        return out | {"done": flags}
    return out | {"next": out["next"] | {mark: flags[:, None] if mark == "truncated" else flags}}


@pytest.mark.parametrize("mark", ["done", "terminated", "truncated", "root", "is_init", "episode"])
@pytest.mark.parametrize("dtype", HALVES)
def test_trajectories(dtype: Any, mark: str) -> None:
    wide, half = (LazyTensorStorage(50) for _ in range(2))
    for storage, kind in ((wide, np.float32), (half, dtype)):
        buffer = ReplayBuffer(storage, SliceSampler(slice_len=4), batch_size=64, seed=0)
        buffer.extend(rows(kind, mark))
        batch = buffer.sample()
        starts = np.flatnonzero(batch["is_init"])
        for part in np.split(batch["x"], starts[1:]):
            assert len(set((part // 5).tolist())) == 1  # none across an episode
    assert half.episodes()["steps"].tolist() == [5, 5]
    for field in ("steps", "return", "terminated", "truncated", "traj_id"):
        assert half.episodes()[field].tolist() == wide.episodes()[field].tolist(), field


@pytest.mark.parametrize("dtype", HALVES)
def test_steps_of_envs(dtype: Any) -> None:
    storage = LazyTensorStorage(50)
    buffer = ReplayBuffer(storage)
    for t in range(6):
        done = np.array([t == 2, t == 3]).astype(dtype)
        buffer.add_step({"x": np.array([t, 10 + t]), "next": {"done": done}})
    found = [storage.read_episode(i)["x"].tolist() for i in storage.episodes()["id"]]
    assert sorted(found) == [[0, 1, 2], [3, 4, 5], [10, 11, 12, 13], [14, 15]]


@pytest.mark.parametrize("dtype", HALVES)
def test_returns_of_every_kind_of_number(dtype: Any) -> None:
    """Small ones, large ones, negative ones, and those that are none."""
    every = np.arange(2**16, dtype=np.uint16).view(dtype)
    storage = LazyTensorStorage(2**16)
    buffer = ReplayBuffer(storage)
    buffer.extend({"next": {"reward": every, "done": np.ones(2**16, bool)}})
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(storage.episodes()["return"], every.astype(np.float64))
