"""Appends to a storage on disk: staged, rows in their files, then the tape, then the committer.

StagedWriter   packs rows natively, and has one append at a time   (`DiskStorage.appending`)
Appender       writes them, shows them, and hands the change to the committer
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ... import _native
from ...errors import StorageFull
from ..entry import ENTRY
from ..schema import Schema
from .changes import Changes
from .committer import FULL, Committer
from .directory import Directory
from .extents import Extents
from .following import TapeMirror
from .index_fields import FieldChanges
from .marker import Mark, Marker
from .retention import Retention
from .rows_beyond import RowsBeyond
from .stored_bytes import StoredBytes

__all__ = ["Appender", "StagedWriter", "new_salt"]

Array = np.ndarray[Any, Any]

_LITTLE = 1 << 16  # bytes that may always wait for a commit


def new_salt() -> int:
    """For the checksums of what one process writes."""
    return int.from_bytes(os.urandom(8), "little") >> 1 or 1


class Appender:
    """Appends. Not thread-safe: its user holds a lock.

    Args:
        directory: where it all is.
        tape: the native one.
        extents: the files.
        mirror: what is known of them.
        retention: which rows give way.
        marker: what the index must have.
        left_by: who left the rows that are beyond the head, if it is known that they were never
            committed.
        blobs: of leaves of any size, if rows have some.
        stored_size: bytes of a row in files, but for its checksums.

    Attributes:
        committer: makes appends survive; set before the first one.
        salt: of what is appended here.
        ticket: of the newest append.
        beyond: whether the files may have rows beyond the head.
        unknown_beyond: whether nobody knows whose these are.
    """

    committer: Committer

    def __init__(
        self,
        directory: Directory,
        tape: Any,
        extents: Extents,
        mirror: TapeMirror,
        retention: Retention,
        marker: Marker,
        left_by: Mark | None,
        blobs: StoredBytes | None,
        stored_size: int,
    ) -> None:
        self._directory, self._tape, self._extents = directory, tape, extents
        self._mirror, self._retention, self._marker = mirror, retention, marker
        self._left_by, self._bytes, self._stored_size = left_by, blobs, stored_size
        self.salt = new_salt()
        self.salted = False  # from the head on, rows are ours
        self._marked = False
        self.ticket = 0
        self._uncommitted: deque[tuple[int, int]] = deque()  # appends: ticket, bytes
        self.beyond = self.unknown_beyond = True

    def begin(self) -> None:
        """Before an append. From the head on, rows are ours: their checksums say so.

        Raises:
            OSError: earlier ones cannot be committed, or the directory was moved.
        """
        self.committer.check()
        self._directory.check()
        if self.salted:
            return
        head, tail, _, _ = self._tape.snapshot()
        before = [s for s in self._mirror.salts if s[0] < head]
        while len(before) > 1 and before[1][0] <= tail:
            before.pop(0)
        self._mirror.set_salts((*before, (int(head), self.salt)))
        self.salted = True

    def commit(self, native: Any, producers: dict[int, int]) -> int:
        """Stores what a writer staged, appends it, and hands it to the committer."""
        tape, extents, blobs = self._tape, self._extents, self._bytes
        head, _, index_head, _ = tape.snapshot()
        staged = native.staged()
        rows = memoryview(staged).nbytes // extents.stride
        their = memoryview(b"" if blobs is None else native.staged_blobs())
        self._make_room(rows, memoryview(staged).nbytes + their.nbytes)
        try:
            if self.beyond:
                self.clear_beyond()
            self.beyond = True
            if not self._marked:
                self.mark(int(head))
            if blobs is not None:  # before the rows that have them
                blobs.files.write(blobs.head, their)
            extents.write(head, staged)
        except OSError as error:
            text = (
                f"{self._directory.path}: rows cannot be written: {error.strerror}; nothing was "
                "appended"
            )
            if error.errno in FULL:
                raise StorageFull(error.errno, text) from error
            raise OSError(error.errno, text) from error
        # Rows that give way go before their places get new ones.
        tape.retire(max(head + rows - min(int(tape.capacity), extents.most_rows), 0))
        if blobs is not None:
            blobs.make_room(their.nbytes)
            blobs.files.show()
        extents.show()
        first = native.commit_staged()
        self.beyond = False
        if self._retention.bounded:
            self._retention.appended(head + rows)
            self._retention.apply(tape, extents.stride, now=False, blobs=blobs)
        self.ticket = self.committer.add(self._changes(index_head, producers), rows)
        self._uncommitted.append((self.ticket, memoryview(staged).nbytes + their.nbytes))
        return int(first)

    def _make_room(self, rows: int, nbytes: int) -> None:
        """Waits until that much more may be appended and not committed. Files go when a commit says
        that their rows are gone: with `max_bytes`, no more than an extent's bytes wait for that."""
        self.committer.make_room(rows)
        done, waiting = self.committer.done, self._uncommitted
        while waiting and waiting[0][0] <= done:
            waiting.popleft()
        if self._retention.bounds.nbytes is not None and waiting:
            if sum(size for _, size in waiting) + nbytes > max(self._extents.nbytes, _LITTLE):
                self.committer.wait()

    def mark(self, head: int) -> None:
        """Says whose the rows beyond the head are going to be. Nothing may be uncommitted."""
        self._marker.note(Mark(self.salt, self._mirror.index.revision, head))
        self._marked = True

    def took_over(self, salt: int, is_marked: bool) -> None:
        """Other rows are there now; what comes has this salt. `is_marked`: the marker says so."""
        self.salt, self.salted, self._marked = salt, True, is_marked
        self.age_from_here()
        self.beyond = self.unknown_beyond = False

    def age_from_here(self) -> None:
        """Has the rows that are there judged by the index's times: others wrote them."""
        self._retention.begin(int(self._tape.snapshot()[0]), self._marker.offset_ns)

    def note_bounds(self) -> None:
        """Has the index say which rows there are, though no new ones came."""
        self.committer.add(self._changes(self._tape.snapshot()[2], {}))

    def retain(self) -> None:
        """Applies the bounds other than the capacity."""
        self._retention.apply(self._tape, self._extents.stride, now=True, blobs=self._bytes)
        self.note_bounds()

    def _changes(self, index_from: int, producers: dict[int, int]) -> Changes:
        tape = self._tape
        head, tail, index_head, index_tail = tape.snapshot()
        low = max(index_from - 1, index_tail)  # the newest entry may have grown
        fields = None
        if tape.fields_size and index_head > index_from:
            fields = FieldChanges.appended(tape, max(index_from, index_tail), index_head)
        return Changes(
            tape.entries(low, index_head).view(ENTRY),
            producers,
            tail,
            index_tail,
            head,
            index_head,
            int(tape.trajectories),
            (int(tape.inserted), int(tape.sampled)),
            self._mirror.salts,
            *((0, 0) if self._bytes is None else (self._bytes.note_tail(), self._bytes.head)),
            fields,
        )

    def set_fields(self, numbers: Array) -> None:
        """Has the index say what the fields of some entries are now; see `note_bounds`. Numbers
        below 0 are none."""
        numbers = np.unique(numbers[numbers >= 0])
        fields = FieldChanges.given(self._tape, numbers)
        changes = self._changes(self._tape.snapshot()[2], {})._replace(fields=fields)
        self.ticket = self.committer.add(changes, len(numbers))

    def _beyond(self) -> RowsBeyond:
        head, size = int(self._tape.snapshot()[0]), self._stored_size
        if self._bytes is None:
            return RowsBeyond(self._extents, size, head)
        return RowsBeyond(self._extents, size, head, self._bytes.files, self._bytes.head)

    def rows_beyond(self) -> int:
        """How many rows there are that nobody can explain."""
        return self._beyond().unexplained(self._left_by) if self.unknown_beyond else 0

    def clear_beyond(self) -> int:
        """Removes rows that are beyond the head. What this storage did not write itself is put
        aside before, unless it is known that it was never committed; how many rows are aside."""
        count = 0
        if self.rows_beyond():
            count = self._beyond().put_aside(self._directory)
        self._beyond().cut()
        self.beyond = self.unknown_beyond = False
        return count


