"""ColumnArrays: the columns of a block as numpy's arrays, as `numpy.ndarray` would make them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native

Array = np.ndarray[Any, Any]
DTYPES = [np.dtype(x) for x in ("bool", "u1", "i2", "f4", "i8", "f8", "c16", ">f4")]
Views = list[tuple[tuple[int, ...], np.dtype[Any], int]]


@st.composite
def columns(draw: Any) -> tuple[Views, int]:
    """Columns anywhere in a block, and its size."""
    views, size = [], draw(st.integers(0, 9))
    for _ in range(draw(st.integers(0, 6))):
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
        dtype = draw(st.sampled_from(DTYPES))
        offset = draw(st.integers(0, 70))
        views.append((shape, dtype, offset))
        size = max(size, offset + int(np.prod(shape)) * dtype.itemsize)
    return views, size


@given(columns(), st.booleans(), st.integers(0, 7))
def test_they_are_what_numpy_makes(made: tuple[Views, int], writable: bool, shift: int) -> None:
    views, size = made
    memory = np.arange(shift + size, dtype=np.uint8)[shift:]
    memory.flags.writeable = writable
    found = _native.ColumnArrays(views).over(memory)
    wanted = [np.ndarray(shape, dtype, memory, offset) for shape, dtype, offset in views]
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.strides == other.strides
        assert one.tobytes() == other.tobytes()
        assert str(one.flags) == str(other.flags)
        if one.size:
            assert one.ctypes.data == other.ctypes.data


def test_an_array_keeps_its_block() -> None:
    arrays = _native.ColumnArrays([((4,), np.dtype("i8"), 64)])
    block = _native.Block(128)
    (array,) = arrays.over(block)
    array[:] = [3, 1, 4, 1]
    assert array.base is block
    del block
    gc.collect()
    others = [_native.Block(128) for _ in range(20)]
    for other in others:
        np.frombuffer(other, np.uint8)[:] = 0
    assert array.tolist() == [3, 1, 4, 1]


@pytest.mark.parametrize("size", [0, 63, 64, 95])
def test_blocks_that_are_too_small_are_refused(size: int) -> None:
    arrays = _native.ColumnArrays([((), np.dtype("u1"), 0), ((4,), np.dtype("i8"), 64)])
    with pytest.raises(ValueError, match=f"a block of {size} bytes is too small for"):
        arrays.over(bytearray(size))


@pytest.mark.parametrize(
    "view",
    [
        ((2**61, 2**61), np.dtype("i8"), 0),
        ((2**63 - 1,), np.dtype("i8"), 0),
        ((-1,), np.dtype("i8"), 0),
        ((1,), "i8", 0),
        ((1,), np.dtype("i8"), -1),
        ((1,), np.dtype("i8")),
        None,
    ],
)
def test_views_that_are_none_are_refused(view: Any) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError, OverflowError)):
        _native.ColumnArrays([view])


def test_what_is_no_memory_is_refused() -> None:
    with pytest.raises((TypeError, BufferError)):
        _native.ColumnArrays([((1,), np.dtype("u1"), 0)]).over(3)
