"""The journal: what the index of a directory knows of trajectories beside their rows.

    trajectories.jsonl   a line per trajectory: checksum, then JSON

A line is written before its rows are appended; the rows' commit is what counts, and a line whose
rows did not come is ignored. Lines are only ever added, so an add costs the same however many there
are. Not thread-safe: its user holds a lock.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .. import _native
from ..tape.disk import files
from .index import TrajectoryEntry

__all__ = ["JOURNAL", "TrajectoryJournal", "read_journal"]

JOURNAL = "trajectories.jsonl"


class TrajectoryJournal:
    """The file of a directory that is being written. It is made when it is first written to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self._fd = -1
        self._at = 0

    def open(self) -> dict[int, TrajectoryEntry]:
        """What is there, by first seq, made ready to be added to."""
        found, self._at = read_journal(self.path)
        return found

    def add(self, entry: TrajectoryEntry) -> int:
        """Writes a line; returns where it begins, for `take_back`."""
        if self._fd < 0:
            make = not files.exists(self.path)
            self._fd = files.create(self.path, 0) if make else files.open_to_write(self.path)
        began = self._at
        self._at = files.pwrite_all(self._fd, _line(entry), began)
        return began

    def sync(self) -> None:
        """Returns when its lines are on the disk."""
        if self._fd >= 0:
            files.fsync(self._fd)
            files.fsync_dir(self.path.parent)

    def take_back(self, began: int) -> None:
        """The rows of the line that begins there were refused: the next line takes its place."""
        self._at = began

    def rewrite(self, entries: list[TrajectoryEntry]) -> None:
        """Puts a file with these lines in the place of the old one."""
        self.close()
        data = b"".join(_line(e) for e in entries)
        files.write_new(self.path, data)
        self._at = len(data)

    def close(self) -> None:
        if self._fd >= 0:
            files.close(self._fd)
            self._fd = -1


def _line(entry: TrajectoryEntry) -> bytes:
    text = json.dumps({**entry.public(), "first": entry.first, "version": entry.version})
    data = text.encode()
    return b"%08x %s\n" % (_native.crc32c(data), data)


def read_journal(path: Path) -> tuple[dict[int, TrajectoryEntry], int]:
    """Whole lines by first seq, the last of each; and where the next line begins."""
    data = files.read(path) if files.exists(path) else b""
    end = data.rfind(b"\n") + 1
    found: dict[int, TrajectoryEntry] = {}
    for line in data[:end].splitlines():
        entry = _parse(line)
        if entry is not None:
            found[entry.first] = entry
    return found, end


def _parse(line: bytes) -> TrajectoryEntry | None:
    crc, _, text = line.partition(b" ")
    try:
        if int(crc, 16) != _native.crc32c(text):
            return None
        values: dict[str, Any] = json.loads(text)
        return TrajectoryEntry(**{**values, "shape": tuple(values["shape"])})
    except (ValueError, TypeError, KeyError):
        return None
