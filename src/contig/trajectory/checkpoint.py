"""Checkpoints of a TrajectoryReplayBuffer: a directory of rows, and what else a buffer is.

    layout.json  extents/  index.sqlite   the rows: a DiskStorage
    trajectories.jsonl                    the index of trajectories
    metadata.json                         counters, seed, random numbers

Of rows in a directory it is made by hard links, so that it takes no longer for more of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..tape import Storage
from ..tape.disk import DiskStorage, files
from .folder import CONTIG, METADATA, new_directory, read_json, write_json
from .index import TrajectoryEntry
from .journal import TrajectoryJournal
from .rows import DiskRows, gather_entry

__all__ = ["is_checkpoint", "save"]


def save(
    path: Path,
    storage: Storage | None,
    entries: list[TrajectoryEntry],
    metadata: dict[str, Any],
    live: Iterable[Path] = (),
) -> None:
    """Writes a checkpoint. Nobody may write to the storage meanwhile.

    Args:
        live: directories of storages that are in use.

    Raises:
        FileExistsError: something else than a checkpoint is there.
    """
    with new_directory(path, live) as folder:
        if isinstance(storage, DiskStorage):
            _link(storage, folder, entries)
        elif storage is not None and entries:
            _copy(storage, folder, entries)
        write_json(folder / METADATA, {**metadata, "trajectory_format": CONTIG, "format": 1})


def is_checkpoint(path: Path) -> bool:
    """Whether a directory is one of ours, and not RLinf's."""
    if files.exists(path / METADATA):
        return read_json(path / METADATA).get("trajectory_format") == CONTIG
    return files.exists(path / "layout.json")


def _copy(storage: Storage, folder: Path, entries: list[TrajectoryEntry]) -> None:
    assert storage.layout is not None
    rows = DiskRows(folder, durability="durable")
    try:
        rows.define(storage.layout, 0)
        stored = [rows.append(gather_entry(storage, e).stored(), e) for e in entries]
        rows.seal(stored)
    finally:
        rows.close()
    files.unlink(folder / "committed")  # it is of this system only
    _settle(folder / "index.sqlite")


def _link(storage: DiskStorage, folder: Path, entries: list[TrajectoryEntry]) -> None:
    storage.flush()
    head, tail, _, _ = storage.tape.snapshot()
    storage.link_rows(folder, tail, head)
    storage.backup_index(folder / "index.sqlite")
    _settle(folder / "index.sqlite")
    files.write_new(folder / "layout.json", files.read(storage.path / "layout.json"))
    TrajectoryJournal(folder).rewrite(entries)


def _settle(index: Path) -> None:
    """Makes an index one file, which can be read where nothing can be written."""
    db = sqlite3.connect(index)
    try:
        db.execute("PRAGMA journal_mode=DELETE")
    finally:
        db.close()
    files.sync(index)
