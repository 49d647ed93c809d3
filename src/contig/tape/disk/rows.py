"""Rows in files and the index of them, as one process sees them: what it takes in, keeps up with,
and sets aside."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ..entry import read_entries
from .changes import IndexState, Salts
from .directory import Directory, open_index, read_index
from .extents import Extents
from .failures import as_os_error, is_damage
from .folders import folder_of
from .index import DiskIndex
from .mirror import follow, ordinals_at, ordinals_of, set_salts, take_in
from .quarantine import Quarantine

if TYPE_CHECKING:
    from .committer import Committer

__all__ = ["StoredRows"]

log = logging.getLogger("contig.disk")

Array = np.ndarray[Any, Any]

_POLL_S = 0.02
_WRONG = "a row's checksum is wrong"


class StoredRows:
    """A tape in memory, kept as the files are. Thread-safe.

    Args:
        directory: where it all is.
        tape: the native one.
        extents: the files.
        index: of them; who writes commits through `committer`, once there is one.
        read_only: whether another process writes, and this one follows.
        lock: held while the tape is changed.
    """

    def __init__(
        self,
        directory: Directory,
        tape: Any,
        extents: Extents,
        index: DiskIndex,
        read_only: bool,
        lock: threading.RLock,
    ) -> None:
        self._directory, self._tape, self._extents = directory, tape, extents
        self.index, self._read_only, self._lock = index, read_only, lock
        self.committer: Committer | None = None
        self.aside = Quarantine()
        self.salts: Salts = ()
        self._loads = 0  # of the index that we follow
        self._polled = 0.0
        self._data_version = index.data_version if read_only else -1

    def entries(self) -> Array:
        """The index (tape/entry.py)."""
        return read_entries(self._tape)

    def set_salts(self, salts: Salts) -> None:
        """What the checksums of rows are of, from now on."""
        set_salts(self._tape, salts)
        self.salts = salts

    # -- taking in ----------------------------------------------------------------------------

    def take_in(self, state: IndexState, at_once: bool = False) -> None:
        """The index as it was found, in place of what there is; rows that cannot be trusted,
        aside. `at_once`: somebody may be reading."""
        quarantine, repaired, bad = state.quarantine, state.repaired, state.bad
        folder = folder_of(self._directory.root / "extents", state.loads)
        if state.loads != self._loads or folder != self._extents.folder:
            self._extents.enter(folder)  # a checkpoint took the place of everything: other files
        take_in(self._tape, state, at_once)
        head, tail, _, _ = self._tape.snapshot()
        rows = self._extents.rows
        self._loads, self.salts = state.loads, state.salts
        missing = [e for e in range(tail // rows, -(-head // rows)) if not self._extents.map(e)]
        self.aside.clear()
        self.aside.add(quarantine, self.entries, repaired)
        found = {-(number + 2): f"entry {number} of the index is damaged" for number in bad}
        for extent in missing:
            if len(self._still_there(np.array([(extent + 1) * rows - 1]))):
                for ordinal in ordinals_of(self.entries(), extent * rows, (extent + 1) * rows):
                    found.setdefault(ordinal, f"{self._extents.path(extent).name} is missing")
        # Rows of the file that was being written: the others were complete before it.
        low = max(head // rows * rows - (rows if head % rows == 0 else 0), tail)
        for ordinal in self.damaged(low, head):
            found.setdefault(ordinal, _WRONG)
        self.set_aside(found)

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
                version = self.index.data_version
                if version != self._data_version:
                    self._follow()
                    self._data_version = version
            except sqlite3.Error as error:
                if is_damage(error):
                    raise
                raise as_os_error(error, self.index.path) from error

    def _follow(self) -> None:
        state = self.index.load(max(int(self._tape.snapshot()[2]) - 1, 0))
        if state.loads == self._loads and follow(self._tape, self._extents, state):
            self.salts = state.salts
            self.aside.add(state.quarantine, self.entries, state.repaired)
            return
        self.take_in(self.index.load(), at_once=True)

    def _reopen(self) -> None:
        """A repair made another index, and put ours aside."""
        index = open_index(self._directory, False, self.index.store)
        state = read_index(index, False, self.index.store)
        self.index.close()
        self.index = index
        self._loads = -1  # the files may be other ones
        self.take_in(state, at_once=True)

    def _still_there(self, seqs: Array) -> Array:
        """Those of some rows that the process that writes did not let go of since we read the
        index: it says so there before it changes files."""
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
        self.set_aside(dict.fromkeys(self._trajectories(bad), _WRONG))
        return len(bad) > 0

    def gone(self, seqs: Array, lost: int, damaged: Array | None) -> Array | None:
        """A mask of rows that cannot be served, or None if all that counts is which are `lost`.

        Args:
            seqs: of the rows.
            lost: the seq below which they were evicted.
            damaged: places of those whose checksum is wrong.
        """
        aside = self.aside.covers(seqs)
        if damaged is None and aside is None:
            return None
        mask = np.asarray(seqs < lost)
        if damaged is not None:
            mask[damaged] = True
        return mask if aside is None else mask | aside

    def _trajectories(self, seqs: Array) -> list[int]:
        return ordinals_at(self.entries(), seqs) if len(seqs) else []

    def _really_damaged(self, seqs: Array) -> Array:
        """Those of some rows that are damaged, and not just read too soon or too late: their file
        may have been made, let go or cut while it was mapped."""
        seqs = seqs[seqs >= int(self._tape.snapshot()[1])]
        for extent in np.unique(seqs // self._extents.rows):
            self._extents.map_again(int(extent))
        wrong = [int(s) for s in seqs if len(self._tape.damaged(int(s), int(s) + 1))]
        return self._still_there(np.array(wrong, np.int64))

    def set_aside(self, found: dict[int, str], repaired: bool = False) -> None:
        """Sets trajectories aside: their rows are never served. By ordinal (`id`), with reasons.
        `repaired`: for good, so that nobody need hear of them again."""
        new = self.aside.add(found, self.entries, set(found) if repaired else None)
        for ordinal, reason in new.items():
            log.error("%s: trajectory %d is set aside: %s", self._directory.path, ordinal, reason)
        known = found if repaired else new
        if not known or self._read_only:
            return
        try:
            if self.committer is None:
                self.index.quarantine(known, repaired)
            else:
                self.committer.run_between(lambda index: index.quarantine(known, repaired))
        except (OSError, sqlite3.Error) as error:
            if repaired:
                raise
            log.warning("%s: the quarantine cannot be written: %s", self._directory.path, error)
