"""Appends of the tape's protocol, as native/tape/tape.cpp does them."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.model import blobs
from tests.model.fields import (
    Given,
    current,
    fill,
    flip,
    give,
    save_evicted,
    set_fields,
    take,
)
from tests.model.memory import (
    BEGINS,
    CHUNK,
    CUT,
    ENDED,
    EVICTED,
    NONE,
    Memory,
    Process,
    Record,
    Row,
    Rules,
    Violation,
)
from tests.model.repair import repair


class Track:
    def __init__(self, traj: int) -> None:
        self.traj, self.step = traj, 0  # what the data says
        self.last_entry, self.ordinal = NONE, NONE
        self.steps = self.ret = 0
        self.known = False
        self.starts = True  # the next row begins a trajectory
        self.fields: Record = (0, 0)


Run = tuple[Track, list[Row], bool]  # whether it starts a trajectory


class NewFields(NamedTuple):
    """An entry's, as an append wrote them; NONE: of a run that has no row."""

    number: int
    traj: int
    record: Record
    given: Given | None
    exact: bool  # there must be what the trajectory had last, else what it had at some time


class Writer:
    """One incarnation of a writing process; `slot` is its place in the producer table."""

    def __init__(self, m: Memory, rules: Rules, slot: int, number: int, rnd: random.Random) -> None:
        self.m, self.rules, self.slot, self.number, self.rnd = m, rules, slot, number, rnd
        self.trajectories = self.appends = 0
        self.tracks = [self.fresh(), self.fresh()]

    def fresh(self) -> Track:
        self.trajectories += 1
        return Track(self.number * 1000 + self.trajectories)

    def plan(self) -> list[Run]:
        """The next append."""
        runs: list[Run] = []
        room = self.m.capacity + (2 if self.m.ring is not None else 0)
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
            if m.fields and self.rnd.random() < 0.5:
                for _ in range(self.rnd.choice((1, 1, 2, 4))):
                    yield from set_fields(m, self.rules, self.rnd)
            yield from self.append(runs)
            if self.rnd.random() < 0.02:  # empty()
                yield from save_evicted(m, self.rules, m.index_tail, m.index_head)
                m.tail = m.head
                yield
                m.index_tail = m.index_head
                yield
            m.lock = None
            yield

    def append(self, runs: list[Run]) -> Process:
        m, rules = self.m, self.rules
        capacity = m.capacity
        head, index_head = m.head, m.index_head  # only the holder changes these
        rows = [row for _, part, _ in runs for row in part]
        sizes, skip, dropped = [], 0, 0
        skipped: list[Run] = []
        self.new_fields: list[NewFields] = []
        if m.ring is not None:
            sizes = blobs.lengths(self.rnd, m.ring, len(rows))
            skip = blobs.skipped(m, m.ring, sizes)
            skipped, runs, dropped = self.skip(runs, skip)
            rows, sizes = rows[skip:], sizes[skip:]
            m.skipped += skip
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
            evicted = m.index_tail
            if m.fields and rules.fields_evicted_first:
                yield from save_evicted(m, rules, evicted, index_tail)
            m.tail = tail
            yield
            m.index_tail = index_tail
            yield
            if m.fields and not rules.fields_evicted_first:
                yield from save_evicted(m, rules, evicted, index_tail)

        tail, index_tail = max(m.tail, new_head - capacity), m.index_tail
        if m.ring is not None:
            tail = blobs.tail_for(m, m.ring, rules, tail, sum(sizes), skip)
            places = m.ring.head
        if rules.evict_first:
            yield from evict()
        for i, row in enumerate(rows):
            slot = m.rows[(head + i) % capacity]
            slot[0] = row
            yield
            slot[1] = row
            yield
        if m.ring is not None:
            yield from blobs.write(m, m.ring, rules, rows, sizes)
        if not rules.evict_first:
            yield from evict()

        for track, _, starts in skipped:
            self.skip_fields(track, starts, index_tail)
        lead, _, starts = runs[0]
        given = [self.give() for _ in runs]
        grows = False
        if not starts and not skip and lead.known and index_head > index_tail:
            newest = m.index[(index_head - 1) % capacity]
            if lead.last_entry == index_head - 1 or not rules.grow_own_only:
                grows = newest.first + newest.sf[0] == head and not newest.sf[1] & CUT
            if grows and given[0] is not None and rules.fields_new_run:
                has = current(m.slots[(index_head - 1) % capacity])
                grows = given[0].over(has) == has

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
                if given[0] is not None:
                    yield from self.change_grown(index_head - 1, track, given[0])
            else:
                stamps = number % CHUNK == 0 or number == index_head
                if number % CHUNK == 0:
                    slot = 0
                if stamps:
                    m.stamps[m.stamp_place(number, slot)] = (self.number, self.appends)
                    yield
                if m.fields and rules.fields_before_commit:
                    yield from self.write_fields(number, track, run_starts, given[i], index_tail)
                yield from self.write_run(
                    number, track, part, run_starts, flags, seq, index_tail, slot, dropped
                )
                dropped = 0
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
        if m.ring is not None:
            for size in sizes:
                m.ring.committed.append((places, size))
                places += size
        self.commit(rows, 0, len(rows), True)
        yield
        if m.ring is not None and not rules.blob_head_before_head:
            m.ring.head += sum(sizes)
            yield
        if m.fields and not rules.fields_before_commit:
            for i, (track, _, _) in enumerate(runs[grows:]):
                fields = given[grows:][i]
                record = track.fields if fields is None else fields.over(track.fields)
                m.records[index_head + i], m.owner[index_head + i] = [record], track.traj
                yield from fill(m, index_head + i, record)
        if not rules.head_last:
            m.index_head = number
            yield

    def skip(self, runs: list[Run], skip: int) -> tuple[list[Run], list[Run], int]:
        """Which runs are dropped whole when so many rows get no seq; what is left; and how many of
        the first that is left do not. Of those dropped whole, only the tracks go on."""
        for i, (track, part, starts) in enumerate(runs):
            if skip < len(part):
                dropped = skip if self.rules.count_skipped else 0
                return runs[:i], [(track, part[skip:], starts), *runs[i + 1 :]], dropped
            if starts:
                track.steps = track.ret = 0
            if self.rules.count_skipped:
                track.steps += len(part)
                track.ret += len(part)
            track.known = True
            skip -= len(part)
        raise AssertionError("the last row of an append fits")

    def give(self) -> Given | None:
        return give(self.m, self.rnd) if self.m.fields and self.rnd.random() < 0.3 else None

    def skip_fields(self, track: Track, starts: bool, index_tail: int) -> None:
        """Of a run that was dropped whole."""
        if self.m.fields:
            if self.rules.fields_evicted_skipped:
                record, exact = self.take(track, starts, index_tail)
            else:
                record, exact = (0, 0) if starts else track.fields, True
            given = self.give()
            track.fields = record if given is None else given.over(record)
            self.new_fields.append(NewFields(NONE, track.traj, track.fields, given, exact))
        track.last_entry = NONE

    def take(self, track: Track, starts: bool, index_tail: int) -> tuple[Record, bool]:
        """What a trajectory has that goes on, and whether that is certain: it is not if its place
        may be a later one's."""
        if starts:
            return (0, 0), True
        if track.last_entry == NONE:
            return track.fields, True
        is_certain = track.last_entry >= index_tail or self.m.begun <= track.ordinal + EVICTED
        where = (track.ordinal, track.last_entry)
        return take(self.m, self.rules, *where, track.fields, index_tail), is_certain

    def write_fields(
        self, number: int, track: Track, starts: bool, given: Given | None, index_tail: int
    ) -> Process:
        """Of a new run: what its previous one has, or its track; and what is given."""
        m = self.m
        record, exact = self.take(track, starts, index_tail)
        if given is not None:
            record = given.over(record)
        track.fields = record
        self.new_fields.append(NewFields(number, track.traj, record, given, exact))
        yield from fill(m, number, record)

    def change_grown(self, number: int, track: Track, given: Given) -> Process:
        """Where an entry may grow though its fields change."""
        record = given.over(current(self.m.slots[number % self.m.capacity]))
        yield from flip(self.m, self.rules, number, record)
        self.new_fields.append(NewFields(number, track.traj, record, given, True))
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
        for new in self.new_fields:
            had = self.m.had.setdefault(new.traj, [(0, 0)])
            wanted = [x if new.given is None else new.given.over(x) for x in had]
            if new.record not in wanted[-1 if new.exact else 0 :]:
                raise Violation(f"entry {new.number} has {new.record}, expected of {wanted}")
            had.append(new.record)
            if new.number != NONE:
                self.m.records.setdefault(new.number, []).append(new.record)
                self.m.owner[new.number] = new.traj

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
        dropped: int,
    ) -> Process:
        m = self.m
        if starts:
            track.steps = track.ret = 0
            track.last_entry = NONE
        before = track.steps + dropped
        track.ret += dropped
        linked = track.last_entry != NONE and track.last_entry >= index_tail
        if starts and not before:
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
