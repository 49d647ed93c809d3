"""What appends to the files: rows first, then the tape, then the committer."""

from __future__ import annotations

import errno
import os
from typing import Any

from ...errors import StorageFull
from ..entry import ENTRY
from .behind import RowsBehind
from .changes import Changes
from .committer import Committer
from .directory import Directory
from .extents import Extents
from .marker import Mark, Marker
from .retention import Retention
from .rows import StoredRows

__all__ = ["FULL", "Appender", "new_salt"]

FULL = (errno.ENOSPC, errno.EDQUOT)


def new_salt() -> int:
    """For the checksums of what one process writes."""
    return int.from_bytes(os.urandom(8), "little") >> 1 or 1


class Appender:
    """Appends. Not thread-safe: its user holds a lock.

    Args:
        directory: where it all is.
        tape: the native one.
        extents, rows: the files, and what is known of them.
        retention: which rows are let go of.
        marker: what the index must have.
        left_by: who left the rows that are behind the head, if it is known that they were never
            committed.

    Attributes:
        committer: makes appends survive; set before the first one.
        salt: of what is appended here.
        ticket: of the newest append.
        behind: whether the files may have rows behind the head.
        unknown_behind: whether nobody knows whose these are.
    """

    committer: Committer

    def __init__(
        self,
        directory: Directory,
        tape: Any,
        extents: Extents,
        rows: StoredRows,
        retention: Retention,
        marker: Marker,
        left_by: Mark | None,
    ) -> None:
        self._directory, self._tape, self._extents = directory, tape, extents
        self._rows, self._retention, self._marker = rows, retention, marker
        self._left_by = left_by
        self.salt = new_salt()
        self.salted = False  # from the head on, rows are ours
        self._marked = False
        self.ticket = 0
        self.behind = self.unknown_behind = True

    def begin(self) -> None:
        """From the head on, rows are ours: their checksums say so."""
        self._directory.check()
        if self.salted:
            return
        head, tail, _, _ = self._tape.snapshot()
        before = [s for s in self._rows.salts if s[0] < head]
        while len(before) > 1 and before[1][0] <= tail:
            before.pop(0)
        self._rows.set_salts((*before, (int(head), self.salt)))
        self.salted = True

    def commit(self, native: Any, producers: dict[int, int]) -> int:
        """Stores what a writer staged, appends it, and hands it to the committer."""
        tape, extents = self._tape, self._extents
        head, _, index_head, _ = tape.snapshot()
        staged = native.staged()
        rows = memoryview(staged).nbytes // extents.stride
        self.committer.make_room(rows)
        try:
            if self.behind:
                self.clear_behind()
            self.behind = True
            if not self._marked:
                self.mark(int(head))
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
        extents.show()
        first = native.commit_staged()
        self.behind = False
        if self._retention.bounded:
            self._retention.appended(head + rows)
            self._retire(now=False)
        self.ticket = self.committer.add(self._changes(index_head, producers), rows)
        return int(first)

    def mark(self, head: int) -> None:
        """Says whose the rows behind the head are going to be. Nothing may be uncommitted."""
        self._marker.note(Mark(self.salt, self._rows.index.revision, head))
        self._marked = True

    def took_over(self, salt: int) -> None:
        """Other rows are there now, and the marker says so; what comes has this salt."""
        self.salt, self.salted, self._marked = salt, True, True
        self._retention.forget()
        self.behind = self.unknown_behind = False

    def note_bounds(self) -> None:
        """Has the index say which rows there are, though no new ones came."""
        self.committer.add(self._changes(self._tape.snapshot()[2], {}))

    def retain(self) -> None:
        """Applies the bounds other than the capacity."""
        self._retire(now=True)
        self.note_bounds()

    def _retire(self, now: bool) -> None:
        head, tail, _, _ = self._tape.snapshot()
        stride = self._extents.stride
        keep_from = self._retention.keep_from(tail, head, stride, self._rows.entries, now)
        if keep_from > tail:
            self._tape.retire(keep_from)

    def _changes(self, index_from: int, producers: dict[int, int]) -> Changes:
        tape = self._tape
        head, tail, index_head, index_tail = tape.snapshot()
        low = max(index_from - 1, index_tail)  # the newest entry may have grown
        return Changes(
            tape.entries(low, index_head).view(ENTRY),
            producers,
            tail,
            index_tail,
            head,
            index_head,
            int(tape.trajectories),
            (int(tape.inserted), int(tape.sampled)),
            self._rows.salts,
        )

    def rows_behind(self) -> int:
        """How many rows there are that nobody can explain."""
        found = RowsBehind(
            self._extents, int(self._tape.record_size), int(self._tape.snapshot()[0])
        )
        return found.unexplained(self._left_by) if self.unknown_behind else 0

    def clear_behind(self) -> int:
        """Removes rows that are behind the head. What this storage did not write itself is put
        aside before, unless it is known that it was never committed; how many rows are aside."""
        head, count = int(self._tape.snapshot()[0]), 0
        if self.unknown_behind:
            found = RowsBehind(self._extents, int(self._tape.record_size), head)
            if found.unexplained(self._left_by):
                count = found.put_aside(self._directory)
        self._extents.cut(head)
        self.behind = self.unknown_behind = False
        return count
