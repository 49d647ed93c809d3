"""Trajectories as rows of a tape with its index: what goes from one storage to another."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from ..errors import LayoutError
from ..layout import Layout
from ..replay.saved_rows import SavedRows
from ..tape import PackedRows, Snapshot, Storage
from ..tape.disk import DiskStorage
from ..tape.entry import read_entries
from ..tape.episodes import IndexTable, with_fields
from .entry import TrajectoryEntry, entries_in
from .record import NOT_OURS

__all__ = ["Contents"]


class Contents(NamedTuple):
    """Whole trajectories.

    Attributes:
        snapshot: their rows and their index; there may be more in it.
        layout, fields: of rows, and of trajectories.
        entries: what is known of them, the oldest first.
    """

    snapshot: Snapshot
    layout: Layout
    fields: Layout
    entries: list[TrajectoryEntry]

    @staticmethod
    def of(storage: Storage) -> Contents:
        """What is in a storage, to which nobody writes meanwhile."""
        assert storage.layout is not None
        if storage.fields is None:
            raise LayoutError(NOT_OURS)
        entries = entries_in(storage.episodes(), storage.quarantined)
        return Contents(_snapshot(storage), storage.layout, storage.fields, entries)

    @staticmethod
    def saved(saved: SavedRows) -> Contents:
        """What is in a checkpoint."""
        contents = saved.contents
        if saved.fields is None or contents.fields is None:
            raise LayoutError(NOT_OURS)
        # A trajectory is one run.
        episodes = IndexTable(contents.entries, contents.head, contents.tail).episodes()
        episodes = with_fields(episodes, saved.fields, contents.fields)
        entries = entries_in(episodes, saved.quarantine)
        return Contents(contents, saved.layout, saved.fields, entries)

    def only(self, entries: Collection[TrajectoryEntry]) -> Contents:
        """Some of them; rows get new seqs, unless these are all."""
        wanted = sorted(entry.ordinal for entry in entries)
        if np.array_equal(self.snapshot.ordinals(), wanted):
            return self
        return self._replace(snapshot=self.snapshot.only(wanted), entries=list(entries))


def _snapshot(storage: Storage) -> Snapshot:
    if isinstance(storage, DiskStorage):
        return storage.linked_contents()
    tape = storage.tape
    head, tail, _, _ = tape.snapshot()
    records = np.empty((head - tail) * tape.record_size, np.uint8)
    tape.gather_records(np.arange(tail, head, dtype=np.int64), records)
    entries = read_entries(tape)
    fields = tape.fields_of(np.ascontiguousarray(entries["number"]))
    rows = PackedRows(records, tail, tape.record_size)
    return Snapshot(rows, tail, head, entries, int(tape.trajectories), fields)
