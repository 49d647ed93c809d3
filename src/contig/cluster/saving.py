"""Checkpoints of a sharded buffer.

    cluster.json   format, shards and their numbers, sampler, random numbers
    shard-0/ ...   each a checkpoint of a ReplayBuffer, written by the shard itself

Every shard writes and reads its own: the directory must be where all their nodes see it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LayoutError, ServerError
from ..replay.folder import Kind, new_directory, reading
from ..sample import Sampler
from ..tape.disk import files
from .engine import ray
from .fleet import Fleet
from .place import ShardSpec

__all__ = ["load", "save"]

FORMAT = 1
_META = "cluster.json"


def _fault(path: Path) -> str | None:
    """Why a directory is no checkpoint, or None."""
    try:
        meta = json.loads(files.read(path / _META))
    except (OSError, ValueError):
        return f"there is no {_META} that can be read"
    known = isinstance(meta, dict) and {"format", "shards", "state"} <= meta.keys()
    return None if known else f"{_META} there is not that of a checkpoint"


_KIND = Kind(
    "a checkpoint of a RayReplayBuffer",
    _META,
    re.compile(rf"{re.escape(_META)}|shard-\d+/.*"),
    _fault,
)


def save(fleet: Fleet, spec: ShardSpec, sampler: Sampler, rng: list[int], path: Path) -> None:
    """Has every shard write itself, and puts all in place at once."""
    sources = _all(fleet, spec)
    states = fleet.ask("state")
    _all(fleet, spec)
    with new_directory(path, _KIND) as folder:
        calls = [
            s.place.actor.save.remote(str(folder / f"shard-{s.place.slot}"), sampler, state)
            for s, state in zip(sources, states)
        ]
        written = [bool(w) for w in ray.get(calls)]
        meta = {
            "format": FORMAT,
            "shards": spec.shards,
            "written": written,
            "numbers": [s.number for s in sources],
            "sampler": sampler.name,
            "state": {"rng": rng, "sampler": _plain(sampler.state())},
        }
        files.write_new(folder / _META, json.dumps(meta).encode())


def load(fleet: Fleet, spec: ShardSpec, sampler: Sampler, path: Path) -> dict[str, Any]:
    """Has every shard take its part in; returns the whole's own state."""
    sources = _all(fleet, spec)
    with reading(path, _META) as found:
        meta = _read(found, sampler)
        folders = {i: str(found / f"shard-{i}") for i, w in enumerate(meta["written"]) if w}
        if meta["shards"] == spec.shards:
            calls = [s.place.actor.load.remote(folders.get(s.place.slot), sampler) for s in sources]
        else:
            every, n = list(folders.values()), spec.shards
            calls = [
                s.place.actor.load_share.remote(every, sampler, (s.place.slot, n)) for s in sources
            ]
        states = ray.get(calls)
    for source, known in zip(sources, states):
        answer = source.reset() if known is None else source.load(known)
        if answer is not None:
            answer.get()
    own: dict[str, Any] = meta["state"]
    numbers: dict[int, int] = {}
    if meta["shards"] == spec.shards:
        then = meta.get("numbers", range(spec.shards))  # nobody asked for them at first
        numbers = dict(zip(then, (s.number for s in sources)))
    return {**own, "sampler": sampler.moved(own["sampler"], numbers)}


def _read(path: Path, sampler: Sampler) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads(files.read(path / _META))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path}: no checkpoint of shards (no {_META}) there") from None
    if meta["format"] != FORMAT:
        raise LayoutError(f"{path}: format {meta['format']}, this contig reads format {FORMAT}")
    if meta["sampler"] != sampler.name:
        raise LayoutError(
            f"{path}: saved with {meta['sampler']}, this buffer has {sampler.name}; load it into a "
            "buffer with the same sampler"
        )
    return meta


def _all(fleet: Fleet, spec: ShardSpec) -> list[Any]:
    """All shards, or an error: a checkpoint without one would lose its rows for good."""
    sources = list(fleet.sources)
    if len(sources) < spec.shards:
        raise ServerError(
            f"{spec.shards - len(sources)} of {spec.shards} shards are missing just now: try again "
            "when they have been replaced, or answer again"
        )
    return sources


def _plain(value: Any) -> Any:
    """As JSON; a whole's sampler knows of no rows, only of groups that were consumed and are still
    stored, so its arrays are short."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value
