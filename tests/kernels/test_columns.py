"""join_columns and split_records: columns to records and back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native
from tests.reference import records

Array = np.ndarray[Any, Any]
# Around every size at which the copy changes its way.
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 100, 255, 256, 257, 600]


@st.composite
def tables(draw: Any) -> tuple[list[records.Leaf], int]:
    """Leaves at any offsets, gaps between them, in any order; and the record's size."""
    at, leaves = 0, []
    for nbytes in draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=6)):
        at += draw(st.integers(0, 9))
        leaves.append((at, nbytes))
        at += nbytes
    return draw(st.permutations(leaves)), max(at + draw(st.integers(0, 9)), 1)


def some_bytes(n: int, start: int) -> Array:
    return np.asarray((np.arange(n) * 31 + start) % 251, np.uint8)


def table(leaves: list[records.Leaf]) -> Array:
    return np.array(leaves, np.int64).ravel()


@given(tables(), st.integers(0, 9))
def test_join(leaves_and_size: Any, n: int) -> None:
    leaves, size = leaves_and_size
    columns = [some_bytes(n * nbytes, 17 * i) for i, (_, nbytes) in enumerate(leaves)]
    out = np.full(n * size + 5, 0xEE, np.uint8)
    _native.join_columns(columns, table(leaves), n, size, out)
    want = np.full((n, size), 0xEE, np.uint8)  # what no leaf covers stays as it was
    records.join(columns, leaves, n, want)
    assert out[: n * size].tobytes() == want.tobytes()
    assert out[n * size :].tolist() == [0xEE] * 5


@given(tables(), st.integers(0, 9), st.integers(0, 70))
def test_split(leaves_and_size: Any, n: int, gap: int) -> None:
    leaves, size = leaves_and_size
    rows = some_bytes(n * size, 3)
    starts, at = [], gap
    for _, nbytes in leaves:
        starts.append(at)
        at += n * nbytes + gap
    block = np.full(at, 0xEE, np.uint8)
    _native.split_records(rows, n, size, block, np.array(starts, np.int64), table(leaves))
    want = np.full(at, 0xEE, np.uint8)
    for start, column in zip(starts, records.split(rows.reshape(n, size), leaves)):
        want[start : start + column.size] = column.reshape(-1)
    assert block.tobytes() == want.tobytes()


@given(tables(), st.integers(1, 9))
def test_split_then_join_is_where_we_began(leaves_and_size: Any, n: int) -> None:
    leaves, size = leaves_and_size
    rows = some_bytes(n * size, 5)
    starts = np.cumsum([0, *(n * nbytes for _, nbytes in leaves)])
    block = np.zeros(starts[-1], np.uint8)
    _native.split_records(rows, n, size, block, starts[:-1], table(leaves))
    columns = [block[a:b] for a, b in itertools.pairwise(starts)]
    out = rows.copy()
    for offset, nbytes in leaves:
        out.reshape(n, size)[:, offset : offset + nbytes] = 0
    _native.join_columns(columns, table(leaves), n, size, out)
    assert out.tobytes() == rows.tobytes()


def test_reads_from_read_only_memory() -> None:
    rows = np.frombuffer(bytes(range(16)), np.uint8)
    block = np.zeros(16, np.uint8)
    starts = np.array([0, 8], np.int64)
    _native.split_records(rows, 2, 8, block, starts, table([(0, 4), (4, 4)]))
    assert block.tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]
    out = np.zeros(8, np.uint8)
    _native.join_columns([rows[:8]], table([(0, 4)]), 2, 4, out)
    assert out.tolist() == list(range(8))


@pytest.mark.parametrize("size", [7, 9, 0])
def test_a_column_of_the_wrong_size_raises(size: int) -> None:
    with pytest.raises(ValueError, match="wrong size"):
        column = np.zeros(size, np.uint8)
        _native.join_columns([column], table([(0, 4)]), 2, 4, np.zeros(8, np.uint8))


def test_an_output_too_small_raises() -> None:
    with pytest.raises(ValueError, match="too small"):
        column = np.zeros(8, np.uint8)
        _native.join_columns([column], table([(0, 4)]), 2, 4, np.zeros(7, np.uint8))


def test_too_few_records_raise() -> None:
    with pytest.raises(ValueError, match="too few"):
        starts = np.zeros(1, np.int64)
        _native.split_records(
            np.zeros(7, np.uint8), 2, 4, np.zeros(8, np.uint8), starts, table([(0, 4)])
        )
