"""Random appends, bounds, checkpoints and openings against a list of rows.

After each step the rows and the table of episodes must be the model's; so must those that a reader
sees after a flush, those of the storage when it is opened again, and those of its checkpoints.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import contig
import contig.tape.disk.following as following
import contig.tape.disk.retention as retention
from contig.tape.disk import DiskStorage
from tests.tape.disk import stored
from tests.tape.disk.conftest import MEMORY

STRIDE = 512
PARTS = 3  # items of a trajectory
WRITERS = 3

capacities = st.sampled_from([12, 16, 24, 37, 1 << 12])
counts = st.one_of(st.none(), st.integers(1, 5))


class Row(NamedTuple):
    """Of a writer's item; the step of a trajectory, of which number `ordinal` is what is left."""

    writer: int
    item: int
    pos: int
    ordinal: int
    step: int
    begun: bool  # the first step was its first
    done: bool


class Model:
    """All rows ever appended; those from `tail` on are there."""

    def __init__(self, capacity: int, max_rows: int | None, max_episodes: int | None) -> None:
        self.capacity, self.max_rows, self.max_episodes = capacity, max_rows, max_episodes
        self.rows: list[Row] = []
        self.tail = self.committed_tail = self.trajectories = 0
        self.open: dict[int, int] = {}  # writer -> the last seq of its trajectory
        self.cut: set[int] = set()  # writers amid a trajectory of which nothing is known

    @property
    def head(self) -> int:
        return len(self.rows)

    def append(self, writer: int, item: int, whole: bool) -> None:
        done = stored.item(writer, item, 1 if whole else PARTS)["next"]["done"]
        last = self.open.pop(writer, None)
        step = 0 if last is None else self.rows[last].step
        begun = writer not in self.cut if last is None else self.rows[last].begun
        self.cut.discard(writer)
        self.tail = max(self.tail, self.head + len(done) - self.capacity)
        if last is not None and last >= self.tail:
            ordinal = self.rows[last].ordinal
        else:  # a new one, or nothing is left of it
            ordinal, self.trajectories = self.trajectories, self.trajectories + 1
        for i, ends in enumerate(done):
            self.rows.append(Row(writer, item, i, ordinal, step + i + 1, begun, bool(ends)))
        if not done[-1]:
            self.open[writer] = self.head - 1
        self.retain()

    def fit(self, capacity: int) -> None:
        """Opened with a capacity, which changes nothing on the disk."""
        self.capacity = capacity
        self.tail = max(self.committed_tail, self.head - capacity)

    def retain(self) -> None:
        keep_from = self.tail
        if self.max_rows is not None:
            keep_from = max(keep_from, self.head - self.max_rows)
        if self.max_episodes is not None:
            live = range(self.tail, self.head)
            newest = sorted({self.rows[s].ordinal for s in live})[-self.max_episodes :]
            first = next((s for s in live if self.rows[s].ordinal >= newest[0]), self.head)
            keep_from = max(keep_from, first)
        self.tail = self.committed_tail = keep_from

    def empty(self) -> None:
        self.tail = self.committed_tail = self.head

    def episodes(self) -> list[tuple[Any, ...]]:
        """(id, first, steps, return, terminated, trimmed, complete), by id."""
        out = []
        live: dict[int, list[int]] = {}
        for seq in range(self.tail, self.head):
            live.setdefault(self.rows[seq].ordinal, []).append(seq)
        for ordinal, seqs in sorted(live.items()):
            first, last = self.rows[seqs[0]], self.rows[seqs[-1]]
            trimmed = first.step > 1
            whole = last.done and last.begun and not trimmed
            out.append((ordinal, seqs[0], len(seqs), float(last.step), last.done, trimmed, whole))
        return out


def check(storage: contig.Storage, model: Model) -> None:
    head, tail, _, _ = storage.tape.snapshot()
    assert (tail, head) == (model.tail, model.head)
    assert len(storage) == head - tail
    fields, served = stored.contents(storage)
    assert served.all() and not storage.quarantined
    rows = [tuple(row) for row in fields[:, [0, 1, 3]].tolist()]
    assert rows == [(r.writer, r.item, r.pos) for r in model.rows[tail:]]
    columns = ("id", "first", "steps", "return", "terminated", "trimmed", "complete")
    assert storage.episodes()[list(columns)].tolist() == model.episodes()


