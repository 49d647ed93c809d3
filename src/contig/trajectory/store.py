"""Store: rows, what a row is, and the index of the trajectories that they are.

Any number of threads may draw; one at a time may change it (the buffer holds a lock for that). A
trajectory enters the index when all of its rows are stored.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..batch import Batch
from ..errors import EmptyBufferError, NothingEligibleError
from ..sample import Rng
from .index import TrajectoryEntry, TrajectoryIndex
from .record import Optional, Record
from .rows import DiskRows, MemoryRows, any_lost, gather_entry
from .source import OpenedDirectory
from .trajectory import Array, Flat

__all__ = ["Store"]


class Store:
    """Trajectories in memory or in a directory, with the window to sample from.

    Args:
        window: trajectories to sample from, and, in memory, to keep; 0: all.
        max_staleness: versions that one may be behind the newest; None: any.
        optional: fields that may be missing.
        path: the directory; None: memory.
        max_bytes: of rows to keep there.
    """

    def __init__(
        self,
        window: int,
        max_staleness: int | None,
        optional: Optional,
        path: Path | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._window, self._max_staleness, self._optional = window, max_staleness, optional
        self.in_memory = path is None
        self.record: Record | None = None
        self.table = TrajectoryIndex(window, max_staleness)
        self.counter = 0  # the next trajectory's id
        self.came = 0  # trajectories that came in, those that are gone included
        self.rows: DiskRows | MemoryRows = MemoryRows(window)
        if path is not None:
            self.rows = DiskRows(path, max_bytes)
            self._reopen(self.rows)

    def _reopen(self, rows: DiskRows) -> None:
        if rows.storage is None or rows.storage.layout is None:
            return
        try:
            self.record = Record.stored(rows.storage.layout, self._optional)
        except BaseException:
            rows.close()
            raise
        for entry in rows.entries:
            self.table.add(entry)
        self.came = len(self.table)
        self.counter = max((e.trajectory_id + 1 for e in rows.entries), default=0)

    # -- writing ------------------------------------------------------------------------------

    def add(self, flats: list[Flat]) -> list[int]:
        """Stores new trajectories, all of which fit or none is stored; returns their ids."""
        if not flats:
            return []
        record = self.record or Record.of(flats[0], self._optional)
        if len(flats) == 1:  # its append checks it
            trees = [record.tree(flats[0])]
        else:
            trees = [_checked(record, flat) for flat in flats]
        first = self.counter
        for flat, tree in zip(flats, trees):
            self._append(flat, record, tree)
        return list(range(first, self.counter))

    def _append(
        self, flat: Flat, record: Record, tree: Any, known: TrajectoryEntry | None = None
    ) -> None:
        """Stores a trajectory, as a new one or under the names it had elsewhere."""
        weights = flat.model_weights_id
        entry = TrajectoryEntry(
            uuid=known.uuid if known is not None and known.uuid else str(uuid.uuid4()),
            trajectory_id=self.counter if known is None else known.trajectory_id,
            num_samples=flat.rows,
            shape=flat.shape,
            max_episode_length=flat.max_episode_length,
            model_weights_id=weights,
            version=self.table.version_of(weights),
        )
        if self.rows.storage is None:
            self.rows.define(record.layout, flat.rows)
        self.record = record
        self.rows.make_room(self.table.rows_needed(flat.rows))
        self.table.add(self.rows.append(tree, entry))
        self.let_go()
        self.came += 1
        self.counter = max(self.counter, entry.trajectory_id + 1)

    def let_go(self) -> None:
        """Forgets trajectories that are not stored any more, or damaged."""
        storage = self.rows.storage
        if storage is None:
            return
        if self.in_memory:
            self.table.drop_beyond_window()
        self.table.drop_before(int(storage.tape.snapshot()[1]))
        if storage.quarantined:
            self.table.drop(storage.quarantined)

    def clear(self) -> None:
        """Deletes everything. A directory keeps its layout."""
        self.rows.clear()
        self.table.clear()
        self.counter = self.came = 0
        if self.rows.storage is None:
            self.record = None

    def replaced(self, source: OpenedDirectory) -> Store:
        """A store with other trajectories: in memory a new one, in a directory this one.

        Raises:
            LayoutError: one does not fit, or is damaged; nothing was changed.
        """
        first = next(source.flats, None)
        record = None if self.in_memory else self.record
        if first is not None:
            record = record or Record.of(first, self._optional or source.optional)
            _checked(record, first)
        store = Store(self._window, self._max_staleness, self._optional)
        if first is None or record is None:
            if self.in_memory:
                return store
            self.clear()
            return self
        if isinstance(self.rows, DiskRows):
            store.in_memory, store.rows = False, self.rows.beside(record.layout)
        try:
            for entry, flat in zip(source.entries, itertools.chain((first,), source.flats)):
                store._append(flat, record, _checked(record, flat), entry)
            if self.in_memory:
                return store
            assert isinstance(self.rows, DiskRows) and isinstance(store.rows, DiskRows)
            self.rows.replace(store.rows, store.table.entries())
        finally:
            if isinstance(store.rows, DiskRows):
                store.rows.discard()
        self.record, self.table = store.record, store.table
        self.counter, self.came = store.counter, store.came
        return self

    # -- reading ------------------------------------------------------------------------------

    def try_draw(self, rng: Rng, n: int) -> Batch | None:
        """Rows of the window, uniformly, with replacement; None if some were lost meanwhile."""
        window = self.table.drawable()
        storage = self.rows.storage  # after the window: all that is in the window is in it
        if storage is None or not len(self.table):
            raise EmptyBufferError("the buffer is empty: no trajectory has been added")
        if window.total == 0:
            raise NothingEligibleError(
                f"{len(self.table)} trajectories are stored, but none of the newest "
                f"{self._window or len(self.table)} is within max_staleness={self._max_staleness}"
            )
        before = rng.words.copy()
        seqs = window.draw(rng, n)
        batch, lost = storage.gather(seqs)
        if any_lost(seqs, lost):
            rng.words[:] = before  # the draw did not count
            self.let_go()
            return None
        return batch  # type: ignore[no-any-return]

    def gather(self, entry: TrajectoryEntry) -> Batch:
        """All rows of a trajectory.

        Raises:
            LookupError: they were evicted, or are damaged.
        """
        assert self.rows.storage is not None
        return gather_entry(self.rows.storage, entry)

    def whole(
        self, batch: Batch, entry: TrajectoryEntry, make: Callable[[Array], Any]
    ) -> dict[str, Any]:
        """A trajectory from its rows; `make` makes what its fields are to be."""
        assert self.record is not None
        return self.record.whole(batch, entry, make)

    @property
    def damaged(self) -> int:
        """Trajectories that were found damaged."""
        storage = self.rows.storage
        return max(self.rows.damaged, 0 if storage is None else len(storage.quarantined))


def _checked(record: Record, flat: Flat) -> Any:
    """The rows as the layout wants them, in its dtypes; so appending them cannot fail later."""
    columns, _ = record.layout.columns(record.tree(flat), 1)
    return record.layout.build_tree(columns)
