"""A model of the tape's protocol: who stores and loads what, in which order.

Memory is sequentially consistent; every load and store of shared memory is one step (a `yield`), at
which any other process may go on and at which a writer may be killed. Appenders do what
native/tape/tape.cpp does, readers what view.cpp, gather.cpp and `Tape::read_entry_words` there
do. What was really committed is kept on the side, and everything a reader accepts is compared with
it.

`Rules` switches single rules off, to show that the model finds out.
"""

from __future__ import annotations

import random
from dataclasses import fields

from tests.model.blobs import Ring, check
from tests.model.fields import Mirror, current
from tests.model.memory import NONE, Memory, Process, Rules, Violation
from tests.model.reader import Reader
from tests.model.repair import repair
from tests.model.writer import Writer


class World:
    """Some writers, which are killed now and then, and some readers, in one random interleaving."""

    def __init__(
        self,
        seed: int,
        rules: Rules | None = None,
        any_size: bool = False,
        fields: bool = False,
    ) -> None:
        self.rnd = random.Random(seed)
        self.rules = rules or Rules()
        self.writers = self.rnd.choice((1, 2, 2, 3))
        capacity = self.rnd.choice((2, 3, 3, 4, 5, 6))
        ring = Ring(self.rnd.choice((1, 2, 3, 5, 8))) if any_size else None
        self.m = Memory(capacity, self.writers, ring, fields)
        self.readers = [
            Reader(self.m, self.rules, self.rnd) for _ in range(self.rnd.choice((1, 1, 2)))
        ]
        self.kill = self.rnd.choice((0.0, 0.002, 0.01, 0.02))
        self.numbers = 0
        self.kills = self.undone = self.half_changed = 0

    def start_writer(self, slot: int) -> tuple[Writer, Process]:
        self.numbers += 1
        writer = Writer(self.m, self.rules, slot, self.numbers, self.rnd)
        return writer, writer.process()

    def run(self, steps: int) -> None:
        rnd, m = self.rnd, self.m
        writers = [self.start_writer(slot) for slot in range(self.writers)]
        readers = [reader.process() for reader in self.readers]
        everybody = self.writers + len(readers)
        while steps > 0:
            who = rnd.randrange(everybody)
            burst = rnd.choice((1, 1, 2, 3, 5, 9, 40))
            steps -= burst
            if who >= self.writers:
                reader = readers[who - self.writers]
                for _ in range(burst):
                    next(reader)
                continue
            writer, process = writers[who]
            if m.lock is not None and m.lock is not writer:
                continue
            dies = burst if rnd.random() > self.kill * burst else rnd.randrange(burst)
            for _ in range(dies):
                next(process)
            if dies < burst:
                self.kills += 1
                if m.lock is writer:
                    m.lock = None  # the next taker is told and repairs
                    self.undone += m.undo_head == m.head
                    self.half_changed += m.pending != 0
                writers[who] = self.start_writer(who)
        self.settle(writers)

    def settle(self, writers: list[tuple[Writer, Process]]) -> None:
        """The holder finishes or dies; somebody repairs, perhaps killed in it; all must be well."""
        m, rnd = self.m, self.rnd
        if m.lock is not None and rnd.random() < 0.5:
            holder = m.lock
            process = next(p for w, p in writers if w is holder)
            while m.lock is holder:
                next(process)
        m.lock = None
        for _ in range(rnd.randrange(3)):
            half = repair(m, self.rules)
            for _ in range(rnd.randrange(8)):
                if next(half, 0) == 0:
                    break
        for _ in repair(m, self.rules):
            pass
        self.check_at_rest()
        living = {}
        for n in range(m.index_tail, m.index_head):
            living[m.index[n % m.capacity].ordinal_rank[0]] = n
        for reader in self.readers:
            for _ in range(2):  # a refresh may leave the newest for the next one
                for _ in reader.refresh():
                    pass
            if reader.last != living:
                raise Violation(f"a reader knows {reader.last}, the index has {living}")
            if m.fields:
                self.check_fields(reader.mirror, living)

    def check_fields(self, mirror: Mirror, living: dict[int, int]) -> None:
        """What a reader that keeps up by the log knows is what there is."""
        m = self.m
        for _ in mirror.refresh():
            pass
        for ordinal, number in living.items():
            there = current(m.slots[number % m.capacity])
            if there != m.records[number][-1]:
                raise Violation(f"entry {number} has {there} of {m.records[number]}")
            if mirror.known[ordinal] != (number, there):
                raise Violation(f"a reader knows {mirror.known[ordinal]}, {number} has {there}")

    def check_at_rest(self) -> None:
        m = self.m
        if m.head != len(m.committed):
            raise Violation("head is not what was committed")
        if not 0 <= m.head - m.tail <= m.capacity:
            raise Violation(f"tail {m.tail}, head {m.head} of {m.capacity} rows")
        for seq in range(m.tail, m.head):
            pair = m.rows[seq % m.capacity][:2]
            if pair[0] != pair[1] or pair[0] != m.committed[seq]:
                raise Violation(f"row {seq} is {pair}, committed was {m.committed[seq]}")
            if m.ring is not None:
                self.check_bytes(seq)
        at = m.tail
        for n in range(m.index_tail, m.index_head):
            e = m.index[n % m.capacity]
            end = e.first + e.sf[0]
            if end <= m.tail:
                continue
            if e.first > at:
                raise Violation(f"no entry has row {at}")
            ordinal, before, prev = e.ordinal_rank[0], e.before_stamp[0], e.links[0]
            if ordinal >= m.trajectories:
                raise Violation(f"trajectory {ordinal} may be given again")
            stamp = m.stamps[m.stamp_place(n, e.before_stamp[1])]
            self.readers[0].check_entry(e.first, e.sf, before, e.ret, stamp)
            if prev != NONE and prev >= m.index_tail:
                p = m.index[prev % m.capacity]
                if p.ordinal_rank[0] != ordinal or p.before_stamp[0] + p.sf[0] != before:
                    raise Violation(f"entry {n} is linked to entry {prev}, of another trajectory")
            at = end
        if at != m.head:
            raise Violation(f"no entry has row {at}")
        if m.producers != m.appended:
            raise Violation(f"producers {m.producers}, committed were {m.appended}")
        if m.trajectories != m.begun:
            raise Violation(f"{m.trajectories} trajectories counted, {m.begun} committed")

    def check_bytes(self, seq: int) -> None:
        m = self.m
        place = (m.rows[seq % m.capacity][2], m.rows[seq % m.capacity][3])
        if place != m.ring.committed[seq]:
            raise Violation(f"row {seq} has its bytes at {place}, not {m.ring.committed[seq]}")
        position, size = place
        found = [m.ring.bytes[(position + k) % m.ring.size] for k in range(size)]
        check(m.committed[seq], seq, found, m.ring)


RULES = [field.name for field in fields(Rules)]
# Those of leaves of any size.
ANY_SIZE = {
    "evict_for_bytes",
    "blob_head_before_head",
    "tail_before_lengths",
    "evict_before_skipped",
    "count_skipped",
    "fields_evicted_skipped",
}
