"""Random appends, bounds, checkpoints and openings against the model of a tape.

After each step the rows and the table of episodes must be the model's; so must those that a reader
sees after a flush, those of the storage when it is opened again, and those of its checkpoints.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

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
from tests.tape.model import IF_OPEN, NEW, Form, ModelTape, ModelWriter, Row, Whole

STRIDE = 512
PARTS = 3  # items of a trajectory
WRITERS = 3

capacities = st.sampled_from([12, 16, 24, 37, 1 << 12])
counts = st.one_of(st.none(), st.integers(1, 5))


FORM = Form()
WHOLE = Whole(terminated=True, truncated=False, traj_id=-1, version=-1)


def identity(writer: int, item: int, pos: int) -> int:
    return writer << 40 | item << 8 | pos


def lane(writer: int, item: int, parts: int) -> list[Row]:
    """The rows of an item, for the model; all rewards are 1."""
    done = stored.item(writer, item, parts)["next"]["done"]
    return [
        Row(identity(writer, item, pos), writer, bool(ends), reward=1.0)
        for pos, ends in enumerate(done)
    ]


def check(storage: contig.Storage, tape: ModelTape) -> None:
    head, tail, _, _ = storage.tape.snapshot()
    assert (tail, head) == (tape.tail, tape.head)
    assert len(storage) == len(tape)
    fields, served = stored.contents(storage)
    assert served.all() and not storage.quarantined
    rows = [identity(*row) for row in fields[:, [0, 1, 3]].tolist()]
    assert rows == [tape.row(seq).uid for seq in range(tail, head)]
    columns = ("id", "first", "steps", "return", "terminated", "trimmed", "complete")
    assert storage.episodes()[list(columns)].tolist() == [
        (id, p.seqs[0], len(p), p.of.ret, p.of.terminated, p.start > 0, p.complete)
        for id, p in tape.pieces().items()
    ]


class Storages(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        folder = MEMORY if os.access(MEMORY, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="contig-machine-", dir=folder))
        self.storage: DiskStorage | None = None
        self.reader: DiskStorage | None = None
        self.saved: list[tuple[Path, ModelTape]] = []
        self.items = dict.fromkeys(range(1000), 0)

    @initialize(capacity=capacities, max_rows=counts, max_episodes=counts, durable=st.booleans())
    def begin(
        self, capacity: int, max_rows: int | None, max_episodes: int | None, durable: bool
    ) -> None:
        max_rows = None if max_rows is None else 6 * max_rows
        self.model = self.tape(capacity, max_rows, max_episodes)
        self.durability = "durable" if durable else "committed"
        self.open()

    def tape(self, capacity: int, *bounds: int | None) -> ModelTape:
        return ModelTape(capacity, FORM, *bounds)

    def options(self) -> dict[str, Any]:
        """Of the storage, for the model's bounds."""
        most = self.model.max_rows
        return {"max_bytes": None if most is None else most * STRIDE}

    def open(self) -> None:
        model = self.model
        self.storage = DiskStorage(
            self.folder / "store",
            model.capacity,
            max_episodes=model.max_trajectories,
            durability=self.durability,
            rows_per_extent=stored.EXTENT,
            example=stored.example(),
            **self.options(),
        )
        self.buffer = contig.ReplayBuffer(self.storage, contig.RandomSampler(), batch_size=4)
        self.writers = [self.storage.writer() for _ in range(WRITERS)]
        self.models = {who: ModelWriter(who) for who in (*range(WRITERS), stored.SINGLE)}
        self.begin_trajectories()  # what was open stays open

    def begin_trajectories(self) -> None:
        """The next item of each writer is the first of a trajectory."""
        for who in self.models:
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
            item = self.next_item(writer)
            given = self.given(writer, item)
            self.writers[writer].extend(stored.item(writer, item, PARTS), **given)
            self.model.append(self.models[writer], [lane(writer, item, PARTS)], IF_OPEN)

    @rule(writer=st.integers(0, WRITERS - 1))
    def extend_trajectory(self, writer: int) -> None:
        who = 10 + writer
        item = self.next_item(who)
        self.writers[writer].extend_trajectory(stored.item(who, item), **self.given(who, item))
        self.model.append(self.models[writer], [lane(who, item, 1)], NEW, WHOLE)

    @rule(count=st.integers(1, 4))
    def add(self, count: int) -> None:
        who = stored.SINGLE
        for _ in range(count):
            item = self.next_item(who)
            row = stored.first_row(stored.item(who, item, PARTS))
            self.adder.add(row, **self.given(who, item))
            self.model.append(self.models[who], [lane(who, item, PARTS)], IF_OPEN)

    def given(self, who: int, item: int) -> dict[str, Any]:
        """What an append gives of fields; none here."""
        return {}

    @property
    def adder(self) -> Any:
        assert self.storage is not None
        return self.storage.default_writer

    def next_item(self, who: int) -> int:
        self.items[who] += 1
        return self.items[who] - 1

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
        self.check(self.reader, self.model)

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
    @rule(number=st.integers(0, 2), amid=st.booleans())
    def load(self, number: int, amid: bool) -> None:
        """`amid`: of trajectories, which are open before; what comes after is no beginning."""
        path, then = self.saved[number % len(self.saved)]
        if amid:
            for who in range(WRITERS):
                self.extend(who, 1)
        self.buffer.load(path)
        self.model.load(then)
        for writer in self.models.values():
            writer.cut()
        self.begin_trajectories()
        if amid:
            for who in range(WRITERS):
                self.extend(who, PARTS)

    @precondition(lambda self: self.saved)
    @rule(number=st.integers(0, 2), capacity=capacities)
    def load_elsewhere(self, number: int, capacity: int) -> None:
        path, then = self.saved[number % len(self.saved)]
        elsewhere = self.tape(capacity)
        elsewhere.load(then)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        with DiskStorage(folder, capacity, rows_per_extent=stored.EXTENT) as other:
            buffer = contig.ReplayBuffer(other, contig.RandomSampler(), batch_size=4)
            buffer.load(path)
            self.check(other, elsewhere)
        with DiskStorage(folder, capacity) as other:
            self.check(other, elsewhere)

    @invariant()
    def is_as_the_model(self) -> None:
        if self.storage is not None:
            self.check(self.storage, self.model)

    def check(self, storage: contig.Storage, tape: ModelTape) -> None:
        check(storage, tape)


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
