"""DiskStorage: a tape whose rows are in files and whose index is in SQLite.

The index is mirrored in memory, as that of any tape, so samplers and buffers work unchanged; rows
are read through mappings, so a storage may be larger than memory.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...arguments import seconds_or_none, whole
from ...errors import LayoutError
from ...layout import Layout
from ..asked import Asked
from ..encoding import check_codecs, codecs_of
from ..fields import Given, check_fields, fields_layout
from ..folding import FoldedSteps
from ..schema import ExtraLeaf, Schema
from ..segment import Segment
from ..snapshot import Snapshot
from ..stacks import stacks_of
from ..storage import Storage
from ..taking_in import asked_for, check_records
from . import first_load
from .appender import Appender, StagedWriter
from .committer import Lag
from .description import create, describe, keep, kept, read_description, stored_schema
from .directory import Directory
from .holding import Holding
from .index import DiskIndex
from .lifetime import Lifetime, control, teller
from .linked_rows import LinkedRows
from .opening import Opened, OpenOptions
from .restoring import Restoring
from .retention import Bounds, Retention
from .stored_bytes import bytes_for
from .stored_slots import StoredSlots

__all__ = ["DiskStorage"]

Array = np.ndarray[Any, Any]

_MOST_ROWS = 1 << 30  # of a storage without a capacity


class DiskStorage(Storage):
    """Rows in a directory. An existing one is opened with what it holds.

    Args:
        path: the directory; a relative one is resolved here and now.
        capacity: rows to keep; None: as many as a writer of the directory said last, else as many
            as other bounds allow.
        max_bytes: bytes to keep: files have at most two extents of each kind more.
        durability: "committed" (survives any crash of the process) or "durable" (also power loss).
        rows_per_extent: rows of a file; rounded up to a power of two of whole pages.
        max_episodes, max_age_s: trajectories to keep; seconds to keep rows. Applied by appends,
            once a second at most, and by `retain`.
        max_lag_rows, max_lag_s: how many rows, and for how long, may be appended and not committed;
            appends wait beyond it.
        read_only: another process writes; this one follows it.
        ndim, example, fields, codecs: as in LazyTensorStorage; codecs may be left out when the
            directory exists.
        blob_bytes: bytes to keep of leaves of any size; None: as a writer said last, else 64 kB per
            row of the capacity, at least 64 GB, at most 1 TB.
        share_next, stack: as in LazyTensorStorage: observations are stored once, and so are frames
            of stacks; files have about half, or an eighth. Not beside leaves of any size or with
            codecs, whichever those are: the log says so. What an existing directory has stays as
            it is.

    `extend` and the like return when the rows can be sampled; they are committed within
    milliseconds, and `flush` waits for that. A failure to commit is raised at the next call.
    Thread-safe. One process writes at a time; any number read. The directory is held open: if it is
    moved, or another takes its place, appends raise.

    Raises:
        BlockingIOError: another process writes here; it names its pid.
        OSError: the directory cannot be used: no room, no permission, and the like.
        LayoutError: the directory holds another layout, with the difference.
    """

    def __init__(
        self,
        path: str | Path,
        capacity: int | None = None,
        *,
        max_bytes: int | None = None,
        durability: str = "committed",
        rows_per_extent: int | None = None,
        max_episodes: int | None = None,
        max_age_s: float | None = None,
        max_lag_rows: int = 1 << 16,
        max_lag_s: float = 0.2,
        read_only: bool = False,
        ndim: int = 1,
        example: Any = None,
        fields: Any = None,
        blob_bytes: int | None = None,
        codecs: Any = None,
        share_next: bool | None = None,
        stack: Any = None,
    ) -> None:
        if durability not in ("committed", "durable"):
            raise ValueError(f'durability {durability!r}: "committed" or "durable"')
        if capacity is not None:
            capacity = whole("capacity", capacity, 1, "a number of rows")
        if blob_bytes is not None:
            blob_bytes = whole("blob_bytes", blob_bytes, 1, "a number of bytes")
        self._must_share, stacks = share_next is True or bool(stack), stacks_of(stack)
        bounds, lag = Bounds(max_bytes, max_episodes, max_age_s), Lag(max_lag_rows, max_lag_s)
        bounds.check()
        lag.check()
        self._directory = Directory(path, make=not read_only)
        self._lifetime = Lifetime(self._directory, read_only)
        self.path, self.durability, self.read_only = self._directory.path, durability, read_only
        self._wanted = (rows_per_extent, capacity, max_bytes, blob_bytes)
        self._appending = threading.RLock()
        self._holding = Holding(self._appending)
        self._listeners: list[Callable[[], None]] = []
        working = (lag, Retention(bounds), self._appending, teller(self))
        self._options = OpenOptions(read_only, durability == "durable", *working, 0)
        layout = None if fields is None else fields_layout(fields)
        keys = (None, None)  # samplers have them
        asked = Asked(keys, layout, blob_bytes, codecs_of(codecs), share_next, stacks, True)
        try:
            self._begin(ndim, asked)
            if example is not None:
                self.publish_example(example)
        except BaseException as error:
            self._directory.name_in(error)
            self._lifetime.close()
            raise
        self._dropped = weakref.finalize(self, self._lifetime.dropped, weakref.ref(self))

    # -- opening ------------------------------------------------------------------------------

    def _begin(self, ndim: int, asked: Asked) -> None:
        directory = self._directory
        if self.read_only:
            directory.check_storage()
        else:
            directory.lock()
            directory.check()
            directory.put_old_indexes_aside()
            first_load.settle(directory)
        described = read_description(directory)
        # Who reads follows the writer, whatever that one keeps.
        extent_rows, capacity, max_bytes, most = self._wanted
        capacity, most = kept(None if self.read_only else described, capacity, most)
        self._wanted = (extent_rows, capacity, max_bytes, most)
        rows = _MOST_ROWS if capacity is None else capacity
        self._options = self._options._replace(blob_bytes=bytes_for(rows) if most is None else most)
        super().__init__(control(rows), ndim, asked=replace(asked, blob_bytes=most))
        if described is not None:
            self._attach(described)
            check_fields(self.fields, asked.fields)
            check_codecs(self._files().schema.codecs, asked.codecs)
            if not self.read_only:
                keep(directory, described, capacity, most)

    @property
    def opened(self) -> Opened | None:
        """Its files; None before the first row, and when it is closed in a fork."""
        return self._lifetime.opened

    @property
    def _appender(self) -> Appender | None:
        return None if self.opened is None else self.opened.appender

    def _files(self) -> Opened:
        assert self.opened is not None, "nothing was written to it yet"
        return self.opened

    def publish(self, layout: Layout, fields: Layout | None = None) -> Schema:
        if self._schema is None:
            if self.read_only:
                raise LayoutError("a storage opened to read cannot get a layout")
            with self._lock:
                if self._schema is None:
                    described = self._describe(layout, fields)
                    first_load.settle(self._directory)
                    self._attach(create(self._directory, described))
        return super().publish(layout, fields)

    def _describe(
        self, layout: Layout, fields: Layout | None, like: StoredSlots | None = None
    ) -> dict[str, Any]:
        """What a new storage is going to be; `like`: observations as they are stored elsewhere."""
        if self.asked.share_next is not None or self.asked.stack:
            like = None
        schema = stored_schema(self.asked.schema(layout, fields), like, self._must_share)
        return describe(schema, *self._wanted, None if like is None else like.reach)

    def _attach(self, described: dict[str, Any]) -> None:
        # What can fail comes first: a tape that is published has a schema.
        opened = Opened(self._directory, self.tape, described, self._options)
        self._adopt(opened)
        opened.take_in()

    def _adopt(self, opened: Opened) -> None:
        if self._schema is None:
            self._lifetime.opened = opened
            opened.show()
            if opened.schema.fields is not None:
                memory = self._open().map_data(*self.tape.fields_range)
                self.tape.attach_fields(memory, opened.schema.fields.table)
        self._schema = opened.schema

    # -- reading ------------------------------------------------------------------------------

    def poll(self) -> None:
        if self.opened is not None and not self._holding.is_here:
            self.opened.mirror.poll()

    def held(self, files: bool = False) -> AbstractContextManager[None]:
        self._open()
        return self._holding(super().held(), files or self.read_only)

    def _place(self) -> str:
        return f" {str(self.path)!r}"

    def __len__(self) -> int:
        self.poll()
        return super().__len__()

    def episodes(self) -> np.ndarray[Any, Any]:
        self.poll()
        return super().episodes()

    @property
    def blob_ring(self) -> int:
        return self._options.blob_bytes

    @property
    def blob_bytes(self) -> int:
        blobs = None if self.opened is None else self.opened.bytes
        return 0 if blobs is None else blobs.kept

    @property
    def nbytes(self) -> int:
        """Bytes of rows in its files, with leaves of any size."""
        return len(self) * int(self.tape.row_stride) + self.blob_bytes

    @property
    def quarantined(self) -> dict[int, str]:
        return {} if self.opened is None else self.opened.mirror.quarantine.reasons

    @property
    def repaired(self) -> set[int]:
        """Those of `quarantined` that a repair set aside."""
        return set() if self.opened is None else self.opened.mirror.quarantine.repaired

    def quarantine(self, found: dict[int, str], repaired: bool = False) -> None:
        """Sets trajectories aside: their rows are never served. By ordinal (`id`), with reasons.
        `repaired`: a repair did it, and later checks do not report them again."""
        if self.opened is not None:
            self.opened.mirror.quarantine.set_aside(found, repaired)

    def damaged(self, low: int, high: int) -> list[int]:
        """Trajectories (`id`) with damaged rows among [low, high); reads all of them."""
        if self.opened is None:
            return []
        self.opened.fetch(max(low, int(self.tape.snapshot()[1])), high)
        return self.opened.mirror.damaged(low, high)

    def gather(
        self,
        seqs: np.ndarray[Any, Any],
        extras: tuple[ExtraLeaf, ...] = (),
        steps: FoldedSteps | None = None,
        *,
        aside: bool = False,
    ) -> Any:
        """As `Storage.gather`; rows that are damaged or set aside count as lost: then `lost` is a
        mask over `seqs`."""
        bad = np.zeros(len(seqs), np.bool_) if aside else None
        batch, lost, damaged = self._gathered(seqs, extras, steps, bad)
        mirror = self._files().mirror  # or nothing could be gathered
        rows = seqs if steps is None else steps.rows
        if damaged is not None and not mirror.find_damaged(np.unique(rows[damaged])):
            batch, lost, damaged = self._gathered(seqs, extras, steps, bad)  # it was read too soon
        return batch, mirror.quarantine.lost(seqs, steps, lost, damaged, bad)

    # -- writing ------------------------------------------------------------------------------

    def native_writer(self, schema: Schema, number: int = 0) -> Any:
        if self.read_only:
            raise PermissionError(f"{self.path} was opened to read")
        assert self._appender is not None, "a storage with a schema has its files open"
        return StagedWriter(self.tape, schema, self._appender, self.appending, number)

    @contextmanager
    def appending(self) -> Iterator[None]:
        """One append at a time."""
        self._open()  # before the lock, too: in a fork, nobody would ever let it go
        with self._appending:
            self._open()
            opened = self._lifetime.opened
            if opened is not None and opened.appender is not None:
                opened.appender.begin()
            yield

    def rows_beyond(self) -> int:
        """Rows in the files of which the index does not know, and nobody can tell why; not those
        that a process is appending, or was when it was killed."""
        return 0 if self.opened is None else self.opened.rows_beyond()

    def clear_beyond(self) -> int:
        """Removes rows that are beyond the head. Those that `rows_beyond` counts are put aside
        before; how many."""
        return 0 if self._appender is None else self._appender.clear_beyond()

    @property
    def ticket(self) -> int:
        """Of the newest append; see `settled`."""
        return 0 if self._appender is None else self._appender.ticket

    @property
    def settled(self) -> int:
        """The newest ticket whose append is committed; see `ticket`."""
        return 0 if self._appender is None else self._appender.committer.done

    def on_commit(self, call: Callable[[], None]) -> None:
        """Has something called in the committing thread after each commit."""
        self._listeners.append(call)

    def retain(self) -> None:
        """Applies `max_bytes`, `max_episodes` and `max_age_s` now; appends do it now and then."""
        with self.appending():
            if self._appender is not None:
                self._appender.retain()

    def _change_fields(self, ids: Array, given: Given) -> int:
        if self.read_only:
            raise PermissionError(f"{self.path} was opened to read")
        with self.appending():
            appender = self._appender
            assert appender is not None, "a storage with a schema has its files open"
            appender.committer.make_room(len(ids))
            there = super()._change_fields(ids, given)
            if there and self._episodes.mirror is not None:
                appender.set_fields(self._episodes.mirror.last_runs(ids))
            return there

    def empty(self) -> None:
        with self.appending():
            super().empty()
            if self._appender is not None:
                self._appender.note_bounds()

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when every append is committed (or durable)."""
        timeout_s = seconds_or_none("timeout_s", timeout_s)
        self._open()
        opened = self._lifetime.opened
        if opened is not None and opened.committer is not None:
            opened.committer.wait(timeout_s=timeout_s)

    # -- checkpoints --------------------------------------------------------------------------

    def _restore(
        self,
        contents: Snapshot,
        limiter: tuple[int, int],
        layout: Layout | None,
        fields: Layout | None,
    ) -> None:
        with self.appending(), ExitStack() as held:
            restoring = Restoring(self._directory, self.tape, contents, limiter, self._adopt)
            if self._schema is None:
                held.enter_context(self._lock)  # nobody fixes another layout meanwhile
            try:
                if self._schema is None:
                    assert layout is not None
                    like = contents.rows.slots if isinstance(contents.rows, LinkedRows) else None
                    if like is None:
                        self.asked = asked_for(self.asked, layout, contents)
                    check_records(contents.rows, self.asked.schema(layout, fields), layout)
                    restoring.create(self._describe(layout, fields, like), self._options)
                else:
                    check_records(contents.rows, self._schema, layout)
                    restoring.replace(self._files())
            finally:
                self.restored += int(restoring.counts)
                if restoring.counts and not restoring.shown:  # appends would go over its rows
                    self.close()

    def link_rows(self, folder: Path, first: int, head: int) -> dict[str, Any] | None:
        with self._appending:
            return self._files().link_rows(folder, first, head)

    def first_extent_behind(self, seq: int) -> int:
        """The first seq of a file, none of whose rows is before this one."""
        rows = self._files().extents.rows
        return -(-seq // rows) * rows

    def linked_contents(self) -> Snapshot:
        """Everything in it, as another storage can take it in by links. Nobody may write."""
        return self._files().linked_contents()

    def backup_index(self, path: Path) -> None:
        """A copy of the index as it is committed now, in a file of its own."""
        with closing(DiskIndex(self._directory.index, False)) as index:
            index.backup(path)

    # -- life ---------------------------------------------------------------------------------

    def _open(self) -> Segment:
        if os.getpid() != self._lifetime.pid:
            whose = f"process {self._lifetime.pid}, of which this one is a fork"
            raise RuntimeError(f"{self.path} was opened in {whose}: open it with read_only=True")
        return super()._open()

    def __reduce__(self) -> Any:
        return _reader, (str(self.path), self.capacity, self.ndim)

    def close(self) -> None:
        """Commits what is left and lets the directory go.

        Raises:
            OSError: some appends could not be committed.
        """
        if self._segment is None:
            return
        self._dropped.detach()
        try:
            self._lifetime.close()
        finally:
            super().close()


def _reader(path: str, capacity: int, ndim: int) -> DiskStorage:
    return DiskStorage(path, capacity, read_only=True, ndim=ndim)
