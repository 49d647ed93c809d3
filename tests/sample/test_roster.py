"""Trajectories and groups that are ready, kept by what changes, against making them up anew.

Trajectories begin, grow, end, change their group, are evicted, consumed, given back and loaded;
what may be drawn must always be what a look at the whole table says.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contig import LazyTensorStorage, NothingEligibleError, ReplayBuffer, TrajectorySampler
from contig.sample import Index, Rng

FIELDS = {"group": np.int64(0), "task": np.int32(0)}
NUMBERS = st.integers(0, 99)
_WAIT_S = 1000.0


def rows(uid: int, steps: int, done: bool) -> dict[str, Any]:
    ends = (np.arange(steps) == steps - 1) & done
    return {"x": np.full(steps, uid), "next": {"reward": np.ones(steps, np.float32), "done": ends}}


class Rosters(RuleBasedStateMachine):
    @initialize(
        capacity=st.integers(8, 30),
        size=st.sampled_from([None, 1, 2, 2, 3]),
        consume=st.booleans(),
        drops=st.booleans(),
        whole=st.booleans(),
        grouped=st.sampled_from([True, True, True, False]),
    )
    def begin(
        self,
        capacity: int,
        size: int | None,
        consume: bool,
        drops: bool,
        whole: bool,
        grouped: bool,
    ) -> None:
        self.size, self.consume, self.drops, self.whole = size, consume, drops, whole
        self.grouped = grouped
        options: dict[str, Any] = {"consume": consume or not grouped, "complete_only": whole}
        self.consume = options["consume"]
        if grouped:
            options |= {"group": "group", "group_size": size, "timeout_s": _WAIT_S}
            options["on_timeout"] = "drop" if drops else "release"
        self.per_batch = 2 * (size or 1) if grouped else 2
        self.sampler = TrajectorySampler(
            self.per_batch, where=("task", "!=", 3), fields=("task",), **options
        )
        self.ahead = 0.0
        self.sampler.clock = lambda: time.time() + self.ahead
        self.storage = LazyTensorStorage(capacity, fields=FIELDS)
        self.buffer = ReplayBuffer(self.storage, self.sampler, seed=capacity)
        self.open: list[tuple[Any, int]] = []
        self.uid = 0
        self.done: set[int] = set()
        self.marks: list[tuple[Any, Any, set[int]]] = []
        self.folder = tempfile.TemporaryDirectory()
        self.saved: list[tuple[Path, set[int]]] = []

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.buffer.close()
            self.storage.close()
            self.folder.cleanup()

    # -- what happens to the tape -----------------------------------------------------------------

    @rule(group=st.integers(0, 3), task=st.integers(0, 3), steps=st.integers(1, 4))
    def write(self, group: int, task: int, steps: int) -> None:
        self.uid += 1
        data, fields = rows(self.uid, steps, True), {"group": group, "task": task}
        self.storage.default_writer.extend_trajectory(data, terminated=True, fields=fields)

    @rule(groups=st.lists(st.integers(0, 3), min_size=3, max_size=8))
    def write_many(self, groups: list[int]) -> None:
        for group in groups:
            self.write(group, 0, 3)

    @rule(group=st.integers(0, 3))
    def start(self, group: int) -> None:
        self.uid += 1
        writer = self.storage.writer()
        writer.extend(rows(self.uid, 2, False), fields={"group": group})
        self.open.append((writer, self.uid))

    @precondition(lambda self: self.open)
    @rule(which=NUMBERS, done=st.booleans())
    def go_on(self, which: int, done: bool) -> None:
        writer, uid = self.open[which % len(self.open)]
        writer.extend(rows(uid, 1, done), continues=True)
        if done:
            self.open.remove((writer, uid))

    @precondition(lambda self: len(self.storage) > 0)
    @rule(which=NUMBERS, group=st.integers(0, 3), task=st.sampled_from([None, 1, 3]))
    def set_fields(self, which: int, group: int, task: int | None) -> None:
        ids = self.storage.episodes()["id"]
        fields = {"group": group} if task is None else {"task": task}
        assert self.storage.set_fields(ids[which % len(ids)], fields) == 1

    @rule()
    def empty(self) -> None:
        self.buffer.empty()
        self.open, self.marks, self.done = [], [], set()

    @precondition(lambda self: len(self.saved) < 2 and self.storage.schema is not None)
    @rule()
    def save(self) -> None:
        path = Path(self.folder.name) / str(len(self.saved))
        self.buffer.save(path)
        self.saved.append((path, set(self.done)))

    @precondition(lambda self: self.saved)
    @rule(which=NUMBERS)
    def load(self, which: int) -> None:
        path, done = self.saved[which % len(self.saved)]
        self.buffer.load(path)
        self.done, self.open, self.marks = set(done), [], []

    @rule()
    def mark(self) -> None:
        self.marks.append((self.sampler.mark(), self.buffer._rng.state(), set(self.done)))

    @precondition(lambda self: self.marks)
    @rule(which=NUMBERS)
    def rewind(self, which: int) -> None:
        self.marks = self.marks[: which % len(self.marks) + 1]
        mark, words, done = self.marks[-1]
        self.sampler.rewind(mark)
        self.buffer._rng.load(words)
        # What was dropped meanwhile is not given back: it is as old as it was.
        self.done = done | (self.done - self.taken_since(done))

    def taken_since(self, done: set[int]) -> set[int]:
        return (self.done - done) & self.taken

    @rule()
    def everybody_is_late(self) -> None:
        self.ahead = 2 * _WAIT_S

    # -- what is ready ----------------------------------------------------------------------------

    def ready(self) -> tuple[set[tuple[int, ...]], int]:
        """Groups that are ready, after those that are too old were dropped; how many wait."""
        table = self.storage.episodes()
        ended = table["terminated"] | table["truncated"]
        whole = dict(zip(table["id"].tolist(), (table["complete"] if self.whole else ended)))
        members: dict[int, list[int]] = {}
        for row in table:
            if row["task"] != 3 and int(row["id"]) not in self.done:
                key = int(row["group"]) if self.grouped else int(row["id"])
                members.setdefault(key, []).append(int(row["id"]))
        found: set[tuple[int, ...]] = set()
        waiting = 0
        for ids in members.values():
            size = self.size if self.grouped and self.size else len(ids)
            for at in range(0, len(ids), size):
                group = ids[at : at + size]
                if all(whole[i] for i in group) and len(group) == size:
                    found.add(tuple(group))
                elif self.grouped and self.ahead and self.drops:
                    self.done |= set(group)
                elif self.grouped and self.ahead and any(whole[i] for i in group):
                    found.add(tuple(i for i in group if whole[i]))
                elif not self.grouped and not self.whole:
                    found.add(tuple(group))  # as it is
                else:
                    waiting += self.grouped
        return found, waiting

    def enough(self, groups: set[tuple[int, ...]]) -> bool:
        if not self.consume:
            return bool(groups)
        if not self.grouped or self.size is None:
            return sum(map(len, groups)) >= self.per_batch
        return len(groups) * self.size >= self.per_batch

    @property
    def taken(self) -> set[int]:
        if not hasattr(self, "_taken"):
            self._taken: set[int] = set()
        return self._taken

    @rule()
    def draw(self) -> None:
        groups, waiting = self.ready()
        if not self.enough(groups):
            with pytest.raises((NothingEligibleError, RuntimeError)):
                self.buffer.sample()
            return
        batch = self.buffer.sample()
        ordinals = self.ordinals_of(batch)
        at = 0
        taken: list[tuple[int, ...]] = []
        while at < len(ordinals):
            group = next(g for g in groups if g[0] == ordinals[at])
            assert tuple(ordinals[at : at + len(group)]) == group
            taken.append(group)
            at += len(group)
        wanted = self.per_batch // (self.size or 1) if self.grouped else self.per_batch
        if self.grouped and self.size is None:
            assert sum(map(len, taken)) >= self.per_batch > sum(map(len, taken[:-1]))
        else:
            assert len(taken) == wanted
        stats = self.sampler.stats()
        if self.consume:
            assert len(set(taken)) == len(taken)
            self.done |= {i for group in taken for i in group}
            self.taken.update(i for group in taken for i in group)
            assert stats.ready == len(groups) - len(taken)
        else:
            assert stats.ready == len(groups) and stats.waiting == waiting

    def ordinals_of(self, batch: Any) -> list[int]:
        index = Index(self.storage)
        index.refresh()
        firsts = np.flatnonzero(batch["is_init"])
        return [int(i) for i in index.view.trajectories_of(batch["index"][firsts])]

    @invariant()
    def what_is_ready(self) -> None:
        """All that may be drawn, by drawing until nothing is left, with another sampler."""
        if not hasattr(self, "sampler") or self.storage.schema is None:
            return
        groups, waiting = self.ready()
        index, roster = self.buffer._index, self.sampler._roster
        assert roster is not None
        index.refresh()
        ready, _ = self.sampler._follow(index, roster)
        found = index.view.ordinals(ready.window, self.sampler._spec).tolist()
        if self.grouped:
            assert {tuple(roster.members(i)) for i in found} == groups
            assert len(found) == len(groups) and roster.waiting == waiting
            assert roster.ready_members == sum(map(len, groups))
        else:
            assert {(i,) for i in found} == groups
        alive = set(self.storage.episodes()["id"].tolist())
        assert roster.done & alive == self.done & alive


TestRosters = Rosters.TestCase
TestRosters.settings = settings(
    deadline=None,
    max_examples=80,
    stateful_step_count=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_what_it_costs() -> None:
    """Index work of a draw after a write does not depend on what is stored."""
    works = []
    for stored in (500, 8000):
        storage = LazyTensorStorage(3 * stored, fields=FIELDS)
        sampler = TrajectorySampler(4, group="group", group_size=2, where=("age", "<", 300))
        index, rng = Index(storage), Rng(0)
        writer = storage.default_writer
        for k in range(stored):
            writer.extend_trajectory(rows(k, 3, True), terminated=True, fields={"group": k // 2})
        for turn in range(2):
            before = int(index.view.work)
            for k in range(40):
                fields = {"group": 10**6 + 100 * turn + k // 2}
                writer.extend_trajectory(rows(k, 3, True), terminated=True, fields=fields)
                index.refresh()
                assert sampler.draw(index, rng, sampler.request(4)) is not None
        works.append((int(index.view.work) - before) / 40)
    assert works[1] < 2 * works[0] + 16, works
