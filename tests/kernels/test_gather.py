"""Rows by seq: into the columns of a block, and as records; around the ring and across extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import Batch, LazyTensorStorage, _native
from contig.tape.schema import ExtraLeaf
from tests.reference import records, trees

Array = np.ndarray[Any, Any]


def write(storage: LazyTensorStorage, ring: records.Ring, specs: Any, n: int, at: int) -> None:
    """Appends n rows; each row's values tell how many were written before it."""
    many = trees.fill(specs, (at + n,))
    storage.default_writer.extend(trees.rebuild(many, lambda _, a: a[at:]))
    ring.extend([trees.rebuild(many, lambda _, a, i=i: a[i]) for i in range(at, at + n)])


def expect(ring: records.Ring, specs: Any, seqs: list[int]) -> Any:
    """The tree of columns that these rows make."""
    rows = [dict(trees.walk(row)) for row in ring.gather(seqs)]

    def column(path: Any, spec: Any) -> Array:
        return np.array([row[path] for row in rows], spec.dtype).reshape(len(seqs), *spec.shape)

    return trees.rebuild(specs, column)


wide = st.builds(
    trees.Spec,
    # Leaf sizes around those at which the copy changes its way: 4, 8, 16, 256 bytes.
    st.sampled_from([(), (1,), (2,), (3,), (5,), (7,), (9,), (63,), (64,), (65,), (0,), (2, 3)]),
    st.sampled_from(trees.DTYPES),
)
mappings = st.dictionaries(st.sampled_from("abcdefg"), wide, min_size=1, max_size=5)


@given(
    mappings, st.integers(1, 30), st.lists(st.integers(1, 45), min_size=1, max_size=6), st.data()
)
@settings(max_examples=80)
def test_gathered_columns_are_the_rows_written(
    specs: Any, capacity: int, appends: list[int], data: Any
) -> None:
    with LazyTensorStorage(capacity) as storage:
        ring, at = records.Ring(capacity), 0
        for n in appends:
            write(storage, ring, specs, n, at)
            at += n
        head, tail, _, _ = storage.tape.snapshot()
        assert (head, tail) == (ring.head, ring.tail)
        seqs = data.draw(st.lists(st.integers(tail, head - 1), max_size=40))
        batch, lost = storage.gather(np.array(seqs, np.int64))
        assert lost == 0
        assert trees.same(batch.tree(), expect(ring, specs, seqs))


@given(st.integers(1, 20), st.lists(st.integers(1, 25), min_size=1, max_size=6), st.data())
def test_gathered_records_are_the_records_written(
    capacity: int, appends: list[int], data: Any
) -> None:
    example = {"x": np.zeros(5, np.int64), "y": np.zeros(3, np.uint8)}
    with LazyTensorStorage(capacity, example=example) as storage:
        assert storage.layout is not None
        size = storage.layout.record_size
        ring, at = records.Ring(capacity), 0
        for n in appends:
            rows = (np.arange(at * size, (at + n) * size) * 7 % 251).astype(np.uint8)
            rows = rows.reshape(n, size)
            storage.default_writer.append_records(rows)
            ring.extend(list(rows))
            at += n
        seqs = data.draw(st.lists(st.integers(ring.tail, ring.head - 1), max_size=40))
        out = np.full((len(seqs) + 1, size), 0xEE, np.uint8)
        assert storage.tape.gather_records(np.array(seqs, np.int64), out.reshape(-1)) == 0
        assert out[:-1].tolist() == [row.tolist() for row in ring.gather(seqs)]
        assert (out[-1] == 0xEE).all()


@pytest.mark.parametrize(
    ("kilobytes", "capacity"), [(700, 11), (1024, 9), (2500, 3), (5000, 2)], ids=str
)
def test_rows_of_several_extents(kilobytes: int, capacity: int) -> None:
    # Extents are 4 MB: here of 4, 4, 1 and 1 rows.
    width = kilobytes * 128
    with LazyTensorStorage(capacity) as storage:
        written = 0
        for n in (1, 2, capacity, 1, 3):
            seqs = np.arange(written, written + n)
            x = np.arange(width) + 1000 * seqs[:, None]
            storage.default_writer.extend({"x": x, "seq": seqs})
            head, tail, _, _ = storage.tape.snapshot()
            # Rows of an append larger than the ring are dropped before they get a seq.
            skipped = seqs[-1] - (head - 1)
            rows = np.arange(tail, head)
            batch, lost = storage.gather(rows[::-1].copy())
            assert lost == 0
            got = batch["seq"][::-1]
            assert (
                got[-min(n, capacity) :].tolist() == (rows + skipped)[-min(n, capacity) :].tolist()
            )
            assert (batch["x"] == np.arange(width) + 1000 * batch["seq"][:, None]).all()
            written += n


