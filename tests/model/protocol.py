"""A model of the tape's protocol: who stores and loads what, in which order.

Memory is sequentially consistent; every load and store of shared memory is one step (a `yield`), at
which any other process may go on and at which a writer may be killed. Appenders do what
native/tape/tape.cpp does, readers what view.cpp, gather.cpp and `Tape::read_entry_words` there
do. What was really committed is kept on the side, and everything a reader accepts is compared with
it.

`Rules` switches single rules off, to show that the model finds out.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
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


# -- writers ---------------------------------------------------------------------------------------


class Track:
    def __init__(self, traj: int) -> None:
        self.traj, self.step = traj, 0  # what the data says
        self.last_entry, self.ordinal = NONE, NONE
        self.steps = self.ret = 0
        self.known = False
        self.starts = True  # the next row begins a trajectory


class Writer:
    """One incarnation of a writing process; `slot` is its place in the producer table."""

    def __init__(self, m: Memory, rules: Rules, slot: int, number: int, rnd: random.Random) -> None:
        self.m, self.rules, self.slot, self.number, self.rnd = m, rules, slot, number, rnd
        self.trajectories = self.appends = 0
        self.tracks = [self.fresh(), self.fresh()]

    def fresh(self) -> Track:
        self.trajectories += 1
        return Track(self.number * 1000 + self.trajectories)

    def plan(self) -> list[tuple[Track, list[Row], bool]]:
        """Runs of the next append: track, rows, whether it starts a trajectory."""
        runs: list[tuple[Track, list[Row], bool]] = []
        room = self.m.capacity
        for _ in range(self.rnd.choice((1, 1, 1, 2, 3))):
            n = self.rnd.choice((1, 1, 2))
            if n > room:
                break
            room -= n
            which = self.rnd.randrange(2)
            track = self.tracks[which]
            starts = track.starts
            track.starts = False
            rows = []
            for i in range(n):
                done = i == n - 1 and self.rnd.random() < 0.3
                rows.append(Row(self.number, self.appends + 1, track.traj, track.step, done))
                track.step += 1
            runs.append((track, rows, starts))
            if rows[-1].done:
                self.tracks[which] = self.fresh()
        return runs

    def process(self) -> Process:
        m = self.m
        while True:
            runs = self.plan()
            yield
            while m.lock is not None:
                yield
            m.lock = self
            yield from repair(m, self.rules)
            yield from self.append(runs)
            if self.rnd.random() < 0.02:  # empty()
                m.tail = m.head
                yield
                m.index_tail = m.index_head
                yield
            m.lock = None
            yield

    def append(self, runs: list[tuple[Track, list[Row], bool]]) -> Process:
        m, rules = self.m, self.rules
        capacity = m.capacity
        head, index_head = m.head, m.index_head  # only the holder changes these
        rows = [row for _, part, _ in runs for row in part]
        new_head = head + len(rows)

        def evict() -> Process:
            nonlocal tail, index_tail
            while index_tail < index_head:
                oldest = m.index[index_tail % capacity]
                end = oldest.first + oldest.sf[0]
                room = index_head + len(runs) - index_tail <= capacity
                if end > tail and room:
                    break
                tail = max(tail, end)
                index_tail += 1
            m.tail = tail
            yield
            m.index_tail = index_tail
            yield

        tail, index_tail = max(m.tail, new_head - capacity), m.index_tail
        if rules.evict_first:
            yield from evict()
        for i, row in enumerate(rows):
            slot = m.rows[(head + i) % capacity]
            slot[0] = row
            yield
            slot[1] = row
            yield
        if not rules.evict_first:
            yield from evict()

        lead, _, starts = runs[0]
        grows = False
        if not starts and lead.known and index_head > index_tail:
            newest = m.index[(index_head - 1) % capacity]
            if lead.last_entry == index_head - 1 or not rules.grow_own_only:
                grows = newest.first + newest.sf[0] == head and not newest.sf[1] & CUT

        if rules.undo and rules.undo_before_entries:
            yield from self.fill_undo(head, index_head, grows)

        number, seq, commit = index_head, head, head
        self.appends += 1
        slot = self.first_slot(index_head)
        for i, (track, part, run_starts) in enumerate(runs):
            flags = ENDED if part[-1].done else 0
            if i == 0 and grows:
                e = m.index[(index_head - 1) % capacity]
                steps, old = e.sf
                track.steps += len(part)
                track.ret += len(part)
                e.sf = (steps + len(part), (old & BEGINS) | flags)
                yield
                e.ret = track.ret
                yield
            else:
                stamps = number % CHUNK == 0 or number == index_head
                if number % CHUNK == 0:
                    slot = 0
                if stamps:
                    m.stamps[m.stamp_place(number, slot)] = (self.number, self.appends)
                    yield
                yield from self.write_run(
                    number, track, part, run_starts, flags, seq, index_tail, slot
                )
                number += 1
            seq += len(part)
            if not rules.one_commit:
                m.index_head = number
                yield
                self.commit(rows, commit - head, seq - head, seq == new_head)
                commit = seq
                yield
        if rules.undo and not rules.undo_before_entries:
            yield from self.fill_undo(head, index_head, grows)
        m.producers[self.slot] += 1
        yield
        if not rules.one_commit:
            return
        if rules.head_last:
            m.index_head = number
            yield
        self.commit(rows, 0, len(rows), True)
        yield
        if not rules.head_last:
            m.index_head = number
            yield

    def first_slot(self, number: int) -> int:
        """Where an append's stamp goes in the chunk of its first entry."""
        if number % CHUNK == 0:
            return 0
        before = self.m.index[(number - 1) % self.m.capacity].before_stamp[1]
        return min(before + self.rules.fresh_stamp, number % CHUNK)

    def commit(self, rows: list[Row], start: int, end: int, last: bool) -> None:
        self.m.committed += rows[start:end]
        self.m.head = len(self.m.committed)
        self.m.appended[self.slot] += last
        self.m.begun = self.m.trajectories

    def fill_undo(self, head: int, index_head: int, grows: bool) -> Process:
        m = self.m
        if not self.rules.undo_head_last:
            m.undo_head = head
            yield
        m.undo_index_head = index_head
        yield
        m.undo_trajectories = m.trajectories
        yield
        m.undo_entry = index_head - 1 if grows else NONE
        yield
        if grows:
            e = m.index[(index_head - 1) % m.capacity]
            m.undo_sf = e.sf
            yield
            m.undo_ret = e.ret
            yield
        m.undo_producer = self.slot
        yield
        m.undo_producer_seq = m.producers[self.slot]
        yield
        if self.rules.undo_head_last:
            m.undo_head = head
            yield

    def write_run(
        self,
        number: int,
        track: Track,
        part: list[Row],
        starts: bool,
        flags: int,
        first: int,
        index_tail: int,
        stamp: int,
    ) -> Process:
        m = self.m
        if starts:
            track.steps = track.ret = 0
            track.last_entry = NONE
        before = track.steps
        linked = track.last_entry != NONE and track.last_entry >= index_tail
        if starts:
            flags |= BEGINS
        if not linked:
            track.ordinal = m.trajectories
            m.trajectories += 1
            yield
        track.steps = before + len(part)
        track.ret += len(part)
        track.known = True
        jump, rank = NONE, 0
        if linked:  # skip links, as in a skew-binary list: one of rank r skips 2^r - 1 runs
            p = m.index[track.last_entry % m.capacity]
            jump, rank = track.last_entry, 1
            if p.links[1] != NONE and p.links[1] >= index_tail:
                pj = m.index[p.links[1] % m.capacity]
                same = p.ordinal_rank[1] == pj.ordinal_rank[1]
                if pj.links[1] != NONE and pj.links[1] >= index_tail and same:
                    jump, rank = pj.links[1], pj.ordinal_rank[1] + 1
        e = m.index[number % m.capacity]
        e.first = first
        yield
        e.sf = (len(part), flags)
        yield
        e.links = (track.last_entry if linked else NONE, jump)
        yield
        e.before_stamp = (before, stamp)
        yield
        e.ordinal_rank = (track.ordinal, rank)
        yield
        e.ret = track.ret
        yield
        track.last_entry = number


