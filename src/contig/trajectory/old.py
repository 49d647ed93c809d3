"""Directories that contig 0.1 wrote, and checkpoints, made what a buffer opens.

    layout.json  extents/  index.sqlite    0.1: a DiskStorage without fields
    trajectories.jsonl                     what is known of its trajectories: a line for each

They are converted in place, when a buffer opens them to write:

    converting/   a storage with fields is made; extents are linked, so it takes no room
    converted/    ... and is whole: what there was before is deleted
    moving/       ... and is: the new files get their places, layout.json last

Who is killed at it leaves one of these, and whoever opens the directory next goes on from there.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np

from .. import _native
from ..replay.saved_rows import saved_rows
from ..tape.disk import DiskStorage, files
from ..tape.disk.directory import Directory
from ..tape.fields import fields_layout
from .contents import Contents
from .entry import TrajectoryEntry, field_values, fields_for
from .folder import CHECKPOINT, JOURNAL
from .record import Record

__all__ = ["finish", "old_contents", "open_directory"]

log = logging.getLogger("contig.trajectory")

_NEW, _WHOLE, _MOVING = "converting", "converted", "moving"
_REPLACED = re.compile(
    r"extents|committed|layout\.json|index(-\d+)?\.sqlite(-wal|-shm|-journal)?|index\.bin"
    rf"|records\.bin|fields\.bin|array-\d+\.npy|{re.escape(JOURNAL)}|{re.escape(CHECKPOINT)}"
)


def open_directory(path: Path, max_bytes: int | None) -> DiskStorage | None:
    """The storage of a directory, converted if need be; None if there is none yet.

    Raises:
        LayoutError: it holds something else.
    """
    finish(path)
    if files.exists(path / "layout.json"):
        storage = DiskStorage(path, max_bytes=max_bytes)
        if storage.fields is not None:
            return storage
        try:
            assert storage.layout is not None
            Record.stored(storage.layout, {})
            contents, damaged = old_contents(storage, path)
            _convert(path, contents, damaged, storage.first_extent_behind(1))
        finally:
            storage.close()
    elif files.exists(path / CHECKPOINT):
        with saved_rows(path) as saved:
            _convert(path, Contents.saved(saved), saved.quarantine)
    else:
        return None
    finish(path)
    return DiskStorage(path, max_bytes=max_bytes)


def _convert(
    path: Path, contents: Contents, damaged: dict[int, str], rows_per_extent: int | None = None
) -> None:
    """Makes the storage that is going to be in that place."""
    files.remove_tree(path / _NEW)
    with DiskStorage(
        path / _NEW, rows_per_extent=rows_per_extent, durability="durable", fields=contents.fields
    ) as storage:
        rows = contents.snapshot.newest(storage.capacity)
        storage.restore(rows, (rows.head, 0), contents.layout, fields=contents.fields)
        storage.quarantine(damaged)
        storage.flush()
    files.rename(path / _NEW, path / _WHOLE)
    files.fsync_dir(path)
    log.info("%s: converted, so that trajectories have fields", path)


def finish(path: Path) -> None:
    """Ends a conversion that was decided upon.

    Raises:
        BlockingIOError: another process does.
    """
    whole, moving = path / _WHOLE, path / _MOVING
    if not files.exists(whole) and not files.exists(moving):
        return
    directory = Directory(path, make=False)
    try:
        directory.lock()
        if files.exists(whole):
            for name in filter(_REPLACED.fullmatch, files.listing(path)):
                if files.is_dir(path / name):
                    files.remove_tree(path / name)
                else:
                    files.unlink(path / name)
            files.rename(whole, moving)
            files.fsync_dir(path)
        names = set(files.listing(moving)) - {"lock"}
        for name in sorted(names, key=lambda name: name == "layout.json"):
            files.rename(moving / name, path / name)
        files.fsync_dir(path)
        files.remove_tree(moving)
    finally:
        directory.close()


def old_contents(storage: DiskStorage, path: Path) -> tuple[Contents, dict[int, str]]:
    """What a directory of 0.1 holds, and which of its trajectories cannot be served."""
    assert storage.layout is not None
    episodes, snapshot = storage.episodes(), storage.linked_contents()
    lines = _read_journal(path / JOURNAL)  # after them: a line is there before its rows
    damaged = dict(storage.quarantined)
    entries = []
    for episode in episodes:
        ordinal, first = int(episode["id"]), int(episode["first"])
        entry = lines.get(first)
        if not episode["complete"] or ordinal in damaged:
            continue
        if entry is None or entry.num_samples != episode["steps"]:
            damaged[ordinal] = f"its line in {JOURNAL} is damaged or missing"
            log.error("%s: the trajectory at row %d: %s", path, first, damaged[ordinal])
            continue
        version = int(episode["policy_version"])
        entries.append(entry._replace(ordinal=ordinal, version=version))
    fields = fields_layout(fields_for(storage.layout, entries))
    records = np.zeros((len(snapshot.entries), fields.record_size), np.uint8)
    places = {int(ordinal): i for i, ordinal in enumerate(snapshot.entries["ordinal"])}
    for entry in entries:
        records[places[entry.ordinal]] = fields.pack_one(field_values(entry, fields))
    return Contents(snapshot._replace(fields=records), storage.layout, fields, entries), damaged


def _read_journal(path: Path) -> dict[int, TrajectoryEntry]:
    """Whole lines by first seq, the last of each."""
    data = files.read(path) if files.exists(path) else b""
    found = map(_parse, data[: data.rfind(b"\n") + 1].splitlines())
    return {entry.first: entry for entry in found if entry is not None}


def _parse(line: bytes) -> TrajectoryEntry | None:
    """A line is a checksum, then JSON."""
    crc, _, text = line.partition(b" ")
    try:
        if int(crc, 16) != _native.crc32c(text):
            return None
        values: dict[str, Any] = json.loads(text)
        return TrajectoryEntry(**{**values, "shape": tuple(values["shape"])})
    except (ValueError, TypeError, KeyError):
        return None