class StagedWriter:
    """The native writer's interface, with rows stored in files before they are appended.

    Args:
        tape: the native one.
        schema: of its rows.
        appender: stores what is staged.
        appending: one append at a time.
        number: the writer's, of a producer; 0: any.
    """

    def __init__(
        self,
        tape: Any,
        schema: Schema,
        appender: Appender,
        appending: Callable[[], AbstractContextManager[None]],
        number: int = 0,
    ) -> None:
        self._appender, self._appending = appender, appending
        own = schema.boundaries.traj_key is not None
        self.native = _native.Writer(tape, schema.marks, own, stage=True, number=number)

    @property
    def id(self) -> int:
        return self.native.id

    @property
    def last_rows(self) -> int:
        return self.native.last_rows

    @property
    def last_kept(self) -> int:
        return self.native.last_kept

    @property
    def envs(self) -> int:
        return self.native.envs

    @envs.setter
    def envs(self, envs: int) -> None:
        self.native.envs = envs

    def orphan(self, orphans: list[Any]) -> None:
        self.native.orphan(orphans)

    def take_up(self, entries: Array) -> None:
        self.native.take_up(entries)

    def miss_items(self) -> None:
        self.native.miss_items()

    def open_trajectories(self) -> list[Any]:
        return self.native.open_trajectories()

    @property
    def open_bytes(self) -> int:
        return self.native.open_bytes

    def add(self, *args: Any, **fields: Any) -> int:
        return self._append(self.native.add, args, fields)

    def extend(self, *args: Any, **fields: Any) -> int:
        return self._append(self.native.extend, args, fields)

    def append_records(self, *args: Any, **fields: Any) -> int:
        return self._append(self.native.append_records, args, fields)

    def append_columns(self, *args: Any, **fields: Any) -> int:
        return self._append(self.native.append_columns, args, fields)

    def append_whole(self, *args: Any, **fields: Any) -> int:
        return self._append(self.native.append_whole, args, fields)

    def extend_whole(self, *args: Any, **fields: Any) -> int:
        return self._append(self.native.extend_whole, args, fields)

    def append_part(self, *args: Any, **fields: Any) -> None:
        self._append(self.native.append_part, args, fields)

    def accept(
        self, receiver: Any, producer: int, most_rows: int, next_item: int = 0
    ) -> tuple[int, int, int, bool]:
        """A frame's items; see `_native.accept_runs`."""
        with self._appending():
            seen, items, rows, gap = _native.accept_runs(
                self.native, receiver, producer, most_rows, next_item
            )
            if items:
                self._appender.commit(self.native, {producer: seen})
        return seen, items, rows, gap

    def _append(self, call: Any, args: tuple[Any, ...], fields: dict[str, Any]) -> int:
        with self._appending():
            first = call(*args, **fields)
            if first is not None and first < 0:
                return int(first)
            return self._appender.commit(self.native, {})
