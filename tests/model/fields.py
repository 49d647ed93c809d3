"""Fields of trajectories: what native/tape/fields.cpp does, and how readers keep up with it.

A record is two words, each of them a number that nobody else gives: words of two records together
are none that ever was.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.model.memory import EVICTED, LOG, Memory, Process, Record, Rules, Slot, Violation

if TYPE_CHECKING:
    from tests.model.reader import Reader

Reading = Any  # a generator that yields None at every step and returns a value


class Given(NamedTuple):
    """What an append or a change has of a record."""

    mask: int
    words: Record

    def over(self, record: Record) -> Record:
        new, mask = self.words, self.mask
        return new[0] if mask & 1 else record[0], new[1] if mask & 2 else record[1]


def give(m: Memory, rnd: random.Random) -> Given:
    m.given += 2
    return Given(rnd.choice((1, 2, 3, 3)), (m.given - 1, m.given))


def current(slot: Slot) -> Record:
    a, b = slot.copies[slot.generation & 1]
    return a, b


def fill(m: Memory, number: int, record: Record) -> Process:
    """A new entry's, before it is committed."""
    slot = m.slots[number % m.capacity]
    for i in range(2):
        slot.copies[0][i] = record[i]
        yield
    slot.generation = 0
    yield


def save_evicted(m: Memory, rules: Rules, first: int, end: int) -> Process:
    """Those that were changed, of runs that are evicted."""
    for number in range(first, end if rules.fields_evicted else first):
        slot, ordinal = m.slots[number % m.capacity], m.index[number % m.capacity].ordinal_rank[0]
        place = m.evicted[ordinal % EVICTED]
        if slot.generation == 0 or (place.ordinal > ordinal and rules.fields_evicted_newest):
            continue
        record = current(slot)
        if rules.fields_evicted_number_first:
            place.number = number
            yield
        place.ordinal = ordinal
        yield
        for i in range(2):
            place.record[i] = record[i]
            yield
        place.number = number
        yield


def take(
    m: Memory, rules: Rules, ordinal: int, number: int, own: Record, index_tail: int
) -> Record:
    """What a trajectory has that goes on behind this run; `own`: what its writer knows."""
    if number >= index_tail and rules.fields_from_tape:
        return current(m.slots[number % m.capacity])
    place = m.evicted[ordinal % EVICTED]
    if number >= index_tail:
        return own
    wanted = (place.number, number) if rules.fields_evicted_number else (place.ordinal, ordinal)
    return (place.record[0], place.record[1]) if wanted[0] == wanted[1] else own


def flip(m: Memory, rules: Rules, number: int, record: Record) -> Process:
    slot = m.slots[number % m.capacity]
    copy = slot.copies[(slot.generation + rules.fields_other_copy) & 1]
    for i in range(2):
        copy[i] = record[i]
        yield
    slot.generation += int(rules.fields_other_copy)


def note(m: Memory, rules: Rules, number: int) -> Process:
    place, count = m.changes % LOG, m.changes + 1
    if rules.fields_count_last:
        m.log[place] = number
        yield
        m.changes = count
    else:
        m.changes = count
        yield
        m.log[place] = number
    m.logged[number] = len(m.records[number]) - 1
    yield


def set_fields(m: Memory, rules: Rules, rnd: random.Random) -> Process:
    """With the lock: changes those of some trajectory."""
    newest = {}
    for n in range(m.index_tail, m.index_head):
        newest[m.index[n % m.capacity].ordinal_rank[0]] = n
    if not newest:
        return
    number = rnd.choice(list(newest.values()))
    record = give(m, rnd).over(current(m.slots[number % m.capacity]))
    if rules.fields_pending:
        m.pending = number + 1
        yield
    if not rules.fields_log_after_flip:
        yield from note(m, rules, number)
    yield from flip(m, rules, number, record)
    m.changed(number, record)
    yield
    if not rules.fields_pending_last:
        m.pending = 0
        yield
    if rules.fields_log_after_flip:
        yield from note(m, rules, number)
    m.pending = 0
    yield


def repair_fields(m: Memory, rules: Rules) -> Process:
    if m.pending == 0:
        return
    if rules.fields_repair_logs:
        yield from note(m, rules, m.pending - 1)
    m.pending = 0
    yield


class Mirror:
    """What a reader knows of the fields of all trajectories, by the log of changes."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.m, self.rules = reader, reader.m, reader.rules
        self.seen = 0
        self.known: dict[int, tuple[int, Record]] = {}  # by ordinal: its newest run, the record
        self.read = self.lagged = 0

    def refresh(self) -> Reading:
        """After the reader has taken in new entries."""
        logged = dict(self.m.logged)
        changed = yield from self.read_log()
        # What is to be read again is not known: also if this ends half-way.
        for ordinal, (run, _) in list(self.known.items()):
            if self.reader.last.get(ordinal) != run or changed is None or run in changed:
                del self.known[ordinal]
        for ordinal, run in list(self.reader.last.items()):
            if ordinal not in self.known:
                record = yield from self.read_fields(run)
                if record is not None:
                    self.known[ordinal] = (run, record)
        for run, record in self.known.values():
            had = self.m.records[run]
            if record not in had[logged.get(run, 0) :]:
                raise Violation(f"a reader missed a change of entry {run}: {record} of {had}")

    def read_log(self) -> Reading:
        """Entries whose fields were changed since the last time; None: look at all."""
        m, rules = self.m, self.rules
        most = LOG if rules.fields_log_room else LOG + 1
        now = m.changes
        yield
        out: set[int] | None = set[int]()
        if now - self.seen < most:
            for i in range(self.seen, now):
                out.add(m.log[i % LOG])
                yield
        again = m.changes if rules.fields_count_again else now
        yield
        if again - self.seen >= most:
            out = None
            self.lagged += 1
        self.seen = now
        return out

    def read_fields(self, number: int) -> Reading:
        m, rules = self.m, self.rules
        slot = m.slots[number % m.capacity]
        from_here = max(len(m.records.get(number, ())) - 1, 0)
        generation = slot.generation
        yield
        while True:
            a = slot.copies[generation & 1][0]
            yield
            b = slot.copies[generation & 1][1]
            yield
            again = slot.generation if rules.fields_generation_again else generation
            yield
            if again == generation:
                break
            generation = again
        if number < m.index_tail and rules.fields_index_tail_again:
            return None
        # One that it had at some moment between then and now.
        if (a, b) not in m.records.get(number, ())[from_here:]:
            raise Violation(f"entry {number} had {m.records.get(number)}, read was {(a, b)}")
        self.read += 1
        return a, b
