"""Slots in the tape's protocol: what several rows refer to is stored once, beside the rows.

A slot is one frame of an observation; a row refers to k of them for its observation and to k for
its next one. Slots have numbers and lie in chunks; a map says at which place a chunk lies, and
places of chunks to which no row refers any more are given to new ones. Each frame of the model
knows which one it is, so that a row that a reader accepts is compared frame by frame.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.memory import NONE
from tests.model.weak import Weak


@dataclass(frozen=True)
class SlotRules:
    """Each True by default; the test that switches one off says what goes wrong."""

    # Of readers:
    tail_again: bool = True  # the tail is loaded again after the copy
    reader_fence: bool = True  # between the copy and that
    restores_again: bool = True  # and whether the contents were replaced
    restores_fence: bool = True  # between the two: the tail may have gone back with them
    # Of appends, in their order:
    plan_above_tail: bool = True  # a plan refers to no slot below slot_tail
    plan_near: bool = True  # nor to one further back than D
    plan_near_row: bool = True  # as counted from the row, not from the append
    plan_compares: bool = True  # nor to one with other bytes
    bound_new_tail: bool = True  # the bound leaves out blocks that give way
    bound_committed: bool = True  # and the block of the head, as long as it has no row
    bound_scans: bool = True  # it has blocks behind that of the tail
    bound_stops_late: bool = True  # up to where no later one can refer to less
    bound_has_plan: bool = True  # and earlier slots that the append itself refers to
    tail_before_map: bool = True  # the tail is stored before the chunk map changes
    tail_released: bool = True  # whoever finds it finds that the contents were replaced before
    fence: bool = True  # between the tail and what overwrites
    slot_tail_first: bool = True  # slot_tail is stored before the map changes
    mapped_last: bool = True  # mapped_slots is stored after the map
    count_always: bool = True  # slots are counted also if none is new
    before_first: bool = True  # slots_before is stored before slots_at
    none_first: bool = True  # slots_at is NONE before slots_after changes
    low_continues: bool = True  # an append that goes on with a block lowers its mark
    low_anew: bool = True  # one that begins it does not look at the mark there
    low_anew_empty: bool = True  # nor does one that is alone on the tape
    ring_two_more: bool = True  # there are marks of capacity / block + 2 blocks
    at_before_head: bool = True  # slots_at is stored before the commit
    recent_last: bool = True  # what was refused is not remembered
    # Of what replaces the contents:
    restore_fence: bool = True  # between its saying so and the first store
    restore_words_first: bool = True  # slots_at is NONE before the head goes elsewhere
    restore_counts: bool = True  # slots that it took are not given again


class Sizes(NamedTuple):
    """Of a world, and how often something happens in it."""

    k: int
    capacity: int
    block: int
    near: int  # D
    shift: int  # of a chunk: 2^shift slots
    clears: float = 0.0  # appends after which the tape is cleared, or its oldest rows
    restores: float = 0.0  # ... its contents are replaced
    wants_room: float = 0.0  # appends that need room for something else than rows
    refuses: float = 0.0  # ... for which there is no memory
    blanks: float = 0.0  # frames that are like others
    breaks: float = 0.0  # observations that the row before did not announce

    @classmethod
    def draw(cls, rnd: random.Random) -> Sizes:
        return cls(
            k=rnd.choice((1, 1, 2)),
            capacity=rnd.choice((2, 3, 4, 5, 6)),
            block=rnd.choice((2, 2, 3, 5)),
            near=rnd.choice((1, 2, 3, 5, 8)),
            shift=rnd.choice((0, 1, 1, 2)),
            clears=rnd.choice((0.03, 0.03, 0.2)),
            restores=rnd.choice((0.0, 0.03, 0.2)),
            wants_room=rnd.choice((0.05, 0.1, 0.4)),
            refuses=0.03,
            blanks=rnd.choice((0.0, 0.15, 0.5)),
            breaks=rnd.choice((0.05, 0.2, 0.4, 1.0)),
        )


class Step(NamedTuple):
    """A row: which one, and the frames of its observation and of its next one."""

    name: int
    frames: tuple[int, ...]


class Committed(NamedTuple):
    step: Step
    slots: tuple[int, ...]


class SlotMemory:
    """The header's words are known under the lock only; `weak` has those that readers load."""

    def __init__(self, sizes: Sizes, rules: SlotRules) -> None:
        self.sizes = sizes
        self.k, self.capacity, self.block, self.near, self.shift = sizes[:5]
        self.chunk = 1 << self.shift
        # What rows refer to never takes more: 2k slots for each row, for rows that gave way but are
        # of the tail's block, and D that the first of them refers back.
        most = 2 * self.k * (self.capacity + self.block - 1) + self.near
        self.places = (most + self.chunk - 2) // self.chunk + 1
        self.map_length = 1 << (self.places - 1).bit_length()
        self.blocks = self.capacity // self.block + 1 + rules.ring_two_more
        self.weak = Weak()
        for word in ("head", "tail", "restores"):
            self.weak.release((word,), 0)
        for i in range(self.map_length):
            self.weak.release(("map", i), 0)
        self.slots_before = self.slots_after = self.slot_tail = 0
        self.slots_at = NONE
        self.mapped_slots = self.reserved_places = 0
        self.start = [0] * self.blocks
        self.low = [0] * self.blocks
        self.lock: object = None
        # The truth, as of the stores of head: rows by seq, and how many slots they have. Readers
        # compare with what was there between two restores.
        self.committed: list[Committed] = []
        self.between = {0: self.committed}
        self.used = 0
        self.names = 0
        kinds = ("mapped", "shared", "early", "refused", "stops", "restored", "back")
        self.seen = dict.fromkeys(kinds, 0)

    @property
    def head(self) -> int:
        return int(self.weak["head",])

    @property
    def tail(self) -> int:
        return int(self.weak["tail",])

    @property
    def restores(self) -> int:
        return int(self.weak["restores",])

    def slot_head(self) -> int:
        return self.slots_after if self.slots_at == self.head else self.slots_before

    def map_word(self, number: int) -> tuple[str, int]:
        return "map", (number >> self.shift) % self.map_length

    def reference(self, number: int) -> int:
        """Its low bits, which a row has."""
        return number % (self.map_length * self.chunk)

    def place(self, number: int) -> int:
        return int(self.weak[self.map_word(number)])

    def words(self, place: int, number: int) -> list[tuple[str, int, int, int]]:
        return [("slot", place, number % self.chunk, i) for i in range(2)]

    def frame(self, number: int) -> object:
        return self.weak[self.words(self.place(number), number)[0]]

    def live(self) -> set[int]:
        """Slots of rows that are there; of contents that are being replaced none is."""
        rows = [] if self.restores % 2 else self.committed[self.tail :]
        return {number for row in rows for number in row.slots}

    def name(self) -> int:
        self.names += 1
        return self.names

    def replaced(self, tail: int, rows: list[Committed], used: int) -> None:
        """From the next, even number of restores on."""
        nobody = Committed(Step(NONE, ()), ())
        self.committed = [nobody] * tail + rows
        self.between[self.restores + 1] = self.committed
        self.used = used
