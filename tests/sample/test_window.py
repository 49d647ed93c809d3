"""WindowSampler: every bound holds for every sampler inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import (
    FifoSampler,
    LifoSampler,
    NothingEligibleError,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    WindowSampler,
)
from contig.sample import Index, Request, Rng, Sampler
from contig.testing import World
from contig.testing.world import stream
from tests.sample.drawing import (
    agrees,
    draw,
    per_step,
    per_trajectory,
    slice_starts,
    starts_of,
    uniform,
)


def versions(capacity: int) -> World:
    """Episodes of growing policy version, single, interleaved, and one under two versions."""
    world = World(contig.LazyTensorStorage(capacity))
    for k in range(4):
        world.version = 2 * k
        world.extend(4)
        world.interleave(2, 4)
        world.extend(3, end="truncated")
    number = 100
    world.extend(3, number=number, end=None)
    world.version += 1
    world.extend(3, number=number, start=3)
    world.extend(5)
    return world


INNER: dict[str, tuple[Callable[[], Sampler], int]] = {
    "random": (RandomSampler, 1),
    "retiring": (lambda: RandomSampler(2), 1),
    "without replacement": (SamplerWithoutReplacement, 1),
    "prioritized": (PrioritizedSampler, 1),
    "n-step": (lambda: NStepSampler(2, 0.9), 1),
    "fifo": (FifoSampler, 1),
    "lifo": (LifoSampler, 1),
    "slices": (lambda: SliceSampler(slice_len=3), 3),
    "slices over steps": (lambda: SliceSampler(slice_len=3, over="steps"), 3),
    "slices without replacement": (lambda: SliceSamplerWithoutReplacement(slice_len=3), 3),
    "prioritized slices": (lambda: PrioritizedSliceSampler(slice_len=3), 3),
}


def allowed(world: World, bounds: dict[str, int]) -> set[int]:
    rows = world.stored()
    if "last_rows" in bounds:
        rows = {s for s in rows if s > max(rows) - bounds["last_rows"]}
    if "last_trajectories" in bounds:
        # Episodes are numbered as they began, apart from number 100, the last but one.
        began = sorted(world.episodes(), key=lambda n: world.episodes()[n][0])
        newest = began[-bounds["last_trajectories"] :]
        rows = {s for s in rows if world.step_at[s][0] in newest}
    if "max_staleness" in bounds:
        rows = {s for s in rows if world.version_at[s] >= world.version - bounds["max_staleness"]}
    return rows


BOUNDS: list[dict[str, int]] = [
    {"last_rows": 13},
    {"last_rows": 10_000},
    {"last_trajectories": 1},
    {"last_trajectories": 5},
    {"last_trajectories": 1000},
    {"max_staleness": 0},
    {"max_staleness": 1},
    {"max_staleness": 3},
    {"max_staleness": 1000},
    {"last_rows": 25, "last_trajectories": 8, "max_staleness": 4},
]
bounds_ = pytest.mark.parametrize("bounds", BOUNDS, ids=str)
capacities = pytest.mark.parametrize("capacity", [200, 50])


@bounds_
@pytest.mark.parametrize("name", INNER)
def test_exactly_the_rows_of_the_window(name: str, bounds: dict[str, int]) -> None:
    world = versions(50)
    make, length = INNER[name]
    sampler = WindowSampler(make(), **bounds)
    seen: set[int] = set()
    index, rng = Index(world.storage), Rng(0)
    drawn = stream(sampler, index, rng, Request(60, length), 30)
    for seqs, lengths, _ in drawn:
        if name == "n-step":
            seqs = [seqs[sum(lengths[:i])] for i in range(len(lengths))]
        seen |= set(seqs)
    assert seen == allowed(world, bounds)


@bounds_
@capacities
def test_rows_are_uniform(capacity: int, bounds: dict[str, int]) -> None:
    world = versions(capacity)
    found = draw(world, WindowSampler(None, **bounds), 4000)
    uniform(found.seqs.tolist(), allowed(world, bounds))


@bounds_
@capacities
@pytest.mark.parametrize("over", ["trajectories", "steps"])
def test_slices_are_uniform(over: str, capacity: int, bounds: dict[str, int]) -> None:
    world = versions(capacity)
    rows = allowed(world, bounds)
    episodes = {n: [s for s in seqs if s in rows] for n, seqs in world.episodes().items()}
    starts = slice_starts(world, 3, episodes={n: s for n, s in episodes.items() if s})
    expected = (per_trajectory if over == "trajectories" else per_step)(starts)
    sampler = WindowSampler(SliceSampler(slice_len=3, over=over), **bounds)
    found = draw(world, sampler, 5000, 3)
    agrees(starts_of(found).tolist(), expected)


def test_priorities_within_the_window() -> None:
    world = versions(200)
    sampler = WindowSampler(PrioritizedSampler(alpha=1.0, eps=0.0), last_rows=6)
    index = Index(world.storage)
    index.refresh()
    rows = sorted(world.stored())[-6:]
    values = [0.0, 1.0, 2.0, 3.0, 1.0, 2.0]
    sampler.update_priority(index, rows, values)  # type: ignore[arg-type]
    agrees(draw(world, sampler, 4000).seqs.tolist(), dict(zip(rows, values)))


def test_fifo_starts_at_the_window() -> None:
    world = versions(200)
    buffer = ReplayBuffer(world.storage, WindowSampler(FifoSampler(), last_rows=5), batch_size=3)
    newest = max(world.stored())
    assert buffer.sample()["index"].tolist() == [newest - 4, newest - 3, newest - 2]
    assert buffer.sample()["index"].tolist() == [newest - 1, newest]


def test_window_moves_with_the_tape() -> None:
    world = World(contig.LazyTensorStorage(100))
    buffer = ReplayBuffer(world.storage, WindowSampler(last_rows=4), batch_size=40, seed=0)
    for _ in range(60):
        world.extend(3)
        newest = max(world.stored())
        assert set(buffer.sample()["index"].tolist()) <= set(range(newest - 3, newest + 1))


def test_windows_compose() -> None:
    world = versions(200)
    both = WindowSampler(WindowSampler(last_rows=9), max_staleness=0)
    rows = allowed(world, {"last_rows": 9, "max_staleness": 0})
    uniform(draw(world, both, 2000).seqs.tolist(), rows)


def test_newest_version_is_that_of_the_rows_there_are() -> None:
    # After empty() the old versions are not on the tape any more.
    world = versions(200)
    sampler = WindowSampler(max_staleness=1)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=4, seed=0)
    buffer.sample()
    buffer.empty()
    world.version = 0
    world.extend(5)
    assert set(buffer.sample()["index"].tolist()) <= world.stored()


def test_a_newest_version_that_is_not_on_the_tape() -> None:
    world = World(contig.LazyTensorStorage(100))
    for world.version in (3, 4):
        world.extend(4)
    sampler = WindowSampler(max_staleness=2)
    uniform(draw(world, sampler, 800).seqs.tolist(), range(8))
    sampler.newest_version = 6
    uniform(draw(world, sampler, 400).seqs.tolist(), range(4, 8))
    sampler.newest_version = 2  # the tape knows better
    uniform(draw(world, sampler, 800).seqs.tolist(), range(8))


def test_damaged_trajectories_do_not_count(tmp_path: Path) -> None:
    with contig.DiskStorage(tmp_path / "tape", 100) as storage:
        writer = storage.writer()
        for k in range(6):  # rows 4 k to 4 k + 3
            writer.extend_trajectory({"k": np.full(4, k)})
        storage.quarantine({3: "broken", 5: "broken", 0: "broken"})
        for last, there in ((1, {4}), (2, {2, 4}), (3, {1, 2, 4}), (100, {1, 2, 4})):
            sampler = WindowSampler(last_trajectories=last)
            batch = ReplayBuffer(storage, sampler, batch_size=200, seed=0).sample()
            assert set(batch["k"].tolist()) == there


def test_rows_of_a_version_that_fell() -> None:
    # Rows are judged by their own version, also where a trajectory went on under an older one.
    world = World(contig.LazyTensorStorage(100))
    world.version = 5
    world.extend(4, number=1, end=None)
    world.version = 3
    world.extend(4, number=1, start=4)
    found = draw(world, WindowSampler(max_staleness=1), 400)
    uniform(found.seqs.tolist(), range(4))


def test_window_with_nothing_in_it_says_what_it_is() -> None:
    world = World(contig.LazyTensorStorage(100))
    world.extend(4)
    world.extend(2)
    sampler = WindowSampler(SliceSampler(slice_len=3, strict_length=True), last_trajectories=1)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=6)
    with pytest.raises(NothingEligibleError, match="within Window"):
        buffer.sample()


@pytest.mark.parametrize(
    "bounds", [{}, {"last_rows": 0}, {"last_trajectories": 0}, {"max_staleness": -1}]
)
def test_bounds_that_make_no_sense(bounds: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        WindowSampler(**bounds)


def test_whole_floats_are_numbers() -> None:
    storage = contig.LazyTensorStorage(10)
    sampler = WindowSampler(last_rows=2.0, last_trajectories=3.0, max_staleness=0.0)  # type: ignore[arg-type]
    buffer = ReplayBuffer(storage, sampler, batch_size=8, seed=0)
    buffer.extend({"x": np.arange(5), "next": {"done": np.zeros(5, bool)}})
    assert set(buffer.sample()["x"].tolist()) <= {3, 4}
    with pytest.raises(ValueError, match="last_rows"):
        WindowSampler(last_rows=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [1, 3, 7, 20])
def test_whole_trajectories_are_drawn_as_the_rows_they_are(window: int) -> None:
    """One append each: a window of trajectories is one of rows, and draws the same ones."""
    lengths = [1 + n * 7 % 5 for n in range(12)]

    def made(sampler: WindowSampler) -> ReplayBuffer:
        buffer = ReplayBuffer(contig.LazyTensorStorage(30), sampler, batch_size=64, seed=5)
        for number, length in enumerate(lengths):
            buffer.extend_trajectory({"n": np.full(length, number)}, truncated=True)
        return buffer

    stored = made(WindowSampler(last_trajectories=1)).storage.episodes()["steps"]
    rows = int(stored[-window:].sum())
    by_rows, by_trajectories = (
        made(WindowSampler(**bound))
        for bound in ({"last_rows": rows}, {"last_trajectories": window})
    )
    for _ in range(5):
        expected, found = by_rows.sample(), by_trajectories.sample()
        np.testing.assert_array_equal(found["index"], expected["index"])
        assert set(found["n"]) <= set(range(12)[-window:])


def test_rows_that_others_go_on_with_are_not_in_it() -> None:
    """As many runs as trajectories, but one is an earlier trajectory's: its rows are not drawn."""
    buffer = ReplayBuffer(
        contig.LazyTensorStorage(100), WindowSampler(last_trajectories=2), batch_size=64, seed=0
    )
    one, other = buffer.storage.writer(), buffer.storage.writer()
    one.extend({"n": np.full(4, 0)}, continues=True)
    other.extend_trajectory({"n": np.full(3, 1)}, truncated=True)
    one.extend({"n": np.full(4, 0)}, continues=True)  # goes on, behind it
    other.extend_trajectory({"n": np.full(3, 2)}, truncated=True)
    assert set(buffer.sample()["n"]) == {1, 2}


def test_a_trajectory_that_lost_its_first_run() -> None:
    """What is left of it lies behind a later trajectory, and before an earlier one."""
    buffer = ReplayBuffer(
        contig.LazyTensorStorage(5), WindowSampler(last_trajectories=2), batch_size=64, seed=0
    )
    first, second, third = (buffer.storage.writer() for _ in range(3))
    for number, writer in enumerate((first, second, third, second, first, first, first)):
        writer.extend({"n": np.array([number])}, continues=True)
    assert set(buffer.sample()["n"]) == {2, 3}  # of the third, and of the second
