"""What can be saved of a storage whose index SQLite cannot read any more.

index.sqlite, -wal, -shm  ->  quarantine/index-<time>/   whole, for whoever wants to try more
files of no known rows    ->  quarantine/index-<time>/extents/
runs that can be read     ->  a new index.sqlite
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import files
from .index import WORDS, Changes, DiskIndex, is_whole, whole_runs

__all__ = ["Salvaged", "salvage"]

_NAMES = ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm")


class Salvaged(NamedTuple):
    """What became of an index.

    Attributes:
        runs: that could be read.
        rows: of these runs.
        aside: where the damaged files are now.
    """

    runs: int
    rows: int
    aside: Path


def salvage(path: Path, rows_per_extent: int) -> Salvaged:
    """Builds a new index for a storage that nobody has open. The caller holds its lock."""
    entries = _read_runs(path)
    producers = _read_producers(path)
    aside = _new_folder(path / "quarantine" / time.strftime("index-%Y%m%d-%H%M%S"))
    for name in _NAMES:
        if files.exists(path / name):
            files.rename(path / name, aside / name)
    numbers = sorted(entries)
    last = entries[numbers[-1]] if numbers else None
    tail = int(entries[numbers[0]][0]) if numbers else 0
    head = 0 if last is None else int(last[0] + (last[1] >> 8))
    _move_extents(path, aside, tail // rows_per_extent, -(-head // rows_per_extent))
    files.fsync_dir(aside)
    index = DiskIndex(path / "index.sqlite", True)
    try:
        index.set_durable(True)
        index.write(
            Changes(
                entries=entries,
                producers=producers,
                tail=tail,
                index_tail=numbers[0] if numbers else 0,
                head=head,
                trajectories=max((int(w[5]) + 1 for w in entries.values()), default=0),
                limiter=(head, 0),
            )
        )
    finally:
        index.close()
    files.fsync_dir(path)
    rows = sum(int(w[1]) >> 8 for w in entries.values())
    return Salvaged(len(entries), rows, aside)


def _new_folder(path: Path) -> Path:
    """Makes a folder of that name, or of the next one that is free."""
    folder, n = path, 1
    while files.exists(folder):
        n += 1
        folder = path.with_name(f"{path.name}-{n}")
    files.make_dir(folder)
    return folder


def _move_extents(path: Path, aside: Path, first: int, last: int) -> None:
    """Extents outside [first, last) hold rows of which nothing is known."""
    for name in files.listing(path / "extents"):
        number = name.removesuffix(".rec")
        if number.isdigit() and not first <= int(number) < last:
            files.make_dir(aside / "extents")
            files.rename(path / "extents" / name, aside / "extents" / name)


def _read_runs(path: Path) -> dict[int, np.ndarray[Any, Any]]:
    """Runs by number: read from both ends, as far as that goes."""
    query = f"SELECT number, {', '.join(WORDS)}, crc FROM runs ORDER BY number"
    return {**whole_runs(_rows(path, query)), **whole_runs(_rows(path, query + " DESC"))}


def _read_producers(path: Path) -> dict[int, int]:
    rows = _rows(path, "SELECT id, seq, revision, crc FROM producers")
    return {row[0] & (2**64 - 1): row[1] for row in rows if is_whole(row)}


def _rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    """What a query gives until it fails, of a copy: reading may change the log's files."""
    found: list[tuple[Any, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in _NAMES[:2]:
            if files.exists(path / name):
                shutil.copyfile(path / name, Path(folder) / name)
        db = sqlite3.connect(Path(folder) / _NAMES[0])
        try:
            for row in db.execute(query):
                found.append(row)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError):
            pass
        finally:
            db.close()
    return found
