"""Readers of rows with slots, and worlds of them and of writers that are killed."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

from tests.model.memory import NONE, Process, Violation
from tests.model.slot_writer import SlotWriter
from tests.model.slots import Sizes, SlotMemory, SlotRules
from tests.model.weak import Sight


class SlotReader:
    def __init__(self, m: SlotMemory, rules: SlotRules, rnd: random.Random) -> None:
        self.m, self.rules, self.rnd = m, rules, rnd
        self.sight = Sight(m.weak, rnd)
        self.accepted = self.lost = 0

    def process(self) -> Process:
        while True:
            self.restores = self.sight.acquire(("restores",))
            yield
            head = self.sight.acquire(("head",))
            yield
            tail = self.sight.acquire(("tail",))
            yield
            for _ in range(self.rnd.choice((1, 2, 3))):
                if tail < head:
                    yield from self.read(self.rnd.randrange(tail, head))

    def read(self, seq: int) -> Process:
        """A row, then the slots that it refers to, then whether it was there all the time."""
        m, sight, rules = self.m, self.sight, self.rules
        name = sight.load(("row", seq % m.capacity))
        yield
        references = []
        for i in range(2 * m.k):
            references.append(sight.load(("reference", seq % m.capacity, i)))
            yield
        frames = []
        for reference in references:
            place = sight.load(m.map_word(reference or 0))
            yield
            if place >= m.reserved_places:
                raise Violation(f"a reader touches place {place} of {m.reserved_places}")
            words = []
            for word in m.words(place, reference or 0):
                words.append(sight.load(word))
                yield
            frames.append(words)
        if rules.reader_fence:
            sight.fence()
        tail = sight.load(("tail",))
        yield
        if rules.restores_fence:
            sight.fence()
        restores = sight.load(("restores",)) if rules.restores_again else self.restores
        yield
        replaced = restores != self.restores or restores % 2 != 0
        if (seq < tail and rules.tail_again) or replaced:
            self.lost += 1
        else:
            self.accept(seq, name, frames)

    def accept(self, seq: int, name: Any, frames: list[list[Any]]) -> None:
        there = self.m.between.get(self.restores, [])
        if seq >= len(there):
            raise Violation(f"row {seq} was never committed")
        truth = there[seq].step
        if name != truth.name:
            raise Violation(f"row {seq} is {name}, committed was {truth}")
        for words, frame in zip(frames, truth.frames):
            if words != [frame, frame]:
                raise Violation(f"row {seq} has {frames}, committed was {truth}")
        self.accepted += 1


class SlotWorld:
    """Some writers, which are killed now and then, and some readers, in one random interleaving."""

    def __init__(
        self, seed: int, rules: SlotRules | None = None, sizes: Sizes | None = None
    ) -> None:
        self.rnd = random.Random(seed)
        self.rules = rules or SlotRules()
        self.m = SlotMemory(sizes or Sizes.draw(self.rnd), self.rules)
        self.writers = self.rnd.choice((1, 2, 2, 3))
        readers = self.rnd.choice((1, 1, 2))
        self.readers = [SlotReader(self.m, self.rules, self.rnd) for _ in range(readers)]
        self.kill = self.rnd.choice((0.0, 0.002, 0.01, 0.02, 0.04))
        self.kills = 0

    def start_writer(self) -> tuple[SlotWriter, Process]:
        writer = SlotWriter(self.m, self.rules, self.rnd)
        return writer, writer.process()

    def run(self, steps: int) -> None:
        rnd, m = self.rnd, self.m
        writers = [self.start_writer() for _ in range(self.writers)]
        readers = [reader.process() for reader in self.readers]
        while steps > 0:
            who = rnd.randrange(self.writers + len(readers))
            burst = rnd.choice((1, 1, 2, 3, 5, 9, 40))
            steps -= burst
            if who >= self.writers:
                for _ in range(burst):
                    next(readers[who - self.writers])
                continue
            writer, process = writers[who]
            if m.lock is not None and m.lock is not writer:
                continue
            dies = burst if rnd.random() > self.kill * burst else rnd.randrange(burst)
            for _ in range(dies):
                next(process)
            if dies < burst:
                if m.lock is writer:
                    self.kills += 1
                    m.lock = None
                writers[who] = self.start_writer()
            if m.lock is None:
                self.check_at_rest()

    def take_turns(self, appends: int, dies: int = NONE) -> int:
        """Two writers, no reader; one dies after so many steps. Returns the steps there were."""
        writers = [self.start_writer() for _ in range(2)]
        steps = 0
        for turn in range(appends):
            writer, process = writers[turn % 2]
            next(process)  # its rows
            held = False
            while not held or self.m.lock is writer:
                next(process)
                held = held or self.m.lock is writer
                steps += 1
                if steps == dies and self.m.lock is writer:
                    self.m.lock = None
                    writers[turn % 2] = self.start_writer()
                    break
            self.check_at_rest()
        return steps

    def check_at_rest(self) -> None:
        """Whoever takes the lock now finds every row that is there, as it was committed."""
        m = self.m
        if m.restores % 2:  # all of it is thrown away
            return
        if m.head != len(m.committed) or not 0 <= m.head - m.tail <= m.capacity:
            raise Violation(f"tail {m.tail}, head {m.head} of {m.capacity} rows")
        if m.slot_head() < m.used:
            raise Violation(f"{m.slot_head()} slots are counted, {m.used} were committed")
        for seq in range(m.tail, m.head):
            truth = m.committed[seq]
            if m.weak["row", seq % m.capacity] != truth.step.name:
                raise Violation(f"row {seq} is not {truth}")
            for number, frame in zip(truth.slots, truth.step.frames):
                found = [m.weak[word] for word in m.words(m.place(number), number)]
                if found != [frame, frame]:
                    raise Violation(f"slot {number} of row {seq} has {found}, not {frame}")


SLOT_RULES = [field.name for field in fields(SlotRules)]
