"""From a storage to the directories that RolloutDataset reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import LayoutError
from ..keys import FLAGS, NEXT, REWARD
from ..tree import Path as TreePath
from .episodes import Episode, OnEpisode, episodes_of
from .writer import RolloutWriter

__all__ = ["to_rollouts"]

# Where the fields of a frame are on a tape; also `contig.dataset.source` reads them so.
_PLACES: dict[str, tuple[TreePath, ...]] = {
    "observation": (("observation",), ("obs",), ("observations",)),
    "action": (("action",), ("actions",)),
    "reward": (REWARD, REWARD[1:], ("rewards",)),
    "privileged_observation": (("critic_observation",), ("privileged_observation",)),
    "next_observation": (("next", "observation"), ("next_observation",)),
    "next_privileged_observation": (("next", "critic_observation"),),
}
_NEEDED = ("observation", "action", "reward")
_FLAGS = tuple((*parent, f) for parent in (NEXT, ()) for f in FLAGS)


def to_rollouts(
    source: Any,
    path: str | Path,
    *,
    drop: Collection[str] = (),
    on_episode: OnEpisode | None = None,
    **options: Any,
) -> int:
    """Writes the complete trajectories of a storage or a ReplayBuffer as rollout directories.

    Args:
        drop: leaves to leave out, by name.
        on_episode: called with (done, total) after each trajectory.
        options: of `RolloutWriter`: frames_per_file, obs_segments, codecs, metadata.

    Returns:
        how many trajectories.

    Raises:
        LayoutError: a leaf is missing, nested, or has no place there.
    """
    count = 0
    trajectories = map(_frames, episodes_of(source, drop, on_episode))
    first = next(trajectories, None)  # what it refuses, it refuses before anything is made
    with RolloutWriter(path, **options) as writer:
        for frames in trajectories if first is None else chain((first,), trajectories):
            writer.add_trajectory(frames)
            count += 1
    return count


def _frames(episode: Episode) -> dict[str, Any]:
    episode.check_plain("a rollout directory")
    known = [p for places in _PLACES.values() for p in places]
    episode.check_no_others((*known, *_FLAGS), "a rollout directory")
    out: dict[str, Any] = {}
    for name, places in _PLACES.items():
        if name in _NEEDED or any(p[: len(q)] == q for q in places for p in episode.columns):
            out[name] = episode.tree(name, places)
        if isinstance(out.get(name), Mapping):
            raise LayoutError(
                f"{name}: nested; a rollout directory has one array for it; concatenate its parts, "
                "and give them names with obs_segments"
            )
    late = episode.ends("truncated")
    return {**out, "done": episode.ends("terminated") | late, "timeout": late}
