"""Trajectories whose values say which they are: observation = trajectory * 1000 + frame."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from contig import RolloutWriter


def trajectory(number: int, frames: int, **more: Any) -> dict[str, Any]:
    ids = number * 1000.0 + np.arange(frames)
    return {
        "observation": np.repeat(ids[:, None], 3, 1).astype(np.float32),
        "action": np.repeat(ids[:, None], 2, 1).astype(np.float32),
        "reward": ids.astype(np.float32),
        **more,
    }


def written(path: Path, lengths: list[int], frames_per_file: int = 4, **options: Any) -> Path:
    """A directory of trajectories, each a second newer than the one before."""
    with RolloutWriter(path, frames_per_file=frames_per_file, **options) as writer:
        for number, frames in enumerate(lengths):
            folder = writer.add_trajectory(trajectory(number, frames))
            os.utime(folder, (1_000_000 + number,) * 2)
    return path


def identities(lengths: list[int]) -> list[float]:
    return [n * 1000.0 + f for n, frames in enumerate(lengths) for f in range(frames)]
