"""DiskStorage: a tape whose rows are in files and whose index is in SQLite.

    layout.json            what a record is
    extents/NNNNNNNN.rec   rows, each with its checksum
    index.sqlite           runs, producers, bounds
    lock                   held by the one process that writes

The index is mirrored in memory, as that of any tape, so samplers and buffers work unchanged; rows
are read through mappings, so a storage may be larger than memory.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ... import _native
from ...arguments import whole
from ...convert import plain_tree
from ...errors import LayoutError, StorageFull
from ...layout import Layout
from ..boundaries import complete_flags
from ..contents import Contents
from ..folding import Steps
from ..schema import ExtraLeaf, Schema
from ..segment import Segment
from ..storage import Storage
from . import files
from .committer import Committer
from .directory import (
    lock_directory,
    open_index,
    read_description,
    read_index,
    write_description,
)
from .extents import Extents, extent_rows, row_stride
from .index import FORMAT, Changes, DiskIndex, IndexState
from .loading import Load, link_extents
from .writing import StagedWriter

__all__ = ["DiskStorage"]

log = logging.getLogger("contig.disk")

_MOST_ROWS = 1 << 30  # of a storage without a capacity
_MOST_BYTES = 1 << 44  # of addresses
_MOST_EXTENTS = 1 << 31
_RETIRE_S = 1.0
_POLL_S = 0.02
_FIRST, _STEPS_FLAGS, _ORDINAL, _TIME_NS = 0, 1, 5, 10  # words of an entry


class DiskStorage(Storage):
    """Rows in a directory. An existing one is opened with what it holds.

    Args:
        path: the directory.
        capacity: rows to keep; None: as many as other bounds allow.
        max_bytes: bytes of rows to keep.
        durability: "committed" (survives any crash of the process) or "durable" (also power loss).
        rows_per_extent: rows of a file; rounded up to a power of two of whole pages.
        max_episodes, max_age_s: trajectories to keep; seconds to keep them.
        read_only: another process writes; this one follows it.
        ndim, example: as in LazyTensorStorage.

    `extend` and the like return when the rows can be sampled; they are committed within
    milliseconds, and `flush` waits for that. A failure to commit is raised at the next call.
    Thread-safe. One process writes at a time; any number read.

    Raises:
        BlockingIOError: another process writes here; it names its pid.
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
        read_only: bool = False,
        ndim: int = 1,
        example: Any = None,
    ) -> None:
        if durability not in ("committed", "durable"):
            raise ValueError(f'durability {durability!r}: "committed" or "durable"')
        if capacity is not None:
            capacity = whole("capacity", capacity, 1, "a number of rows")
        bounds = (("capacity", capacity), ("max_bytes", max_bytes), ("max_episodes", max_episodes))
        for name, bound in bounds:
            if bound is not None and bound < 1:
                raise ValueError(f"{name} must be at least 1, got {bound}")
        self.path = Path(path)
        self.durability = durability
        self.read_only = read_only
        self._quarantined: dict[int, str] = {}
        self._max_bytes, self._max_episodes, self._max_age_s = max_bytes, max_episodes, max_age_s
        self._wanted_rows = rows_per_extent
        self._wanted_capacity = capacity
        self._appending = threading.RLock()
        self._committer: Committer | None = None
        self._listeners: list[Callable[[], None]] = []
        self.ticket = 0  # of the newest append
        self._index: DiskIndex | None = None
        self._extents: Extents | None = None
        self._bad_rows: np.ndarray[Any, Any] = np.zeros((0, 2), np.int64)
        self._bounded = any(b is not None for b in (max_bytes, max_episodes, max_age_s))
        self._retired = self._polled = 0.0
        self._data_version = -1
        self._lock_fd = -1
        self._pid = os.getpid()
        self._syncing = threading.Lock()
        self._retaining = threading.Lock()  # held while files must not go
        self._loads = 0  # of the index that we follow
        self._rows_beyond = True  # the files may have rows behind the head
        self._unsynced: OSError | None = None
        if not read_only:
            files.make_dir(self.path / "extents")
            self._lock_fd = lock_directory(self.path)
        elif not files.exists(self.path / "layout.json"):
            raise FileNotFoundError(f"{self.path}: no storage is there (layout.json is missing)")
        try:
            described = read_description(self.path)
            rows = _MOST_ROWS if capacity is None else capacity
            nbytes = _native.control_bytes(rows)
            segment = Segment.anonymous(
                nbytes, lambda m: _native.format_control(m, rows), _native.table_bytes(rows)
            )
            super().__init__(segment, ndim)
            if described is not None:
                self._attach(described)
            if example is not None:
                self.publish(Layout(plain_tree(example)[0]))
        except BaseException:
            if self._committer is not None:
                self._committer.close()
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

    def _create(self, schema: Schema) -> None:
        stride = row_stride(schema.layout.record_size)
        most_bytes = self._max_bytes
        if self._wanted_capacity is not None:
            most_bytes = min(self._wanted_capacity * stride, most_bytes or _MOST_BYTES)
        described = {
            "format": FORMAT,
            "schema": json.loads(schema.to_bytes()),
            "stride": stride,
            "rows_per_extent": extent_rows(stride, self._wanted_rows, most_bytes),
        }
        # The index first: where there is a layout, there is an index.
        open_index(self.path / "index.sqlite", True).close()
        write_description(self.path, described)
        self._attach(described)

    def _attach(self, described: dict[str, Any]) -> None:
        schema = Schema.from_bytes(json.dumps(described["schema"]).encode())
        stride, rows = int(described["stride"]), int(described["rows_per_extent"])
        tape = self.tape
        # What can fail comes first: a tape that is published has a schema.
        self._index = open_index(self.path / "index.sqlite", not self.read_only)
        state = read_index(self._index, not self.read_only)
        shift = rows.bit_length() - 1
        most = min(max(_MOST_BYTES // (rows * stride), 3), _MOST_EXTENTS)
        places = min((self.capacity - 1 >> shift) + 2, most)
        if places == most:  # there are not as many addresses as rows are wanted
            most_bytes = (most - 2) * rows * stride
            self._max_bytes = min(self._max_bytes or most_bytes, most_bytes)
            self._bounded = True
        self._extents = Extents(self.path / "extents", places, rows, stride, not self.read_only)
        tape.publish_stored(schema.layout.record_size, stride, shift, most)
        tape.attach_region(self._extents.region)
        self._schema = schema
        self._take_in(state)
        if not self.read_only:
            self._index.forget_producers()
            durable = self.durability == "durable"
            self._committer = Committer(self._index, durable, self._sync, self._after_commit)

    def _take_in(self, state: IndexState) -> None:
        """The index as it was found, into the tape; rows that cannot be trusted, aside."""
        assert self._extents is not None
        tape = self.tape
        head = state.head
        if len(state.entries):
            ends = state.entries[:, 0] + (state.entries[:, 1] >> 8)
            head = int(ends.max())
        tail, index_tail = max(state.tail, head - self.capacity), state.index_tail
        keep = state.entries[:, 0] + (state.entries[:, 1] >> 8) > tail
        first_kept = int(np.argmax(keep)) if keep.any() else len(state.entries)
        index_tail += first_kept
        entries = state.entries[first_kept:]
        if not len(entries):
            tail = head
        flat = np.ascontiguousarray(entries).astype(np.uint64).reshape(-1)
        index_head = index_tail + len(entries)
        tape.restore_stored(tail, head, flat, index_tail, index_head, state.trajectories)
        tape.inserted, tape.sampled = state.limiter
        for producer, seq in state.producers.items():
            tape.set_producer(producer, seq)
        rows = self._extents.rows
        self._loads = state.loads
        missing = [e for e in range(tail // rows, -(-head // rows)) if not self._extents.map(e)]
        if self.read_only:
            missing = []  # let go since the index was read: evicted
        self._quarantined = dict(state.quarantine)
        found: dict[int, str] = {}
        for number in state.bad:
            ordinal = -(number + 2)
            found[ordinal] = f"entry {number} of the index is damaged"
        for extent in missing:
            low, high = extent * rows, (extent + 1) * rows
            for ordinal in self._ordinals(entries, low, high):
                found.setdefault(ordinal, f"{self._extents.path(extent).name} is missing")
        # Rows of the file that was being written: the others were complete before it.
        low = max(head // rows * rows - (rows if head % rows == 0 else 0), tail)
        for ordinal in self._damaged(entries, low, head):
            found.setdefault(ordinal, "a row's checksum is wrong")
        self.quarantine(found)

    def _ordinals(self, entries: Any, low: int, high: int) -> list[int]:
        ends = entries[:, 0] + (entries[:, 1] >> 8)
        return [int(o) for o in np.unique(entries[(entries[:, 0] < high) & (ends > low), 5])]

    def damaged(self, low: int, high: int) -> list[int]:
        """Trajectories (`id`) with damaged rows among [low, high); reads all of them."""
        low = max(low, int(self.tape.snapshot()[1]))
        return self._damaged(self._entries(), low, high)

    def _damaged(self, entries: Any, low: int, high: int) -> list[int]:
        """Trajectories with damaged rows among some."""
        if low >= high:
            return []
        bad = np.array(self.tape.damaged(low, high), np.int64)
        out: set[int] = set()
        for seq in bad:
            out.update(self._ordinals(entries, int(seq), int(seq) + 1))
        return sorted(out)

    def poll(self) -> None:
        """Follows the process that writes; what it committed up to a moment ago."""
        if not self.read_only or self._index is None:
            return
        now = time.monotonic()
        if now - self._polled < _POLL_S:
            return
        with self._appending:
            self._polled = now
            version = self._index.data_version
            if version != self._data_version:
                self._data_version = version
                self._follow(self._index.load(self._index.revision))

    def _follow(self, state: IndexState) -> None:
        assert self._extents is not None and self._index is not None
        head, tail, index_head, index_tail = self.tape.snapshot()
        fresh = state.entries
        first = int(fresh[0, 15]) if len(fresh) else index_head
        then_tail = max(state.tail, state.head - self.capacity, tail)
        if state.loads != self._loads:
            self._extents.forget()  # a checkpoint took the place of everything: other files
            self._take_in(self._index.load())
            return
        gone = state.index_tail > index_head or first > index_head  # everything we knew is
        if gone or state.index_head - max(index_tail, state.index_tail) > self.capacity:
            self._take_in(self._index.load())
            return
        self.tape.retire(min(then_tail, head))  # before other rows get their places
        rows = self._extents.rows
        for extent in range(max(head, then_tail) // rows, -(-state.head // rows)):
            self._extents.map(extent)
        index_tail = max(self.tape.snapshot()[3], state.index_tail)
        fresh = fresh[fresh[:, 15] >= index_tail]
        words = np.ascontiguousarray(fresh).reshape(-1).view(np.uint64)
        then_index = max(state.index_head, index_tail)
        self.tape.follow(words, then_tail, state.head, index_tail, then_index, state.trajectories)
        self.tape.retire(then_tail)
        self.quarantine(state.quarantine)

    def __len__(self) -> int:
        self.poll()
        return super().__len__()

    def episodes(self) -> np.ndarray[Any, Any]:
        self.poll()
        return super().episodes()

    @property
    def quarantined(self) -> dict[int, str]:
        return self._quarantined

    # -- damage -------------------------------------------------------------------------------

    def quarantine(self, found: dict[int, str]) -> None:
        """Sets trajectories aside: their rows are never served. By ordinal (`id`), with reasons."""
        new = {o: r for o, r in found.items() if o not in self._quarantined}
        for ordinal, reason in new.items():
            log.error("%s: trajectory %d is set aside: %s", self.path, ordinal, reason)
        self._quarantined.update(new)
        if self._quarantined:
            entries = self._entries()
            mine = np.isin(entries[:, 5], list(self._quarantined))
            spans = np.stack([entries[mine, 0], entries[mine, 0] + (entries[mine, 1] >> 8)], 1)
            self._bad_rows = spans[np.argsort(spans[:, 0])]
        if new and self._index is not None and not self.read_only:
            known = {o: r for o, r in new.items() if o >= 0}
            try:
                if self._committer is None:
                    self._index.quarantine(known)
                else:
                    self._committer.run_between(lambda index: index.quarantine(known))
            except (OSError, sqlite3.Error) as error:
                log.warning("%s: the quarantine could not be written: %s", self.path, error)

    def gather(
        self,
        seqs: np.ndarray[Any, Any],
        extras: tuple[ExtraLeaf, ...] = (),
        steps: Steps | None = None,
    ) -> Any:
        """As `Storage.gather`; rows that are damaged or set aside count as lost: then `lost` is a
        mask over `seqs`."""
        batch, lost, damaged = self._gathered(seqs, extras, steps)
        if damaged is None and not len(self._bad_rows):
            return batch, lost
        if steps is not None:
            seqs = steps.rows
        gone = seqs < lost
        if damaged is not None:
            bad = seqs[damaged]
            tail, extents = self.tape.snapshot()[1], self._extents
            assert extents is not None
            gone[damaged] = True
            entries = self._entries()
            found: set[int] = set()
            for seq in bad[bad >= tail]:
                if self.read_only and not extents.is_mapped(seq // extents.rows):
                    continue  # its file was let go before we saw it: evicted
                found.update(self._ordinals(entries, int(seq), int(seq) + 1))
            self.quarantine({o: "a row's checksum is wrong" for o in found})
        if len(self._bad_rows):
            at = np.searchsorted(self._bad_rows[:, 0], seqs, side="right") - 1
            gone |= (at >= 0) & (seqs < self._bad_rows[np.maximum(at, 0), 1])
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
            yield

    def commit(self, native: Any, producers: dict[int, int]) -> int:
        """Stores what a writer staged, appends it, and hands it to the committer."""
        assert self._extents is not None and self._committer is not None
        tape = self.tape
        head, _, index_head, _ = tape.snapshot()
        staged = native.staged()
        try:
            if self._rows_beyond:
                self._extents.cut(head)
            self._rows_beyond = True
            self._extents.write(head, staged)
        except OSError as error:
            text = f"{self.path}: rows cannot be written: {error.strerror}; nothing was appended"
            if error.errno in (28, 122):  # no space, over quota
                raise StorageFull(error.errno, text) from error
            raise OSError(error.errno, text) from error
        # Rows that give way go before their places get new ones.
        rows = memoryview(staged).nbytes // self._extents.stride
        tape.retire(max(head + rows - min(self.capacity, self._extents.most_rows), 0))
        self._extents.show()
        first = native.commit_staged()
        self._rows_beyond = False
        if self._bounded:
            self._retire()
        self.ticket = self._committer.add(self._changes(index_head, producers))
        return int(first)

    def _retire(self) -> None:
        """Applies the bounds other than `capacity`."""
        assert self._extents is not None
        head, tail, _, _ = self.tape.snapshot()
        keep_from = tail
        if self._max_bytes is not None:
            keep_from = max(keep_from, head - max(self._max_bytes // self._extents.stride, 1))
        now = time.monotonic()
        slow = self._max_episodes is not None or self._max_age_s is not None
        if slow and now - self._retired >= _RETIRE_S:
            self._retired = now
            keep_from = max(keep_from, self._first_kept())
        if keep_from > tail:
            self.tape.retire(keep_from)

    def _changes(self, index_from: int, producers: dict[int, int]) -> Changes:
        tape = self.tape
        head, tail, index_head, index_tail = tape.snapshot()
        low = max(index_from - 1, index_tail)  # the newest entry may have grown
        words = np.array(tape.entries(low, index_head), np.int64).reshape(-1, 16)
        entries = {int(w[15]): w for w in words}
        limiter = (int(tape.inserted), int(tape.sampled))
        return Changes(entries, producers, tail, index_tail, head, int(tape.trajectories), limiter)

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
                self._retired = 0.0
                self._retire()
                self._committer.add(self._changes(self.tape.snapshot()[2], {}))

    def _first_kept(self) -> int:
        """The first row that `max_episodes` and `max_age_s` keep."""
        entries = self._entries()
        keep = np.ones(len(entries), bool)
        if self._max_age_s is not None:
            keep &= entries[:, _TIME_NS] >= time.time_ns() - int(self._max_age_s * 1e9)
        if self._max_episodes is not None:
            newest = np.unique(entries[:, _ORDINAL])[-self._max_episodes :]
            keep &= entries[:, _ORDINAL] >= (newest[0] if len(newest) else 0)
        if keep.any():
            return int(entries[np.argmax(keep), _FIRST])
        return int(self.tape.snapshot()[0])

    def _entries(self) -> np.ndarray[Any, Any]:
        """The index, ``[n, 16]`` words."""
        return np.array(self.tape.read_index()[0], np.int64).reshape(-1, 16)

    def _restore(self, contents: Contents, words: Any, index_tail: int, index_head: int) -> None:
        with self.appending():
            assert self._extents is not None and self._committer is not None
            self._committer.wait()
            load = Load(contents, self._extents, self.tape)
            load.check()  # before anything here is changed
            self._clear_for_good()
            with self._retaining:
                self._extents.forget()
                load.run()
                bounds = (contents.tail, contents.head, words, index_tail, index_head)
                self.tape.restore_stored(*bounds, contents.trajectories)
            self._rows_beyond = False
            self._committer.add(self._changes(index_tail, {}))

    def _clear_for_good(self) -> None:
        """Lets go of everything, whatever happens next: other rows are going to have these seqs,
        and must not be taken for those that the index tells of, nor the other way round."""
        assert self._extents is not None and self._committer is not None
        durable = self.durability == "durable"
        self.tape.clear()
        self._committer.run_between(lambda index: index.begin_load())
        self._committer.add(self._changes(self.tape.snapshot()[2], {}))
        self._committer.run_between(lambda index: index.end_load(durable))
        self._quarantined, self._bad_rows = {}, np.zeros((0, 2), np.int64)
        with self._retaining:
            self._rows_beyond = True  # until the load is through
            self._extents.delete_below(1 << 62)
            files.fsync_dir(self._extents.folder)

    def link_rows(self, folder: Path, first: int, head: int) -> dict[str, Any] | None:
        self._sync()
        assert self._extents is not None
        extents = self._extents
        with self._appending, self._retaining:  # nothing is let go meanwhile
            link_extents(extents, folder, self.tape.record_size, first, head)
        return {"stride": extents.stride, "rows_per_extent": extents.rows}

    def empty(self) -> None:
        with self.appending():
            super().empty()
            if self._committer is not None:
                self._committer.add(self._changes(self.tape.snapshot()[2], {}))

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when every append is committed (or durable)."""
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
            if self._committer is not None:
                self._committer.close()
        finally:
            super().close()
            self._let_go()

    def _let_go(self) -> None:
        if self._index is not None:
            self._index.close()
        if self._extents is not None:
            self._extents.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


_written_here: weakref.WeakSet[DiskStorage] = weakref.WeakSet()


def _after_fork() -> None:
    """A child that lives on must not keep the directories of its parent locked."""
    for storage in list(_written_here):
        if storage._lock_fd >= 0:
            os.close(storage._lock_fd)
            storage._lock_fd = -1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _reader(path: str, capacity: int, ndim: int) -> DiskStorage:
    return DiskStorage(path, capacity, read_only=True, ndim=ndim)
