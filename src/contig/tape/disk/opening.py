"""Opening a storage: its index is read, its extents mapped, and a writer gets a committer.

What is made together here is closed together. None of it knows the storage, so that one that nobody
has any more can still commit what it has and let everything go (`lifetime`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..entry import read_entries
from ..schema import Schema
from ..snapshot import Snapshot
from .appender import Appender
from .changes import Changes, IndexState
from .committer import Committer, Lag
from .directory import Directory
from .extent_folders import folder_of, tidy
from .extents import Extents
from .following import TapeMirror
from .index import DiskIndex, open_index, read_index
from .linked_rows import LinkedRows, link_extents
from .loading import Shape
from .marker import Mark, Marker
from .retention import FileRemover, Retention
from .rows_beyond import RowsBeyond

__all__ = ["OpenOptions", "Opened"]

_MOST_BYTES = 1 << 44  # of addresses
_MOST_EXTENTS = 1 << 31


class OpenOptions(NamedTuple):
    """How a storage is opened.

    Attributes:
        read_only: another process writes.
        durable: whether commits are synced to the disk.
        lag: how much may be appended and not committed.
        retention: which rows give way.
        lock: held while the tape is changed.
        tell: called after each commit.
    """

    read_only: bool
    durable: bool
    lag: Lag
    retention: Retention
    lock: threading.RLock
    tell: Callable[[], None]


class Opened:
    """The files of a storage, opened; the tape is as it was until `show`.

    Args:
        directory: where they are.
        tape: the native one.
        described: what layout.json says.
        options: how it is opened.
    """

    def __init__(
        self, directory: Directory, tape: Any, described: dict[str, Any], options: OpenOptions
    ) -> None:
        self._directory, self.tape = directory, tape
        self.schema = Schema.from_bytes(json.dumps(described["schema"]).encode())
        stride, rows = int(described["stride"]), int(described["rows_per_extent"])
        store, writable = int(described.get("store", 0)), not options.read_only
        self.index: DiskIndex = open_index(directory, writable, store)
        self.committer: Committer | None = None
        self.appender: Appender | None = None
        self.marker = Marker(directory.root, store)
        try:
            self._state: IndexState | None = read_index(self.index, writable, store)
            mark = self.marker.read()  # before anybody writes another one
            self._left_by = _believed(mark, self._state)
            self._shift = rows.bit_length() - 1
            self._most = min(max(_MOST_BYTES // (rows * stride), 3), _MOST_EXTENTS)
            places = min((int(tape.capacity) - 1 >> self._shift) + 2, self._most)
            if places == self._most:  # there are not as many addresses as rows are wanted
                options.retention.bound_bytes((self._most - 2) * rows * stride)
            folder = folder_of(directory.root / "extents", self._state.loads)
            self.extents = Extents(folder, places, rows, stride, writable)
            self.mirror = TapeMirror(
                directory, tape, self.extents, self.index, options.read_only, options.lock
            )
            self.remover = FileRemover(directory, tape, self.extents)
            if writable:
                self._write(options)
        except BaseException:
            self.close()
            raise

    def _write(self, options: OpenOptions) -> None:
        self.index.forget_producers()
        self.appender = Appender(
            self._directory,
            self.tape,
            self.extents,
            self.mirror,
            options.retention,
            self.marker,
            self._left_by,
        )
        remover, tell = self.remover, options.tell

        def committed(changes: Changes) -> None:
            tell()
            remover.after(changes)

        self.committer = self.appender.committer = Committer(
            self.index, options.durable, options.lag, self.extents.sync, self.marker, committed
        )
        self.mirror.quarantine.save = self.committer.quarantine

    def show(self) -> None:
        """Makes the tape one of these rows."""
        size, stride = self.schema.layout.record_size, self.extents.stride
        self.tape.publish_stored(size, stride, self._shift, self._most)
        self.tape.attach_region(self.extents.region)

    def take_in(self) -> None:
        """What was found in the index; once."""
        assert self._state is not None
        state, self._state = self._state, None
        self.mirror.take_in(state)
        if self.committer is not None:
            tidy(self._directory, state.loads, never_committed=self._left_by is not None)

    @property
    def shape(self) -> Shape:
        """How rows lie in files."""
        return Shape(self.schema.layout.record_size, self.extents.stride, self.extents.rows)

    def link_rows(self, folder: Path, first: int, head: int) -> dict[str, Any]:
        """Rows [first, head) in a folder, and what is needed to read them. Nobody may append."""
        self.extents.sync()
        size, stride, rows = self.shape
        with self.remover.held:
            link_extents(self.extents, folder, size, first, head)
        salts = [list(s) for s in self.mirror.salts]
        return {"stride": stride, "rows_per_extent": rows, "salts": salts}

    def linked_contents(self) -> Snapshot:
        """Everything, as another storage can take it in by links. Nobody may write."""
        self.extents.sync()
        rows = LinkedRows(self.extents.folder, *self.shape, self.mirror.salts)
        head, tail, _, _ = self.tape.snapshot()
        entries = read_entries(self.tape)
        return Snapshot(rows, tail, head, entries, int(self.tape.trajectories))

    def rows_beyond(self) -> int:
        """Rows in the files of which the index does not know, and nobody knows why."""
        if self.appender is not None:
            return self.appender.rows_beyond()
        mark = self.marker.read()  # before the index, which may go on meanwhile
        state = self.mirror.index.load(1 << 62)
        beyond = RowsBeyond(self.extents, self.schema.layout.record_size, state.head)
        return beyond.unexplained(_believed(mark, state))

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
        mirror = getattr(self, "mirror", None)
        index = self.index if mirror is None else mirror.index
        moved = self._directory.is_moved
        index.close(self._directory.root / index.path.name if moved else None)
        if mirror is not None:
            self.extents.close()
        self.marker.close()


def _believed(mark: Mark | None, state: IndexState) -> Mark | None:
    """Who wrote last, if the index has all that was ever committed."""
    return mark if mark is not None and mark.is_in(state) else None
