"""Taking a checkpoint in: what there was before, or what was loaded, and nothing in between.

1. its rows, into a folder that does not count yet    `loading`
2. the folder gets its name                           `extent_folders`
3. one transaction of the index: now it counts, and the old rows do not
4. the tape shows the new rows, the old files go
"""

from __future__ import annotations

import errno
import json
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import StorageFull
from ..schema import Schema
from ..snapshot import Snapshot
from . import first_load
from .appender import new_salt
from .changes import Changes
from .committer import FULL
from .description import slots_of, with_store
from .directory import Directory
from .extent_folders import next_number
from .extents import Extents
from .index import DiskIndex
from .index_fields import FieldChanges
from .loading import Load, Shape
from .marker import Mark
from .opening import Opened, OpenOptions
from .sqlite import as_os_error

__all__ = ["Restoring"]

log = logging.getLogger("contig.disk")


class Restoring:
    """One load into a storage. Its user holds the storage's locks: nobody is appending.

    Args:
        directory: of the storage.
        tape: the native one.
        contents: what is taken in.
        limiter: rows inserted and sampled, as the rate limiter counts them.
        adopt: called with what is open when it counts, before the tape is changed; twice, if it is
            interrupted.

    Attributes:
        counts: whether it happened.
        shown: whether the tape has the rows since; else the storage cannot be used any more.
    """

    def __init__(
        self,
        directory: Directory,
        tape: Any,
        contents: Snapshot,
        limiter: tuple[int, int],
        adopt: Callable[[Opened], None],
    ) -> None:
        self._directory, self._tape, self._adopt = directory, tape, adopt
        self._contents, self._limiter, self._numbered = contents, limiter, contents.numbered()
        self.counts = self.shown = self._is_marked = False

    def replace(self, opened: Opened) -> None:
        """In place of what a storage has."""
        self._bring(opened.shape, lambda load: self._change_over(opened, load))

    def create(self, described: dict[str, Any], options: OpenOptions) -> None:
        """Into a storage that is none yet; see `first_load`.

        Args:
            described: what it would be.
            options: how it is opened then.
        """
        first_load.settle(self._directory)
        schema = Schema.from_bytes(json.dumps(described["schema"]).encode())
        of = (schema.layout.record_size, described["stride"], described["rows_per_extent"])
        slots = slots_of(schema, described)
        shape = Shape(*of, described.get("blob_file_bytes", 0), slots)

        def change(load: Load) -> None:
            opened: Opened | None = None
            try:
                whole = with_store(self._directory, described)
                first_load.begin(self._directory, whole)
                opened = Opened(self._directory, self._tape, whole, options)
                self._change_over(opened, load, fresh=True)
            except BaseException:
                if not self.counts:
                    if opened is not None:
                        opened.close()
                    first_load.undo(self._directory)
                raise

        self._bring(shape, change)

    def _bring(self, shape: Shape, change: Callable[[Load], None]) -> None:
        load = Load(self._contents, self._directory.root / "extents", shape, new_salt())
        checked = False
        try:
            load.check()
            checked = True
            self._tape.prepare_restore(*self._numbered)
            load.bring()
            change(load)
        except BaseException as error:
            load.undo()
            says_so = isinstance(error, StorageFull) and not checked
            if isinstance(error, OSError) and error.errno in FULL and not says_so:
                path = self._directory.path
                text = f"{path}: no room for the checkpoint; nothing was loaded"
                raise StorageFull(error.errno, text) from error
            raise

    def _change_over(self, opened: Opened, load: Load, fresh: bool = False) -> None:
        """Puts what was brought in in the place of what there is, or raises and nothing is changed.
        `fresh`: nothing was ever in the storage."""
        committer, appender, remover = opened.committer, opened.appender, opened.remover
        assert committer is not None and appender is not None
        committer.wait()
        if appender.unknown_beyond and not fresh:
            appender.clear_beyond()
        number = next_number(load.root, opened.index.loads)
        folder, old = load.name(number), opened.extents.folder
        changes = self._changes(load, opened.schema)

        def replace(index: DiskIndex) -> None:
            index.replace(changes, number)
            try:
                opened.marker.note(Mark(load.salt, index.revision, changes.head))
                self._is_marked = True
            except OSError as error:  # what it says of before is not believed: it is tried again
                log.warning("%s: what was loaded is not marked: %s", self._directory.path, error)

        try:
            committer.run_between(replace)
        except sqlite3.Error as error:
            raise as_os_error(error, opened.index.path) from error
        finally:
            if opened.index.loads == number:
                self.counts, load.folder = True, None
                self._show(opened, load, folder)
                if old != folder:
                    remover.remove(old)
            elif not fresh:
                # What was not committed may still come back after a crash, until something else is.
                load.folder = None
                remover.left.append(folder)
                appender.note_bounds()

    def _changes(self, load: Load, schema: Schema) -> Changes:
        contents = self._contents
        _, first, last = self._numbered
        fields = None
        if schema.fields is not None:
            records = contents.fields
            if records is None:  # of a checkpoint without fields
                records = np.zeros((last - first, schema.fields.record_size), np.uint8)
            fields = FieldChanges.all_of(first, records)
        return Changes(
            contents.entries,
            {},
            contents.tail,
            first,
            contents.head,
            last,
            contents.trajectories,
            self._limiter,
            load.salts,
            *load.blobs,
            fields,
        )

    def _show(self, opened: Opened, load: Load, folder: Path) -> None:
        """Serves what was loaded: there is no way back any more. Raises interrupts afterwards, and
        OSError if it cannot."""
        try:
            self._take_over(opened, load, folder)
        except BaseException as first:
            try:
                self._take_over(opened, load, folder)
            except Exception as error:
                raise OSError(
                    getattr(error, "errno", None) or errno.EIO,
                    f"{self._directory.path}: the checkpoint was loaded, but this process cannot "
                    f"show its rows ({error}), and the storage is closed. Open it again: it has "
                    "the checkpoint's rows",
                ) from first
            self.shown = True
            if not isinstance(first, Exception):
                raise
            log.warning("%s: loaded at the second try: %s", self._directory.path, first)
        self.shown = True

    def _take_over(self, opened: Opened, load: Load, folder: Path) -> None:
        """The rows in a folder, in place of those that were served so far."""
        extents, appender, tape = opened.extents, opened.appender, self._tape
        contents = self._contents
        assert appender is not None
        self._adopt(opened)
        first_load.finish(self._directory)
        with opened.remover.held:
            tape.clear()  # who is reading sees that rows were lost
            extents.enter(folder)
            extents.created = False
            if opened.bytes is not None:
                opened.bytes.files.enter(folder)
                opened.bytes.files.created = False
            opened.mirror.set_salts(load.salts)
            opened.mirror.quarantine.clear()
            tail, head = contents.tail, contents.head
            _map(extents, range(tail // extents.rows, -(-head // extents.rows)))
            known = (contents.trajectories, contents.fields)
            tape.restore_stored(tail, head, *self._numbered, *known)
            if opened.bytes is not None:
                _map(opened.bytes.files, opened.bytes.adopt(*load.blobs))
            tape.inserted, tape.sampled = self._limiter
            appender.took_over(load.salt, self._is_marked)


def _map(extents: Extents, numbers: range) -> None:
    for number in numbers:
        try:
            extents.map(number)
        except OSError as error:  # then it is mapped when its rows are wanted
            log.warning("%s: it cannot be mapped: %s", extents.path(number), error)
