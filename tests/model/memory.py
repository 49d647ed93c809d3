"""What the processes of the tape's protocol share, and the rules they keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

NONE = -1
CHUNK = 2  # entries whose stamps lie together
LOG = 3  # changes of fields that are known one by one
EVICTED = 2  # places of fields of evicted runs
BEGINS, ENDED, CUT = 1, 2, 8

Process = Iterator[None]
Record = tuple[int, int]  # of fields, two words


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
    # Of leaves of any size:
    evict_for_bytes: bool = True  # the tail moves past rows before their bytes are overwritten
    blob_head_before_head: bool = True  # a killed append's bytes are wasted, not given again
    tail_before_lengths: bool = True  # tail is loaded before lengths are believed
    # Of an append larger than the ring, leading rows get no seq:
    evict_before_skipped: bool = True  # rows before those go first
    count_skipped: bool = True  # they are steps of their trajectories
    # Of fields of trajectories.
    fields_before_commit: bool = True  # a new entry's are there before the entry is
    fields_new_run: bool = True  # an append that changes them grows no entry
    fields_from_tape: bool = True  # a run has its previous run's as they are, not as they were
    fields_other_copy: bool = True  # a change does not touch the copy that counts
    fields_generation_again: bool = True  # it is loaded again after the copy
    fields_index_tail_again: bool = True
    fields_pending: bool = True  # a change says what it is of before it counts
    fields_repair_logs: bool = True  # a change that died may have counted
    fields_pending_last: bool = True  # it is pending until it is in the log
    fields_log_after_flip: bool = True  # whoever reads the log finds the change
    fields_count_last: bool = True  # the log's count is stored after what it counts
    fields_count_again: bool = True  # it is loaded again after the log was read
    fields_log_room: bool = True  # the log's oldest place may be in use for the next change
    fields_evicted: bool = True  # what was changed is saved when its run is evicted
    fields_evicted_first: bool = True  # and before it is
    fields_evicted_number_first: bool = True  # a place's run is stored before its fields
    fields_evicted_number: bool = True  # only the trajectory's last run has its fields
    fields_evicted_newest: bool = True  # of two trajectories, a place has the later one's
    fields_evicted_skipped: bool = True  # a run without any row takes them, too


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


class Slot:
    """Fields of an entry: the copy that counts is the one of the generation's last bit."""

    __slots__ = ("generation", "copies")

    def __init__(self) -> None:
        self.generation = 0
        self.copies = [[0, 0], [0, 0]]


class Evicted:
    """Fields of an evicted run, in the place of its trajectory."""

    __slots__ = ("number", "ordinal", "record")

    def __init__(self) -> None:
        self.number, self.ordinal = NONE, NONE
        self.record = [0, 0]


class Memory:
    def __init__(self, capacity: int, writers: int, ring: Any = None, fields: bool = False) -> None:
        self.capacity = capacity
        self.ring = ring  # of leaves of any size, if there are any
        self.fields = fields  # whether trajectories have any
        self.slots = [Slot() for _ in range(capacity)]
        self.pending = self.changes = 0
        self.log = [0] * LOG
        self.evicted = [Evicted() for _ in range(EVICTED)]
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
        # Two words each; and where its bytes are, and how many.
        self.rows: list[list[Any]] = [[None, None, 0, 0] for _ in range(capacity)]
        self.producers = [0] * writers
        self.lock: Any = None
        # The truth: rows by seq, and appends by producer, as of the stores of head.
        self.committed: list[Row] = []
        self.appended = [0] * writers
        self.begun = 0  # trajectories
        self.skipped = 0  # rows that got no seq
        # And of fields: what each entry had, one after another, and which of them is in the log;
        # whose it is; what trajectories have.
        self.logged: dict[int, int] = {}
        self.records: dict[int, list[Record]] = {}
        self.owner: dict[int, int] = {}
        self.had: dict[int, list[Record]] = {}
        self.given = 0

    def changed(self, number: int, record: Record) -> None:
        """From now on, readers find this."""
        self.records[number].append(record)
        self.had.setdefault(self.owner[number], [(0, 0)]).append(record)

    def stamp_place(self, number: int, slot: int) -> int:
        return (number // CHUNK * CHUNK + slot) % len(self.stamps)
