"""contig: ReplayBuffer over LazyTensorStorage, the cases of the table.

Every sample makes all its leaf views (`batch.tree()`) inside the clock, so nothing is left lazy.
Run: `python -m benchmarks.contig_cases [--quick] [--only CASE ...]`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from benchmarks.cases import CONTIG
from benchmarks.contig_samplers import sampler_cases
from benchmarks.rows import fill_chunks, make_rows, map_tree, row_at, write_stream
from benchmarks.timing import Effort, best_us, cycling
from benchmarks.worker import worker_main
from contig import (
    ChunkSampler,
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
)

SLICES: dict[str, Any] = {"num_slices": 32, "slice_len": 32, "strict_length": True}
SLICE_BATCH = 32 * 32


def filled(rows: int, sampler: Any, *, ids: bool, batch_size: int) -> ReplayBuffer:
    """A full buffer of `rows` rows."""
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(rows), sampler=sampler, batch_size=batch_size, seed=0
    )
    for chunk in fill_chunks(rows, ids=ids):
        buffer.extend(chunk)
    return buffer


@cache
def uniform(rows: int) -> ReplayBuffer:
    return filled(rows, RandomSampler(), ids=False, batch_size=256)


@cache
def slicing(rows: int) -> ReplayBuffer:
    return filled(rows, SliceSampler(**SLICES), ids=True, batch_size=SLICE_BATCH)


@cache
def prioritized(rows: int) -> ReplayBuffer:
    sampler = PrioritizedSampler(alpha=0.6, beta=0.4)
    return with_priorities(filled(rows, sampler, ids=False, batch_size=256), rows)


def with_priorities(buffer: ReplayBuffer, rows: int) -> ReplayBuffer:
    """Give every row a priority of its own, so that draws do not fall on equal weights."""
    rng = np.random.default_rng(2)
    buffer.update_priority(np.arange(rows), rng.random(rows) + 0.01)
    return buffer


def write_then_sample(buffer: ReplayBuffer) -> Callable[[], object]:
    """16 rows in, one batch out."""
    write = cycling(write_stream(64))

    def both() -> object:
        buffer.extend(write())
        return buffer.sample().tree()

    assert len(buffer.sample()["index"]) == SLICE_BATCH
    return both


def extend_1000(effort: Effort) -> float:
    batches = cycling([make_rows(1000, seed=seed) for seed in range(50, 58)])
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.extend(batches()), effort)


def add_1(effort: Effort) -> float:
    rows = make_rows(1000, seed=60)
    row = cycling([row_at(rows, index) for index in range(1000)])
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.add(row()), effort)


def add_1_torch(effort: Effort) -> float:
    import torch

    rows = make_rows(1000, seed=60)
    row = cycling([map_tree(torch.from_numpy, row_at(rows, index)) for index in range(1000)])
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.add(row()), effort)


def add_1_tensordict(effort: Effort) -> float:
    import torch
    from tensordict import TensorDict

    rows = make_rows(1000, seed=60)
    trees = [map_tree(torch.from_numpy, row_at(rows, index)) for index in range(1000)]
    row = cycling([TensorDict(tree, batch_size=[]) for tree in trees])
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.add(row()), effort)


def sample_128(effort: Effort) -> float:
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.sample(128).tree(), effort)


def nstep_128(effort: Effort) -> float:
    storage = uniform(effort.rows).storage
    buffer = ReplayBuffer(storage, NStepSampler(3, 0.99), batch_size=128, seed=0)
    return best_us(lambda: buffer.sample().tree(), effort)


def chunks_128(effort: Effort) -> float:
    storage = uniform(effort.rows).storage
    buffer = ReplayBuffer(storage, ChunkSampler(16), batch_size=128, seed=0)
    assert buffer.sample()["action"].shape == (128, 16, 6)
    return best_us(lambda: buffer.sample().tree(), effort)


def sample_256(effort: Effort) -> float:
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.sample(256).tree(), effort)


def sample_4096(effort: Effort) -> float:
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.sample(4096).tree(), effort)


def slices(effort: Effort) -> float:
    buffer = slicing(effort.rows)
    return best_us(lambda: buffer.sample().tree(), effort)


def write_then_slices(effort: Effort) -> float:
    return best_us(write_then_sample(slicing(effort.rows)), effort)


def priority_sample_256(effort: Effort) -> float:
    buffer = prioritized(effort.rows)
    return best_us(lambda: buffer.sample(256).tree(), effort)


def priority_update_256(effort: Effort) -> float:
    buffer = prioritized(effort.rows)
    rng = np.random.default_rng(3)
    update = cycling(
        [(np.array(buffer.sample(256)["index"]), rng.random(256) + 0.01) for _ in range(64)]
    )
    return best_us(lambda: buffer.update_priority(*update()), effort)


def write_then_priority_slices(effort: Effort) -> float:
    rows = effort.priority_slice_rows
    sampler = PrioritizedSliceSampler(alpha=0.6, beta=0.4, **SLICES)
    buffer = filled(rows, sampler, ids=True, batch_size=SLICE_BATCH)
    return best_us(write_then_sample(with_priorities(buffer, rows)), effort)


CASES = {
    "extend_1000": extend_1000,
    "add_1": add_1,
    "add_1_torch": add_1_torch,
    "add_1_tensordict": add_1_tensordict,
    "sample_256": sample_256,
    "sample_4096": sample_4096,
    "sample_128": sample_128,
    "nstep_128": nstep_128,
    "chunks_128": chunks_128,
    "slices_cached": slices,
    "slices_uncached": slices,
    "write_then_slices": write_then_slices,
    "priority_sample_256": priority_sample_256,
    "priority_update_256": priority_update_256,
    "write_then_priority_slices": write_then_priority_slices,
    **sampler_cases(lambda rows: uniform(rows).storage, lambda rows: slicing(rows).storage, SLICES),
}

if __name__ == "__main__":
    worker_main(CONTIG, CASES, ("contig", "numpy"))
