"""Power is lost at any time: what was acknowledged as durable is there, byte for byte and once; a
row that is served is the one that the index means; what is missing is said."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import contig
from contig import StorageFull
from contig.tape.disk import DiskStorage
from contig.tape.disk.changes import Changes
from tests.tape.disk import stored
from tests.tape.disk.powerloss import Chooser, Disk, Transaction

KEPT = 40  # rows
STRIDE = 512
PRODUCERS = (1, 2)
DURING = 3  # sends while others are synced
LOCAL = 50
PARTS = 3
LOSSES = 6  # of a life
BOUNDS: dict[str, dict[str, Any]] = {
    "rows": {"capacity": KEPT},
    "bytes": {"capacity": 1 << 12, "max_bytes": KEPT * STRIDE},
    "everything": {"capacity": 1 << 12},
}

# What happens how often.
MIXES: dict[str, dict[str, int]] = {
    "appends": {"send": 35, "append": 25, "flush": 25, "fold": 8, "retain": 3, "empty": 2},
    "full": {"send": 10, "append": 20, "full": 30, "flush": 40, "fold": 1, "save": 2, "load": 2},
    "loads": {"send": 10, "append": 40, "flush": 20, "fold": 1, "empty": 2, "save": 15, "load": 15},
}

# One life after another, step by step: what comes back if a single sync is left out.
SCRIPTS: dict[str, list[str]] = {
    "full": ["append flush full short flush short flush full short flush full short flush"] * 2,
    "rows beyond": ["append fold append append flush", "short flush short flush short flush"] * 2,
    "loads": [
        "append append flush save append append append flush load append append flush append",
        "append flush load append flush load append append flush append append flush load append",
    ],
    "folds": ["append append fold append flush append flush fold append append flush append flush"],
    "links": ["append fold append append append append flush save", "append flush append flush"],
}

Row = tuple[int, int, int]  # writer, item, position


class Said(NamedTuple):
    """What an index says: its bounds, and which rows these are."""

    tail: int
    head: int
    rows: dict[int, Row]
    seen: dict[int, int]


class Saved(NamedTuple):
    """A checkpoint: when it was begun and finished, and its rows."""

    name: str
    begun: int
    done: int
    rows: list[Row]


class Acked(NamedTuple):
    """A flush: when it returned, the transaction it waited for, and what producers had sent."""

    time: int
    transaction: int
    sent: dict[int, int]


class Life:
    """A storage from its opening to the loss of power.

    Args:
        root: where it is, with checkpoints.
        options: of the storage.
        said: what its index says.
        saved: checkpoints that are there.
        chosen: random numbers.
    """

    def __init__(
        self,
        root: Path,
        options: dict[str, Any],
        said: Said,
        saved: list[Saved],
        chosen: random.Random,
    ) -> None:
        self.root, self.options, self.random = root, options, chosen
        self.rows = dict(said.rows)
        self.start = said
        self.next_local = chosen.randrange(1 << 20)  # not those that were lost
        self.sent: dict[int, int] = {}
        self.acked: list[Acked] = []
        self.saved = saved
        self.folded: list[tuple[int, Said]] = []  # when, and what is safe since
        self.loaded: list[int] = []  # when
        self.loading: list[Any] = []  # rows
        self.whole = True  # no row is known to be damaged
        self.disk = Disk(root, self.note)

    def note(self, changes: Changes | None) -> Said:
        if changes is None:
            return self.start
        if self.disk.replaced:
            rows = dict(zip(range(changes.tail, changes.head), self.loading))
        else:
            rows = {s: self.rows[s] for s in range(changes.tail, changes.head)}
        before = self.disk.transactions[-1].note.seen
        return Said(changes.tail, changes.head, rows, {**before, **changes.producers})

    def live(self, acked: dict[int, int], steps: list[str]) -> None:
        """Appends and all the rest; `acked`: what each producer knows to be safe."""
        with self.disk.recording():
            path = self.root / "store"
            with DiskStorage(path, example=stored.example(), **self.options) as storage:
                self.whole = not storage.quarantined
                self.storage = storage
                self.local = storage.writer()
                self.writers = {p: storage.native_writer(storage.schema) for p in PRODUCERS}
                self.writers[DURING] = storage.native_writer(storage.schema)
                self.sent = dict(acked)
                self.buffer = contig.ReplayBuffer(storage, contig.RandomSampler(), batch_size=4)
                for op in steps:
                    self.step(op)
                storage.flush()

    def step(self, op: str) -> None:
        if op == "send":
            self.send(self.random.choice(PRODUCERS), self.random.randrange(1, 4))
        elif op == "append":
            self.append()
        elif op == "short":
            self.append(range(1, 3))
        elif op == "full":
            self.disk.full = self.random.randrange(2, 5)
            self.disk.torn = self.random.choice((64, 600, 4096))
            with contextlib.suppress(StorageFull):
                while True:
                    self.append(range(8, 12))
            self.next_local += 1  # other rows will have these seqs
            self.disk.full = -1
        elif op == "flush":
            self.flush()
        elif op == "fold":
            assert self.storage.opened.committer is not None
            self.storage.flush()
            self.storage.opened.committer.fold()
            self.folded.append((self.disk.time, self.disk.transactions[-1].note))
        elif op == "retain":
            self.storage.retain()
        elif op == "empty":
            self.storage.empty()
        elif op == "save" and self.whole:
            self.save()
        elif op == "load" and self.saved:
            self.load()

    def flush(self) -> None:
        head, sent = self.storage.tape.snapshot()[0], dict(self.sent)
        if self.random.random() < 0.4 and not stored.has_any_size():
            self.disk.interlude = lambda: self.send(DURING, 1)
        self.storage.flush()
        self.disk.interlude = None
        last = self.disk.transactions[-1]
        assert last.note.head == head
        self.acked.append(Acked(self.disk.time, last.time, sent))

    def send(self, producer: int, count: int) -> None:
        """Some of the items again, and some more."""
        sent = self.sent.get(producer, 0)
        first = max(sent - self.random.randrange(3), 0)
        if not self.acked:
            first = sent  # all of them again, from what was acknowledged before
        data = stored.frame(self.storage, producer, first, sent - first + count, PARTS)
        frame = stored.received(data, self.storage.layout.record_size)
        head = self.storage.tape.snapshot()[0]
        seen, items, _, gap = self.writers[producer].accept(frame, producer, 1 << 62)
        assert not gap and seen >= sent + count
        self.sent[producer] = sent + count
        self.took(head, producer, range(seen - items, seen))

    def append(self, sizes: range = range(1, 12)) -> None:
        while len(stored.item(LOCAL, self.next_local)["fields"]) not in sizes:
            self.next_local += 1
        head = self.storage.tape.snapshot()[0]
        self.local.extend_trajectory(stored.item(LOCAL, self.next_local))
        self.took(head, LOCAL, range(self.next_local, self.next_local + 1))
        self.next_local += 1

    def took(self, head: int, writer: int, items: range) -> None:
        for number in items:
            for pos in range(len(stored.item(writer, number)["fields"])):
                self.rows[head] = (writer, number, pos)
                head += 1
        assert head == self.storage.tape.snapshot()[0]

    def save(self) -> None:
        name = f"checkpoint-{len(self.saved)}-{self.random.randrange(1 << 30)}"
        head, tail, _, _ = self.storage.tape.snapshot()
        begun = self.disk.time
        self.buffer.save(self.root / "saved" / name)
        rows = [self.rows[s] for s in range(tail, head)]
        self.saved.append(Saved(name, begun, self.disk.time, rows))

    def load(self) -> None:
        saved = self.random.choice(self.saved)
        self.loading = saved.rows
        self.buffer.load(self.root / "saved" / saved.name)
        self.loaded.append(self.disk.time)
        head, tail, _, _ = self.storage.tape.snapshot()
        assert len(saved.rows) == head - tail
        self.rows = {tail + i: row for i, row in enumerate(saved.rows)}

    # -- afterwards ----------------------------------------------------------------------------

    def lose(
        self, path: Path, outcomes: Counter[str], kept: dict[str, float] | None = None
    ) -> Said | None:
        """A loss at some time; checks what is found, and returns what the index says."""
        time = self.random.randrange(self.disk.time + 1) if kept is None else self.disk.time
        found = self.disk.found_at(time, Chooser(self.random, kept), path)
        if not (path / "store" / "layout.json").exists():
            assert not any(a.time <= time for a in self.acked) and not self.start.rows
            outcomes["new"] += 1
            return None
        assert found is not None
        try:
            self.check(path, time, found, outcomes)
        except BaseException as error:
            error.add_note(f"{self.options}, lost at {time} of {self.disk.time}; {found.time=}")
            raise
        said: Said = found.note
        return said

    def check(self, path: Path, time: int, found: Transaction, outcomes: Counter[str]) -> None:
        said: Said = found.note
        durable = self.options["durability"] == "durable"
        with DiskStorage(path / "store", **self.options) as storage:
            head, tail, _, _ = storage.tape.snapshot()
            assert (head, tail) == (said.head, said.tail)
            fields, served = stored.contents(storage)
            rows = [tuple(row) for row in fields[:, [0, 1, 3]].tolist()]
            for i in np.flatnonzero(served):
                assert rows[i] == said.rows[tail + i], f"row {tail + i}"
            if not served.all():
                assert storage.quarantined, "rows are missing, and nothing says so"
            if durable:
                assert served.all() and not storage.quarantined, storage.quarantined
                for acked in [a for a in self.acked if a.time <= time]:
                    assert found.time >= acked.transaction, "an acknowledged append is gone"
                    assert all(storage.tape.seen(p, 0) >= n for p, n in acked.sent.items())
            for when, then in self.folded:
                if when <= time and self.whole and not any(t > when for t in self.loaded):
                    past = [t.note.tail for t in self.disk.transactions if t.time <= time]
                    safe = range(max(tail, *past), then.head)  # the rest was let go
                    # Of others, a later part may be damaged, or the first was let go.
                    items = {r[1] for i, r in then.rows.items() if i < safe.start}
                    mine = [(s, then.rows[s]) for s in safe]
                    whole = [s - tail for s, r in mine if r[0] == LOCAL and r[1] not in items]
                    assert served[whole].all(), "rows were synced, but are gone"
            outcomes["whole" if served.all() else "partly"] += 1
            stored.check_episodes(storage)
        for saved in self.saved:
            there = (path / "saved" / saved.name).exists()
            assert there or saved.done > time, "a checkpoint that was finished is gone"
            if there and saved.begun <= time:
                self.check_saved(path / "saved" / saved.name, saved.rows)
                outcomes["checkpoints"] += 1

    @staticmethod
    def check_saved(path: Path, rows: list[Row]) -> None:
        with contig.LazyTensorStorage(1 << 12) as memory:
            contig.ReplayBuffer(memory, contig.RandomSampler(), batch_size=4).load(path)
            fields, served = stored.contents(memory)
            assert served.all()
            assert [tuple(row) for row in fields[:, [0, 1, 3]].tolist()] == rows


def live_and_lose(
    path: Path,
    chosen: random.Random,
    scripts: list[list[str]],
    options: dict[str, Any],
    losses: int,
) -> None:
    """Lives one after another, each in what a loss of power left of the one before."""
    outcomes: Counter[str] = Counter()
    nothing = Said(0, 0, {}, {})
    root, said = path / "0", nothing
    saved: list[Saved] = []
    for n, script in enumerate(scripts, 1):
        (root / "saved").mkdir(parents=True, exist_ok=True)
        life = Life(root, options, said, saved, chosen)
        life.live({p: said.seen.get(p, 0) for p in PRODUCERS}, script)
        for _ in range(losses):
            life.lose(path / "lost", outcomes)
        root = path / str(n)
        # What the index does not know is there, or anything.
        newest = {"data": 1.0, "names": 1.0, "index": 0.0} if losses > LOSSES else None
        said = life.lose(root, outcomes, newest) or nothing
        there = [s for s in life.saved if (root / "saved" / s.name).exists()]
        saved = [Saved(s.name, 0, 0, s.rows) for s in there]
    assert outcomes["whole"] + outcomes["partly"] > len(scripts), outcomes


def random_scripts(chosen: random.Random, mix: str) -> list[list[str]]:
    ops, weights = zip(*MIXES[mix].items())
    return [chosen.choices(ops, weights, k=chosen.randrange(10, 40)) for _ in range(3)]


def options_of(bounds: str, durability: str) -> dict[str, Any]:
    return {**BOUNDS[bounds], "rows_per_extent": stored.EXTENT, "durability": durability}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("durability", ("durable", "committed"))
def test_power_is_lost(fast_path: Path, durability: str, bounds: str, mix: str) -> None:
    chosen = random.Random(1)
    options = options_of(bounds, durability)
    live_and_lose(fast_path, chosen, random_scripts(chosen, mix), options, LOSSES)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script(fast_path: Path, script: str) -> None:
    steps = [life.split() for life in SCRIPTS[script]]
    live_and_lose(fast_path, random.Random(2), steps, options_of("everything", "committed"), 60)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 30))
@pytest.mark.parametrize("durability", ("durable", "committed"))
def test_soak(fast_path: Path, durability: str, seed: int) -> None:
    chosen = random.Random(seed)
    for bounds in BOUNDS:
        options = options_of(bounds, durability)
        for mix in MIXES:
            scripts = random_scripts(chosen, mix)
            live_and_lose(fast_path / mix / bounds, chosen, scripts, options, LOSSES)
        for name, lives in SCRIPTS.items():
            steps = [life.split() for life in lives]
            live_and_lose(fast_path / f"script {name}" / bounds, chosen, steps, options, LOSSES + 1)
