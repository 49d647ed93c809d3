"""A draw after a write costs what was written since the last one, whatever is stored.

Counted, not timed: entries of the index that are read, weights that are computed and rows that are
listed (`view.work`), and memory that Python allocates. Every sampler, option and window of the
benchmark `growth_samplers` is held to it.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from benchmarks.growth_samplers import CASES, Tape
from contig import ReplayBuffer

SMALL, LARGE = 4_000, 128_000
names = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def tapes() -> Iterator[dict[int, Tape]]:
    made = {rows: Tape(rows) for rows in (SMALL, LARGE)}
    yield made
    for tape in made.values():
        tape.storage.close()


def work_of(tape: Tape, name: str, rounds: int) -> int:
    """Index work of so many rounds of writing 16 rows and drawing a batch."""
    sampler, options = CASES[name]()
    with ReplayBuffer(tape.storage, sampler, seed=0, **options) as buffer:
        for _ in range(4):  # the first draw looks at everything
            tape.write()
            buffer.sample()
        before = buffer._index.view.work
        for _ in range(rounds):
            tape.write()
            buffer.sample()
        return int(buffer._index.view.work) - before


@names
def test_index_work_does_not_grow_with_what_is_stored(tapes: dict[int, Tape], name: str) -> None:
    small, large = (work_of(tapes[rows], name, 40) for rows in (SMALL, LARGE))
    # 32 times the rows: searches may take five steps more, and no pass is as cheap as that.
    assert large < 3 * small + 40 * 16, f"{small / 40:.0f} a draw, then {large / 40:.0f}"


@names
def test_memory_does_not_grow_with_what_is_stored(tapes: dict[int, Tape], name: str) -> None:
    sampler, options = CASES[name]()
    with ReplayBuffer(tapes[LARGE].storage, sampler, seed=0, **options) as buffer:
        for _ in range(4):
            tapes[LARGE].write()
            buffer.sample()
        peaks = []
        tracemalloc.start()
        try:
            for _ in range(6):
                tapes[LARGE].write()
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                buffer.sample()
                peaks.append(tracemalloc.get_traced_memory()[1] - before)
        finally:
            tracemalloc.stop()
    # One byte per stored row is more than any batch here.
    assert min(peaks) < LARGE, f"{min(peaks)} bytes in a draw"


@names
def test_going_back_needs_no_copy_of_what_is_stored(tapes: dict[int, Tape], name: str) -> None:
    # A mark is taken before each batch that is drawn ahead.
    sampler, options = CASES[name]()
    options["prefetch"] = 0
    with ReplayBuffer(tapes[LARGE].storage, sampler, seed=0, **options) as buffer:
        buffer.sample()
        tracemalloc.start()
        try:
            marks = [buffer._mark() for _ in range(10)]
            size = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(marks) == 10 and size < LARGE // 8, f"{size // 10} bytes a mark"


@names
def test_index_work_of_a_turn_of_the_ring(name: str) -> None:
    # What is put off, such as giving up the places of evicted trajectories, is no more than what
    # was written either; and so are rows that a window passes by.
    works = []
    for rows in (2_000, 8_000):
        tape = Tape(rows, long_every=500)
        works.append(work_of(tape, name, 2 * rows // 16) / (2 * rows))
        tape.storage.close()
    assert works[1] < 2 * works[0] + 2, f"{works[0]:.1f} for each row written, then {works[1]:.1f}"
