"""Readers of the tape's protocol: what native/tape/view.cpp and gather.cpp do."""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

from tests.model import blobs
from tests.model.fields import Mirror
from tests.model.memory import BEGINS, ENDED, NONE, Memory, Process, Row, Rules, Violation


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
        self.mirror = Mirror(self)
        self.accepted = {"rows": 0, "slices": 0, "links": 0, "complete": 0, "entries": 0}
        self.accepted["bytes"] = 0

    def process(self) -> Process:
        while True:
            yield from self.refresh()
            if self.m.fields:
                yield from self.mirror.refresh()
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
        places = None
        if m.ring is not None:
            places = yield from blobs.measure(m, m.ring, self.rules, seqs)
        out = []
        for seq in seqs:
            slot = m.rows[seq % m.capacity]
            first = slot[0]
            yield
            out.append((first, slot[1]))
            yield
        found = [] if places is None else (yield from blobs.read(m.ring, places))
        tail = m.tail if self.rules.tail_again else 0
        yield
        for seq, part in zip(seqs, found):
            if seq >= tail:
                blobs.check(m.committed[seq], seq, part, m.ring)
                self.accepted["bytes"] += len(part)
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
