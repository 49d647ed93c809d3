"""What an open storage works with: made together, closed together.

None of the parts knows the storage, so that one that nobody has any more can still commit what it
has and let everything go.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..schema import Schema
from ..snapshot import Snapshot
from .appender import Appender
from .behind import RowsBehind
from .changes import Changes, IndexState
from .committer import Committer, Lag
from .directory import Directory, open_index, read_index
from .extents import Extents
from .folders import folder_of, tidy
from .index import DiskIndex
from .letting_go import LettingGo
from .linked import LinkedRows
from .loading import Shape, link_extents
from .marker import Mark, Marker
from .retention import Retention
from .rows import StoredRows
from .syncing import Syncing

__all__ = ["How", "Parts"]

_MOST_BYTES = 1 << 44  # of addresses
_MOST_EXTENTS = 1 << 31


class How(NamedTuple):
    """How a storage is opened.

    Attributes:
        read_only: another process writes.
        durable: whether commits are synced to the disk.
        lag: how much may be appended and not committed.
        retention: which rows are let go of.
        lock: held while the tape is changed.
        tell: called after each commit.
    """

    read_only: bool
    durable: bool
    lag: Lag
    retention: Retention
    lock: threading.RLock
    tell: Callable[[], None]


class Parts:
    """Opens the files of a storage; the tape is as it was until `show`.

    Args:
        directory: where they are.
        tape: the native one.
        described: what layout.json says.
        how: it is opened.
    """

    def __init__(
        self, directory: Directory, tape: Any, described: dict[str, Any], how: How
    ) -> None:
        self._directory, self.tape = directory, tape
        self.schema = Schema.from_bytes(json.dumps(described["schema"]).encode())
        stride, rows = int(described["stride"]), int(described["rows_per_extent"])
        store, writable = int(described.get("store", 0)), not how.read_only
        self.index: DiskIndex = open_index(directory, writable, store)
        self.committer: Committer | None = None
        self.appender: Appender | None = None
        self.marker = Marker(directory.root, store)
        try:
            self._state: IndexState | None = read_index(self.index, writable, store)
            self._left_by = self._believed(self._state)  # before anybody writes another one
            self._shift = rows.bit_length() - 1
            self._most = min(max(_MOST_BYTES // (rows * stride), 3), _MOST_EXTENTS)
            places = min((int(tape.capacity) - 1 >> self._shift) + 2, self._most)
            if places == self._most:  # there are not as many addresses as rows are wanted
                how.retention.bound_bytes((self._most - 2) * rows * stride)
            folder = folder_of(directory.root / "extents", self._state.loads)
            self.extents = Extents(folder, places, rows, stride, writable)
            self.rows = StoredRows(
                directory, tape, self.extents, self.index, how.read_only, how.lock
            )
            self.syncing = Syncing(self.extents)
            self.letting_go = LettingGo(directory, tape, self.extents)
            if writable:
                self._write(how)
        except BaseException:
            self.close()
            raise

    def _believed(self, state: IndexState) -> Mark | None:
        """Who wrote last, if the index has all that was ever committed."""
        mark = self.marker.read()
        if mark is None or state.bad:
            return None
        return mark if mark.has_all(self.index.revision, state.head, state.salts) else None

    def _write(self, how: How) -> None:
        self.index.forget_producers()
        self.appender = Appender(
            self._directory,
            self.tape,
            self.extents,
            self.rows,
            how.retention,
            self.marker,
            self._left_by,
        )
        index, marker, letting_go, tell = self.index, self.marker, self.letting_go, how.tell

        def note(changes: Changes) -> None:
            marker.note(Mark(changes.salts[-1][1], index.revision, changes.head))

        def committed(changes: Changes) -> None:
            tell()
            letting_go.after(changes)

        self.committer = self.appender.committer = Committer(
            index, how.durable, how.lag, self.syncing.sync, note, committed
        )

    def show(self) -> None:
        """Makes the tape one of these rows."""
        size, stride = self.schema.layout.record_size, self.extents.stride
        self.tape.publish_stored(size, stride, self._shift, self._most)
        self.tape.attach_region(self.extents.region)

    def take_in(self) -> None:
        """What was found in the index; once."""
        assert self._state is not None
        state, self._state = self._state, None
        self.rows.take_in(state)
        self.rows.committer = self.committer
        if self.committer is not None:
            tidy(self._directory, state.loads, never_committed=self._left_by is not None)

    @property
    def shape(self) -> Shape:
        """How rows lie in files."""
        return Shape(self.schema.layout.record_size, self.extents.stride, self.extents.rows)

    def link_rows(self, folder: Path, first: int, head: int) -> dict[str, Any]:
        """Rows [first, head) in a folder, and what is needed to read them. Nobody may append."""
        self.syncing.sync()
        size, stride, rows = self.shape
        with self.letting_go.held:
            link_extents(self.extents, folder, size, first, head)
        salts = [list(s) for s in self.rows.salts]
        return {"stride": stride, "rows_per_extent": rows, "salts": salts}

    def linked_contents(self) -> Snapshot:
        """Everything, as another storage can take it in by links. Nobody may write."""
        self.syncing.sync()
        rows = LinkedRows(self.extents.folder, *self.shape, self.rows.salts)
        head, tail, _, _ = self.tape.snapshot()
        return Snapshot(rows, tail, head, self.rows.entries(), int(self.tape.trajectories))

    def rows_behind(self) -> int:
        """Rows in the files of which the index does not know, and nobody knows why."""
        if self.appender is not None:
            return self.appender.rows_behind()
        mark = self.marker.read()  # before the index, which may go on meanwhile
        state = self.rows.index.load(1 << 62)
        if mark is not None and not mark.has_all(self.rows.index.revision, state.head, state.salts):
            mark = None
        size = self.schema.layout.record_size
        return RowsBehind(self.extents, size, state.head).unexplained(mark)

    def close(self, timeout_s: float | None = None) -> bool:
        """Commits what is left, and lets the files go; False if that takes too long."""
        try:
            if self.committer is not None and not self.committer.close(timeout_s):
                return False
        except BaseException:
            self._let_go()
            raise
        self._let_go()
        return True

    def _let_go(self) -> None:
        rows = getattr(self, "rows", None)
        index = self.index if rows is None else rows.index
        moved = self._directory.is_moved
        index.close(self._directory.root / index.path.name if moved else None)
        if rows is not None:
            self.extents.close()
        self.marker.close()
