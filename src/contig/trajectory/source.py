"""Directories that a buffer can load: our checkpoints, our directories of rows, RLinf's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..batch import Batch
from ..errors import LayoutError
from ..replay.folder import reading
from ..replay.saved_rows import saved_rows
from ..sample import Rng
from ..tape.disk import DiskStorage, files
from .contents import Contents
from .entry import TrajectoryEntry
from .folder import CHECKPOINT, METADATA, is_checkpoint, read_json, shard
from .record import Record
from .rlinf import RlinfDirectory, read_rlinf
from .trajectory import Flat, flatten_trajectory

__all__ = ["OpenedDirectory", "open_source", "resumed_rng"]


class OpenedDirectory(NamedTuple):
    """What a rank takes from a directory.

    Attributes:
        flats: the trajectories of `entries`, read when they are asked for.
        metadata: counters, seed and random numbers, as far as they are known.
        record: what a row is, if the directory has rows.
        contents: the same trajectories as rows of a tape, if that is what the directory has.
    """

    entries: list[TrajectoryEntry]
    flats: Iterator[Flat]
    metadata: dict[str, Any]
    record: Record | None = None
    contents: Contents | None = None


def resumed_rng(metadata: dict[str, Any], seed: int | None, rank: int, world: int) -> Rng:
    """The random numbers to go on with; several ranks have different ones."""
    rng = Rng(metadata.get("seed", seed))
    if "rng" in metadata:
        rng.load(metadata["rng"])
    if world > 1:
        words = np.random.SeedSequence([*rng.state(), rank]).generate_state(4, np.uint64)
        rng.load([int(w) for w in words])
    return rng


@contextmanager
def open_source(
    path: Path, rank: int, world_size: int, newest: int = 0
) -> Iterator[OpenedDirectory]:
    """A rank's part of a directory; of that part only the newest trajectories, if `newest` says
    how many.

    Raises:
        FileNotFoundError: there is none, or not all of it.
        LayoutError: it is damaged.
        ValueError: no such rank.
    """
    shard(0, rank, world_size)
    with reading(path, METADATA) as found:
        if not is_checkpoint(found):
            directory = read_rlinf(found)
            part = directory.entries[shard(len(directory.entries), rank, world_size)][-newest:]
            yield OpenedDirectory(part, _from_rlinf(directory, part), directory.metadata)
            return
        metadata = read_json(found / METADATA) if files.exists(found / METADATA) else {}
        with _contents(found) as contents:
            if contents is None and metadata.get("size"):
                raise FileNotFoundError(f"{path}: {CHECKPOINT} is missing from the checkpoint")
            if contents is None:  # of a buffer that was empty
                yield OpenedDirectory([], iter(()), metadata)
                return
            record = Record.stored(contents.layout, {})
            part = contents.entries[shard(len(contents.entries), rank, world_size)][-newest:]
            flats = _from_rows(found, contents, record, part)
            yield OpenedDirectory(part, flats, metadata, record, contents.only(part))


@contextmanager
def _contents(path: Path) -> Iterator[Contents | None]:
    if files.exists(path / "layout.json"):
        with DiskStorage(path, read_only=True) as storage:
            assert storage.layout is not None
            Record.stored(storage.layout, {})
            yield Contents.of(storage)
    elif files.exists(path / CHECKPOINT):
        with saved_rows(path) as saved:
            yield Contents.saved(saved)
    else:
        yield None


def _from_rows(
    path: Path, contents: Contents, record: Record, entries: list[TrajectoryEntry]
) -> Iterator[Flat]:
    for entry in entries:
        first, last = entry.first, entry.first + entry.num_samples
        try:
            rows = contents.snapshot.rows.read(first, last)
        except (ValueError, OSError) as error:
            raise LayoutError(f"{path}: trajectory {entry.trajectory_id}: {error}") from None
        batch = Batch.from_records(record.layout, rows.reshape(last - first, -1))
        length, weights = entry.max_episode_length, entry.model_weights_id
        yield Flat(record.columns(batch), entry.shape, length, weights)


def _from_rlinf(directory: RlinfDirectory, entries: list[TrajectoryEntry]) -> Iterator[Flat]:
    for entry in entries:
        flat = flatten_trajectory(directory.load(entry))
        if flat.rows != entry.num_samples:
            raise LayoutError(
                f"{directory.path}: trajectory {entry.trajectory_id} has {flat.rows} samples, the "
                f"index says {entry.num_samples}"
            )
        yield flat
