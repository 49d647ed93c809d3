"""What the processes of the tape's protocol share, and the rules they keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

NONE = -1
CHUNK = 2  # entries whose stamps lie together
BEGINS, ENDED, CUT = 1, 2, 8

Process = Iterator[None]


class Violation(AssertionError):
    pass


@dataclass(frozen=True)
class Rules:
    """Each True by default; the test that switches one off says what goes wrong."""

    undo: bool = True  # an append writes an undo record before it changes entries
    undo_head_last: bool = True  # undo.head is stored after the rest of the record
    undo_before_entries: bool = True
    repair_ret_first: bool = True  # put back: `ret`, then `steps|flags`
    repair_marks_cut: bool = True
    repair_index_head: bool = True
    repair_trajectories: bool = True
    repair_clears_last: bool = True  # undo.head is cleared after everything is put back
    evict_first: bool = True  # tail and index_tail advance before rows are overwritten
    head_last: bool = True  # index_head before head
    one_commit: bool = True  # one store of head per append
    flags_within_head: bool = True  # flags count only if first + steps <= h
    rows_within_head: bool = True  # rows count only below h
    entries_within_head: bool = True  # entries count only if first < h
    tail_again: bool = True  # tail is loaded again after the gather
    index_tail_again: bool = True  # index_tail is loaded again after an entry was read
    steps_again: bool = True  # `ret` is loaded between two loads of `steps|flags`
    grow_own_only: bool = True  # only the newest entry's own trajectory grows it
    fresh_stamp: bool = True  # an append never writes a stamp that a committed entry has


class Row(NamedTuple):
    writer: int
    append: int
    traj: int
    step: int
    done: bool


class Entry:
    """What several fields share is one word, loaded and stored at once."""

    __slots__ = ("first", "sf", "links", "before_stamp", "ordinal_rank", "ret")

    def __init__(self) -> None:
        self.first = self.ret = 0
        self.sf = (0, 0)  # steps, flags
        self.links = (NONE, NONE)  # prev, jump
        self.before_stamp = (0, 0)
        self.ordinal_rank = (0, 0)


class Memory:
    def __init__(self, capacity: int, writers: int) -> None:
        self.capacity = capacity
        self.head = self.tail = self.index_head = self.index_tail = self.trajectories = 0
        self.undo_head = NONE
        self.undo_index_head = self.undo_trajectories = 0
        self.undo_entry = NONE
        self.undo_sf = (0, 0)
        self.undo_ret = 0
        self.undo_producer = NONE
        self.undo_producer_seq = 0
        self.index = [Entry() for _ in range(capacity)]
        # Stamps, by chunk of the index: (writer, append). A chunk's are used again when all of its
        # entries are evicted.
        self.stamps: list[Any] = [(NONE, NONE)] * (CHUNK * ((capacity - 1) // CHUNK + 2))
        self.rows: list[list[Any]] = [[None, None] for _ in range(capacity)]  # two words each
        self.producers = [0] * writers
        self.lock: Any = None
        # The truth: rows by seq, and appends by producer, as of the stores of head.
        self.committed: list[Row] = []
        self.appended = [0] * writers
        self.begun = 0  # trajectories

    def stamp_place(self, number: int, slot: int) -> int:
        return (number // CHUNK * CHUNK + slot) % len(self.stamps)
