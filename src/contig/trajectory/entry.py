"""TrajectoryEntry: what is known of a trajectory beside its rows, and how the tape's index has it.

trajectory_id, num_samples, version     the index's own: traj_id, steps, policy_version
uuid, model_weights_id                  fields: UTF-8, with zeros behind it
shape                                   a field: [T, B, ...], with -1 behind it
max_episode_length                      a field
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..errors import LayoutError
from ..layout import Layout
from .trajectory import Array

__all__ = ["TrajectoryEntry", "entries_in", "field_values", "fields_for"]

_TEXT = {"uuid": 64, "model_weights_id": 256}  # bytes


class TrajectoryEntry(NamedTuple):
    """What the index knows of a trajectory.

    Attributes:
        uuid, trajectory_id: its names: unique everywhere, and in the order of writing.
        num_samples: T * B.
        shape: ``(T, B, ...)``.
        max_episode_length, model_weights_id: as the Trajectory said.
        first: seq of its first row.
        ordinal: its `id` in the storage's `episodes()`.
        version: of its weights: 0, 1, 2 ... in the order in which they first came.
    """

    uuid: str
    trajectory_id: int
    num_samples: int
    shape: tuple[int, ...]
    max_episode_length: int
    model_weights_id: str
    first: int = -1
    ordinal: int = -1
    version: int = 0

    def public(self) -> dict[str, Any]:
        """As RLinf's index has it."""
        names = self._fields[:6]
        return {**dict(zip(names, self)), "shape": list(self.shape)}


def fields_for(layout: Layout, entries: Iterable[TrajectoryEntry]) -> dict[str, Any]:
    """An example of the fields of trajectories whose rows have this layout: the same for all such
    trajectories, but that text is given more room if some of these need it."""
    known = list(entries)
    room = {
        name: max([least, *(len(_bytes(getattr(entry, name))) for entry in known)])
        for name, least in _TEXT.items()
    }
    return {
        # A trajectory's shape is that of one of its leaves.
        "shape": np.zeros(2 + max(len(x.shape) for x in layout.leaves), np.int64),
        "max_episode_length": np.int64(0),
        **{name: np.zeros(-(-size // 8) * 8, np.uint8) for name, size in room.items()},
    }


def field_values(entry: TrajectoryEntry, fields: Layout) -> dict[str, Any]:
    """The fields of a trajectory.

    Raises:
        LayoutError: its text has no room there.
    """
    dims = fields.by_path["shape",].shape[0]
    shape = np.full(dims, -1, np.int64)
    shape[: len(entry.shape)] = entry.shape
    out: dict[str, Any] = {"shape": shape, "max_episode_length": entry.max_episode_length}
    for name in _TEXT:
        text, most = getattr(entry, name), fields.by_path[name,].shape[0]
        data = _bytes(text)
        if len(data) > most or data.endswith(b"\0"):
            raise LayoutError(
                f"{name}: expected text of at most {most} bytes that does not end with a zero, got "
                f"{len(data)} bytes, {text[:80]!r}; give another"
            )
        out[name] = np.frombuffer(data.ljust(most, b"\0"), np.uint8)
    return out


def entries_in(episodes: Array, damaged: Iterable[int] = ()) -> list[TrajectoryEntry]:
    """The trajectories that `Storage.episodes` lists, without those that lost rows, or are
    damaged."""
    episodes = episodes[episodes["complete"] & ~np.isin(episodes["id"], list(damaged))]
    if not len(episodes):
        return []
    names = ("traj_id", "steps", "max_episode_length", "first", "id", "policy_version")
    numbers = zip(*(episodes[name].tolist() for name in names))
    texts = zip(*(map(_text, episodes[name]) for name in _TEXT))
    return [
        TrajectoryEntry(uuid, number, samples, shape, length, weights, *place)
        for (number, samples, length, *place), (uuid, weights), shape in zip(
            numbers, texts, map(_shape, episodes["shape"])
        )
    ]


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _text(data: Array) -> str:
    return data.tobytes().rstrip(b"\0").decode(errors="surrogatepass")


def _shape(padded: Array) -> tuple[int, ...]:
    return tuple(n for n in padded.tolist() if n >= 0)
