"""DiskStorage: a tape whose rows are in files and whose index is in SQLite.

    layout.json            what a record is
    extents/NNNNNNNN.rec   rows, each with its checksum; since a load in extents/load-N/
    index.sqlite           runs, producers, bounds
    quarantine/            what was put aside

The index is mirrored in memory, as that of any tape, so samplers and buffers work unchanged; rows
are read through mappings, so a storage may be larger than memory.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ... import _native
from ...arguments import seconds, seconds_or_none, whole
from ...convert import plain_tree
from ...errors import LayoutError, StorageFull
from ...layout import Layout
from ..boundaries import complete_flags
from ..contents import Contents
from ..folding import Steps
from ..schema import ExtraLeaf, Schema
from ..segment import Segment
from ..storage import Storage
from .changes import Changes
from .committer import Committer, Lag
from .directory import Directory, open_index, read_description, read_index, write_description
from .extents import Extents, extent_rows, row_stride
from .failures import as_os_error
from .folders import folder_of, next_number, remove, tidy
from .index import FORMAT, DiskIndex
from .linked import LinkedRows
from .loading import Load, Shape, link_extents
from .rebuild import put_old_aside
from .retention import Bounds, Retention
from .rows import StoredRows
from .writing import StagedWriter

__all__ = ["DiskStorage"]

log = logging.getLogger("contig.disk")

_MOST_ROWS = 1 << 30  # of a storage without a capacity
_MOST_BYTES = 1 << 44  # of addresses
_MOST_EXTENTS = 1 << 31
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskStorage(Storage):
    """Rows in a directory. An existing one is opened with what it holds.

    Args:
        path: the directory; a relative one is resolved here and now.
        capacity: rows to keep; None: as many as other bounds allow.
        max_bytes: bytes of rows to keep.
        durability: "committed" (survives any crash of the process) or "durable" (also power loss).
        rows_per_extent: rows of a file; rounded up to a power of two of whole pages.
        max_episodes, max_age_s: trajectories to keep; seconds to keep rows.
        max_lag_rows, max_lag_s: how many rows, and for how long, may be appended and not committed;
            appends wait beyond it.
        read_only: another process writes; this one follows it.
        ndim, example: as in LazyTensorStorage.

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
    ) -> None:
        if durability not in ("committed", "durable"):
            raise ValueError(f'durability {durability!r}: "committed" or "durable"')
        if capacity is not None:
            capacity = whole("capacity", capacity, 1, "a number of rows")
        bounds = (
            ("capacity", capacity),
            ("max_bytes", max_bytes),
            ("max_episodes", max_episodes),
            ("max_lag_rows", max_lag_rows),
        )
        for name, bound in bounds:
            if bound is not None and bound < 1:
                raise ValueError(f"{name} must be at least 1, got {bound}")
        if max_age_s is not None:
            seconds("max_age_s", max_age_s)
        if not seconds("max_lag_s", max_lag_s) > 0:
            raise ValueError(f"max_lag_s must be more than 0, got {max_lag_s}")
        self._directory = Directory(path, make=not read_only)
        self.path = self._directory.path
        self.durability = durability
        self.read_only = read_only
        self._lag = Lag(max_lag_rows, max_lag_s)
        self._rows: StoredRows | None = None
        self._retention = Retention(Bounds(max_bytes, max_episodes, max_age_s))
        self._wanted_rows = rows_per_extent
        self._wanted_capacity = capacity
        self._appending = threading.RLock()
        self._committer: Committer | None = None
        self._listeners: list[Callable[[], None]] = []
        self.ticket = 0  # of the newest append
        self._index: DiskIndex | None = None
        self._extents: Extents | None = None
        self._bounded = any(b is not None for b in (max_bytes, max_episodes, max_age_s))
        self._salt = _new_salt()  # of what is appended here
        self._salted = False  # from the head on, it is ours
        self._store = 0
        self._pid = os.getpid()
        self._syncing = threading.Lock()
        self._retaining = threading.Lock()  # held while files must not go
        self._rows_beyond = True  # the files may have rows behind the head
        self._unknown_beyond = True  # and we do not know whose
        self._unsynced: OSError | None = None
        self._root = self._directory.root / "extents"
        self._left: list[Path] = []  # folders of loads that could not be committed
        try:
            if not read_only:
                self._directory.lock()
                self._directory.check()
                put_old_aside(self._directory)
            else:
                self._directory.check_storage()
            described = read_description(self._directory)
            rows = _MOST_ROWS if capacity is None else capacity
            nbytes = _native.control_bytes(rows)
            segment = Segment.anonymous(
                nbytes, lambda m: _native.format_control(m, rows), _native.table_bytes(rows)
            )
            super().__init__(segment, ndim)
            if described is not None:
                self._attach(described)
                if not read_only and self._index is not None:
                    tidy(self._directory, self._index.loads)
            if example is not None:
                self.publish(Layout(plain_tree(example)[0]))
        except BaseException as error:
            if self._committer is not None:
                self._committer.close()
            self._directory.name_in(error)
            self._let_go()
            raise
        _written_here.add(self)

    # -- opening ------------------------------------------------------------------------------

    def publish(self, layout: Layout) -> Schema:
        if self._schema is None:
            if self.read_only:
                raise LayoutError("a storage opened to read cannot get a layout")
            mine = Schema(complete_flags(layout), *self._keys)
            with self._lock:
                if self._schema is None:
                    self._create(mine)
        return super().publish(layout)

    def _describe(self, schema: Schema) -> dict[str, Any]:
        """What layout.json of a new storage says."""
        stride = row_stride(schema.layout.record_size)
        most_bytes = self._retention.bounds.nbytes
        if self._wanted_capacity is not None:
            most_bytes = min(self._wanted_capacity * stride, most_bytes or _MOST_BYTES)
        return {
            "format": FORMAT,
            "schema": json.loads(schema.to_bytes()),
            "stride": stride,
            "rows_per_extent": extent_rows(stride, self._wanted_rows, most_bytes),
        }

    def _create(self, schema: Schema) -> None:
        described = self._describe(schema)
        # The index first: where there is a layout, there is an index.
        self._directory.check()
        index = open_index(self._directory, True, int.from_bytes(os.urandom(8), "little") >> 1)
        try:
            described["store"] = index.read_store()  # it may be one that was left without a layout
        finally:
            index.close()
        write_description(self._directory, described)
        self._attach(described)

    def _attach(self, described: dict[str, Any]) -> None:
        schema = Schema.from_bytes(json.dumps(described["schema"]).encode())
        stride, rows = int(described["stride"]), int(described["rows_per_extent"])
        tape = self.tape
        # What can fail comes first: a tape that is published has a schema.
        self._store = int(described.get("store", 0))
        self._index = open_index(self._directory, not self.read_only, self._store)
        state = read_index(self._index, not self.read_only, self._store)
        shift = rows.bit_length() - 1
        most = min(max(_MOST_BYTES // (rows * stride), 3), _MOST_EXTENTS)
        places = min((self.capacity - 1 >> shift) + 2, most)
        if places == most:  # there are not as many addresses as rows are wanted
            most_bytes = (most - 2) * rows * stride
            bounds = self._retention.bounds
            nbytes = min(bounds.nbytes or most_bytes, most_bytes)
            self._retention.bounds = bounds._replace(nbytes=nbytes)
            self._bounded = True
        folder = folder_of(self._root, state.loads)
        self._extents = Extents(folder, places, rows, stride, not self.read_only)
        tape.publish_stored(schema.layout.record_size, stride, shift, most)
        tape.attach_region(self._extents.region)
        self._schema = schema
        self._rows = StoredRows(
            self._directory, tape, self._extents, self._index, self.read_only, self._appending
        )
        self._rows.take_in(state)
        if not self.read_only:
            self._index.forget_producers()
            durable = self.durability == "durable"
            self._committer = Committer(
                self._index, durable, self._lag, self._sync, self._after_commit
            )
            self._rows.committer = self._committer

    # -- reading ------------------------------------------------------------------------------

    def poll(self) -> None:
        if self._rows is not None:
            self._rows.poll()

    def __len__(self) -> int:
        self.poll()
        return super().__len__()

    def episodes(self) -> np.ndarray[Any, Any]:
        self.poll()
        return super().episodes()

    @property
    def quarantined(self) -> dict[int, str]:
        return {} if self._rows is None else self._rows.aside.reasons

    @property
    def repaired(self) -> set[int]:
        """Those of `quarantined` that a repair set aside."""
        return set() if self._rows is None else self._rows.aside.repaired

    def quarantine(self, found: dict[int, str], repaired: bool = False) -> None:
        """Sets trajectories aside: their rows are never served. By ordinal (`id`), with reasons.
        `repaired`: for good, so that nobody need hear of them again."""
        if self._rows is not None:
            self._rows.set_aside(found, repaired)

    def damaged(self, low: int, high: int) -> list[int]:
        """Trajectories (`id`) with damaged rows among [low, high); reads all of them."""
        if self._rows is None or self._extents is None:
            return []
        self._extents.fetch(max(low, int(self.tape.snapshot()[1])), high)
        return self._rows.damaged(low, high)

    def gather(
        self,
        seqs: np.ndarray[Any, Any],
        extras: tuple[ExtraLeaf, ...] = (),
        steps: Steps | None = None,
    ) -> Any:
        """As `Storage.gather`; rows that are damaged or set aside count as lost: then `lost` is a
        mask over `seqs`."""
        batch, lost, damaged = self._gathered(seqs, extras, steps)
        rows = self._rows
        assert rows is not None  # or nothing could be gathered
        parts = seqs if steps is None else steps.rows
        if damaged is not None and not rows.find_damaged(np.unique(parts[damaged])):
            batch, lost, damaged = self._gathered(seqs, extras, steps)  # it was read too soon
        aside = rows.aside.covers(parts)
        if damaged is None and aside is None:
            return batch, lost
        gone = parts < lost
        if damaged is not None:
            gone[damaged] = True
        if aside is not None:
            gone |= aside
        if steps is not None:  # one bad row spoils what it is a part of
            gone = np.logical_or.reduceat(gone, np.cumsum(steps.lengths) - steps.lengths)
        return batch, (gone if gone.any() else 0)

    # -- writing ------------------------------------------------------------------------------

    def native_writer(self, schema: Schema) -> Any:
        if self.read_only:
            raise PermissionError(f"{self.path} was opened to read")
        return StagedWriter(self, schema)

    @contextmanager
    def appending(self) -> Iterator[None]:
        """One append at a time."""
        self._open()
        with self._appending:
            self._open()
            if self._committer is not None:
                self._committer.check()
                self._directory.check()
                if not self._salted:
                    self._begin()
            yield

    def _begin(self) -> None:
        """From the head on, rows are ours: their checksums say so."""
        head, tail, _, _ = self.tape.snapshot()
        assert self._rows is not None
        before = [s for s in self._rows.salts if s[0] < head]
        while len(before) > 1 and before[1][0] <= tail:
            before.pop(0)
        self._rows.set_salts((*before, (int(head), self._salt)))
        self._salted = True

    def commit(self, native: Any, producers: dict[int, int]) -> int:
        """Stores what a writer staged, appends it, and hands it to the committer."""
        assert self._extents is not None and self._committer is not None
        tape = self.tape
        head, _, index_head, _ = tape.snapshot()
        staged = native.staged()
        rows = memoryview(staged).nbytes // self._extents.stride
        self._committer.make_room(rows)
        try:
            if self._rows_beyond:
                self.clear_beyond()
            self._rows_beyond = True
            self._extents.write(head, staged)
        except OSError as error:
            text = f"{self.path}: rows cannot be written: {error.strerror}; nothing was appended"
            if error.errno in _FULL:
                raise StorageFull(error.errno, text) from error
            raise OSError(error.errno, text) from error
        # Rows that give way go before their places get new ones.
        tape.retire(max(head + rows - min(self.capacity, self._extents.most_rows), 0))
        self._extents.show()
        first = native.commit_staged()
        self._rows_beyond = False
        if self._bounded:
            self._retention.appended(head + rows)
            self._retire(now=False)
        self.ticket = self._committer.add(self._changes(index_head, producers), rows)
        return int(first)

    def rows_beyond(self) -> int:
        """Rows in the files of which the index does not know, yet or any more."""
        if self._extents is None:
            return 0
        return int(self._extents.beyond(int(self.tape.snapshot()[0])))

    def clear_beyond(self) -> int:
        """Removes rows that are behind the head. What this storage did not write itself is put
        aside before: perhaps the index is an older one, or lost some of its log; how many rows."""
        extents = self._extents
        assert extents is not None
        head, count = int(self.tape.snapshot()[0]), 0
        if self._unknown_beyond:
            folders: list[Path] = []

            def folder() -> Path:
                folders.append(self._directory.aside("rows"))
                return folders[-1]

            count = extents.set_aside(head, folder)
            if count:
                log.warning(
                    "%s: %d rows behind the newest that the index knows are put aside, in %s: a "
                    "process was killed before it committed them, or the index is not the newest",
                    self.path,
                    count,
                    self._directory.shown(folders[0]),
                )
        extents.cut(head)
        self._rows_beyond = self._unknown_beyond = False
        return count

    def _retire(self, now: bool) -> None:
        """Applies the bounds other than `capacity`."""
        assert self._extents is not None
        head, tail, _, _ = self.tape.snapshot()
        stride = self._extents.stride
        keep_from = self._retention.keep_from(tail, head, stride, self._entries, now)
        if keep_from > tail:
            self.tape.retire(keep_from)

    def _changes(self, index_from: int, producers: dict[int, int]) -> Changes:
        tape = self.tape
        head, tail, index_head, index_tail = tape.snapshot()
        low = max(index_from - 1, index_tail)  # the newest entry may have grown
        words = np.asarray(tape.entries(low, index_head), np.int64).reshape(-1, 16)
        return Changes(
            words,
            producers,
            tail,
            index_tail,
            head,
            index_head,
            int(tape.trajectories),
            (int(tape.inserted), int(tape.sampled)),
            () if self._rows is None else self._rows.salts,
        )

    def _sync(self) -> None:
        """Rows written so far, to the disk; appends go on meanwhile."""
        assert self._extents is not None
        with self._syncing:  # whoever finds nothing to sync knows that it is synced
            if self._unsynced is not None:  # a second fsync would succeed without meaning anything
                raise self._unsynced
            try:
                self._extents.unsynced_files().sync()
            except OSError as error:
                self._unsynced = error
                raise

    @property
    def settled(self) -> int:
        """The newest ticket whose append is committed; see `ticket`."""
        return 0 if self._committer is None else self._committer.done

    def on_commit(self, call: Callable[[], None]) -> None:
        """Has something called in the committing thread after each commit."""
        self._listeners.append(call)

    def _after_commit(self, changes: Changes) -> None:
        """Tells who waits, and deletes files that hold nothing any more."""
        for call in self._listeners:
            call()
        assert self._extents is not None
        while self._left:
            self._let_go_of(self._left.pop())
        if changes.tail // self._extents.rows == 0:
            return
        with self._retaining:
            # A checkpoint that was loaded since may have files of these numbers.
            gone = self._extents.delete_below(min(changes.tail, self.tape.snapshot()[1]))
        if gone:
            log.info("%s: %d extents let go, rows below %d", self.path, len(gone), changes.tail)

    def retain(self) -> None:
        """Applies `max_bytes`, `max_episodes` and `max_age_s` now; appends do it now and then."""
        with self.appending():
            if self._committer is not None:
                self._retire(now=True)
                self._committer.add(self._changes(self.tape.snapshot()[2], {}))

    def _entries(self) -> np.ndarray[Any, Any]:
        """The index, ``[n, 16]`` words."""
        return np.array(self.tape.read_index()[0], np.int64).reshape(-1, 16)

    def _restore(self, contents: Contents, limiter: tuple[int, int], layout: Layout | None) -> None:
        with self.appending():
            load = Load(contents, self._root, self._shape(layout), _new_salt())
            load.check()
            self.tape.prepare_restore(*contents.numbered())
            try:
                load.bring()
                if self._schema is None and layout is not None:
                    self.publish(layout)
                self._change_over(load, contents, limiter)
            except BaseException as error:
                load.undo()
                if isinstance(error, OSError) and error.errno in _FULL:
                    text = f"{self.path}: no room for the checkpoint; nothing was loaded"
                    raise StorageFull(error.errno, text) from error
                raise

    def _shape(self, layout: Layout | None) -> Shape:
        """How rows lie in files, or would, with a layout."""
        if self._extents is not None:
            return Shape(self.tape.record_size, self._extents.stride, self._extents.rows)
        assert layout is not None
        described = self._describe(schema := Schema(complete_flags(layout), *self._keys))
        size = schema.layout.record_size
        return Shape(size, int(described["stride"]), int(described["rows_per_extent"]))

    def _change_over(self, load: Load, contents: Contents, limiter: tuple[int, int]) -> None:
        """From what there is to what was brought in: one transaction of the index is the step."""
        assert self._extents is not None and self._committer is not None
        assert self._index is not None and self._rows is not None
        words, first, last = contents.numbered()
        bounds = (contents.tail, contents.head, words, first, last, contents.trajectories)
        self._committer.wait()
        if self._unknown_beyond:
            self.clear_beyond()
        number = next_number(self._root, self._index.loads)
        folder, old = load.name(number), self._extents.folder
        changes = Changes(
            words.view(np.int64).reshape(-1, 16),
            {},
            contents.tail,
            first,
            contents.head,
            last,
            contents.trajectories,
            limiter,
            load.salts,
        )
        try:
            self._committer.run_between(lambda index: index.replace(changes, number))
        except sqlite3.Error as error:
            raise as_os_error(error, self._index.path) from error
        finally:
            # What was not committed may still come back after a crash, until something else is.
            load.folder = None
            if self._index.loads != number:
                self._left.append(folder)
                self._committer.add(self._changes(self.tape.snapshot()[2], {}))
            else:
                try:
                    self._take_over(folder, bounds, load, limiter)
                except BaseException:  # an interrupt: there is no way back any more
                    self._take_over(folder, bounds, load, limiter)
                    raise
                finally:
                    self.restored += 1
                self._let_go_of(old)

    def _take_over(self, folder: Path, bounds: Any, load: Load, limiter: tuple[int, int]) -> None:
        """The rows in a folder, in place of those that were served so far."""
        assert self._extents is not None and self._rows is not None
        with self._retaining:
            self.tape.clear()  # who is reading sees that rows were lost
            self._extents.enter(folder)
            self._extents.created = False
            self._rows.set_salts(load.salts)
            self._salt, self._salted = load.salt, True
            self._rows.aside.clear()
            self._retention.forget()
            tail, head = bounds[:2]
            for extent in range(tail // self._extents.rows, -(-head // self._extents.rows)):
                try:
                    self._extents.map(extent)
                except OSError as error:  # then it is mapped when its rows are wanted
                    log.warning("%s: extent %d cannot be mapped: %s", self.path, extent, error)
            self.tape.restore_stored(*bounds)
            self.tape.inserted, self.tape.sampled = limiter
            self._rows_beyond = self._unknown_beyond = False

    def _let_go_of(self, folder: Path) -> None:
        """Of rows that do not count any more."""
        with self._retaining:
            try:
                remove(folder, self._root)
            except OSError as error:
                log.warning("%s: rows that were replaced are still there: %s", self.path, error)

    def link_rows(self, folder: Path, first: int, head: int) -> dict[str, Any] | None:
        self._sync()
        assert self._extents is not None
        extents = self._extents
        with self._appending, self._retaining:  # nothing is let go meanwhile
            link_extents(extents, folder, self.tape.record_size, first, head)
        return {
            "stride": extents.stride,
            "rows_per_extent": extents.rows,
            "salts": [] if self._rows is None else [list(s) for s in self._rows.salts],
        }

    def first_extent_behind(self, seq: int) -> int:
        """The first seq of a file, none of whose rows is before this one."""
        assert self._extents is not None
        return -(-seq // self._extents.rows) * self._extents.rows

    def linked_contents(self) -> Contents:
        """Everything in it, as another storage can take it in by links. Nobody may write."""
        assert self._extents is not None and self._rows is not None
        self._sync()
        extents, size = self._extents, self.tape.record_size
        rows = LinkedRows(extents.folder, size, extents.stride, extents.rows, self._rows.salts)
        head, tail, _, _ = self.tape.snapshot()
        words = self._entries()
        words = words[np.argsort(words[:, 15])]
        return Contents(rows, tail, head, words, int(self.tape.trajectories))

    def backup_index(self, path: Path) -> None:
        """A copy of the index as it is committed now, in a file of its own."""
        assert self._index is not None
        index = DiskIndex(self._directory.index, False)
        try:
            index.backup(path)
        finally:
            index.close()

    def empty(self) -> None:
        with self.appending():
            super().empty()
            if self._committer is not None:
                self._committer.add(self._changes(self.tape.snapshot()[2], {}))

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when every append is committed (or durable)."""
        timeout_s = seconds_or_none("timeout_s", timeout_s)
        self._open()
        if self._committer is not None:
            self._committer.wait(timeout_s=timeout_s)

    # -- life ---------------------------------------------------------------------------------

    def _open(self) -> Segment:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{self.path} was opened in process {self._pid}, of which this one is a fork: "
                "open it here with read_only=True"
            )
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
        try:
            if os.getpid() != self._pid:  # a fork: its threads are the parent's, and so is the rest
                self._index = self._extents = self._rows = None
            elif self._committer is not None:
                self._committer.close()
        finally:
            super().close()
            self._let_go()

    def _let_go(self) -> None:
        index = self._index if self._rows is None else self._rows.index
        if index is not None:
            moved = self._directory.is_moved
            index.close(self._directory.root / index.path.name if moved else None)
        if self._extents is not None:
            self._extents.close()
        self._directory.close()


def _new_salt() -> int:
    return int.from_bytes(os.urandom(8), "little") >> 1 or 1


_written_here: weakref.WeakSet[DiskStorage] = weakref.WeakSet()


def _after_fork() -> None:
    """A child that lives on must not keep the directories of its parent locked."""
    for storage in list(_written_here):
        storage._directory.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _reader(path: str, capacity: int, ndim: int) -> DiskStorage:
    return DiskStorage(path, capacity, read_only=True, ndim=ndim)
