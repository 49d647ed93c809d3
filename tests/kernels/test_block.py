"""Block: pooled memory that arrays keep alive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native

Array = np.ndarray[Any, Any]


def array(block: Any) -> Array:
    return np.frombuffer(block, np.uint8)


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=12))
def test_blocks_are_aligned_writable_and_as_long_as_asked(sizes: list[int]) -> None:
    for size in sizes:
        block = _native.Block(size)
        view = array(block)
        assert len(block) == view.nbytes == size
        assert view.ctypes.data % 64 == 0
        view[:] = 1


def test_a_block_of_nothing() -> None:
    block = _native.Block(0)
    assert len(block) == 0
    assert memoryview(block).nbytes == 0


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 255), st.booleans()), max_size=40))
def test_living_blocks_do_not_share_memory(steps: Any) -> None:
    alive: list[tuple[Array, int]] = []
    for size, value, drop in steps:
        if drop and alive:
            alive.pop(len(alive) // 2)
        view = array(_native.Block(size))
        view[:] = value
        alive.append((view, value))
        for other, mark in alive:
            assert (other == mark).all()


@pytest.mark.parametrize("size", [1, 1024, 5000, 100_000])
def test_memory_is_used_again_after_the_last_array_is_gone(size: int) -> None:
    block = _native.Block(size)
    view = array(block)
    at = view.ctypes.data
    del block
    inner = view[size // 2 :]
    del view
    held = [_native.Block(size) for _ in range(3)]
    assert at not in {array(b).ctypes.data for b in held}  # `inner` still shows it
    del inner
    assert array(_native.Block(size)).ctypes.data == at


def test_an_array_keeps_what_it_shows() -> None:
    views = []
    for i in range(20):
        view = array(_native.Block(3000))
        view[:] = i
        views.append(view[100:200])
        del view
    scribbles = [array(_native.Block(3000)) for _ in range(20)]
    for s in scribbles:
        s[:] = 0xFF
    assert [set(v.tolist()) for v in views] == [{i} for i in range(20)]


@pytest.mark.parametrize("size", [-1, 1.5, "1", None])
def test_a_size_that_is_none_raises(size: Any) -> None:
    with pytest.raises(TypeError):
        _native.Block(size)
