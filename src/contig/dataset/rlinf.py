"""RLinf's directories, both ways."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..batch import Batch
from ..convert import to_torch
from ..errors import LayoutError
from ..keys import DONE, REWARD, TERMINATED, TRUNCATED
from ..trajectory import TrajectoryEntry, export_rlinf, flatten_trajectory, read_rlinf
from .episodes import Episode, OnEpisode, episodes_of, nested, storage_of

__all__ = ["from_rlinf", "to_rlinf"]

# In metadata: which observations were one array, and have become a dict's `states`.
_PLAIN = "contig_plain"
_PLACES = {
    "curr_obs": ("observation",),
    "next_obs": ("next", "observation"),
    "actions": ("action",),
    "rewards": REWARD,
    "terminations": TERMINATED,
    "truncations": TRUNCATED,
    "dones": DONE,
}
# Of a chunk of actions, RLinf has a flag for each; a row ends where any of them is set.
_FLAGS = ("terminations", "truncations", "dones")


def from_rlinf(path: str | Path, target: Any) -> int:
    """Appends the rollouts of an RLinf directory to a storage or a ReplayBuffer, one at a time:
    each env's steps are cut where flags say so. Nothing in the files is run.

    Where a row has a flag for each action of a chunk, those stay at the root under their own names
    (`dones` and the like), and the row's flag says whether any is set.

    Returns:
        how many rollouts.
    """
    directory = read_rlinf(Path(path))
    writer = storage_of(target).writer()
    plain = directory.metadata.get(_PLAIN) or ()
    for entry in directory.entries:
        flat = flatten_trajectory(directory.load(entry))
        steps, envs = flat.shape[:2]
        leaves: dict[Any, Any] = {}
        for name, column in flat.columns.items():
            below = () if name[0] in plain and name[1:] == ("states",) else name[1:]
            place = (*_PLACES.get(str(name[0]), (name[0],)), *below)
            lanes = np.swapaxes(column.reshape(steps, envs, *column.shape[1:]), 0, 1)
            if name[0] in _FLAGS and lanes[0, 0].size > 1:
                leaves[name] = lanes
                lanes = (lanes != 0).reshape(envs, steps, -1).any(-1)
            single = place[0] == "next" and place[1] != "observation" and lanes.shape[2:] == (1,)
            leaves[place] = lanes[..., 0] if single else lanes
        writer.extend(Batch.from_tree(nested(leaves), 2), continues=False)
    return len(directory.entries)


def to_rlinf(
    source: Any,
    path: str | Path,
    *,
    drop: Collection[str] = (),
    on_episode: OnEpisode | None = None,
) -> int:
    """Writes a directory that RLinf loads: a file per complete trajectory, fields ``[T, 1, ...]``.

    Fields are `curr_obs` and `next_obs` (dicts; an observation that is one array is their
    `states`, and one array again when `from_rlinf` reads it), `actions`, `rewards`, `dones`,
    `terminations`, `truncations`. Rewards and flags are
    ``[T, 1, 1]``. The directory is there when it is complete. Needs torch.

    Args:
        drop: leaves to leave out, by name.
        on_episode: called with (done, total) after each trajectory.

    Returns:
        how many trajectories.

    Raises:
        LayoutError: a leaf is missing, or there is one that a rollout of RLinf has no field for.
    """
    count = 0
    about: dict[str, Any] = {"trajectory_counter": 0, "seed": 0, _PLAIN: []}

    def entries() -> Iterator[tuple[TrajectoryEntry, dict[str, Any]]]:
        nonlocal count
        for episode in episodes_of(source, drop, on_episode):
            entry = TrajectoryEntry(
                uuid.uuid4().hex, count, episode.steps, (episode.steps, 1), 0, ""
            )
            about["trajectory_counter"] = count = count + 1
            fields, about[_PLAIN] = _fields(episode)
            yield entry, fields

    export_rlinf(Path(path), entries(), "pt", about)
    return count


def _fields(episode: Episode) -> tuple[dict[str, Any], list[str]]:
    """The fields of a rollout, and which of its observations were one array."""
    episode.check_plain("RLinf's format")
    flags = ((name, episode.columns.get((name,))) for name in _FLAGS)
    chunked = [name for name, column in flags if column is not None and column[0].size > 1]
    known = (*_PLACES.values(), *((name,) for name in chunked))
    episode.check_no_others(known, "an RLinf rollout")
    episode.check_ends("a rollout")
    out: dict[str, Any] = {}
    there = any(path[:2] == _PLACES["next_obs"] for path in episode.columns)
    for name in ("curr_obs", "actions", "rewards", *(["next_obs"] if there else [])):
        out[name] = episode.tree(".".join(_PLACES[name]), (_PLACES[name],))
    late = episode.ends("truncated")
    over = episode.ends("terminated")
    out |= {"terminations": over, "truncations": late, "dones": over | late}
    out |= {name: episode.columns[name,] for name in chunked}
    plain = [name for name in ("curr_obs", "next_obs") if isinstance(out.get(name), np.ndarray)]
    for name in plain:
        out[name] = {"states": out[name]}
    if isinstance(out["rewards"], Mapping):
        raise LayoutError("next.reward: nested; a rollout of RLinf has one array of rewards")
    for name in ("rewards", "terminations", "truncations", "dones"):
        if out[name].ndim == 1:
            out[name] = out[name][:, None]
    return {name: _of_one_env(value) for name, value in out.items()}, plain


def _of_one_env(node: Any) -> Any:
    """``[T, ...]`` as tensors ``[T, 1, ...]``."""
    if isinstance(node, Mapping):
        return {key: _of_one_env(child) for key, child in node.items()}
    return to_torch(np.ascontiguousarray(node[:, None]))
