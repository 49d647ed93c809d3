"""Checkpoints of shards: each is one of a ReplayBuffer; so many load into any other number.

Whole trajectories are dealt out, in the order of the shards they come from: of n shards, each takes
one contiguous share of them all (the first ones get one more if the numbers do not divide), with
what samplers know of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..sample import Sampler
from ..tape import Snapshot, Storage
from ..tape.fields import check_fields
from . import checkpoint
from .checkpoint import Saved, read_saved

__all__ = ["load_shard", "load_share", "save_shard"]

Array = np.ndarray[Any, Any]


class _Shard:
    """A shard as a checkpoint knows a buffer."""

    def __init__(self, storage: Storage, sampler: Sampler, state: Any = None) -> None:
        self.storage, self.sampler, self._state = storage, sampler, state

    def state(self) -> dict[str, Any]:
        return {"rng": [1, 2, 3, 4], "sampler": self._state}  # random numbers are the whole's

    def load_state(self, state: dict[str, Any], /) -> None:
        self._state = state["sampler"]


def save_shard(storage: Storage, sampler: Sampler, state: Any, path: Path) -> bool:
    """Writes a shard and what a sampler knows of it; False: nothing was ever written to it."""
    if storage.schema is None:
        return False
    storage.flush()
    checkpoint.save(_Shard(storage, sampler, state), path)
    return True


def load_shard(storage: Storage, sampler: Sampler, path: Path) -> Any:
    """Takes a shard in, in place of what the storage holds; returns the sampler's state."""
    shard = _Shard(storage, sampler)
    checkpoint.load(shard, path)
    return shard.state()["sampler"]


def load_share(
    storage: Storage, sampler: Sampler, paths: Sequence[Path], share: tuple[int, int]
) -> Any:
    """Takes one of n shares of several shards in, in place of what the storage holds.

    Args:
        share: which, and of how many.

    Returns:
        the sampler's state for these rows; None: it begins anew.
    """
    saved = [read_saved(path, sampler.name) for path in paths]
    for path, one in zip(paths, saved):
        if one.layout != saved[0].layout:
            raise LayoutError(
                f"{path}: its rows differ from those of {paths[0]}:\n"
                f"{saved[0].layout.diff(one.layout)}"
            )
    fields = next((one.fields for one in saved if one.fields is not None), None)
    for path, one in zip(paths, saved):
        if one.fields is not None:
            check_fields(one.fields, fields, f"{path}: ")
    parts = [(k, ordinals) for k, ordinals in enumerate(_dealt(saved, share)) if len(ordinals)]
    if not parts:
        storage.empty()
        return None
    contents = Snapshot.joined([saved[k].contents.only(mine.tolist()) for k, mine in parts])
    rows = [(k, saved[k].contents.seqs_of(mine.tolist())) for k, mine in parts]
    state = sampler.carried([one.state["sampler"] for one in saved], rows)
    contents = contents.newest(storage.capacity)
    storage.restore(contents, (contents.head, 0), saved[0].layout, saved[0].keys, fields)
    return state


def _dealt(saved: Sequence[Saved], share: tuple[int, int]) -> list[Array]:
    """Of each checkpoint, the trajectories that one share has."""
    mine, of = share
    there = []
    for one in saved:
        ordinals = one.contents.ordinals()
        there.append(ordinals[~np.isin(ordinals, list(one.quarantine))])
    counts = [len(o) for o in there]
    places = np.array_split(np.arange(sum(counts)), of)[mine]
    starts = np.cumsum([0, *counts[:-1]])
    return [o[np.isin(np.arange(len(o)) + at, places)] for o, at in zip(there, starts)]
