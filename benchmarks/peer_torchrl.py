"""torchrl: TensorDictReplayBuffer over LazyTensorStorage.

Input TensorDicts are made before the clock starts. Its slice samplers find boundaries from
trajectory ids or from end flags; both are measured and the faster one counts, as with the cache
after a write. Run: `python -m benchmarks.peer_torchrl [--quick] [--only CASE ...]`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

os.environ.setdefault("RL_WARNINGS", "0")

import torch

from benchmarks.rows import Tree, fill_chunks, make_rows, map_tree, write_stream
from benchmarks.timing import Effort, best_us, cycling
from benchmarks.torchrl_extension import load_extension
from benchmarks.worker import worker_main

try:
    EXTENSION = load_extension()
except Exception as error:  # no compiler, or sources that do not fit: only priorities are lost
    EXTENSION = ""
    print(f"torchrl's extension is not available: {error}", file=sys.stderr)

from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)

BOUNDARIES: tuple[dict[str, Any], ...] = (
    {"traj_key": ("collector", "traj_ids")},
    {"end_key": ("next", "done")},
)
SLICES = {"num_slices": 32, "strict_length": True}
SLICE_BATCH = 32 * 32


def to_tensordict(tree: Tree) -> TensorDict:
    """The nested dict as a TensorDict `[N]`; flags and rewards `[N, 1]`, its convention."""
    rows = len(tree["observation"])

    def tensor(leaf: Any) -> torch.Tensor:
        value = torch.from_numpy(leaf)
        return value.unsqueeze(-1) if value.ndim == 1 and value.dtype != torch.int64 else value

    return TensorDict(map_tree(tensor, tree), batch_size=[rows])


def filled(rows: int, *, ids: bool, **options: Any) -> TensorDictReplayBuffer:
    """A full buffer of `rows` rows."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(rows), **options)
    for chunk in fill_chunks(rows, ids=ids):
        buffer.extend(to_tensordict(chunk))
    return buffer


@cache
def uniform(rows: int) -> TensorDictReplayBuffer:
    return filled(rows, ids=False)


@cache
def prioritized(rows: int) -> TensorDictReplayBuffer:
    buffer = filled(rows, ids=False, sampler=PrioritizedSampler(rows, alpha=0.6, beta=0.4))
    buffer.update_priority(torch.arange(rows), torch.rand(rows) + 0.01)
    return buffer


def slicing(effort: Effort, cached: bool) -> Iterator[TensorDictReplayBuffer]:
    """A full buffer per way of finding boundaries."""
    for boundary in BOUNDARIES:
        sampler = SliceSampler(cache_values=cached, **SLICES, **boundary)
        yield filled(effort.rows, ids=True, batch_size=SLICE_BATCH, sampler=sampler)


def write_then_sample(buffer: TensorDictReplayBuffer) -> Callable[[], object]:
    """16 rows in, one batch out."""
    write = cycling([to_tensordict(rows) for rows in write_stream(64)])

    def both() -> object:
        buffer.extend(write())
        return buffer.sample()

    assert len(buffer.sample()) == SLICE_BATCH
    return both


def extend_1000(effort: Effort) -> float:
    batches = cycling([to_tensordict(make_rows(1000, seed=seed)) for seed in range(50, 58)])
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.extend(batches()), effort)


def add_1(effort: Effort) -> float:
    rows = to_tensordict(make_rows(1000, seed=60))
    row = cycling([rows[index].clone() for index in range(len(rows))])
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.add(row()), effort)


def sample_256(effort: Effort) -> float:
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.sample(256), effort)


def sample_4096(effort: Effort) -> float:
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.sample(4096), effort)


def without_replacement_256(effort: Effort) -> float:
    buffer = filled(effort.rows, ids=False, sampler=SamplerWithoutReplacement(), batch_size=256)
    return best_us(buffer.sample, effort)


def slices_without_replacement(effort: Effort) -> float:
    best = float("inf")
    for boundary in BOUNDARIES:
        sampler = SliceSamplerWithoutReplacement(**SLICES, **boundary)
        buffer = filled(effort.rows, ids=True, batch_size=SLICE_BATCH, sampler=sampler)
        best = min(best, best_us(buffer.sample, effort))
    return best


def slices_cached(effort: Effort) -> float:
    return min(best_us(buffer.sample, effort) for buffer in slicing(effort, cached=True))


def slices_uncached(effort: Effort) -> float:
    return min(best_us(buffer.sample, effort) for buffer in slicing(effort, cached=False))


def write_then_slices(effort: Effort) -> float:
    return min(
        best_us(write_then_sample(buffer), effort)
        for cached in (False, True)
        for buffer in slicing(effort, cached)
    )


def priority_sample_256(effort: Effort) -> float:
    buffer = prioritized(effort.rows)
    return best_us(lambda: buffer.sample(256), effort)


def priority_update_256(effort: Effort) -> float:
    buffer = prioritized(effort.rows)
    update = cycling([(buffer.sample(256)["index"], torch.rand(256) + 0.01) for _ in range(64)])
    return best_us(lambda: buffer.update_priority(*update()), effort)


def write_then_priority_slices(effort: Effort) -> float:
    rows = effort.priority_slice_rows
    best = float("inf")
    for boundary in BOUNDARIES:
        sampler = PrioritizedSliceSampler(rows, alpha=0.6, beta=0.4, **SLICES, **boundary)
        buffer = filled(rows, ids=True, batch_size=SLICE_BATCH, sampler=sampler)
        buffer.update_priority(torch.arange(rows), torch.rand(rows) + 0.01)
        best = min(best, best_us(write_then_sample(buffer), effort))
    return best


CASES = {
    "extend_1000": extend_1000,
    "add_1": add_1,
    "add_1_tensordict": add_1,
    "sample_256": sample_256,
    "sample_256_tensordict": sample_256,
    "sample_4096": sample_4096,
    "without_replacement_256": without_replacement_256,
    "slices_without_replacement": slices_without_replacement,
    "slices_cached": slices_cached,
    "slices_uncached": slices_uncached,
    "write_then_slices": write_then_slices,
}
if EXTENSION:
    CASES |= {
        "priority_sample_256": priority_sample_256,
        "priority_update_256": priority_update_256,
        "write_then_priority_slices": write_then_priority_slices,
    }

if __name__ == "__main__":
    print(f"torchrl's extension: {EXTENSION or 'none'}", file=sys.stderr)
    worker_main("torchrl", CASES, ("torchrl", "tensordict", "torch", "numpy"))