def test_a_row_that_was_evicted_is_reported() -> None:
    with LazyTensorStorage(4) as storage:
        storage.default_writer.extend({"x": np.arange(4)})
        storage.default_writer.extend({"x": np.arange(4, 7)})
        assert storage.gather(np.array([3, 6]))[1] == 0
        assert storage.gather(np.array([6, 2, 5]))[1] == 3  # the tail: what is below it is gone
        out = np.zeros(8, np.uint8)
        assert storage.tape.gather_records(np.array([2]), out) == 3
        assert storage.tape.gather_records(np.array([3]), out) == 0
        assert out.view(np.int64)[0] == 3


def test_an_emptied_tape_has_lost_everything() -> None:
    with LazyTensorStorage(4) as storage:
        storage.default_writer.extend({"x": np.arange(3)})
        storage.empty()
        assert storage.gather(np.array([2]))[1] == 3


@given(st.integers(0, 20))
def test_extra_leaves_start_as_zeros_and_index_holds_the_seqs(n: int) -> None:
    extras: Any = (
        (("index",), (), np.dtype(np.int64)),
        (("a", "mask"), (3,), np.dtype(bool)),
        (("zz",), (), np.dtype(np.float32)),
    )
    with LazyTensorStorage(8) as storage:
        storage.default_writer.extend({"a": {"x": np.arange(8.0)}, "y": np.arange(8)})
        for _ in range(2):  # the second block is the first one's memory, no longer zeros
            seqs = np.arange(n) % 8
            batch, lost = storage.gather(seqs, extras)
            assert lost == 0
            assert batch["index"].tolist() == seqs.tolist()
            assert batch["a", "x"].tolist() == seqs.tolist()
            assert batch["y"].tolist() == seqs.tolist()
            assert not batch["a", "mask"].any()
            assert batch["a", "mask"].shape == (n, 3)
            assert not batch["zz"].any()
            batch.block[:] = 0xFF
            del batch


def test_batches_keep_the_rows_they_had() -> None:
    with LazyTensorStorage(6) as storage:
        taken = []
        for step in range(30):
            storage.default_writer.extend({"x": np.full((2, 3), step), "step": np.full(2, step)})
            head, tail, _, _ = storage.tape.snapshot()
            batch, _ = storage.gather(np.arange(tail, head))
            taken.append((batch.tree(), [s // 2 for s in range(tail, head)]))
            del batch
    for tree, steps in taken:  # the storage is closed, the ring was overwritten ten times
        assert tree["step"].tolist() == steps
        assert tree["x"].tolist() == [[s] * 3 for s in steps]


def test_a_gather_of_more_than_a_megabyte() -> None:
    with LazyTensorStorage(1000) as storage:
        x = np.arange(1000 * 300).reshape(1000, 300)
        storage.default_writer.extend({"x": x})
        seqs = np.random.default_rng(0).integers(0, 1000, 5000)
        batch, lost = storage.gather(seqs)
        assert lost == 0
        assert np.array_equal(batch["x"], x[seqs])


@given(st.data(), mappings, st.integers(1, 30), st.integers(0, 20), st.integers(0, 20))
@settings(max_examples=60)
def test_parts_of_one_block(data: Any, specs: Any, rows: int, first: int, second: int) -> None:
    """Several tapes fill one block: each row is where it would be, with its tape's number added."""
    index = (ExtraLeaf(("index",), (), np.dtype(np.int64)),)
    with LazyTensorStorage(rows) as storage:
        write(storage, records.Ring(rows), specs, rows, 0)
        picked = st.integers(0, rows - 1)
        seqs = [
            np.array(data.draw(st.lists(picked, min_size=n, max_size=n)), np.int64)
            for n in (first, second)
        ]
        whole, _ = storage.gather(np.concatenate(seqs), index)
        wide, total = storage.wide(index, None), first + second
        block = _native.Block(wide.layout.block_columns(total).nbytes)
        for part, at, base in ((seqs[0], 0, 0), (seqs[1], first, 7 << 47)):
            assert wide.gatherer.gather_at(part, block, total, at, base) == (0, None)
        parts = Batch(block, wide.layout, (total,), wide.extras)
        whole["index"][first:] += 7 << 47
        for path in list(whole.keys()):
            assert np.array_equal(parts[path], whole[path], equal_nan=True)
        with pytest.raises(ValueError, match="more rows than the block has"):
            wide.gatherer.gather_at(np.zeros(1, np.int64), block, total, total, 0)
        with pytest.raises(ValueError, match="too small"):
            wide.gatherer.gather_at(np.zeros(1, np.int64), _native.Block(1), 1000, 0, 0)
