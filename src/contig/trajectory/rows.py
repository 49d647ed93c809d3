"""TrajectoryRows: a ReplayBuffer whose rows are those of whole trajectories.

    add_all   stages trajectories; each becomes one append, and what is known of it its fields
    draw_own  rows of the newest trajectories
    replace   what a directory holds, in place of everything

The tape has the rows of the stored trajectories and no others. Any number of threads may draw; one
at a time may change it (the buffer holds a lock for that).
"""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from ..batch import Batch
from ..errors import EmptyBufferError, LayoutError, NothingEligibleError
from ..layout import Layout
from ..replay import Ingress, folder
from ..replay.read import read_rows
from ..sample import Index, WindowSampler
from ..tape import LazyTensorStorage, Storage
from ..tape.disk import DiskStorage
from ..tape.disk.extents import row_stride
from ..tape.fields import fields_layout
from ..tape.writer import extend_grid
from ..tree import Nested
from .cache import TrajectoryCache
from .contents import Contents
from .entry import TrajectoryEntry, entries_in, field_values, fields_for
from .folder import has_rows
from .mixing import MixedRows
from .record import NOT_OURS, Optional, Record
from .source import OpenedDirectory
from .staging import Blocks, Staging
from .trajectory import Flat

__all__ = ["TrajectoryRows"]

_ALL = 1 << 62
_ALIGNED = 64
_LEAST_ROWS, _MOST_ROWS = 4096, 1 << 30
_LOADING = "loading"


