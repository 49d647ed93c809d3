"""The bytes of leaves of any size, in files of their own: ``extents/NNNNNNNN.bin``.

    position   0 ... tail ............................ head
               deleted   | of rows that are there      | written by the next append

A byte's position says where it is: file `position // size`, at `position % size`. They are written
before the rows that have them, mapped as the tape's ring, and deleted when the tail has passed
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .extents import BYTES, Extents
from .linked_bytes import LinkedBytes

__all__ = ["UNKNOWN", "StoredBytes", "bytes_for"]

Array = np.ndarray[Any, Any]

UNKNOWN = -1  # a head, of an index that was repaired: rows say where their bytes end
_LEAST, _MOST = 1 << 36, 1 << 40  # bytes of addresses
_EACH = 1 << 16


def bytes_for(rows: int) -> int:
    """What is kept of leaves of any size, of so many rows, if nobody says it: 64 kB of each, from
    64 GB on, up to 1 TB. They are addresses, of which a process has some 100 TB."""
    return min(max(rows * _EACH, _LEAST), _MOST)


class StoredBytes:
    """Files of bytes, beside those of rows. Not thread-safe, but for `files`.

    Args:
        tape: the native one, of rows in files.
        folder: where they are.
        file_bytes: of a file.
        most: bytes to keep; older rows give way.
        writable: else nothing is created.
        margin: how far before its own bytes a row may have others that it refers to.

    Attributes:
        files: they.
        tail: the position from which on bytes are kept.
    """

    def __init__(
        self,
        tape: Any,
        folder: Path,
        file_bytes: int,
        most: int,
        writable: bool,
        margin: int = 0,
    ) -> None:
        self._tape, self.most, self.margin = tape, most, margin
        # Whole files are kept, so live bytes may lie in one more than they fill.
        places = (most - 1) // file_bytes + 2
        self.files = Extents(folder, places, file_bytes, 1, writable, BYTES)
        self.ring = places * file_bytes
        self.tail = 0
        self._row = -1  # whose first byte is at the tail

    @property
    def head(self) -> int:
        """The position behind the last one."""
        return int(self._tape.blob_head)

    def restart(self, tail: int, head: int) -> None:
        """Other bytes are there."""
        self._tape.blob_head = head
        self.tail, self._row = tail, -1

    @property
    def kept(self) -> int:
        """How many bytes rows have now. Thread-safe."""
        head, tail, _, _ = self._tape.snapshot()
        begin = -1 if tail == head else self._tape.stored_begin(tail)
        end = self.head
        return 0 if tail == head else end - min(self.tail if begin < 0 else begin, end)

    def note_tail(self) -> int:
        """Where the oldest row's bytes begin now. If that row is damaged, where those of an older
        one did: nothing is deleted that somebody may have."""
        head, tail, _, _ = self._tape.snapshot()
        if tail == head:  # the next row may refer to what was there
            self.tail = max(self.tail, self.head - self.margin)
        elif tail != self._row:
            begin = self._tape.stored_begin(tail)
            if begin >= 0:
                self.tail, self._row = max(self.tail, begin - self.margin), tail
        return self.tail

    def make_room(self, nbytes: int) -> None:
        """Evicts rows until so many bytes more may be kept."""
        self._keep_from(self.head + nbytes - self.most)

    def _keep_from(self, position: int) -> None:
        if position > self.tail:
            self._tape.retire(self._tape.stored_beyond(position + self.margin))
            self.note_tail()

    def within(self, stride: int, nbytes: int) -> int:
        """The first row such that it and those behind it have at most so many bytes in files."""
        # What is kept besides counts, but for half of what may be.
        return int(self._tape.stored_within(stride, nbytes - min(self.margin, nbytes // 2)))

    def up_to(self, head: int) -> LinkedBytes:
        """Those of the rows from the tail on to a seq, as a checkpoint knows them."""
        end = self.head
        if head <= int(self._tape.snapshot()[1]):  # none
            return LinkedBytes(self.files.rows, end, end)
        if head < int(self._tape.snapshot()[0]):
            begin = self._tape.stored_begin(head)
            end = begin if begin >= 0 else end
        return LinkedBytes(self.files.rows, self.note_tail(), end)

    # -- reading ------------------------------------------------------------------------------

    def adopt(self, tail: int, head: int) -> range:
        """What an index says is there; rows are mapped. Numbers of the files, to be mapped."""
        self.restart(tail, self._known_end() if head == UNKNOWN else head)
        self.note_tail()
        self._keep_from(self.head - self.most)
        size = self.files.rows
        return range(self.tail // size, -(-self.head // size))

    def take_in(self, tail: int, head: int) -> list[int]:
        """The same, mapped; numbers of those that are missing."""
        return [number for number in self.adopt(tail, head) if not self.files.map(number)]

    def _known_end(self) -> int:
        """Where the bytes of the newest row end that can be read."""
        head, tail, _, _ = self._tape.snapshot()
        ends = (self._tape.stored_end(seq) for seq in range(head - 1, tail - 1, -1))
        return int(next((end for end in ends if end >= 0), 0))

    def follow(self, head: int) -> None:
        """What another process wrote, up to `head`; before its rows are taken in."""
        size, was = self.files.rows, self.head
        self._keep_from(head - self.most)
        for number in range(max(was, head - self.most, 0) // size, -(-head // size)):
            self.files.map(number)
        self._tape.blob_head = max(head, was)

    def followed(self) -> None:
        """After its rows were taken in."""
        self._keep_from(self.head - self.most)
        self.note_tail()

    def rows_of(self, number: int) -> tuple[int, int]:
        """Rows [low, high) that may have bytes in a file."""
        _, tail, _, _ = self._tape.snapshot()
        size = self.files.rows
        bounds = (number * size, (number + 1) * size + self.margin)
        low, high = (int(self._tape.stored_beyond(position)) for position in bounds)
        return max(low - 1, tail), high  # the one before it may reach into it

    def map_again(self, seqs: Array) -> None:
        """Files that some rows have bytes in, as they are now: they may have been shorter, or not
        there."""
        size, numbers = self.files.rows, set()
        for seq in (int(s) for s in seqs):
            begin, end = self._tape.stored_begin(seq), self._tape.stored_end(seq)
            if begin >= 0:
                numbers |= {*range(max(begin - self.margin, 0) // size, -(-end // size))}
        for number in numbers:
            self.files.map_again(number)

    def fetch(self, low: int, high: int) -> None:
        """Has the bytes of rows [low, high) in memory."""
        head = int(self._tape.snapshot()[0])
        first = self._tape.stored_begin(low)
        last = self._tape.stored_begin(high) if high < head else self.head
        if 0 <= first < last:
            if low == int(self._tape.snapshot()[1]):  # later rows' are fetched with those before
                first = max(first - self.margin, 0)
            self.files.fetch(first, last)

    def delete_below(self, position: int) -> list[int]:
        """Removes files all of whose bytes lie below a position; their numbers."""
        return self.files.delete_below(min(position, self.tail))
