"""Groups over several tapes, kept by what tapes report, against making them up anew.

Trajectories begin, grow, end, change their group, are evicted, consumed and given back; tapes are
lost, come back, or are replaced. What may be drawn must always be what a look at all tables says.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contig import EmptyBufferError, LazyTensorStorage, NothingEligibleError, TrajectorySampler
from contig.replay.shards import ShardReader, read_shards
from contig.sample import Rng
from contig.sample.shards import base_of

FIELDS = {"group": np.int64(0), "task": np.int32(0)}
NUMBERS = st.integers(0, 99)
TAPES = st.integers(0, 2)
_WAIT_S = 1000.0

Member = tuple[int, int, bool]  # group, task, may it be delivered


def rows(uid: int, steps: int, done: bool) -> dict[str, Any]:
    ends = (np.arange(steps) == steps - 1) & done
    return {"x": np.full(steps, uid), "next": {"reward": np.ones(steps, np.float32), "done": ends}}


class Spans(RuleBasedStateMachine):
    @initialize(
        capacity=st.integers(8, 30),
        groups=st.sampled_from([1, 1, 2]),
        size=st.sampled_from([None, 1, 2, 2, 3]),
        consume=st.booleans(),
        drops=st.booleans(),
        whole=st.booleans(),
    )
    def begin(
        self, capacity: int, groups: int, size: int | None, consume: bool, drops: bool, whole: bool
    ) -> None:
        self.size, self.consume, self.drops, self.whole = size, consume, drops, whole
        self.groups, self.per_batch = groups, groups * (size or 1)
        self.sampler = TrajectorySampler(
            self.per_batch,
            where=("task", "!=", 3),
            group="group",
            group_size=size,
            consume=consume,
            timeout_s=_WAIT_S,
            on_timeout="drop" if drops else "release",
            complete_only=whole,
        )
        self.ahead = 0.0
        self.sampler.clock = lambda: time.time() + self.ahead
        self.capacity, self.rng = capacity, Rng(capacity)
        self.tapes = [LazyTensorStorage(capacity, fields=FIELDS) for _ in range(3)]
        self.numbers = [0, 1, 2]
        self.next_number = 3
        self.readers: list[ShardReader | None] = [self.reader(i) for i in range(3)]
        self.missing: dict[int, dict[int, Member]] = {}  # by place: what it had
        self.open: list[tuple[int, Any, int]] = []
        self.uid = 0
        self.done: set[int] = set()
        self.taken: list[tuple[Any, set[int]]] = []

    def reader(self, place: int) -> ShardReader:
        copied = copy.deepcopy(self.sampler)
        return ShardReader(self.tapes[place], copied, self.numbers[place])

    # -- what happens to the tapes ----------------------------------------------------------------

    @rule(tape=TAPES, group=st.integers(0, 3), task=st.integers(0, 3), steps=st.integers(1, 4))
    def write(self, tape: int, group: int, task: int, steps: int) -> None:
        self.uid += 1
        data, fields = rows(self.uid, steps, True), {"group": group, "task": task}
        writer = self.tapes[tape].default_writer
        writer.extend_trajectory(data, terminated=True, fields=fields)

    @rule(groups=st.lists(st.tuples(TAPES, st.integers(0, 3)), min_size=3, max_size=8))
    def write_many(self, groups: list[tuple[int, int]]) -> None:
        for tape, group in groups:
            self.write(tape, group, 0, 3)

    @rule(tape=TAPES, group=st.integers(0, 3))
    def start(self, tape: int, group: int) -> None:
        self.uid += 1
        writer = self.tapes[tape].writer()
        writer.extend(rows(self.uid, 2, False), fields={"group": group})
        self.open.append((tape, writer, self.uid))

    @precondition(lambda self: self.open)
    @rule(which=NUMBERS, done=st.booleans())
    def go_on(self, which: int, done: bool) -> None:
        tape, writer, uid = self.open[which % len(self.open)]
        writer.extend(rows(uid, 1, done), continues=True)
        if done:
            self.open.remove((tape, writer, uid))

    @rule(tape=TAPES, which=NUMBERS, group=st.integers(0, 3), task=st.sampled_from([None, 1, 3]))
    def set_fields(self, tape: int, which: int, group: int, task: int | None) -> None:
        storage = self.tapes[tape]
        ids = storage.episodes()["id"] if storage.schema is not None else []
        if len(ids):
            fields = {"group": group} if task is None else {"task": task}
            assert storage.set_fields(ids[which % len(ids)], fields) == 1

    @rule(tape=TAPES)
    def empty(self, tape: int) -> None:
        self.tapes[tape].empty()
        self.open = [o for o in self.open if o[0] != tape]

    @rule(tape=TAPES, rows_lost=st.booleans())
    def copy_of_the_sampler_is_lost(self, tape: int, rows_lost: bool) -> None:
        """A shard was restarted so fast that nobody missed it."""
        if tape not in self.missing:
            self.readers[tape] = self.reader(tape)
            if rows_lost:
                self.overtake(tape)

    def overtake(self, tape: int) -> None:
        """Evicts most of what is there."""
        for _ in range(self.capacity // 4):
            self.write(tape, self.uid % 4, 0, 3)

    @precondition(lambda self: len(self.missing) < 2)
    @rule(tape=TAPES, groups=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def lose(self, tape: int, groups: list[int]) -> None:
        if tape not in self.missing:
            for group in groups:
                self.write(tape, group, 0, 1)
            self.hear()
            self.missing[tape] = {
                m: (group, task, False) for m, (group, task, _) in self.table(tape).items()
            }
            self.readers[tape] = None

    @precondition(lambda self: self.missing)
    @rule(back=st.booleans(), rows_lost=st.booleans())
    def return_or_replace(self, back: bool, rows_lost: bool) -> None:
        tape = min(self.missing)
        if rows_lost:
            self.overtake(tape)
        if not back:
            self.tapes[tape].close()
            self.tapes[tape] = LazyTensorStorage(self.capacity, fields=FIELDS)
            self.numbers[tape], self.next_number = self.next_number, self.next_number + 1
            self.open = [o for o in self.open if o[0] != tape]
            if len(self.missing) > 1:  # nobody knows yet that it is gone for good
                self.gone = {**self.gone, **self.missing[tape]}
        del self.missing[tape]
        self.readers[tape] = self.reader(tape)
        if not self.missing:
            self.gone = {}

    gone: dict[int, Member] = {}  # noqa: RUF012

    @precondition(lambda self: self.uid > 20)
    @rule()
    def everybody_is_late(self) -> None:
        self.ahead = 2 * _WAIT_S

    # -- what is ready ----------------------------------------------------------------------------

    def table(self, tape: int) -> dict[int, Member]:
        storage = self.tapes[tape]
        if storage.schema is None:
            return {}
        table = storage.episodes()
        may = table["complete"] if self.whole else table["terminated"] | table["truncated"]
        ids = (table["id"] + base_of(self.numbers[tape])).tolist()
        groups, tasks = table["group"].tolist(), table["task"].tolist()
        return dict(zip(ids, zip(groups, tasks, may.tolist())))

    def there(self) -> dict[int, Member]:
        found = dict(self.gone)
        for tape in range(3):
            found |= self.missing[tape] if tape in self.missing else self.table(tape)
        return found

    def ready(self) -> tuple[set[tuple[int, ...]], int]:
        """Groups that are ready, after those that are too old were dropped; how many wait."""
        table = self.there()
        by_group: dict[int, list[int]] = {}
        for member, (group, task, _) in sorted(table.items()):
            if task != 3 and member not in self.done:
                by_group.setdefault(group, []).append(member)
        found: set[tuple[int, ...]] = set()
        waiting = 0
        for ids in by_group.values():
            size = self.size or len(ids)
            for at in range(0, len(ids), size):
                group = ids[at : at + size]
                whole = tuple(i for i in group if table[i][2])
                if len(whole) == size:
                    found.add(whole)
                elif self.ahead and self.drops:
                    self.done |= set(group)
                elif self.ahead and whole:
                    found.add(whole)
                else:
                    waiting += 1
        return found, waiting

    def enough(self, groups: set[tuple[int, ...]]) -> bool:
        if not self.consume:
            return bool(groups)
        if self.size is None:
            return sum(map(len, groups)) >= self.per_batch
        return len(groups) * self.size >= self.per_batch

    def sources(self) -> list[ShardReader]:
        return [r for r in self.readers if r is not None]

    def hear(self) -> None:
        spanning, sources = self.sampler.spanning, self.sources()
        assert spanning is not None
        numbers = [s.number for s in sources]
        spanning.hear(numbers, [s.report(a) for s, a in zip(sources, spanning.ask(numbers))])

    @rule(again=st.integers(0, 2))
    def draw(self, again: int) -> None:
        for _ in range(1 + again):
            self.draw_once()

    def draw_once(self) -> None:
        groups, _ = self.ready()
        mark = self.sampler.mark()
        request = self.sampler.request(self.per_batch)
        sources: list[Any] = list(self.sources())
        if not self.enough(groups):
            with pytest.raises((NothingEligibleError, EmptyBufferError)):
                read_shards(self.sampler, self.rng, sources, request, lambda source: None)
            return
        batch = read_shards(self.sampler, self.rng, sources, request, lambda source: None)
        members = self.members_of(batch)
        taken: list[tuple[int, ...]] = []
        at = 0
        while at < len(members):
            group = next(g for g in groups if g[0] == members[at])
            assert tuple(members[at : at + len(group)]) == group
            taken.append(group)
            at += len(group)
        if self.size is None:
            assert sum(map(len, taken)) >= self.per_batch > sum(map(len, taken[:-1]))
        else:
            assert len(taken) == self.groups
        if self.consume:
            assert len(set(taken)) == len(taken)
            drawn = {i for group in taken for i in group}
            assert len(drawn) == sum(map(len, taken))
            self.done |= drawn
            self.taken.append((self.sampler.taken(mark), drawn))

    def members_of(self, batch: Any) -> list[int]:
        firsts = batch["index"][np.flatnonzero(batch["is_init"])]
        found = []
        for index in firsts.tolist():
            reader = next(r for r in self.sources() if r.base == index >> 47 << 47)
            own = reader.index.view.trajectories_of(np.array([index - reader.base]))
            found.append(int(own[0]) + reader.base)
        return found

    @precondition(lambda self: self.taken and not self.missing and not self.gone)
    @rule(which=NUMBERS)
    def give_back(self, which: int) -> None:
        taken, drawn = self.taken.pop(which % len(self.taken))
        self.sampler.give_back(taken)
        self.done -= drawn

    @invariant()
    def what_is_ready(self) -> None:
        if not hasattr(self, "sampler"):
            return
        groups, waiting = self.ready()
        self.hear()
        spanning = self.sampler.spanning
        assert spanning is not None
        roster, pool = spanning.roster, spanning._pool
        assert pool == sorted(set(pool)) and len(pool) == roster.ready
        assert {tuple(roster.members(leader)) for leader in pool} == groups
        assert roster.waiting == waiting and roster.ready_members == sum(map(len, groups))
        alive = set(self.there())
        assert roster.done & alive == self.done & alive


TestSpans = Spans.TestCase
TestSpans.settings = settings(
    deadline=None,
    max_examples=80,
    stateful_step_count=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
