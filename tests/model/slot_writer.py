"""Appends of rows with slots, and what replaces all of them."""

from __future__ import annotations

import random

from tests.model.memory import NONE, Process, Violation
from tests.model.slot_plan import Plan, Runs, Track, bound_of, make_plan
from tests.model.slots import Committed, SlotMemory, SlotRules, Step


class SlotWriter:
    """One incarnation of a writing process; what it knows of trajectories is lost with it."""

    def __init__(self, m: SlotMemory, rules: SlotRules, rnd: random.Random) -> None:
        self.m, self.rules, self.rnd = m, rules, rnd
        self.shows = 0  # what its relaxed stores make visible: all until its last fence
        self.tracks = [self.fresh(), self.fresh()]

    def fresh(self) -> Track:
        frame = self.frame()
        return Track(tuple(frame for _ in range(self.m.k)))

    def frame(self) -> int:
        return 0 if self.rnd.random() < self.m.sizes.blanks else self.m.name()

    def chance(self, of: float) -> bool:
        return self.rnd.random() < of

    def steps(self) -> Runs:
        """Runs of the next append; a trajectory may have several."""
        rnd, m = self.rnd, self.m
        runs: Runs = []
        room = m.capacity
        for _ in range(rnd.choice((1, 1, 1, 2, 3))):
            n = min(rnd.choice((1, 1, 2, 3)), room)
            if n == 0:
                break
            room -= n
            which = rnd.randrange(2)
            runs.append((self.tracks[which], [self.step(self.tracks[which]) for _ in range(n)]))
            if rnd.random() < 0.2:
                self.tracks[which] = self.fresh()
        return runs

    def step(self, track: Track) -> Step:
        now = track.stack
        if self.chance(self.m.sizes.breaks):
            now = tuple(self.frame() for _ in now)
        track.stack = (*now[1:], now[-1] if self.chance(0.1) else self.frame())
        return Step(self.m.name(), now + track.stack)

    def process(self) -> Process:
        m = self.m
        while True:
            runs = self.steps()
            yield
            while m.lock is not None:
                yield
            m.lock = self
            yield from repair(m)
            yield from self.append(runs)
            if self.chance(m.sizes.clears):
                m.weak.release(("tail",), self.rnd.choice((m.head, (m.tail + m.head + 1) // 2)))
                yield
            if self.chance(m.sizes.restores):
                yield from self.restore()
            m.lock = None
            yield

    def append(self, runs: Runs) -> Process:
        m, rules = self.m, self.rules
        head = m.head
        new_head = head + sum(len(rows) for _, rows in runs)
        tail = max(m.tail, new_head - m.capacity)
        if self.chance(m.sizes.wants_room):
            tail = self.rnd.randint(tail, max(head, tail))
        plan = make_plan(m, rules, runs)
        bound = bound_of(m, rules, tail if rules.bound_new_tail else m.tail, plan)
        if self.chance(m.sizes.refuses):
            m.seen["refused"] += 1
            if not rules.recent_last:
                plan.remember()
            return
        self.reserve(bound, plan.end)
        if rules.tail_before_map:
            yield from self.give_way(tail)
        yield from self.map_chunks(bound, plan.end)
        if not rules.tail_before_map:
            yield from self.give_way(tail)
        counts = bool(plan.new) or rules.count_always
        if counts:
            yield from self.count_slots(plan)
        yield from self.copy_slots(plan)
        yield from self.copy_rows(head, plan, tail >= head)
        if counts and rules.at_before_head:
            m.slots_at = new_head
            yield
        self.commit(plan)
        yield
        if counts and not rules.at_before_head:
            m.slots_at = new_head
            yield
        plan.remember()

    def reserve(self, bound: int, end: int) -> None:
        m = self.m
        if end > m.mapped_slots:
            chunks = ((end - 1) >> m.shift) - (bound >> m.shift) + 1
            if chunks > m.places:
                raise Violation(f"slots {bound} to {end} need {chunks} of {m.places} places")
            m.reserved_places = max(m.reserved_places, chunks)

    def store(self, word: tuple[object, ...], value: object) -> Process:
        self.m.weak.store(word, value, self.shows)
        yield

    def fence(self) -> None:
        self.shows = self.m.weak.now

    def give_way(self, tail: int) -> Process:
        if self.rules.tail_released:
            self.m.weak.release(("tail",), tail)
        else:
            self.m.weak.store(("tail",), tail, self.shows)
        yield
        if self.rules.fence:
            self.fence()

    def map_chunks(self, bound: int, end: int) -> Process:
        m, rules = self.m, self.rules
        if end <= m.mapped_slots:
            return
        if rules.slot_tail_first:
            m.slot_tail = bound
            yield
        for chunk in range(m.mapped_slots >> m.shift, ((end - 1) >> m.shift) + 1):
            if not rules.mapped_last:
                m.mapped_slots = (chunk + 1) << m.shift
                yield
            taken = {m.place(c << m.shift) for c in range(bound >> m.shift, chunk)}
            place = min(set(range(len(taken) + 1)) - taken)
            if place >= m.reserved_places:
                raise Violation(f"place {place} of {m.reserved_places} that have memory")
            self.check_mapping(chunk, place)
            yield from self.store(m.map_word(chunk << m.shift), place)
            m.seen["mapped"] += 1
            if rules.mapped_last:
                m.mapped_slots = (chunk + 1) << m.shift
                yield
        if not rules.slot_tail_first:
            m.slot_tail = bound
            yield

    def check_mapping(self, chunk: int, place: int) -> None:
        """No slot of a row that is there loses its memory, nor its word of the map."""
        m = self.m
        for number in m.live():
            if number >> m.shift != chunk:
                if m.place(number) == place:
                    raise Violation(f"chunk {chunk} gets the place of slot {number}")
                if m.map_word(number) == m.map_word(chunk << m.shift):
                    raise Violation(f"chunk {chunk} gets the map's word of slot {number}")

    def count_slots(self, plan: Plan) -> Process:
        m, rules = self.m, self.rules
        if rules.before_first:
            m.slots_before = plan.slot_head
            yield
        if rules.none_first:
            m.slots_at = NONE
            yield
        if not rules.before_first:
            m.slots_before = plan.slot_head
            yield
        m.slots_after = plan.end
        yield

    def copy_slots(self, plan: Plan) -> Process:
        m = self.m
        live = {(m.place(number), number % m.chunk) for number in m.live()}
        for number, frame in enumerate(plan.new, plan.slot_head):
            place = m.place(number)
            if (place, number % m.chunk) in live:
                raise Violation(f"slot {number} is written where a row has one")
            for word in m.words(place, number):
                yield from self.store(word, frame)

    def copy_rows(self, first: int, plan: Plan, alone: bool) -> Process:
        m, rules = self.m, self.rules
        for seq, (row, slots) in enumerate(zip(plan.rows, plan.references), first):
            at, b = seq % m.capacity, seq // m.block % m.blocks
            yield from self.store(("row", at), row.name)
            for i, number in enumerate(slots):
                yield from self.store(("reference", at, i), m.reference(number))
            begins = seq % m.block == 0 or (alone and rules.low_anew_empty and seq == first)
            if begins:
                m.start[b] = plan.slot_head
                yield
            if begins and rules.low_anew:
                m.low[b] = min(slots)
                yield
            elif rules.low_continues or seq // m.block * m.block >= first:
                m.low[b] = min(m.low[b], *slots)
                yield

    def commit(self, plan: Plan) -> None:
        m = self.m
        if plan.slot_head < m.used:
            raise Violation(f"slot {plan.slot_head} is given out again, {m.used} are used")
        m.used = plan.end
        m.seen["shared"] += len(plan.rows) * 2 * m.k - len(plan.new)
        m.committed += map(Committed, plan.rows, plan.references)
        m.weak.release(("head",), len(m.committed))

    def restore(self) -> Process:
        """Other rows, with seqs that may go back; their slots get numbers behind all others."""
        m, rules, rnd = self.m, self.rules, self.rnd
        track = self.fresh()
        rows = [self.step(track) for _ in range(rnd.randint(0, m.capacity))]
        tail = max(m.head + rnd.randint(-5, 5), 0)
        head = tail + len(rows)
        plan = make_plan(m, rules, [(track, rows)])
        self.reserve(plan.slot_head, plan.end)
        m.weak.release(("restores",), m.restores + 1)
        yield
        if rules.restore_fence:
            self.fence()
        if rules.restore_words_first:
            yield from self.forget(plan)
        for word in ("tail", "head"):
            m.weak.release((word,), head)
            yield
        if not rules.restore_words_first:
            yield from self.forget(plan)
        yield from self.map_chunks(plan.slot_head, plan.end)
        yield from self.copy_slots(plan)
        yield from self.copy_rows(tail, plan, True)
        if rules.restore_counts:
            m.slots_before = plan.end
            yield
        m.weak.release(("tail",), tail)
        yield
        m.replaced(tail, list(map(Committed, plan.rows, plan.references)), plan.end)
        m.weak.release(("restores",), m.restores + 1)
        m.seen["restored"] += 1
        yield

    def forget(self, plan: Plan) -> Process:
        """From here on the count of slots does not depend on the head."""
        self.m.slots_before = plan.slot_head
        yield
        self.m.slots_at = NONE
        yield


def repair(m: SlotMemory) -> Process:
    """Of killed appends nothing has to be put back; contents that were being replaced go."""
    if m.restores % 2 == 0:
        return
    head = max(m.head, m.tail)
    for word in ("tail", "head"):
        m.weak.release((word,), head)
        yield
    m.replaced(head, [], m.used)
    m.weak.release(("restores",), m.restores + 1)
    yield
