"""Where the rows of trajectories are: a tape in memory, or a directory.

Both are written by one thread at a time (the buffer holds its lock) and read by any number without
one. A trajectory is one append, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from ..batch import Batch
from ..layout import Layout
from ..tape import LazyTensorStorage, PackedRows, Snapshot, Storage
from ..tape.disk import DiskStorage, files
from ..tape.disk.extents import row_stride
from ..tape.entry import ENTRY
from ..tape.episodes import read_index
from .index import TrajectoryEntry
from .journal import JOURNAL, TrajectoryJournal, read_journal
from .trajectory import Array

__all__ = ["DiskRows", "MemoryRows", "ReadRows", "any_lost", "gather_entry"]

log = logging.getLogger("contig.trajectory")

_MOST_ROWS = 1 << 30
_LEAST_ROWS = 4096
_LOADING = "loading"


class MemoryRows:
    """Rows in memory, for the newest trajectories; it grows when they become longer.

    Args:
        window: trajectories to keep; 0: all.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self.storage: Storage | None = None
        self.damaged = 0

    def define(self, layout: Layout, rows: int) -> None:
        """Fixes the layout; `rows` are those of the first trajectory."""
        # One trajectory more than the window: what is being drawn stays while the next comes in.
        capacity = max(rows * (self._window + 1), _LEAST_ROWS)
        self.storage = LazyTensorStorage(min(capacity, _MOST_ROWS))
        self.storage.publish(layout)

    def make_room(self, rows: int) -> None:
        """Grows if that many rows do not fit."""
        storage = self.storage
        if storage is None or rows <= storage.capacity:
            return
        assert storage.layout is not None
        # Readers may be in the old one: it goes when the last of them has left.
        larger = LazyTensorStorage(max(rows, 2 * storage.capacity))
        larger.publish(storage.layout)
        larger.restore(_contents(storage), (0, 0))
        self.storage = larger

    def append(self, tree: Any, entry: TrajectoryEntry) -> TrajectoryEntry:
        """Stores a trajectory; its entry with the place where it is."""
        assert self.storage is not None
        return _append(self.storage, tree, entry)

    def clear(self) -> None:
        self.storage = None

    def close(self) -> None:
        self.clear()


def _append(storage: Storage, tree: Any, entry: TrajectoryEntry) -> TrajectoryEntry:
    seqs = storage.default_writer.extend_trajectory(
        tree, truncated=True, traj_id=entry.trajectory_id, policy_version=entry.version
    )
    return entry._replace(first=int(seqs[0]), ordinal=int(storage.tape.trajectories) - 1)


def _contents(storage: Storage) -> Snapshot:
    """A copy of everything on a tape that nobody writes to meanwhile."""
    table = read_index(storage.tape)
    size = storage.tape.record_size
    seqs = np.arange(table.tail, table.head, dtype=np.int64)
    records = np.empty(len(seqs) * size, np.uint8)
    storage.tape.gather_records(seqs, records)
    return Snapshot(
        PackedRows(records, table.tail, size),
        table.tail,
        table.head,
        table.by_number(),
        int(storage.tape.trajectories),
    )


def any_lost(seqs: Array, lost: Any) -> bool:
    """Whether some rows of a `Storage.gather` were evicted meanwhile, or are damaged."""
    if isinstance(lost, np.ndarray):
        return bool(lost.any())
    return bool(lost) and bool((seqs < lost).any())


def gather_entry(storage: Storage, entry: TrajectoryEntry) -> Batch:
    """All rows of a trajectory.

    Raises:
        LookupError: they were evicted, or are damaged.
    """
    seqs = np.arange(entry.first, entry.first + entry.num_samples, dtype=np.int64)
    batch, lost = storage.gather(seqs)
    if any_lost(seqs, lost):
        raise LookupError(
            f"trajectory {entry.trajectory_id}: its rows were evicted, or are damaged"
        )
    return batch  # type: ignore[no-any-return]


