"""Storages to export, whose values say which row they are: 1000 * trajectory + step."""

from __future__ import annotations

from typing import Any

import numpy as np

from contig import LazyTensorStorage, ReplayBuffer


def lengths(storage: Any) -> list[tuple[int, bool, bool]]:
    return [
        (int(e["steps"]), bool(e["terminated"]), bool(e["truncated"])) for e in storage.episodes()
    ]


def fill(
    storage: Any, frames: Any = (3, 5), reward: Any = np.float32, after: bool = True, **more: Any
) -> Any:
    """Trajectories with nested observations; the first one terminated, the others truncated."""
    writer = storage.writer()
    for number, count in enumerate(frames):
        ids = 1000 * number + np.arange(count + 1)
        obs = {"state": np.repeat(ids[:, None], 3, 1).astype(np.float32), "t": ids}
        step: dict[str, Any] = {
            "observation": {k: v[:-1] for k, v in obs.items()},
            "action": ids[:-1, None].astype(np.float64),
            "next": {"reward": ids[:-1].astype(reward)},
            **{name: value(ids[:-1]) for name, value in more.items()},
        }
        if after:
            step["next"]["observation"] = {k: v[1:] for k, v in obs.items()}
        writer.extend_trajectory(step, terminated=number == 0, truncated=number != 0)
    return storage


def filled(*args: Any, **options: Any) -> LazyTensorStorage:
    storage: LazyTensorStorage = fill(LazyTensorStorage(10_000), *args, **options)
    return storage


def flat(frames: Any = (3, 5), storage: Any = None, after: bool = True) -> Any:
    """Trajectories of plain arrays, with flags."""
    storage = LazyTensorStorage(10_000) if storage is None else storage
    writer = storage.writer()
    for number, count in enumerate(frames):
        ids = 1000 * number + np.arange(count + 1)
        obs = np.repeat(ids[:, None], 3, 1).astype(np.float32)
        ends = np.arange(count) == count - 1
        step: dict[str, Any] = {
            "observation": obs[:-1],
            "action": ids[:-1, None].astype(np.float32),
            "next": {
                "reward": ids[:-1].astype(np.float32),
                "terminated": ends & (number % 2 == 0),
                "truncated": ends & (number % 2 == 1),
            },
        }
        if after:
            step["next"]["observation"] = obs[1:]
        writer.extend_trajectory(step)
    return storage


def assert_same(ours: Any, theirs: Any) -> None:
    """The same trajectories with the same ends, and every leaf of ours byte by byte."""
    assert lengths(theirs) == lengths(ours)
    a, b = ReplayBuffer(ours)[:], ReplayBuffer(theirs)[:]
    for leaf in a.layout.leaves:
        found = np.asarray(b[leaf.path])
        assert found.dtype == leaf.dtype and found.shape[1:] == leaf.shape, leaf.path
        assert found.tobytes() == np.asarray(a[leaf.path]).tobytes(), leaf.path
