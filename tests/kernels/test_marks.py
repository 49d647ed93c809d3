"""mark_slices: the flags that slices get in a gathered batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native
from tests.reference.marks import mark_slices

NAMES = ("init", "done", "terminated", "truncated", "slice_end")


@st.composite
def slices(draw: Any) -> tuple[list[int], list[int]]:
    lengths = draw(st.lists(st.integers(1, 5), max_size=6))
    return lengths, [draw(st.integers(1, n)) for n in lengths]


@given(st.data())
def test_marks(data: Any) -> None:
    lengths, real = data.draw(slices())
    rows = sum(lengths)
    present = {n: data.draw(st.booleans()) for n in NAMES}
    before: dict[str, Any] = {
        n: [data.draw(st.booleans()) for _ in range(rows)] if present[n] else None for n in NAMES
    }
    dtypes = {n: data.draw(st.sampled_from(["?", "u1", "i8", "f4", "f8"])) for n in NAMES}
    block = _native.Block(5 * 64 * (rows + 1))
    memory = np.frombuffer(block, np.uint8)
    memory[:] = 0xEE
    columns: list[Any] = []
    at = 0
    for name in NAMES:
        if before[name] is None:
            columns.append(None)
            continue
        column = np.array(before[name], dtypes[name])
        memory[at : at + column.nbytes] = column.view(np.uint8)
        columns.append((at, np.ones((), dtypes[name]).tobytes()))
        at += 64 * (rows + 1)
    ends = [data.draw(st.sampled_from([0, 2, 4, 6])) for _ in lengths]
    told = data.draw(st.booleans())
    arguments = (np.array(x, np.int64) for x in (lengths, real, ends))
    _native.mark_slices(block, *arguments, tuple(columns), told)
    want = mark_slices(before, lengths, real, ends, told)
    untouched = np.ones(len(memory), bool)
    for name, spec in zip(NAMES, columns):
        if spec is None:
            assert want[name] is None
            continue
        nbytes = rows * len(spec[1])
        column = memory[spec[0] : spec[0] + nbytes].view(dtypes[name])
        assert column.tolist() == [float(x) for x in want[name]]
        untouched[spec[0] : spec[0] + nbytes] = False
    assert (memory[untouched] == 0xEE).all()


def run(lengths: list[int], real: list[int], columns: tuple[Any, ...], size: int = 640) -> None:
    arguments = (np.array(x, np.int64) for x in (lengths, real, [0] * len(lengths)))
    _native.mark_slices(_native.Block(size), *arguments, columns, False)


@pytest.mark.parametrize(
    ("lengths", "real"), [([2], [3]), ([2], [0]), ([-1], [1]), ([2], [-1]), ([2, 2], [1])]
)
def test_lengths_that_cannot_be_raise(lengths: list[int], real: list[int]) -> None:
    with pytest.raises(ValueError, match="mark_slices"):
        run(lengths, real, (None,) * 5)


def test_a_column_past_the_block_raises() -> None:
    with pytest.raises(ValueError, match="past the block"):
        run([10], [10], ((635, b"\x01"), None, None, None, None))
    with pytest.raises(ValueError, match="past the block"):
        run([100], [10], (None, None, None, None, (0, b"\x01" * 8)))
