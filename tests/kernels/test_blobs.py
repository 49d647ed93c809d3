"""Leaves of any size by seq, as columns of offsets and values; around the ring, and packed."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import Blob, LazyTensorStorage, Ragged
from tests.reference.any_size import EXAMPLE, Ring, Row, check, columns

Array = np.ndarray[Any, Any]

sizes = st.tuples(st.integers(0, 20), st.integers(0, 5), st.integers(0, 5))
appends = st.lists(st.lists(sizes, min_size=1, max_size=12), min_size=1, max_size=8)


@given(st.integers(1, 16), st.integers(45, 200), appends, st.data())
@settings(max_examples=80)
def test_gathered_bytes_are_those_written(
    capacity: int, ring: int, appended: list[list[tuple[int, int, int]]], data: Any
) -> None:
    model = Ring(capacity, ring)
    known: dict[int, Row] = {}
    with LazyTensorStorage(capacity, example=EXAMPLE, blob_bytes=ring) as storage:
        for part in appended:
            rows = [Row(len(known) + k, *size) for k, size in enumerate(part)]
            known.update({row.uid: row for row in rows})
            form = data.draw(st.sampled_from(["lists", "columns"]))
            storage.default_writer.extend(columns(rows, form))
            assert model.append(rows) is not None
        head, tail, _, _ = storage.tape.snapshot()
        assert (head, tail) == (model.head, model.tail)
        seqs = data.draw(st.lists(st.integers(tail, head - 1), max_size=30)) if tail < head else []
        batch, lost = storage.gather(np.array(seqs, np.int64))
        assert lost == 0
        assert check(batch, known) == [model.rows[seq].uid for seq in seqs]


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=30), st.data())
def test_a_block_describes_itself(rows: list[list[int]], data: Any) -> None:
    """Offsets among the columns, values behind all of them, each at a multiple of 64 bytes."""
    example = {"a": Ragged(np.int32, (2,)), "b": Blob(), "c": np.int8(0)}
    with LazyTensorStorage(64, example=example) as storage:
        arrays = [np.array([[x, x] for x in row], np.int32).reshape(-1, 2) for row in rows]
        blobs = [bytes(row) for row in rows]
        n = len(rows)
        storage.default_writer.extend({"a": arrays, "b": blobs, "c": np.arange(n, dtype=np.int8)})
        batch, _ = storage.gather(np.arange(n))
        block = batch.block
        views = batch.layout.block_columns(n).views
        at = batch.layout.block_columns(n).nbytes
        for path, expected in (("a", np.concatenate(arrays)), ("b", b"".join(blobs))):
            number = batch.layout.number[(path,)]
            shape, dtype, start = views[number]
            assert shape == (n + 1,) and dtype == np.int64 and start % 64 == 0
            offsets = block[start : start + 8 * (n + 1)].view(np.int64)
            assert offsets.tolist() == np.cumsum([0, *map(len, rows)]).tolist()
            raw = expected if isinstance(expected, bytes) else expected.tobytes()
            assert at % 64 == 0 and block[at : at + len(raw)].tobytes() == raw
            at += -(-len(raw) // 64) * 64
        assert at == len(block)


def test_rows_that_are_lost_while_they_are_read_have_no_bytes() -> None:
    """Lengths of evicted rows are garbage: they must not be believed."""
    with LazyTensorStorage(4, example={"x": Blob(), "y": 0}, blob_bytes=32) as storage:
        storage.default_writer.extend({"x": [b"1234"] * 4, "y": np.arange(4)})
        storage.default_writer.extend({"x": [b"abcdefgh"] * 2, "y": np.arange(2)})
        batch, lost = storage.gather(np.array([0, 1, 4, 5]))
        assert lost == 2
        assert list(batch["x"])[2:] == [b"abcdefgh"] * 2
        assert batch["x"].lengths.tolist()[:2] == [0, 0]
