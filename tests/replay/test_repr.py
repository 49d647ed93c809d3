"""Buffers, storages and samplers say in one line what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import (
    ChunkSampler,
    DiskStorage,
    FifoSampler,
    HindsightRelabel,
    LazyTensorStorage,
    LifoSampler,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    RateLimiter,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SharedStorage,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TrajectorySampler,
    WindowSampler,
)


def reached(achieved: Any, goal: Any, rows: Any) -> Any:
    return achieved == goal


SAMPLERS = {
    "RandomSampler()": RandomSampler(),
    "RandomSampler(max_times_sampled=3)": RandomSampler(3),
    "SamplerWithoutReplacement()": SamplerWithoutReplacement(),
    "SamplerWithoutReplacement(drop_last=True)": SamplerWithoutReplacement(True),
    "SliceSampler(slice_len=16)": SliceSampler(slice_len=16),
    "SliceSampler(num_slices=4, strict_length=True, over='steps', burn_in=2)": SliceSampler(
        num_slices=4, strict_length=True, over="steps", burn_in=2
    ),
    "SliceSampler(slice_len=2, pad_output=True, complete_only=True)": SliceSampler(
        slice_len=2, pad_output=True, complete_only=True
    ),
    "SliceSamplerWithoutReplacement(drop_last=True, slice_len=4)": SliceSamplerWithoutReplacement(
        drop_last=True, slice_len=4
    ),
    "PrioritizedSampler()": PrioritizedSampler(),
    "PrioritizedSampler(alpha=0.7, beta=0.5)": PrioritizedSampler(alpha=0.7, beta=0.5),
    "PrioritizedSliceSampler(beta=1.0, slice_len=8)": PrioritizedSliceSampler(beta=1, slice_len=8),
    "WindowSampler(last_rows=100)": WindowSampler(last_rows=100),
    "WindowSampler(sampler=SliceSampler(slice_len=4), max_staleness=2)": WindowSampler(
        SliceSampler(slice_len=4), max_staleness=2
    ),
    "NStepSampler(n=3, gamma=0.9)": NStepSampler(3, 0.9),
    "ChunkSampler(chunk=4)": ChunkSampler(4),
    "FifoSampler(per='trajectories')": FifoSampler(per="trajectories"),
    "LifoSampler()": LifoSampler(),
    "HindsightRelabel(k=2, reward_fn=reached)": HindsightRelabel(k=2, reward_fn=reached),
    "TrajectorySampler(num_trajectories=4, group=('task',), group_size=2)": TrajectorySampler(
        4, group="task", group_size=2
    ),
}


@pytest.mark.parametrize("text", SAMPLERS)
def test_samplers_show_what_is_not_the_default(text: str) -> None:
    assert repr(SAMPLERS[text]) == text


def test_beta_that_was_set_later_shows() -> None:
    sampler = PrioritizedSampler()
    sampler.beta = 0.9
    assert repr(sampler) == "PrioritizedSampler(beta=0.9)"


def test_a_predicate_shows() -> None:
    assert "where=reached" in repr(SliceSampler(slice_len=2, where=reached))


def test_limiter() -> None:
    assert repr(RateLimiter(4)) == "RateLimiter(samples_per_insert=4.0)"
    assert "error_buffer=9.0" in repr(RateLimiter(4, error_buffer=9))


def rows() -> dict[str, Any]:
    return {"obs": np.zeros(3), "next": {"done": np.array([False, True, False])}}


def test_storages_before_and_after(tmp_path: Path) -> None:
    storage = LazyTensorStorage(10)
    assert repr(storage) == "<LazyTensorStorage: 0 of 10 rows, 0 trajectories>"
    storage.writer().extend(rows())
    expected = "<LazyTensorStorage: 3 of 10 rows, 2 trajectories, 4 leaves>"
    assert repr(storage) == expected
    storage.close()
    assert repr(storage) == "<LazyTensorStorage: closed>"
    with DiskStorage(tmp_path / "rows", 10) as disk:
        disk.writer().extend(rows())
        disk.flush()
        assert repr(disk).startswith(f"<DiskStorage '{tmp_path}/rows': 3 of 10 rows")
    assert repr(disk) == f"<DiskStorage '{tmp_path}/rows': closed>"
    with SharedStorage(10) as shared:
        assert repr(shared) == f"<SharedStorage {shared.name!r}: 0 of 10 rows, 0 trajectories>"
    assert repr(shared) == "<SharedStorage: closed>"


def test_buffers() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10), SliceSampler(slice_len=2), batch_size=4)
    storage = "<LazyTensorStorage: 0 of 10 rows, 0 trajectories>"
    inside = f"{storage}, SliceSampler(slice_len=2), batches of 4, output='numpy'"
    assert repr(buffer) == f"<ReplayBuffer: {inside}>"
    both = ReplayBufferEnsemble(buffer, buffer)
    assert repr(both).startswith("<ReplayBufferEnsemble: 0 rows of 2 buffers: <ReplayBuffer")
    buffer.close()
    assert repr(buffer) == f"<ReplayBuffer closed: {inside}>"
