"""FifoSampler and LifoSampler: exact orders, each item so many times."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import contig
from contig import FifoSampler, LifoSampler, NothingEligibleError, ReplayBuffer
from contig.testing import World
from tests.sample.drawing import SCENES

scenes = pytest.mark.parametrize("scene", SCENES)


def buffer_of(world: World, sampler: Any, batch_size: int = 4) -> ReplayBuffer:
    return ReplayBuffer(world.storage, sampler, batch_size=batch_size)


def drained(buffer: ReplayBuffer) -> list[int]:
    """The seqs of everything the sampler still gives."""
    out: list[int] = []
    while True:
        try:
            out += buffer.sample()["index"].tolist()
        except NothingEligibleError as error:
            assert "delivered" in str(error)
            return out


def rows(n: int, capacity: int = 100) -> World:
    world = World(contig.LazyTensorStorage(capacity))
    world.extend(n)
    return world


# -- rows -----------------------------------------------------------------------------------------


@scenes
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_fifo_order(scene: str, times: int, batch_size: int) -> None:
    world = SCENES[scene]()
    got = drained(buffer_of(world, FifoSampler(max_times_sampled=times), batch_size))
    assert got == [s for s in sorted(world.stored()) for _ in range(times)]


@scenes
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_lifo_order(scene: str, times: int, batch_size: int) -> None:
    world = SCENES[scene]()
    got = drained(buffer_of(world, LifoSampler(max_times_sampled=times), batch_size))
    assert got == [s for s in sorted(world.stored(), reverse=True) for _ in range(times)]


def test_fifo_goes_on_with_new_rows() -> None:
    world = rows(6)
    buffer = buffer_of(world, FifoSampler())
    assert drained(buffer) == list(range(6))
    world.extend(3)
    assert drained(buffer) == [6, 7, 8]


def test_fifo_skips_and_counts_what_was_evicted() -> None:
    world = rows(10, capacity=10)
    sampler = FifoSampler()
    buffer = buffer_of(world, sampler)
    assert buffer.sample()["index"].tolist() == [0, 1, 2, 3]
    world.extend(7)  # evicts rows 0 to 6; 4, 5 and 6 had not come yet
    assert drained(buffer) == list(range(7, 17))
    assert sampler.skipped == 3


def test_fifo_counts_nothing_skipped_that_was_delivered_before_empty() -> None:
    world = rows(6)
    sampler = FifoSampler()
    buffer = buffer_of(world, sampler)
    assert drained(buffer) == list(range(6))
    buffer.empty()
    world.extend(2)
    assert drained(buffer) == [6, 7]
    assert sampler.skipped == 0


def test_fifo_repeats_over_batches() -> None:
    buffer = buffer_of(rows(4), FifoSampler(max_times_sampled=3), 5)
    assert buffer.sample()["index"].tolist() == [0, 0, 0, 1, 1]
    assert buffer.sample()["index"].tolist() == [1, 2, 2, 2, 3]
    assert buffer.sample()["index"].tolist() == [3, 3]


def test_fifo_row_evicted_between_its_repetitions() -> None:
    world = rows(4, capacity=4)
    buffer = buffer_of(world, FifoSampler(max_times_sampled=3), 5)
    assert buffer.sample()["index"].tolist() == [0, 0, 0, 1, 1]
    world.extend(2)  # evicts 0 and 1
    assert buffer.sample()["index"].tolist() == [2, 2, 2, 3, 3]


def test_lifo_gives_newer_rows_first() -> None:
    world = rows(6)
    buffer = buffer_of(world, LifoSampler())
    assert buffer.sample()["index"].tolist() == [5, 4, 3, 2]
    world.extend(3)
    assert buffer.sample()["index"].tolist() == [8, 7, 6, 1]
    world.extend(1)
    assert drained(buffer) == [9, 0]


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_lifo_never_exceeds_its_times(times: int, batch_size: int) -> None:
    # Newer rows come in while a row is being repeated.
    world = rows(5)
    buffer = buffer_of(world, LifoSampler(max_times_sampled=times), batch_size)
    counts: Counter[int] = Counter()
    for _ in range(6):
        counts.update(buffer.sample()["index"].tolist())
        world.extend(1)
    counts.update(drained(buffer))
    assert counts == dict.fromkeys(world.stored(), times)


def test_lifo_under_eviction() -> None:
    world = rows(10, capacity=10)
    buffer = buffer_of(world, LifoSampler())
    assert buffer.sample()["index"].tolist() == [9, 8, 7, 6]
    world.extend(7)
    assert drained(buffer) == list(range(16, 9, -1))


# -- trajectories ---------------------------------------------------------------------------------


def episodes_in(world: World, seqs: list[int]) -> list[int]:
    """Numbers of the whole episodes that these rows are, one after another."""
    whole = world.episodes()
    out, at = [], 0
    while at < len(seqs):
        number = world.step_at[seqs[at]][0]
        assert seqs[at : at + len(whole[number])] == whole[number]
        out.append(number)
        at += len(whole[number])
    return out


@scenes
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_whole_trajectories_in_order(scene: str, times: int, batch_size: int) -> None:
    world = SCENES[scene]()
    complete = [n for n in world.episodes() if world.complete(n)]
    first = FifoSampler(per="trajectories", max_times_sampled=times)
    last = LifoSampler(per="trajectories", max_times_sampled=times)
    fifo = episodes_in(world, drained(buffer_of(world, first, batch_size)))
    lifo = episodes_in(world, drained(buffer_of(world, last, batch_size)))
    assert fifo == [n for n in complete for _ in range(times)]
    assert lifo == [n for n in reversed(complete) for _ in range(times)]


def test_trajectory_that_completes_late_is_still_delivered() -> None:
    for sampler in (FifoSampler(per="trajectories"), LifoSampler(per="trajectories")):
        world = World(contig.LazyTensorStorage(100))
        world.extend(3, number=50, end=None)
        world.extend(4)
        buffer = buffer_of(world, sampler, 1)
        assert episodes_in(world, buffer.sample()["index"].tolist()) == [1]
        with pytest.raises(NothingEligibleError, match="complete trajectory"):
            buffer.sample()
        world.extend(2, number=50, start=3)
        assert episodes_in(world, buffer.sample()["index"].tolist()) == [50]
        with pytest.raises(NothingEligibleError):
            buffer.sample()


def test_trajectories_are_marked_as_slices() -> None:
    world = World(contig.LazyTensorStorage(100))
    world.extend(3)
    world.extend(2, end="truncated")
    batch = buffer_of(world, FifoSampler(per="trajectories"), 2).sample()
    assert batch["is_init"].tolist() == [True, False, False, True, False]
    assert batch["next", "terminated"].tolist() == [False, False, True, False, False]
    assert batch["next", "truncated"].tolist() == [False, False, False, False, True]
    assert not batch["collector", "slice_end"].any()


@pytest.mark.parametrize("kind", [FifoSampler, LifoSampler])
@pytest.mark.parametrize("arguments", [{"per": "slices"}, {"max_times_sampled": 0}])
def test_arguments_that_make_no_sense(kind: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        kind(**arguments)