class TrajectoryRows(MixedRows):
    """Rows of trajectories: in memory, which grows with the window, or in a directory.

    Args:
        window: trajectories to draw from, and, in memory, to keep; 0: all.
        max_staleness: versions that one may be behind the newest; None: any.
        optional: fields that may be missing.
        path: the directory, which is made with the first trajectory; None: memory.
        max_bytes: of rows to keep there.
        cache: gets what is added: by id, the entry and the tree of rows; None: nothing does.
        more: of MixedRows.

    Attributes:
        counter: the id of the next trajectory that is staged.
        came: trajectories that came in, those that are gone included.
    """

    counter: int
    came: int
    _planned: tuple[Record, Layout] | None

    def __init__(
        self,
        window: int,
        max_staleness: int | None,
        optional: Optional,
        path: Path | None = None,
        max_bytes: int | None = None,
        cache: TrajectoryCache | None = None,
        **more: Any,
    ) -> None:
        self._recent = WindowSampler(last_trajectories=window or _ALL, max_staleness=max_staleness)
        super().__init__(LazyTensorStorage(_LEAST_ROWS), self._recent, **more)
        self._window, self._optional = window, optional
        self._path, self._max_bytes = path, max_bytes
        self._cache = cache
        self._staging = Staging(self._store)
        self._blocks = Blocks()
        self._forget()
        if path is not None:
            folder.remove_left(path / _LOADING, folder.STORAGE)
            if has_rows(path):
                self._begin_with(DiskStorage(path, max_bytes=max_bytes))

    def _begin_with(self, storage: Storage) -> None:
        assert storage.layout is not None
        try:
            if storage.fields is None:
                raise LayoutError(NOT_OURS)
            self.record = Record.stored(storage.layout, self._optional)
        except BaseException:
            storage.close()
            raise
        if storage is not self.storage:
            self._move_to(storage)
        self._look()

    # -- writing ------------------------------------------------------------------------------

    def add_all(self, flats: list[Flat]) -> list[int]:
        """Stages new trajectories, all of which fit or none is added; returns their ids. Their rows
        are copied; a thread stores them.

        Raises:
            BaseException: earlier ones could not be stored.
        """
        if not flats:
            return []
        record, fields = self._planned or (None, None)
        record = record or self.record or Record.of(flats[0], self._optional)
        trees = [_copied(record, flat, self._blocks) for flat in flats]
        ids = range(self.counter, self.counter + len(flats))
        entries = [_entry(flat, number) for flat, number in zip(flats, ids)]
        fields = fields or self._fields_of(record, entries)
        values = [field_values(entry, fields) for entry in entries]
        for flat in flats:
            self._check_size(record, flat.rows)
        size = record.layout.record_size
        self._staging.add(
            ((record, tree, entry, some, fields), entry.num_samples * size)
            for entry, tree, some in zip(entries, trees, values)
        )
        self._planned, self.counter = (record, fields), ids.stop
        return list(ids)

    def settle(self) -> None:
        """Returns when everything that was added is stored.

        Raises:
            BaseException: some of it could not be.
        """
        self._staging.settle()

    def _store(self, item: tuple[Record, Any, TrajectoryEntry, Any, Layout]) -> None:
        try:
            entry = self._append(*item)
        except BaseException:
            if self.record is None:  # nothing says any more what a row is
                self._planned = None
            raise
        if self._cache is not None:
            self._cache.put(entry.trajectory_id, (entry, Nested.of(item[1])))
            tail = self.storage.tape.snapshot()[1]
            for number, (cached, _) in self._cache.items():
                if cached.first < tail:
                    self._cache.remove(number)

    def _fields_of(self, record: Record, entries: list[TrajectoryEntry]) -> Layout:
        return self.storage.fields or fields_layout(fields_for(record.layout, entries))

    def _append(
        self, record: Record, tree: Any, entry: TrajectoryEntry, values: Any, fields: Layout
    ) -> TrajectoryEntry:
        """Stores a trajectory; `values` of its fields are of that layout. Returns its entry, with
        its place."""
        newest = self._recent.newest_version
        version = self._versions.get(entry.model_weights_id, newest + 1)
        self._make_room(record, entry.num_samples, fields)
        seqs = extend_grid(self.ingress.writer, tree, entry.trajectory_id, version, values)
        self.record = record
        entry = entry._replace(first=int(seqs[0]), version=version)
        self._note(entry)
        self._let_go()
        return entry

    def _note(self, entry: TrajectoryEntry) -> None:
        """One came in."""
        self._firsts.append(entry.first)
        self._versions.setdefault(entry.model_weights_id, entry.version)
        self.came += 1
        self.counter = max(self.counter, entry.trajectory_id + 1)
        # Of all that came: the tape may not have it any more.
        self._recent.newest_version = max(self._recent.newest_version, entry.version)

    def _make_room(self, record: Record, rows: int, fields: Layout) -> None:
        """Makes the storage, or a larger one in its place if that is too small."""
        storage, firsts = self.storage, self._firsts
        if storage.schema is None:
            fresh = self._new_storage(rows * (self._window + 1), fields)
            try:
                fresh.publish(record.layout)
            except BaseException:
                fresh.close()
                raise
            self._move_to(fresh)
        elif self._path is None:
            staying = min(self._window - 1 if self._window else _ALL, len(firsts))
            needed = rows + (storage.tape.snapshot()[0] - firsts[-staying] if staying else 0)
            if needed > storage.capacity:
                larger = self._new_storage(max(needed, 2 * storage.capacity), fields)
                there = Contents.of(storage).snapshot
                larger.restore(there, (0, 0), record.layout, fields=fields)
                self._move_to(larger)  # readers may be in the old one
        else:
            self._check_size(record, rows)

    def _check_size(self, record: Record, rows: int) -> None:
        nbytes = rows * row_stride(record.layout.record_size)
        if self._path is not None and self._max_bytes is not None and nbytes > self._max_bytes:
            raise ValueError(
                f"a trajectory of {nbytes} bytes does not fit into max_bytes={self._max_bytes}"
            )

    def _new_storage(self, rows: int, fields: Layout) -> Storage:
        if self._path is None:
            return LazyTensorStorage(min(max(rows, _LEAST_ROWS), _MOST_ROWS), fields=fields)
        return DiskStorage(self._path, max_bytes=self._max_bytes, fields=fields)

    def _move_to(self, storage: Storage) -> None:
        """From now on rows are there."""
        with self._turn:
            self.storage, self.ingress = storage, Ingress(storage)
            self._index = Index(storage)

    def _let_go(self) -> None:
        """Evicts trajectories that are beyond the window, and the rest of one that lost rows."""
        head, tail, _, _ = self.storage.tape.snapshot()
        most = self._window if self._path is None and self._window else _ALL
        while self._firsts and (len(self._firsts) > most or self._firsts[0] < tail):
            self._firsts.popleft()
        first = self._firsts[0] if self._firsts else head
        if first > tail:
            self.storage.tape.retire(first)

    def clear(self) -> None:
        """Deletes everything. A directory keeps its layout."""
        if self._path is None:
            self._move_to(LazyTensorStorage(_LEAST_ROWS))
            self.record = None
        else:
            self.storage.empty()
            self.storage.flush()
        self._forget()

    def _forget(self) -> None:
        self._firsts: deque[int] = deque()  # of each trajectory, its first row
        self._versions: dict[str, int] = {}
        self._recent.newest_version = -1
        self.counter = self.came = 0
        # What rows and fields are, from the first trajectory that is staged.
        self._planned = None

    def _look(self) -> None:
        """Finds out what the storage holds."""
        self._forget()
        for entry in entries_in(self.storage.episodes()):
            self._note(entry)
        self._let_go()
        self.came = len(self._firsts)

    # -- other trajectories in place of these -------------------------------------------------

    def replace(self, source: OpenedDirectory) -> None:
        """Takes trajectories in, in place of everything.

        Raises:
            LayoutError: one does not fit, or is damaged; nothing was changed.
        """
        first = next(source.flats, None)
        if first is None:
            self.clear()
            return
        record = self.record if self._path is not None else None
        if record is None:
            record = None if self._optional else source.record
        record = record or Record.of(first, self._optional)
        contents = source.contents
        if contents is not None and self._takes(record, contents):
            self._restore(record, contents)
            return
        if self._path is None:
            self._restore_staged(record, source, first, None)
        else:
            with folder.scratch(self._path / _LOADING, folder.STORAGE) as path:
                self._restore_staged(record, source, first, path)

    def _restore_staged(
        self, record: Record, source: OpenedDirectory, first: Flat, path: Path | None
    ) -> None:
        """Brings trajectories into a storage of their own, and takes its rows when all fit."""
        staged = TrajectoryRows(self._window, None, self._optional, path, self._max_bytes)
        try:
            fields = staged._fields_of(record, source.entries)
            for known, flat in zip(source.entries, itertools.chain((first,), source.flats)):
                entry = _entry(flat, known.trajectory_id, known.uuid)
                values = field_values(entry, fields)
                staged._append(record, _checked(record, flat), entry, values, fields)
            staged.storage.flush()
            self._restore(record, Contents.of(staged.storage))
        finally:
            staged.storage.close()

    def _takes(self, record: Record, contents: Contents) -> bool:
        """Whether rows can stay as they are."""
        known = self.storage.fields if self._path is not None and self.record else contents.fields
        return record.layout == contents.layout and known == contents.fields

    def _restore(self, record: Record, contents: Contents) -> None:
        snapshot, fresh = contents.snapshot, self.storage
        if self._path is None or self.record is None:
            rows, count = snapshot.head - snapshot.tail, len(contents.entries)
            room = rows * (self._window + 1) // count if self._window else rows
            fresh = self._new_storage(max(room, rows), contents.fields)
        snapshot = snapshot.newest(fresh.capacity)
        try:
            fresh.restore(snapshot, (snapshot.head, 0), record.layout, fields=contents.fields)
        except BaseException as error:
            if fresh is not self.storage:
                fresh.close()
            if isinstance(error, ValueError):  # of rows that are damaged
                raise LayoutError(f"cannot be loaded: {error}") from error
            raise
        self._begin_with(fresh)

    # -- reading ------------------------------------------------------------------------------

    def entries(self) -> list[TrajectoryEntry]:
        """The stored trajectories, the oldest first, without those that are damaged."""
        found = entries_in(self.storage.episodes(), self.storage.quarantined)
        return found[-self._window :] if self._path is None else found

    def find(self, trajectory_id: int) -> TrajectoryEntry | None:
        """The newest one of this id."""
        episodes = self.storage.episodes()
        named = episodes[episodes["traj_id"] == trajectory_id]
        return next(reversed(entries_in(named, self.storage.quarantined)), None)

    @property
    def size(self) -> int:
        """How many these are."""
        return len(self.entries()) if self.storage.quarantined else len(self._firsts)

    @property
    def total_samples(self) -> int:
        if self.storage.quarantined:
            return sum(entry.num_samples for entry in self.entries())
        return len(self.storage)

    def drawable(self) -> list[TrajectoryEntry]:
        """The trajectories that samples come from."""
        stale = self._recent.max_staleness
        oldest = 0 if stale is None else self._recent.newest_version - stale
        return [e for e in self.entries()[-self._window :] if e.version >= oldest]

    def gather(self, entry: TrajectoryEntry) -> Batch:
        """All rows of a trajectory.

        Raises:
            LookupError: they were evicted, or are damaged.
        """
        try:
            return read_rows(self.storage, np.arange(entry.first, entry.first + entry.num_samples))
        except IndexError as error:
            raise LookupError(f"trajectory {entry.trajectory_id}: {error}") from None

    def draw_own(self, n: int) -> Batch:
        try:
            return super().draw_own(n)
        except EmptyBufferError:
            raise EmptyBufferError("the buffer is empty: no trajectory has been added") from None
        except NothingEligibleError as error:
            if self._recent.max_staleness is None:
                raise
            raise NothingEligibleError(
                f"{self.size} trajectories are stored, but none of the newest "
                f"{self._window or self.size} is within max_staleness={self._recent.max_staleness}"
            ) from error