class DiskRows:
    """Rows in a directory: a DiskStorage and a journal. An existing one is opened.

    Args:
        path: the directory; made with the first trajectory.
        max_bytes: of rows to keep; the oldest trajectories are deleted.
    """

    def __init__(
        self, path: Path, max_bytes: int | None = None, durability: str = "committed"
    ) -> None:
        self.path = path
        self._options: dict[str, Any] = {"max_bytes": max_bytes, "durability": durability}
        self._max_bytes = max_bytes
        self._journal = TrajectoryJournal(path)
        self.storage: Storage | None = None
        self.entries: list[TrajectoryEntry] = []  # as they were found
        self.damaged = 0
        if files.exists(path / "layout.json"):
            self.storage = DiskStorage(path, **self._options)
            self._remove_loading()
            lines = self._journal.open()
            self.entries, self.damaged = _join(self.storage.episodes(), lines, self.storage)
            if len(lines) > 2 * len(self.entries) + 100:
                self._journal.rewrite(self.entries)

    def define(self, layout: Layout, rows: int) -> None:
        """Makes the directory, for records of this layout."""
        storage = DiskStorage(self.path, **self._options)
        try:
            storage.publish(layout)
        except BaseException:
            storage.close()
            raise
        self.storage = storage

    def make_room(self, rows: int) -> None:
        """The disk has room, or the append raises."""

    def append(self, tree: Any, entry: TrajectoryEntry) -> TrajectoryEntry:
        """Stores a trajectory; its entry with the place where it is."""
        storage = self.storage
        assert storage is not None
        nbytes = entry.num_samples * row_stride(storage.tape.record_size)
        if self._max_bytes is not None and nbytes > self._max_bytes:
            raise ValueError(
                f"a trajectory of {nbytes} bytes does not fit into max_bytes={self._max_bytes}"
            )
        place = entry._replace(first=int(storage.tape.snapshot()[0]))
        began = self._journal.add(place)
        try:
            stored = _append(storage, tree, entry)
        except BaseException:
            self._journal.take_back(began)
            raise
        assert stored.first == place.first, "somebody else writes to this directory"
        return stored

    def beside(self, layout: Layout) -> DiskRows:
        """An empty one within this directory, to take in what is going to replace everything here:
        its rows have seqs that none has here, so that lines of both can be in one journal."""
        self._remove_loading()
        rows = DiskRows(self.path / _LOADING, self._max_bytes)
        try:
            rows.define(layout, 0)
            rows._begin_behind(self.storage)
        except BaseException:
            rows.discard()
            raise
        return rows

    def _begin_behind(self, other: Storage | None) -> None:
        """The first row gets a seq that none has there, and is the first of a file, so that files
        can be linked."""
        storage = self.storage
        assert isinstance(storage, DiskStorage)
        if other is None or other.layout is None:
            return
        first = storage.first_extent_behind(int(other.tape.snapshot()[0]))
        nothing = PackedRows(np.zeros(0, np.uint8), first, storage.tape.record_size)
        none = np.zeros(0, ENTRY)
        storage.restore(Snapshot(nothing, first, first, none, 0), (0, 0))

    def _remove_loading(self) -> None:
        """What a load left that was killed."""
        files.remove_tree(self.path / _LOADING)

    def replace(self, other: DiskRows, entries: list[TrajectoryEntry]) -> None:
        """Takes over what is in one that `beside` made, in place of everything; if that fails,
        nothing is changed."""
        assert isinstance(other.storage, DiskStorage) and other.storage.schema is not None
        other.storage.flush()
        contents = other.storage.linked_contents()
        storage = self.storage or DiskStorage(self.path, **self._options)
        try:
            for entry in entries:  # if this fails, later lines for these seqs count
                self._journal.add(entry)
            self._journal.sync()
            storage.restore(contents, (contents.head, 0), other.storage.schema.layout)
        except BaseException:
            if self.storage is None:
                storage.close()
            raise
        self.storage = storage
        try:
            self._journal.rewrite(entries)
        except OSError as error:
            log.warning("%s: lines of trajectories that are gone stay: %s", self.path, error)

    def discard(self) -> None:
        """Closes it and deletes it."""
        try:
            self.close()
        finally:
            files.remove_tree(self.path)

    def seal(self, entries: list[TrajectoryEntry]) -> None:
        """Makes the journal durable, with these lines."""
        self._journal.rewrite(entries)

    def clear(self) -> None:
        """Deletes everything; the layout stays."""
        if self.storage is not None:
            self.storage.empty()
            self.storage.flush()
            self._journal.rewrite([])

    def close(self) -> None:
        """Commits what is left.

        Raises:
            OSError: some of it could not be committed.
        """
        self._journal.close()
        if self.storage is not None:
            self.storage.close()


class ReadRows:
    """A directory of trajectories that is only read: a checkpoint, or one that another run wrote.

    Raises:
        FileNotFoundError: there is none.
    """

    def __init__(self, path: Path) -> None:
        self.storage = DiskStorage(path, read_only=True)
        try:
            episodes = self.storage.episodes()
            lines, _ = read_journal(path / JOURNAL)  # after it: a line is there before its rows
            self.entries, self.damaged = _join(episodes, lines, self.storage)
        except BaseException:
            self.storage.close()
            raise

    def close(self) -> None:
        self.storage.close()


def _join(
    episodes: Array, lines: dict[int, TrajectoryEntry], storage: DiskStorage
) -> tuple[list[TrajectoryEntry], int]:
    """Entries of the whole trajectories on a tape, and how many cannot be served."""
    entries, damaged = [], 0
    for episode in episodes:
        entry = lines.get(int(episode["first"]))
        if not episode["complete"]:
            continue  # its first rows were evicted
        if int(episode["id"]) in storage.quarantined:
            damaged += 1  # the storage said so
        elif entry is None or entry.num_samples != episode["steps"]:
            damaged += 1
            log.error(
                "%s: the trajectory at row %d is set aside: its line in %s is damaged or missing",
                storage.path,
                episode["first"],
                JOURNAL,
            )
        else:
            version = int(episode["policy_version"])
            entries.append(entry._replace(ordinal=int(episode["id"]), version=version))
    return entries, damaged
