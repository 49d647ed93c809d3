"""RLinf's directories as trajectories on a tape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..batch import Batch
from ..trajectory.rlinf import read_rlinf
from ..trajectory.trajectory import flatten_trajectory, nested
from .optional import storage_of

__all__ = ["from_rlinf"]

_PLACES = {
    "curr_obs": ("observation",),
    "next_obs": ("next", "observation"),
    "actions": ("action",),
    "rewards": ("next", "reward"),
    "terminations": ("next", "terminated"),
    "truncations": ("next", "truncated"),
    "dones": ("next", "done"),
}


def from_rlinf(path: str | Path, target: Any) -> int:
    """Appends the rollouts of an RLinf directory to a storage or a ReplayBuffer, one at a time:
    each env's steps are cut where flags say so. Nothing in the files is run.

    Returns:
        how many rollouts.
    """
    directory = read_rlinf(Path(path))
    writer = storage_of(target).writer()
    for entry in directory.entries:
        flat = flatten_trajectory(directory.load(entry))
        steps, envs = flat.shape[:2]
        leaves: dict[Any, Any] = {}
        for name, column in flat.columns.items():
            place = (*_PLACES.get(str(name[0]), (name[0],)), *name[1:])
            lanes = np.swapaxes(column.reshape(steps, envs, *column.shape[1:]), 0, 1)
            single = place[0] == "next" and place[1] != "observation" and lanes.shape[2:] == (1,)
            leaves[place] = lanes[..., 0] if single else lanes
        writer.extend(Batch.from_tree(nested(leaves), 2), continues=False)
    return len(directory.entries)