def _entry(flat: Flat, number: int, name: str = "") -> TrajectoryEntry:
    """What is known of a trajectory that comes in."""
    length, weights = flat.max_episode_length, flat.model_weights_id
    return TrajectoryEntry(
        name or str(uuid.uuid4()), number, flat.rows, flat.shape, length, weights
    )


def _copied(record: Record, flat: Flat, blocks: Blocks) -> Any:
    """Checks arrays as `_checked` does, and takes them over: nobody else has them."""
    columns, _ = record.layout.columns(record.tree(flat), 1)
    given = list(flat.columns.values())
    shared = [any(np.may_share_memory(x, y) for y in given) for x in columns]
    room = [-(-x.nbytes // _ALIGNED) * _ALIGNED if own else 0 for x, own in zip(columns, shared)]
    block, at = blocks.take(sum(room)), 0
    for i, size in enumerate(room):
        if size:
            copy = block[at : at + columns[i].nbytes].view(columns[i].dtype)
            copy = copy.reshape(columns[i].shape)
            copy[...] = columns[i]
            columns[i], at = copy, at + size
    return record.layout.build_tree(columns)


def _checked(record: Record, flat: Flat) -> Any:
    """The rows as the layout wants them, in its dtypes; so appending them cannot fail later."""
    columns, _ = record.layout.columns(record.tree(flat), 1)
    return record.layout.build_tree(columns)