class Storages(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        folder = MEMORY if os.access(MEMORY, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="contig-machine-", dir=folder))
        self.storage: DiskStorage | None = None
        self.reader: DiskStorage | None = None
        self.saved: list[tuple[Path, Model]] = []
        self.items = dict.fromkeys(range(1000), 0)

    @initialize(capacity=capacities, max_rows=counts, max_episodes=counts, durable=st.booleans())
    def begin(
        self, capacity: int, max_rows: int | None, max_episodes: int | None, durable: bool
    ) -> None:
        max_rows = None if max_rows is None else 6 * max_rows
        self.model = Model(capacity, max_rows, max_episodes)
        self.durability = "durable" if durable else "committed"
        self.open()

    def open(self) -> None:
        model = self.model
        self.storage = DiskStorage(
            self.folder / "store",
            model.capacity,
            max_bytes=None if model.max_rows is None else model.max_rows * STRIDE,
            max_episodes=model.max_episodes,
            durability=self.durability,
            rows_per_extent=stored.EXTENT,
            example=stored.example(),
        )
        self.buffer = contig.ReplayBuffer(self.storage, contig.RandomSampler(), batch_size=4)
        self.writers = [self.storage.writer() for _ in range(WRITERS)]
        model.open.clear()
        model.cut.clear()
        for writer in range(WRITERS):  # what was open stays open, and the next is a new one
            for who in (writer, stored.SINGLE + writer):
                self.items[who] = -(-self.items[who] // PARTS) * PARTS

    def teardown(self) -> None:
        for storage in (self.reader, self.storage):
            if storage is not None:
                storage.close()
        shutil.rmtree(self.folder)

    # -- writing ------------------------------------------------------------------------------

    @rule(writer=st.integers(0, WRITERS - 1), count=st.integers(1, 3))
    def extend(self, writer: int, count: int) -> None:
        for _ in range(count):
            item, self.items[writer] = self.items[writer], self.items[writer] + 1
            self.writers[writer].extend(stored.item(writer, item, PARTS))
            self.model.append(writer, item, whole=False)

    @rule(writer=st.integers(0, WRITERS - 1))
    def extend_trajectory(self, writer: int) -> None:
        who = 10 + writer
        item, self.items[who] = self.items[who], self.items[who] + 1
        self.writers[writer].extend_trajectory(stored.item(who, item))
        self.model.append(who, item, whole=True)
        self.model.cut.discard(writer)  # what the writer appends next begins anew

    @rule(count=st.integers(1, 4))
    def add(self, count: int) -> None:
        who = stored.SINGLE
        for _ in range(count):
            item, self.items[who] = self.items[who], self.items[who] + 1
            self.adder.add(stored.first_row(stored.item(who, item, PARTS)))
            self.model.append(who, item, whole=False)

    @property
    def adder(self) -> Any:
        assert self.storage is not None
        return self.storage.default_writer

    @rule()
    def retain(self) -> None:
        assert self.storage is not None
        self.storage.retain()
        self.model.retain()

    @rule()
    def empty(self) -> None:
        assert self.storage is not None
        self.storage.empty()
        self.model.empty()

    # -- openings ------------------------------------------------------------------------------

    @rule()
    def follow(self) -> None:
        """A reader sees what is committed."""
        assert self.storage is not None
        self.storage.flush()
        if self.reader is None:
            path, capacity = self.folder / "store", self.model.capacity
            self.reader = DiskStorage(path, capacity, read_only=True)
        self.reader.poll()
        check(self.reader, self.model)

    @rule(capacity=capacities)
    def open_again(self, capacity: int) -> None:
        assert self.storage is not None
        if self.reader is not None:  # of another capacity
            self.reader.close()
            self.reader = None
        self.storage.close()
        self.model.fit(capacity)
        self.open()

    # -- checkpoints ---------------------------------------------------------------------------

    @precondition(lambda self: len(self.saved) < 3)
    @rule()
    def save(self) -> None:
        path = self.folder / f"checkpoint-{len(self.saved)}"
        self.buffer.save(path)
        self.saved.append((path, copy.deepcopy(self.model)))

    @precondition(lambda self: self.saved)
    @rule(number=st.integers(0, 2))
    def load(self, number: int) -> None:
        path, then = self.saved[number % len(self.saved)]
        self.buffer.load(path)
        self.take(then)

    def take(self, then: Model) -> None:
        model = self.model
        model.rows, model.trajectories = list(then.rows), then.trajectories
        model.cut |= set(model.open)
        model.open.clear()
        model.tail = model.committed_tail = max(then.tail, model.head - model.capacity)
        for who in (*range(WRITERS), stored.SINGLE):
            self.items[who] = -(-self.items[who] // PARTS) * PARTS

    @precondition(lambda self: self.saved)
    @rule(number=st.integers(0, 2), capacity=capacities)
    def load_elsewhere(self, number: int, capacity: int) -> None:
        path, then = self.saved[number % len(self.saved)]
        then = copy.deepcopy(then)
        then.committed_tail = then.tail
        then.fit(capacity)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        with DiskStorage(folder, capacity, rows_per_extent=stored.EXTENT) as other:
            buffer = contig.ReplayBuffer(other, contig.RandomSampler(), batch_size=4)
            buffer.load(path)
            check(other, then)
        with DiskStorage(folder, capacity) as other:
            check(other, then)

    @invariant()
    def is_as_the_model(self) -> None:
        if self.storage is not None:
            check(self.storage, self.model)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_POLL_S", 0.0)
    monkeypatch.setattr(retention, "_LOOK_S", 0.0)


# Without the search for a shorter example: it takes minutes.
_PHASES = [Phase.explicit, Phase.generate]
Storages.TestCase.settings = settings(max_examples=40, stateful_step_count=30, phases=_PHASES)
TestStorages = Storages.TestCase


@pytest.mark.soak
def test_soak() -> None:
    many = settings(max_examples=1500, stateful_step_count=50, phases=_PHASES)
    run_state_machine_as_test(Storages, settings=many)
