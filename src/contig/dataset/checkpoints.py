"""Checkpoints of replay buffers as a format of episodes, both ways: into any storage, with what it
holds already."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..errors import LayoutError
from ..replay import ReplayBuffer
from .episodes import OnEpisode, Tally, complete, fields_in, nested, storage_of
from .stored_episodes import open_stored, plan_of

__all__ = ["from_checkpoint", "to_checkpoint"]

log = logging.getLogger("contig.dataset")


def from_checkpoint(path: str | Path, target: Any) -> int:
    """Appends the complete episodes of a checkpoint, or of a storage's directory, to a storage or a
    ReplayBuffer, one at a time. `ReplayBuffer.load` instead takes everything in, in place of what
    is there.

    Returns:
        how many episodes; those that are damaged are left out, and the log says so.

    Raises:
        FileNotFoundError: there is none.
        LayoutError: it is damaged, or has another layout.
    """
    plan, count = plan_of(path), 0
    writer = storage_of(target).writer()
    with open_stored(plan.path, plan.stamp) as stored:
        for entry in plan.entries:
            columns = stored.columns(entry)
            if columns is None:
                log.warning("%s: episode %d is damaged, and left out", path, entry["id"])
                continue
            writer.extend_trajectory(
                stored.layout.build_tree([columns[x.path] for x in stored.layout.leaves]),
                terminated=bool(entry["terminated"]),
                truncated=bool(entry["truncated"]),
                traj_id=int(entry["traj_id"]),
                policy_version=int(entry["policy_version"]),
                fields=nested(fields_in(entry, stored.fields)) or None,
            )
            count += 1
    return count


def to_checkpoint(
    source: Any,
    path: str | Path,
    *,
    drop: Collection[str] = (),
    on_episode: OnEpisode | None = None,
) -> int:
    """Writes a checkpoint of a storage or a ReplayBuffer, as `ReplayBuffer.save` does: all rows,
    those of episodes that are not complete as well.

    Args:
        drop: must be empty: a checkpoint has all leaves.
        on_episode: called once, at the end.

    Returns:
        how many complete episodes it has.
    """
    if drop:
        raise LayoutError(f"drop={list(drop)}: a checkpoint has all leaves; use another format")
    storage = storage_of(source)
    episodes = complete(storage)
    (source if isinstance(source, ReplayBuffer) else ReplayBuffer(storage)).save(path)
    tally = on_episode if isinstance(on_episode, Tally) else Tally(on_episode)
    tally.trajectories, tally.rows = len(episodes), int(episodes["steps"].sum())
    tally(len(episodes), len(episodes))
    return len(episodes)
