"""Directories that a buffer can load: our checkpoints, our directories of rows, RLinf's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import LayoutError
from ..replay.folder import reading
from ..tape.disk import files
from .checkpoint import is_checkpoint
from .folder import METADATA, read_json, shard
from .record import Optional, Record
from .rlinf import RlinfDirectory, read_rlinf
from .rows import ReadRows, gather_entry
from .table import Entry
from .trajectory import Flat, flatten_trajectory

__all__ = ["Source", "open_source"]


class Source(NamedTuple):
    """What a rank takes from a directory.

    Attributes:
        flats: the trajectories of `entries`, read when they are asked for.
        metadata: counters, seed and random numbers, as far as they are known.
        optional: fields that may be missing, if the directory says so.
    """

    entries: list[Entry]
    flats: Iterator[Flat]
    metadata: dict[str, Any]
    optional: Optional


@contextmanager
def open_source(path: Path, rank: int, world_size: int, newest: int = 0) -> Iterator[Source]:
    """A rank's part of a directory; of that, only the newest trajectories, if `newest` is not 0.

    Raises:
        FileNotFoundError: there is none, or not all of it.
        LayoutError: it is damaged.
        ValueError: no such rank.
    """
    shard(0, rank, world_size)
    with reading(path, METADATA) as found, _open(found, rank, world_size, newest) as source:
        yield source


@contextmanager
def _open(path: Path, rank: int, world_size: int, newest: int) -> Iterator[Source]:
    if not is_checkpoint(path):
        directory = read_rlinf(path)
        part = directory.entries[shard(len(directory.entries), rank, world_size)][-newest:]
        yield Source(part, _from_rlinf(directory, part), directory.metadata, {})
        return
    metadata = read_json(path / METADATA) if files.exists(path / METADATA) else {}
    if not files.exists(path / "layout.json"):  # of a buffer that was empty
        yield Source([], iter(()), metadata, {})
        return
    rows = ReadRows(path)
    try:
        assert rows.storage.layout is not None
        record = Record.stored(rows.storage.layout, {})
        part = rows.entries[shard(len(rows.entries), rank, world_size)][-newest:]
        yield Source(part, _from_rows(rows, record, part), metadata, record.optional_specs())
    finally:
        rows.close()


def _from_rows(rows: ReadRows, record: Record, entries: list[Entry]) -> Iterator[Flat]:
    for entry in entries:
        try:
            batch = gather_entry(rows.storage, entry)
        except LookupError as error:
            raise LayoutError(f"{rows.storage.path}: {error}") from None
        length, weights = entry.max_episode_length, entry.model_weights_id
        yield Flat(record.columns(batch), entry.shape, length, weights)


def _from_rlinf(directory: RlinfDirectory, entries: list[Entry]) -> Iterator[Flat]:
    for entry in entries:
        flat = flatten_trajectory(directory.load(entry))
        if flat.rows != entry.num_samples:
            raise LayoutError(
                f"{directory.path}: trajectory {entry.trajectory_id} has {flat.rows} samples, the "
                f"index says {entry.num_samples}"
            )
        yield flat
