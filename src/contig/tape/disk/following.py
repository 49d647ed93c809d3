"""A tape in memory that is as its files are: filled when a storage is opened, then kept up.

A writer appends to both. A reader polls the index: what another process committed since then comes
after what is known; where that is not possible, everything is taken in anew.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import Any

import numpy as np

from ... import _native
from ..entry import ends_of, join, read_entries
from .changes import IndexState, Salts
from .directory import Directory
from .extent_folders import folder_of
from .extents import Extents
from .index import DiskIndex, open_index, read_index
from .index_fields import StoredFields
from .index_pages import STORED, widen
from .quarantine import Quarantine
from .sqlite import as_os_error, is_damage
from .stored_bytes import StoredBytes

__all__ = ["TapeMirror"]

Array = np.ndarray[Any, Any]

_POLL_S = 0.02
_WRONG = "a row's checksum is wrong"


class TapeMirror:
    """A tape in memory, kept as the files are. Thread-safe.

    Args:
        directory: where they are.
        tape: the native one.
        extents: the files.
        index: of them.
        read_only: whether another process writes, and this one follows.
        lock: held while the tape is changed.
        blobs: files of leaves of any size.

    Attributes:
        index: another one, since a repair made one.
        quarantine: what is not served.
        salts: what the checksums of rows are of.
    """

    def __init__(
        self,
        directory: Directory,
        tape: Any,
        extents: Extents,
        index: DiskIndex,
        read_only: bool,
        lock: threading.RLock,
        blobs: StoredBytes | None = None,
    ) -> None:
        self._directory, self._tape, self._extents = directory, tape, extents
        self._bytes = blobs
        self.index, self._read_only, self._lock = index, read_only, lock
        self.quarantine = Quarantine(directory.path, tape)
        self.salts: Salts = ()
        self._loads = 0  # of the index that we follow
        self._revision = -1  # up to which its fields are known
        self._polled = 0.0
        self._data_version = -1  # of the state that was taken in

    def set_salts(self, salts: Salts) -> None:
        """What the checksums of rows are of, from now on."""
        _set_salts(self._tape, salts)
        self.salts = salts

    def take_in(self, state: IndexState, at_once: bool = False) -> None:
        """The index as it was found, in place of what there is; what cannot be trusted is set
        aside. `at_once`: somebody may be reading."""
        quarantine, repaired, bad = state.quarantine, state.repaired, state.bad
        folder = folder_of(self._directory.root / "extents", state.loads)
        if state.loads != self._loads or folder != self._extents.folder:
            self._extents.enter(folder)  # a checkpoint took the place of everything: other files
            if self._bytes is not None:
                self._bytes.files.enter(folder)
        _fill(self._tape, state, at_once)
        head, tail, _, _ = self._tape.snapshot()
        rows = self._extents.rows
        self._loads, self._revision, self.salts = state.loads, state.revision, state.salts
        missing = [e for e in range(tail // rows, -(-head // rows)) if not self._extents.map(e)]
        self.quarantine.clear()
        self.quarantine.add(quarantine, repaired)
        found = {-(number + 2): f"entry {number} of the index is damaged" for number in bad}
        found.update(state.damaged)  # saved: stand-ins are written as entries like any other
        if state.fields is not None:
            found.update(_of_fields(self._tape, state.fields.bad))
        for extent in missing:
            if len(self._present(np.array([(extent + 1) * rows - 1]))):
                for ordinal in _ordinals_of(self._tape, extent * rows, (extent + 1) * rows):
                    found.setdefault(ordinal, f"{self._extents.path(extent).name} is missing")
        if self._bytes is not None:
            for number in self._bytes.take_in(state.blob_tail, state.blob_head):
                for ordinal in self.damaged(*self._bytes.rows_of(number)):
                    name = self._bytes.files.path(number).name
                    found.setdefault(ordinal, f"{name} is missing")
        # Rows of the file that was being written: the others were complete before it.
        low = max(head // rows * rows - (rows if head % rows == 0 else 0), tail)
        for ordinal in self.damaged(low, head):
            found.setdefault(ordinal, _WRONG)
        self.quarantine.set_aside(found)
        self._data_version = state.data_version

    def poll(self) -> None:
        """Follows the process that writes; what it committed up to a moment ago."""
        now = time.monotonic()
        if not self._read_only or now - self._polled < _POLL_S:
            return
        with self._lock:
            self._polled = now
            try:
                if not self.index.path.exists() and not self._directory.is_moved:
                    self._reopen()
                if self.index.data_version != self._data_version:
                    self._follow()
            except sqlite3.Error as error:
                if is_damage(error):
                    raise
                raise as_os_error(error, self.index.path) from error

    def _follow(self) -> None:
        newest = max(int(self._tape.snapshot()[2]) - 1, 0)
        state = self.index.load(newest, self._revision)
        if state.loads == self._loads and self._advance(state):
            self._revision, self.salts = state.revision, state.salts
            if state.fields is not None:
                self.quarantine.set_aside(_of_fields(self._tape, state.fields.bad))
            self.quarantine.add(state.quarantine, state.repaired)
            self._data_version = state.data_version
            return
        self.take_in(self.index.load(), at_once=True)

    def _advance(self, state: IndexState) -> bool:
        """What another process committed since; False if this is not a part of what went before."""
        tape, extents = self._tape, self._extents
        head, tail, index_head, index_tail = tape.snapshot()
        fresh = join(state.parts) if state.parts else np.zeros(0, STORED)
        first = int(fresh[0]["number"]) if len(fresh) else index_head
        capacity = int(tape.capacity)
        then_tail = max(state.tail, state.head - capacity, tail)
        # Everything we knew is: of an entry that grew on, no row that we have would be left.
        gone = state.index_tail > index_head or first > index_head or tail < head <= then_tail
        back = state.head < head or state.index_head < index_head
        too_many = state.index_head - max(index_tail, state.index_tail) > capacity
        unknown = state.fields is not None and state.fields.numbers is None
        if gone or back or too_many or unknown:
            return False
        tape.retire(min(then_tail, head))  # before other rows get their places
        for extent in range(max(head, then_tail) // extents.rows, -(-state.head // extents.rows)):
            extents.map(extent)
        if self._bytes is not None:
            self._bytes.follow(state.blob_head)
        _set_salts(tape, state.salts)
        _take_entries(tape, state, fresh, max(then_tail, int(tape.snapshot()[1])))
        if self._bytes is not None:
            self._bytes.followed()
        return True

    def _reopen(self) -> None:
        """A repair made another index, and put ours aside."""
        index = open_index(self._directory, False, self.index.store, self.index.form)
        state = read_index(index, False, self.index.store)
        self.index.close()
        self.index = index
        self._loads = -1  # the files may be other ones
        self.take_in(state, at_once=True)

    def _present(self, seqs: Array) -> Array:
        """Those of some rows that the writing process has not deleted since we read the index,
        where it says so before it changes files."""
        if self._read_only and len(seqs):
            with self._lock:
                now = self.index.load(1 << 62)
                seqs = seqs[seqs >= now.tail] if now.loads == self._loads else seqs[:0]
        return seqs

    # -- damage -------------------------------------------------------------------------------

    def damaged(self, low: int, high: int) -> list[int]:
        """Trajectories (`id`) with damaged rows among [low, high); reads all of them."""
        low = max(low, int(self._tape.snapshot()[1]))
        if low >= high:
            return []
        return self._trajectories(self._really_damaged(np.asarray(self._tape.damaged(low, high))))

    def find_damaged(self, seqs: Array) -> bool:
        """Sets aside trajectories of rows that look damaged; whether some are."""
        bad = self._really_damaged(seqs)
        self.quarantine.set_aside(dict.fromkeys(self._trajectories(bad), _WRONG))
        return len(bad) > 0

    def _trajectories(self, seqs: Array) -> list[int]:
        if not len(seqs):
            return []
        entries = read_entries(self._tape)
        at = np.searchsorted(entries["first"], seqs, side="right") - 1
        inside = (at >= 0) & (seqs < ends_of(entries)[at])
        return [int(o) for o in np.unique(entries["ordinal"][at[inside]])]

    def _really_damaged(self, seqs: Array) -> Array:
        """Those of some rows that are damaged, and not just read too soon or too late: their file
        may have been made, let go or cut while it was mapped."""
        seqs = seqs[seqs >= int(self._tape.snapshot()[1])]
        for extent in np.unique(seqs // self._extents.rows):
            self._extents.map_again(int(extent))
        if self._bytes is not None:
            self._bytes.map_again(seqs)
        wrong = [int(s) for s in seqs if len(self._tape.damaged(int(s), int(s) + 1))]
        return self._present(np.array(wrong, np.int64))


def _set_salts(tape: Any, salts: Salts) -> None:
    tape.set_salts(np.array(salts, np.int64).reshape(-1).view(np.uint64))


def _fill(tape: Any, state: IndexState, at_once: bool) -> None:
    """An index as it was found, into a tape, in place of what it has.

    Args:
        tape: a native one, whose capacity counts.
        state: the index; its parts are taken from it one by one, so that there is not a second
            copy of a large one.
        at_once: whether somebody is reading, who must not see a part of it.
    """
    parts = state.parts
    head, index_tail = state.head, state.index_tail
    if parts:
        head = int(ends_of(parts[-1])[-1])
    tail = max(state.tail, head - int(tape.capacity))
    while parts and ends_of(parts[0])[-1] <= tail:
        index_tail += len(parts.pop(0))
    if parts:
        skip = int(np.argmax(ends_of(parts[0]) > tail))
        parts[0] = parts[0][skip:]
        index_tail += skip
    else:
        tail = head
    # Ranks of entries of contig 0.1 are found out from all that are before them.
    ranked = all((part["depth"] & _native.RANKED).all() for part in parts)
    if len(parts) > 1 and (at_once or not ranked):
        parts[:] = [join(parts)]
    _set_salts(tape, state.salts)
    index_head, known = index_tail, state.trajectories
    fields = state.fields
    if not parts:
        tape.restore_stored(tail, head, np.zeros(0, np.uint64), index_tail, index_tail, known)
    fresh = True
    while parts:
        kept = parts.pop(0)
        upto, index_head = int(ends_of(kept)[-1]), index_head + len(kept)
        theirs = None if fields is None else fields.of(index_head - len(kept), index_head)
        if fresh:
            tape.restore_stored(tail, upto, _flat(kept), index_tail, index_head, known, theirs)
        else:
            tape.follow(_flat(kept), tail, upto, index_tail, index_head, known, theirs)
        fresh = False
    tape.inserted, tape.sampled = state.limiter
    for producer, seq in state.producers.items():
        tape.set_producer(producer, seq)


def _take_entries(tape: Any, state: IndexState, fresh: Array, then_tail: int) -> None:
    """Entries that are new, or have grown, and the bounds; then what was set of older ones."""
    index_tail = max(tape.snapshot()[3], state.index_tail)
    fresh = fresh.compress(fresh["number"] >= index_tail)
    then_index = max(state.index_head, index_tail)
    bounds = (then_tail, state.head, index_tail, then_index, state.trajectories)
    fields = state.fields
    new = None if fields is None else fields.of(then_index - len(fresh), then_index)
    tape.follow(_flat(fresh), *bounds, new)
    if fields is not None:
        _set_fields(tape, fields, bounds)
    tape.retire(then_tail)


def _set_fields(tape: Any, fields: StoredFields, bounds: tuple[int, ...]) -> None:
    """Of entries that were there before: what somebody set since."""
    assert fields.numbers is not None
    live = fields.numbers >= tape.snapshot()[3]
    if live.any():
        known = [tape.entries(int(n), int(n) + 1) for n in fields.numbers[live]]
        records = np.ascontiguousarray(fields.changed[live])
        tape.follow(np.concatenate(known).view(np.uint64), *bounds, records)


def _of_fields(tape: Any, bad: list[int]) -> dict[int, str]:
    """Trajectories whose fields are damaged: those of the newest run count."""
    if not bad:
        return {}
    entries = read_entries(tape)
    last = len(entries) - 1 - np.unique(entries["ordinal"][::-1], return_index=True)[1]
    lost = entries.take(last[np.isin(entries["number"][last], bad)])
    return dict.fromkeys((int(o) for o in lost["ordinal"]), "its fields are damaged")


def _ordinals_of(tape: Any, low: int, high: int) -> list[int]:
    """Trajectories with rows among [low, high)."""
    entries = read_entries(tape)
    inside = (entries["first"] < high) & (ends_of(entries) > low)
    return [int(o) for o in np.unique(entries["ordinal"][inside])]


def _flat(kept: Array) -> Array:
    return widen(kept).view(np.uint64)
