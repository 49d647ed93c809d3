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

import numpy as np

from ...tree import show_path
from ..entry import read_entries
from ..schema import Schema
from ..snapshot import Snapshot
from .appender import Appender
from .changes import Changes, IndexState
from .committer import Committer, Lag
from .description import form_of, slots_of
from .directory import Directory
from .extent_folders import folder_of, tidy
from .extents import Extents
from .following import TapeMirror
from .index import DiskIndex, open_index, read_index
from .linked_bytes import link_bytes
from .linked_rows import LinkedRows, link_extents
from .loading import Shape
from .marker import Mark, Marker
from .retention import FileRemover, Retention
from .rows_beyond import RowsBeyond
from .stored_bytes import StoredBytes

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
        blob_bytes: what is kept of leaves of any size.
    """

    read_only: bool
    durable: bool
    lag: Lag
    retention: Retention
    lock: threading.RLock
    tell: Callable[[], None]
    blob_bytes: int


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
        self.slots = slots_of(self.schema, described)
        stride, rows = int(described["stride"]), int(described["rows_per_extent"])
        store, writable = int(described.get("store", 0)), not options.read_only
        self.index: DiskIndex = open_index(directory, writable, store, form_of(described))
        self.committer: Committer | None = None
        self.appender: Appender | None = None
        self.bytes: StoredBytes | None = None
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
            if self.slots is not None:
                size, most = int(described["blob_file_bytes"]), self.slots.most(int(tape.capacity))
                self.bytes = StoredBytes(tape, folder, size, most, writable, self.slots.margin)
            elif self.schema.layout.variable:
                size = int(described["blob_file_bytes"])
                self.bytes = StoredBytes(tape, folder, size, options.blob_bytes, writable)
            self.mirror = TapeMirror(
                directory,
                tape,
                self.extents,
                self.index,
                options.read_only,
                options.lock,
                self.bytes,
            )
            self.remover = FileRemover(directory, tape, self.extents, self.bytes)
            self.sync = _syncing(self.extents, self.bytes)
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
            self.bytes,
            self.shape.stored_size,
        )
        remover, tell = self.remover, options.tell

        def committed(changes: Changes) -> None:
            tell()
            remover.after(changes)

        self.committer = self.appender.committer = Committer(
            self.index, options.durable, options.lag, self.sync, self.marker, committed
        )
        self.mirror.quarantine.save = self.committer.quarantine

    def show(self) -> None:
        """Makes the tape one of these rows."""
        size, stride, fields = self.schema.layout.record_size, self.extents.stride, 0
        if self.schema.fields is not None:
            fields = self.schema.fields.record_size
        blobs: tuple[int, ...] = ()
        if self.bytes is not None:
            leaves = len(self.schema.layout.variable) if self.slots is None else 1
            blobs = (leaves, self.bytes.ring, self.bytes.most)
            if self.slots is not None:
                blobs = (*blobs, self.slots.record_size)
        self.tape.publish_stored(size, stride, self._shift, self._most, fields, *blobs)
        self.tape.attach_region(self.extents.region)
        if self.slots is not None and self.bytes is not None:
            self.tape.attach_stored_slots(self.slots.form, self.slots.reach)
            self.tape.attach_blob_region(self.bytes.files.region, self.slots.leaves)
        elif self.bytes is not None:
            names = [show_path(x.path) for x in self.schema.layout.variable]
            region = self.bytes.files.region
            self.tape.attach_blob_region(region, self.schema.blob_leaves, names)

    def take_in(self) -> None:
        """What was found in the index; once."""
        assert self._state is not None
        state, self._state = self._state, None
        self.mirror.take_in(state)
        if self.appender is not None:
            self.appender.age_from_here()
            tidy(self._directory, state.loads, never_committed=self._left_by is not None)

    @property
    def shape(self) -> Shape:
        """How rows lie in files."""
        size = 0 if self.bytes is None else self.bytes.files.rows
        record = self.schema.layout.record_size
        return Shape(record, self.extents.stride, self.extents.rows, size, self.slots)

    def fetch(self, low: int, high: int) -> None:
        """Has rows [low, high) in memory, read from end to end."""
        self.extents.fetch(low, high)
        if self.bytes is not None and low < high:
            self.bytes.fetch(low, high)

    def link_rows(self, folder: Path, first: int, head: int) -> dict[str, Any]:
        """Rows [first, head) in a folder, and what is needed to read them. Nobody may append."""
        self.sync()
        target = folder / "extents"
        linked: dict[str, Any] = {
            "stride": self.extents.stride,
            "rows_per_extent": self.extents.rows,
            "salts": [list(s) for s in self.mirror.salts],
        }
        with self.remover.held:
            link_extents(self.extents, target, first, head)
            if self.bytes is not None:
                blobs = self.bytes.up_to(head)
                link_bytes(self.bytes.files, target, blobs)
                linked["blobs"] = list(blobs)
            if self.slots is not None:
                linked["slots"] = self.slots.to_json()
        return linked

    def linked_contents(self) -> Snapshot:
        """Everything, as another storage can take it in by links. Nobody may write."""
        self.sync()
        head, tail, _, _ = self.tape.snapshot()
        blobs = None if self.bytes is None else self.bytes.up_to(head)
        of = (self.schema.layout, self.shape.stride, self.shape.rows_per_extent)
        rows = LinkedRows(self.extents.folder, *of, self.mirror.salts, blobs, self.slots)
        entries = read_entries(self.tape)
        fields = None
        if self.schema.fields is not None:
            fields = self.tape.fields_of(np.ascontiguousarray(entries["number"]))
        return Snapshot(rows, tail, head, entries, int(self.tape.trajectories), fields)

    def rows_beyond(self) -> int:
        """Rows in the files of which the index does not know, and nobody knows why."""
        if self.appender is not None:
            return self.appender.rows_beyond()
        mark = self.marker.read()  # before the index, which may go on meanwhile
        state = self.mirror.index.load(1 << 62)
        blobs = None if self.bytes is None else self.bytes.files
        size = self.shape.stored_size
        beyond = RowsBeyond(self.extents, size, state.head, blobs, state.blob_head)
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
            if self.bytes is not None:
                self.bytes.files.close()
        self.marker.close()


def _syncing(extents: Extents, blobs: StoredBytes | None) -> Callable[[], None]:
    """Returns when all rows written so far are on the disk, with their bytes. Not a method: the
    committer has it, and would keep what it is a part of."""

    def sync() -> None:
        if blobs is not None:
            blobs.files.sync()
        extents.sync()

    return sync


def _believed(mark: Mark | None, state: IndexState) -> Mark | None:
    """Who wrote last, if the index has all that was ever committed."""
    return mark if mark is not None and mark.is_in(state) else None
