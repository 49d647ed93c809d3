"""Readers that have followed a tape for long: the distribution and the batches of new ones.

What may be drawn is kept by changes. Here it has been through many: a ring that turned, versions
that rose and fell, episodes that went on, bounds that moved; with a draw between any two writes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.growth_samplers import CASES, Tape
from contig import (
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
    WindowSampler,
)
from contig.sample import Index, Request, Rng, Sampler
from contig.testing import World
from tests.sample.drawing import agrees, per_step, per_trajectory, slice_starts, starts_of

BOUNDS: list[dict[str, int]] = [
    {},
    {"last_rows": 21},
    {"last_trajectories": 6},
    {"max_staleness": 1},
    {"last_rows": 30, "last_trajectories": 9, "max_staleness": 2},
]
bounds_ = pytest.mark.parametrize("bounds", BOUNDS, ids=str)


def followed(sampler: Sampler, length: int) -> tuple[World, Index]:
    """A world whose every state was drawn from."""
    world = World(LazyTensorStorage(61))
    index, rng = Index(world.storage), Rng(5)
    for k in range(40):
        world.write()
        if k % 7 == 3:  # an old policy again: the newest version may fall with the next eviction
            world.version -= 2
        for _ in range(2):
            index.refresh()
            sampler.draw(index, rng, Request(5, length))
            world.extend(1 + k % 3, end=None)
    index.refresh()
    return world, index


def windowed(sampler: Sampler, bounds: dict[str, int]) -> Sampler:
    return WindowSampler(sampler, **bounds) if bounds else sampler


def allowed(world: World, bounds: dict[str, int]) -> set[int]:
    rows = world.stored()
    newest = max(world.version_at[s] for s in rows)
    if "last_rows" in bounds:
        rows = {s for s in rows if s > max(rows) - bounds["last_rows"]}
    if "last_trajectories" in bounds:
        table = world.storage.episodes()
        ids = set(table["traj_id"][-bounds["last_trajectories"] :].tolist())
        rows = {s for s in rows if world.step_at[s][0] in ids}
    if "max_staleness" in bounds:
        rows = {s for s in rows if world.version_at[s] >= newest - bounds["max_staleness"]}
    return rows


def pieces(world: World, bounds: dict[str, int]) -> dict[int, list[int]]:
    """What is left of each episode: the rows up to its end that are all in the window."""
    rows, out = allowed(world, bounds), {}
    for number, seqs in world.episodes().items():
        kept = len(seqs)
        while kept > 0 and seqs[kept - 1] in rows:
            kept -= 1
        if kept < len(seqs):
            out[number] = seqs[kept:]
    return out


@bounds_
@pytest.mark.parametrize("times", [None, 10**9])
def test_rows_are_uniform(bounds: dict[str, int], times: int | None) -> None:
    sampler = windowed(RandomSampler(times), bounds)
    world, index = followed(sampler, 1)
    found = sampler.draw(index, Rng(0), Request(6000))
    assert found is not None
    agrees(found.seqs.tolist(), dict.fromkeys(allowed(world, bounds), 1.0))


@bounds_
@pytest.mark.parametrize("over", ["trajectories", "steps"])
@pytest.mark.parametrize("strict", [False, True])
def test_slices_are_uniform(bounds: dict[str, int], over: str, strict: bool) -> None:
    inner = SliceSampler(slice_len=3, over=over, strict_length=strict)
    sampler = windowed(inner, bounds)
    world, index = followed(sampler, 3)
    starts = slice_starts(world, 3, strict=strict, episodes=pieces(world, bounds))
    found = sampler.draw(index, Rng(0), Request(8000, 3))
    assert found is not None
    expected = (per_trajectory if over == "trajectories" else per_step)(starts)
    agrees(starts_of(found).tolist(), expected)


@bounds_
@pytest.mark.parametrize("strict", [False, True])
def test_slices_come_by_priority(bounds: dict[str, int], strict: bool) -> None:
    sampler = windowed(
        PrioritizedSliceSampler(slice_len=3, strict_length=strict, alpha=1.0, eps=0.0), bounds
    )
    world, index = followed(sampler, 3)
    priority = {s: float(s % 4) for s in sorted(world.stored())}
    sampler.update_priority(index, np.array(list(priority)), np.array(list(priority.values())))
    starts = slice_starts(world, 3, strict=strict, episodes=pieces(world, bounds))
    found = sampler.draw(index, Rng(0), Request(8000, 3))
    assert found is not None
    expected = {s: priority[s] for seqs in starts.values() for s in seqs}
    agrees(starts_of(found).tolist(), expected)


@bounds_
def test_rows_come_by_priority(bounds: dict[str, int]) -> None:
    sampler = windowed(PrioritizedSampler(alpha=1.0, eps=0.0), bounds)
    world, index = followed(sampler, 1)
    priority = {s: float(s % 4) for s in sorted(world.stored())}
    sampler.update_priority(index, np.array(list(priority)), np.array(list(priority.values())))
    found = sampler.draw(index, Rng(0), Request(8000))
    assert found is not None
    agrees(found.seqs.tolist(), {s: priority[s] for s in allowed(world, bounds)})


# -- the same batches -----------------------------------------------------------------------------


def next_batches(tape: Tape, buffers: list[ReplayBuffer], rounds: int) -> None:
    """Buffers over the same tape give the same batches, from one write to the next."""
    for _ in range(rounds):
        tape.write()
        first, *others = (buffer.sample() for buffer in buffers)
        for other in others:
            for path in first.keys():  # noqa: SIM118
                assert other[path].tobytes() == first[path].tobytes(), path


@pytest.mark.parametrize("name", [n for n in CASES if "prefetch" not in n])
def test_same_batches_in_a_new_reader_and_after_a_checkpoint(name: str) -> None:
    make: Callable[[], tuple[Sampler, dict[str, Any]]] = CASES[name]
    with tempfile.TemporaryDirectory() as folder, LazyTensorStorage(5_000) as other:
        tape = Tape(5_000, long_every=700)
        sampler, options = make()
        buffer = ReplayBuffer(tape.storage, sampler, seed=3, **options)
        for _ in range(60):
            tape.write()
            buffer.sample()
        buffer.save(Path(folder) / "checkpoint")
        # A new reader of the same tape, with the same state.
        sampler, options = make()
        fresh = ReplayBuffer(tape.storage, sampler, seed=0, **options)
        fresh.load_state(buffer.state())
        loaded = ReplayBuffer(other, make()[0], seed=0, **options)
        loaded.load(Path(folder) / "checkpoint")
        for _ in range(3):  # the loaded one has no writer: only as long as nothing is written
            batches = [b.sample() for b in (buffer, fresh, loaded)]
            for path in batches[0].keys():  # noqa: SIM118
                assert len({b[path].tobytes() for b in batches}) == 1, path
        next_batches(tape, [buffer, fresh], 20)
        tape.storage.close()
