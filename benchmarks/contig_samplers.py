"""contig: the samplers that are no peer's main business, and what a sample goes out as.

Every public sampler of `contig.sample` has a row in the table: those that are not here are in
`contig_cases.py`, which measures them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.rows import Tree, fill_chunks, with_goals, write_stream
from benchmarks.timing import Effort, best_us, cycling
from contig import (
    FifoSampler,
    HindsightRelabel,
    LazyTensorStorage,
    LifoSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSamplerWithoutReplacement,
    Storage,
    TrajectorySampler,
    WindowSampler,
)
from contig.sample import Sampler

Stored = Callable[[int], Storage]
Measure = Callable[[Effort], float]
TRAJECTORIES = 8
WINDOW_ROWS = 100_000


def sampling(storage: Storage, sampler: Sampler, effort: Effort, **options: Any) -> float:
    """One sample with all its leaf views."""
    buffer = ReplayBuffer(storage, sampler, seed=0, **options)
    return best_us(lambda: buffer.sample().tree(), effort)


def reached(achieved: Any, goal: Any, rows: Any) -> Any:
    """The reward of a sparse task, as Gymnasium-Robotics has it."""
    return -(np.linalg.norm(achieved - goal, axis=-1) > 0.05).astype(np.float32)


def hindsight_256(effort: Effort) -> float:
    storage = LazyTensorStorage(effort.priority_slice_rows)
    buffer = ReplayBuffer(storage, HindsightRelabel(reward_fn=reached), batch_size=256, seed=0)
    for chunk in fill_chunks(effort.priority_slice_rows):
        buffer.extend(with_goals(chunk))
    return best_us(lambda: buffer.sample().tree(), effort)


def in_order(sampler: Sampler, effort: Effort) -> float:
    """16 rows in, and the 16 next ones out: there is always as much to take as was written."""
    storage = LazyTensorStorage(effort.rows)
    buffer = ReplayBuffer(storage, sampler, batch_size=16, seed=0)
    write: Callable[[], Tree] = cycling(write_stream(64))

    def both() -> object:
        buffer.extend(write())
        return buffer.sample().tree()

    return best_us(both, effort)


def as_output(storage: Storage, output: str, effort: Effort) -> float:
    """256 uniform rows as another library has them."""
    buffer = ReplayBuffer(storage, batch_size=256, seed=0, output=output)
    for _ in range(3):
        buffer.sample()  # what is compiled is compiled when it comes again
    return best_us(buffer.sample, effort)


def sampler_cases(uniform: Stored, slicing: Stored, slices: dict[str, Any]) -> dict[str, Measure]:
    """The cases by name.

    Args:
        uniform, slicing: storages that are full of so many rows; `slicing` has trajectory ids.
        slices: the slices that the table has.
    """
    batch = slices["num_slices"] * slices["slice_len"]
    without = SamplerWithoutReplacement
    slices_once = SliceSamplerWithoutReplacement
    return {
        "without_replacement_256": lambda effort: sampling(
            uniform(effort.rows), without(), effort, batch_size=256
        ),
        "window_256": lambda effort: sampling(
            uniform(effort.rows), WindowSampler(last_rows=WINDOW_ROWS), effort, batch_size=256
        ),
        "hindsight_256": hindsight_256,
        "slices_without_replacement": lambda effort: sampling(
            slicing(effort.rows), slices_once(**slices), effort, batch_size=batch
        ),
        "trajectories_8": lambda effort: sampling(
            slicing(effort.rows), TrajectorySampler(TRAJECTORIES), effort
        ),
        "fifo_16": lambda effort: in_order(FifoSampler(), effort),
        "lifo_16": lambda effort: in_order(LifoSampler(), effort),
        "sample_256_torch": lambda effort: as_output(uniform(effort.rows), "torch", effort),
        "sample_256_tensordict": lambda effort: as_output(
            uniform(effort.rows), "tensordict", effort
        ),
        "sample_256_jax": lambda effort: as_output(uniform(effort.rows), "jax", effort),
    }
