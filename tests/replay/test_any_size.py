"""Leaves of any size in a buffer, against a naive tape: evictions by rows and by bytes, rings that
are lapped at every offset, every sampler, refused appends, checkpoints."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contig import (
    Batch,
    Blob,
    DiskStorage,
    FifoSampler,
    LayoutError,
    LazyTensorStorage,
    LifoSampler,
    NothingEligibleError,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    Ragged,
    RandomSampler,
    ReplayBuffer,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    Storage,
    WindowSampler,
)
from tests.reference.any_size import EXAMPLE, Ring, Row, check, columns

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "uniform": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "prioritized": PrioritizedSampler,
    "slices": lambda: SliceSampler(slice_len=2),
    "padded slices": lambda: SliceSampler(slice_len=3, pad_output=True),
    "burnt in": lambda: SliceSampler(slice_len=2, burn_in=2),
    "slices once": lambda: SliceSamplerWithoutReplacement(slice_len=2),
    "prioritized slices": lambda: PrioritizedSliceSampler(slice_len=2),
    "window": lambda: WindowSampler(RandomSampler(), last_rows=5),
    "newest": LifoSampler,
    "oldest": FifoSampler,
}

lengths = st.one_of(st.just(0), st.integers(0, 4), st.integers(0, 40))


class Buffers(RuleBasedStateMachine):
    @staticmethod
    def storage_of(capacity: int, ring: int, example: Any = None) -> Storage:
        return LazyTensorStorage(capacity, example=example, blob_bytes=ring)

    @initialize(capacity=st.integers(1, 12), ring=st.integers(1, 150))
    def start(self, capacity: int, ring: int) -> None:
        self.model = Ring(capacity, ring)
        self.storage = self.storage_of(capacity, ring, EXAMPLE)
        self.buffer = ReplayBuffer(self.storage, seed=0, output="numpy")
        self.known: dict[int, Row] = {}
        self.lanes: dict[int, str] = {}  # of rows by number: those of one may follow each other

    def make(self, sizes: list[tuple[int, int, int]], done: bool, lane: str = "rows") -> list[Row]:
        rows = []
        for blob, text, tokens in sizes:
            row = Row(len(self.known), blob, text, tokens, done and len(rows) + 1 == len(sizes))
            self.known[row.uid] = row
            self.lanes[row.uid] = lane
            rows.append(row)
        return rows

    def append(self, rows: list[Row], call: Callable[[], Any]) -> None:
        head, before = self.model.head, self.storage.tape.snapshot()
        kept = self.model.append(rows)
        if kept is None:
            with pytest.raises(ValueError, match="blob_bytes"):
                call()
            assert self.storage.tape.snapshot() == before
            return
        seqs = np.atleast_1d(call())
        assert seqs.tolist() == list(range(head, head + kept)) or kept == 0

    @rule(size=st.tuples(lengths, lengths, lengths), done=st.booleans())
    def add(self, size: tuple[int, int, int], done: bool) -> None:
        (row,) = self.make([size], done)
        self.append([row], lambda: self.buffer.add(row.tree()))

    @rule(
        sizes=st.lists(st.tuples(lengths, lengths, lengths), min_size=1, max_size=15),
        form=st.sampled_from(["lists", "columns", "objects", "batch", "rows"]),
        done=st.booleans(),
    )
    def extend(self, sizes: list[tuple[int, int, int]], form: str, done: bool) -> None:
        rows = self.make(sizes, done)
        data: Any = columns(rows, form)
        if form == "batch":
            data = Batch.from_tree(columns(rows, "columns"))
        elif form == "rows":
            data = [row.tree() for row in rows]
        self.append(rows, lambda: self.buffer.extend(data))

    @rule(sizes=st.lists(st.tuples(lengths, lengths, lengths), min_size=1, max_size=6))
    def extend_trajectory(self, sizes: list[tuple[int, int, int]]) -> None:
        rows = self.make(sizes, True, f"trajectory at {len(self.known)}")
        self.append(rows, lambda: self.buffer.extend_trajectory(columns(rows)))

    @rule(mask=st.lists(st.booleans(), min_size=3, max_size=3), data=st.data())
    def add_step(self, mask: list[bool], data: Any) -> None:
        sizes = [(data.draw(lengths), 1, 2) for _ in range(3)]
        rows = [self.make([size], False, f"env {env}")[0] for env, size in enumerate(sizes)]
        kept = [row for row, wanted in zip(rows, mask) if wanted]
        # A storage of fewer rows evicts runs of one row each with them; the model knows no runs.
        if kept and self.model.capacity >= 3:
            self.append(kept, lambda: self.buffer.add_step(columns(rows), mask=mask))

    @precondition(lambda self: self.model.there())
    @rule(name=st.sampled_from(sorted(SAMPLERS)), n=st.sampled_from([6, 12]))
    def sample(self, name: str, n: int) -> None:
        buffer = ReplayBuffer(self.storage, SAMPLERS[name](), seed=n, output="numpy")
        there = {row.uid for row in self.model.there()}
        for _ in range(1 if name in ("newest", "oldest") else 2):  # which deliver a row once
            batch = buffer.sample(n)
            assert set(check(batch, self.known)) <= there
            assert [self.model.rows[seq].uid for seq in batch["index"]] == batch["uid"].tolist()

    @precondition(lambda self: self.model.there())
    @rule(n=st.integers(1, 4))
    def n_steps(self, n: int) -> None:
        """Leaves at the root are of the first row of each group, those below next of its last."""
        buffer = ReplayBuffer(self.storage, NStepSampler(n, 0.5), seed=n, output="numpy")
        batch = buffer.sample(8)
        rows = self.model.rows
        for i, (first, steps) in enumerate(zip(batch["index"], batch["steps_to_next_obs"])):
            assert batch["blob"][i] == rows[first].raw and batch["text"][i] == rows[first].string
            # Rows of other envs, and other trajectories, may lie between those of a group.
            lane = self.lanes[rows[first].uid]
            group = [row for row in rows[first:] if self.lanes[row.uid] == lane][:steps]
            assert len(group) == steps and not any(row.done for row in group[:-1])
            assert np.array_equal(batch["next", "tokens"][i], group[-1].array)

    @rule()
    def save_and_load(self) -> None:
        if self.storage.schema is None:
            return
        with tempfile.TemporaryDirectory() as folder:
            self.buffer.save(Path(folder) / "saved")
            for make in (self.storage_of, Buffers.storage_of):
                with make(self.model.capacity, self.model.ring) as storage:
                    other = ReplayBuffer(storage, seed=1, output="numpy")
                    other.load(Path(folder) / "saved")
                    assert check(other[:], self.known) == [row.uid for row in self.model.there()]
            # In place of what is there: rows keep their seqs.
            self.buffer.load(Path(folder) / "saved")

    @rule()
    def empty(self) -> None:
        self.buffer.empty()
        self.model.tail = self.model.head

    @invariant()
    def rows_are_there_with_their_bytes(self) -> None:
        if not hasattr(self, "model") or self.storage.schema is None:
            return
        there = self.model.there()
        assert len(self.buffer) == len(there)
        assert check(self.buffer[:], self.known) == [row.uid for row in there]
        assert sum(row.nbytes for row in there) <= self.storage.blob_bytes <= self.model.ring

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.storage.close()


TestBuffers = Buffers.TestCase
TestBuffers.settings = settings(max_examples=40, stateful_step_count=20)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("ring", range(1, 30))
def test_rings_are_lapped_at_every_offset(ring: int, size: int) -> None:
    model = Ring(8, ring)
    with LazyTensorStorage(8, example=EXAMPLE, blob_bytes=ring) as storage:
        buffer = ReplayBuffer(storage, seed=0)
        known = {}
        for uid in range(60):
            row = Row(uid, (uid * size) % (ring + 1))
            if row.nbytes > ring:
                continue
            known[uid] = row
            model.append([row])
            buffer.add(row.tree())
            assert check(buffer[:], known) == [r.uid for r in model.there()]


def test_one_leaf_of_any_size_is_a_whole_row() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(4, example={"x": Blob()}), batch_size=3, seed=0)
    buffer.extend({"x": [b"a", b"", b"ccc"]})
    assert list(buffer[:]["x"]) == [b"a", b"", b"ccc"]
    assert set(buffer.sample()["x"]) <= {b"a", b"", b"ccc"}


def test_lanes_are_lists_of_lists() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10, ndim=2), batch_size=4)
    buffer.extend({"x": [["a", "bb", ""], ["d", "e", "f"]], "y": np.arange(6).reshape(2, 3)})
    assert list(buffer[:]["x"]) == ["a", "bb", "", "d", "e", "f"]
    assert buffer.storage.episodes()["steps"].tolist() == [3, 3]


def test_the_first_write_tells_what_a_leaf_is() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10), batch_size=2)
    buffer.add({"name": "é", "data": b"12", "y": 1})
    assert buffer.storage.layout is not None
    kinds = {x.path[0]: x.kind for x in buffer.storage.layout.leaves}
    assert kinds == {"name": "text", "data": "blob", "y": "fixed"}
    buffer.extend({"name": ["a", "b"], "data": [b"", b"x"], "y": np.arange(2)})
    assert list(buffer[:]["name"]) == ["é", "a", "b"]


def test_a_transform_sees_columns_and_may_change_them() -> None:
    seen: list[int] = []

    def transform(batch: Batch) -> Batch:
        tokens = batch["next", "tokens"]
        seen.extend(tokens.lengths.tolist())
        return batch.with_leaves({("next", "tokens"): Ragged(tokens.values + 1, tokens.offsets)})

    storage = LazyTensorStorage(10, example=EXAMPLE)
    buffer = ReplayBuffer(storage, transform=transform)
    rows = [Row(uid, uid, 1, uid) for uid in range(4)]
    buffer.add(rows[0].tree())
    buffer.extend(columns(rows[1:3]))
    buffer.add_step(columns(rows[3:]))
    assert seen == [0, 1, 2, 3]
    for row, tokens in zip(rows, buffer[:]["next", "tokens"]):
        assert np.array_equal(tokens, row.array + 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"text": ["a", b"\xff", "c"]}, ['"text", row 1', "UTF-8"]),
        ({"text": ["a", "\ud800", "c"]}, ['"text", row 1', "UTF-8"]),
        ({"blob": [b"a", "b", b"c"]}, ['"blob", row 1', "a str", "Blob(text=True)"]),
        ({"blob": [b"a", 3, b"c"]}, ['"blob", row 1', "a int", "bytes"]),
        ({"blob": [b"a", b"b"]}, ["2", "3", "rows"]),
        ({"blob": np.zeros((3, 2))}, ['"blob"', "float64 [3, 2]", "bytes"]),
        ({"tokens": [np.zeros((2, 2)), np.zeros((2, 3)), []]}, ["tokens", "[2, 3]", "[n, 2]"]),
        ({"tokens": [np.zeros((1, 2)), np.full((1, 2), 0.5), []]}, ["tokens", "0.5", "int16"]),
        ({"tokens": [np.full((1, 2), 70000), [], []]}, ["tokens", "70000", "int16"]),
        ({"tokens": np.zeros((3, 2, 3))}, ["tokens", "[3, 2, 3]", "[n, length, 2]"]),
        ({"blob": None}, ['"blob": None', "bytes of any length", "give a value"]),
        ({"tokens": None}, ['("next", "tokens"): None', "int16[*, 2]"]),
        ({"blob": [b"x" * 65, b"", b""]}, ['"blob"', "row 0 has 65 bytes", "64", "blob_bytes"]),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(change: Any, says: list[str]) -> None:
    storage = LazyTensorStorage(10, example=EXAMPLE, blob_bytes=64)
    buffer = ReplayBuffer(storage)
    buffer.add(Row(0, 3, 3, 3).tree())
    data = columns([Row(uid, 1, 1, 1) for uid in range(1, 4)])
    data["next"].update({k: v for k, v in change.items() if k == "tokens"})
    data.update({k: v for k, v in change.items() if k != "tokens"})
    before = storage.tape.snapshot(), storage.blob_bytes
    with pytest.raises(ValueError) as error:
        buffer.extend(data)
    for words in says:
        assert words in str(error.value), str(error.value)
    assert (storage.tape.snapshot(), storage.blob_bytes) == before
    assert check(buffer[:], {0: Row(0, 3, 3, 3)}) == [0]


def test_a_refused_first_row_fixes_no_layout() -> None:
    storage = LazyTensorStorage(10)
    with pytest.raises(ValueError, match="UTF-8"):
        storage.default_writer.extend({"x": ["a", "\ud800"], "y": np.arange(2)})
    assert storage.schema is None
    storage.default_writer.extend({"x": np.zeros(2), "y": np.arange(2)})


@pytest.mark.parametrize("leaf", [Ragged(np.float32), Blob(), Blob(text=True)])
@pytest.mark.parametrize(
    "path",
    [("next", "reward"), ("reward",), ("next", "done"), ("truncated",), ("is_init",)]
    + [("collector", "traj_ids"), ("collector", "policy_version")],
)
def test_what_marks_trajectories_has_a_fixed_shape(path: tuple[str, ...], leaf: Any) -> None:
    example: dict[str, Any] = {"x": 0.0}
    node = example
    for key in path[:-1]:
        node = node.setdefault(key, {})
    node[path[-1]] = leaf
    with pytest.raises(LayoutError, match=f'"{path[-1]}".*give it a fixed shape'):
        LazyTensorStorage(10, example=example)


def test_other_leaves_of_any_size_are_other_layouts() -> None:
    storage = LazyTensorStorage(10, example=EXAMPLE)
    with pytest.raises(LayoutError, match="text of any length, expected bytes of any length"):
        LazyTensorStorage(10, example={"x": b""}).publish(
            LazyTensorStorage(10, example={"x": ""}).layout  # type: ignore[arg-type]
        )
    with pytest.raises(LayoutError, match="another layout"):
        storage.publish(LazyTensorStorage(4, example={"x": b""}).layout)  # type: ignore[arg-type]


def test_nothing_eligible_is_still_an_error() -> None:
    buffer = ReplayBuffer(
        LazyTensorStorage(10, example=EXAMPLE), SliceSampler(slice_len=4, strict_length=True)
    )
    buffer.extend(columns([Row(0, 1), Row(1, 2)]))
    with pytest.raises(NothingEligibleError):
        buffer.sample(4)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_an_append_larger_than_the_ring_leaves_no_hole_in_its_trajectory(
    kind: str, tmp_path: Path
) -> None:
    """Rows that get no seq are older than none that stays."""
    options = {"example": {"at": 0, "x": b"", "done": False}, "blob_bytes": 100}
    storage: Any
    if kind == "memory":
        storage = LazyTensorStorage(50, **options)
    else:
        storage = DiskStorage(tmp_path / "tape", 50, **options)
    with storage:
        writer = storage.writer()
        writer.extend({"at": np.arange(5), "x": [b"a"] * 5, "done": np.zeros(5, bool)})
        sizes = (60, 60, 39)  # of the first, which does not fit, there is no row
        last = {"at": np.arange(5, 8), "x": [b"b" * n for n in sizes], "done": np.zeros(3, bool)}
        writer.extend(last, continues=True)
        (episode,) = storage.episodes()
        assert episode["steps"] == len(storage) == 2 and episode["trimmed"]
        rows = storage.read_episode(episode["id"])
        assert rows["at"].tolist() == [6, 7] and [len(x) for x in rows["x"]] == [60, 39]
        buffer = ReplayBuffer(storage, SliceSampler(slice_len=3), batch_size=6, seed=0)
        for _ in range(20):
            batch = buffer.sample()
            assert [len(x) for x in batch["x"]] == [sizes[at - 5] for at in batch["at"].tolist()]


def test_threads_read_batches_of_different_sizes_from_one_storage(tmp_path: Path) -> None:
    """What one of them gathers without the GIL is placed where its own batch has it."""
    example = {"at": 0, "x": b"", "done": False}
    failed: list[BaseException] = []
    with DiskStorage(tmp_path / "tape", 1000, example=example, blob_bytes=1 << 20) as storage:
        at = np.arange(500)
        storage.writer().extend({"at": at, "x": [b"%d" % i for i in at], "done": at % 50 == 49})

        def read(size: int) -> None:
            buffer = ReplayBuffer(storage, batch_size=size, seed=size)
            try:
                for _ in range(300):
                    batch = buffer.sample()
                    assert [int(x) for x in batch["x"]] == batch["at"].tolist()
                    assert batch["index"].tolist() == batch["at"].tolist()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=read, args=(n,)) for n in (3, 64, 400)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed, failed[0]