def repair(m: Memory, rules: Rules) -> Process:
    if m.undo_head != m.head:
        return
    if not rules.repair_clears_last:
        m.undo_head = NONE
        yield
    if m.undo_entry != NONE:
        e = m.index[m.undo_entry % m.capacity]
        steps, flags = m.undo_sf
        if rules.repair_marks_cut:
            flags |= CUT
        if rules.repair_ret_first:
            e.ret = m.undo_ret
            yield
            e.sf = (steps, flags)
            yield
        else:
            e.sf = (steps, flags)
            yield
            e.ret = m.undo_ret
            yield
    if m.undo_producer != NONE:
        m.producers[m.undo_producer] = m.undo_producer_seq
        yield
    if rules.repair_trajectories:
        m.trajectories = m.undo_trajectories
        yield
    if rules.repair_index_head:
        m.index_head = m.undo_index_head
        yield
    m.undo_head = NONE
    yield


# -- readers ---------------------------------------------------------------------------------------


class Copy(NamedTuple):
    """One reading of an entry."""

    ok: bool  # it was still on the index when all of it had been read
    first: int
    steps: int
    flags: int
    prev: int
    jump: int
    before: int
    ordinal: int


Reading = Any  # a generator that yields None at every step and returns a value


class Reader:
    """A mirror of the index (view.cpp) and draws from it."""

    def __init__(self, m: Memory, rules: Rules, rnd: random.Random) -> None:
        self.m, self.rules, self.rnd = m, rules, rnd
        self.seen_head = self.seen_tail = 0
        self.slot_of = [NONE] * m.capacity  # entry number % ring -> ordinal
        self.last: dict[int, int] = {}  # ordinal -> its last run
        self.runs: dict[int, int] = {}  # ordinal -> its living runs
        self.head = self.tail = self.index_tail = 0
        self.accepted = {"rows": 0, "slices": 0, "links": 0, "complete": 0, "entries": 0}

    def process(self) -> Process:
        while True:
            yield from self.refresh()
            for _ in range(self.rnd.choice((1, 2))):
                kind = self.rnd.random()
                if kind < 0.2:
                    yield from self.draw_rows()
                elif kind < 0.85:
                    yield from self.draw_slice()
                else:
                    yield from self.read_index()

    def read_entry(self, number: int) -> Reading:
        m = self.m
        e = m.index[number % m.capacity]
        first = e.first
        yield
        steps, flags = e.sf
        yield
        prev, jump = e.links
        yield
        before = e.before_stamp[0]
        yield
        ordinal = e.ordinal_rank[0]
        yield
        ok = number >= m.index_tail or not self.rules.index_tail_again
        return Copy(ok, first, steps, flags, prev, jump, before, ordinal)

    def snapshot(self) -> Reading:
        m = self.m
        head = m.head
        yield
        tail = m.tail
        yield
        index_tail = m.index_tail
        yield
        index_head = m.index_head
        yield
        return head, tail, index_tail, index_head

    def refresh(self) -> Reading:
        m = self.m
        while True:
            self.head, self.tail, index_tail, index_head = yield from self.snapshot()
            fresh = index_head < self.seen_head
            if fresh:
                self.seen_head = 0
            start = max(self.seen_head, index_tail)
            words = []
            for n in range(start, index_head):
                e = yield from self.read_entry(n)
                if e.first >= self.head and self.rules.entries_within_head:
                    break
                words.append((e.ordinal, e.prev))
            index_tail = self.index_tail = m.index_tail
            if fresh or index_tail > self.seen_head or self.seen_head == self.seen_tail == 0:
                self.rebuild(words, start)
                return
            if self.take(words, start):
                return

    def take(self, words: list[tuple[int, int]], start: int) -> bool:
        ring = self.m.capacity
        for i, (ordinal, prev) in enumerate(words):
            n = start + i
            while self.seen_tail + ring <= n:
                self.drop(self.seen_tail)
            known = self.slot_of[prev % ring] if self.seen_tail <= prev < n else NONE
            if prev == NONE or known != ordinal:
                if self.last and ordinal <= max(self.last):
                    self.seen_head = self.seen_tail = 0
                    return False
            self.slot_of[n % ring] = ordinal
            self.last[ordinal] = n
            self.runs[ordinal] = self.runs.get(ordinal, 0) + 1
            self.seen_head = n + 1
        while self.seen_tail < self.index_tail and self.seen_tail < self.seen_head:
            self.drop(self.seen_tail)
        return True

    def drop(self, number: int) -> None:
        ordinal = self.slot_of[number % self.m.capacity]
        self.runs[ordinal] -= 1
        if self.runs[ordinal] == 0:
            del self.runs[ordinal], self.last[ordinal]
        self.seen_tail += 1

    def rebuild(self, words: list[tuple[int, int]], start: int) -> None:
        self.last, self.runs = {}, {}
        end = start + len(words)
        for n in range(max(start, self.index_tail), end):
            ordinal = words[n - start][0]
            self.slot_of[n % self.m.capacity] = ordinal
            self.last[ordinal] = n
            self.runs[ordinal] = self.runs.get(ordinal, 0) + 1
        self.seen_head = max(end, self.index_tail)
        self.seen_tail = min(self.index_tail, self.seen_head)

    def usable(self, number: int) -> Reading:
        if number == NONE or number < self.index_tail:
            return None
        e = yield from self.read_entry(number)
        return e if e.ok and e.first + e.steps > self.tail else None

    def extent_of(self, last: int) -> Reading:
        e = yield from self.usable(last)
        if e is None or e.first >= self.head:
            return None
        steps = min(e.steps, self.head - e.first) if self.rules.rows_within_head else e.steps
        end = e.before + steps
        ended = bool(e.flags & ENDED)
        if self.rules.flags_within_head:
            ended = ended and e.first + e.steps <= self.head
        while True:
            p = yield from self.usable(e.jump)
            if p is None:
                p = yield from self.usable(e.prev)
            if p is None:
                break
            e = p
        start = e.before + max(self.tail - e.first, 0)
        begins = bool(e.flags & BEGINS) and start == 0
        return (start, end, begins, ended) if start < end else None

    def run_holding(self, last: int, step: int) -> Reading:
        e = yield from self.read_entry(last)
        while e.ok and step < e.before:
            found = None
            if e.jump != NONE and e.jump >= self.index_tail:
                p = yield from self.read_entry(e.jump)
                if p.ok and step < p.before + p.steps:
                    found = p
            if found is None and e.prev != NONE and e.prev >= self.index_tail:
                p = yield from self.read_entry(e.prev)
                found = p if p.ok else None
            if found is None:
                return None
            e = found
        return e if e.ok else None

    def emit(self, last: int, a: int, b: int) -> Reading:
        """Seqs of steps [a, b)."""
        e = yield from self.run_holding(last, b - 1)
        if e is None:
            return None
        seqs: list[int] = []
        upto, links = b, 0
        while True:
            low = max(a, e.before)
            seqs = [e.first + s - e.before for s in range(low, upto)] + seqs
            if low == a:
                break
            upto = low
            if e.prev == NONE or e.prev < self.index_tail:
                return None
            p = yield from self.read_entry(e.prev)
            if not p.ok or p.before + p.steps != e.before:
                return None
            e = p
            links += 1
        self.links = links
        return seqs

    def gather(self, seqs: list[int]) -> Reading:
        """Rows, each as its two words; None for those that were evicted meanwhile."""
        m = self.m
        out = []
        for seq in seqs:
            slot = m.rows[seq % m.capacity]
            first = slot[0]
            yield
            out.append((first, slot[1]))
            yield
        tail = m.tail if self.rules.tail_again else 0
        yield
        return [None if seq < tail else pair for seq, pair in zip(seqs, out)]

    # What is accepted is compared with the truth.

    def accept(self, seq: int, pair: tuple[Any, Any]) -> Row:
        if pair[0] != pair[1]:
            raise Violation(f"torn row {seq}: {pair}")
        if seq >= len(self.m.committed):
            raise Violation(f"row {seq} was never committed")
        if pair[0] != self.m.committed[seq]:
            raise Violation(f"row {seq}: {pair[0]}, but {self.m.committed[seq]} was committed")
        return pair[0]

    def draw_rows(self) -> Reading:
        if self.tail >= self.head:
            return
        seqs = [self.rnd.randrange(self.tail, self.head) for _ in range(2)]
        pairs = yield from self.gather(seqs)
        for seq, pair in zip(seqs, pairs):
            if pair is not None:
                self.accept(seq, pair)
                self.accepted["rows"] += 1

    def draw_slice(self) -> Reading:
        if not self.last:
            return
        last = self.rnd.choice(list(self.last.values()))
        extent = yield from self.extent_of(last)
        if extent is None:
            return
        start, end, begins, ended = extent
        complete = begins and ended
        a, b = start, end
        if not complete and self.rnd.random() < 0.7:
            length = self.rnd.randint(1, min(3, end - start))
            a = self.rnd.randint(start, end - length)
            b = a + length
        seqs = yield from self.emit(last, a, b)
        if seqs is None:
            return
        links = self.links
        pairs = yield from self.gather(seqs)
        if any(pair is None for pair in pairs):
            return
        rows = [self.accept(seq, pair) for seq, pair in zip(seqs, pairs)]
        for one, two in itertools.pairwise(rows):
            if (one.writer, one.traj) != (two.writer, two.traj):
                raise Violation(f"a slice across trajectories: {rows}")
            if two.step != one.step + 1:
                raise Violation(f"a slice with a gap: {rows}")
        if rows[0].step != a:
            raise Violation(f"step {a} of a trajectory is {rows[0]}")
        if complete and not (rows[0].step == 0 and rows[-1].done):
            raise Violation(f"complete, but it is only {rows}")
        self.accepted["slices"] += 1
        self.accepted["links"] += links
        self.accepted["complete"] += complete

    def read_index(self) -> Reading:
        """Every entry with its return, as episodes() reads them."""
        m = self.m
        head, _, index_tail, index_head = yield from self.snapshot()
        for n in range(index_tail, index_head):
            h = head
            e = m.index[n % m.capacity]
            for _ in range(20):
                sf = e.sf
                yield
                first = e.first
                yield
                before, slot = e.before_stamp
                yield
                stamp = m.stamps[m.stamp_place(n, slot)]
                yield
                ret = e.ret
                yield
                again = e.sf if self.rules.steps_again else sf
                yield
                if n < m.index_tail:
                    break
                yield
                if first >= h:
                    break
                if sf == again and (first + sf[0] <= h or not self.rules.rows_within_head):
                    self.check_entry(first, sf, before, ret, stamp)
                    break
                h = m.head
                yield

    def check_entry(
        self, first: int, sf: tuple[int, int], before: int, ret: int, stamp: tuple[int, int]
    ) -> None:
        steps, flags = sf
        if ret != before + steps:
            raise Violation(f"an entry of {steps} steps after {before} with return {ret}")
        rows = self.m.committed[first : first + steps]
        if len(rows) != steps:
            raise Violation(f"an entry of {steps} rows from {first}, of which {len(rows)} exist")
        for i, row in enumerate(rows):
            if row.traj != rows[0].traj or row.step != before + i:
                raise Violation(f"an entry of rows that do not belong together: {rows}")
        if stamp != (rows[0].writer, rows[0].append):
            raise Violation(f"an entry stamped {stamp}: {rows}")
        if bool(flags & ENDED) != rows[-1].done:
            raise Violation(f"an entry that says its end is {flags & ENDED}: {rows}")
        self.accepted["entries"] += 1


# -- a run -----------------------------------------------------------------------------------------


class World:
    """Some writers, which are killed now and then, and some readers, in one random interleaving."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.rnd = random.Random(seed)
        self.rules = rules or Rules()
        self.writers = self.rnd.choice((1, 2, 2, 3))
        self.m = Memory(self.rnd.choice((2, 3, 3, 4, 5, 6)), self.writers)
        self.readers = [
            Reader(self.m, self.rules, self.rnd) for _ in range(self.rnd.choice((1, 1, 2)))
        ]
        self.kill = self.rnd.choice((0.0, 0.002, 0.01, 0.02))
        self.numbers = 0
        self.kills = self.undone = 0

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

    def check_at_rest(self) -> None:
        m = self.m
        if m.head != len(m.committed):
            raise Violation("head is not what was committed")
        if not 0 <= m.head - m.tail <= m.capacity:
            raise Violation(f"tail {m.tail}, head {m.head} of {m.capacity} rows")
        for seq in range(m.tail, m.head):
            pair = m.rows[seq % m.capacity]
            if pair[0] != pair[1] or pair[0] != m.committed[seq]:
                raise Violation(f"row {seq} is {pair}, committed was {m.committed[seq]}")
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


RULES = [field.name for field in fields(Rules)]
