"""Defects of TorchRL's replay buffers that SEMANTICS.md names, each pinned."""

from __future__ import annotations

import numpy as np
import pytest

from contig import (
    LazyTensorStorage,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from tests.tape.rows import rows


def test_torchrl_failed_extend_advanced_its_cursor_and_sampled_garbage():
    buffer = TensorDictReplayBuffer(LazyTensorStorage(10), batch_size=64, seed=0)
    buffer.extend(rows(range(1, 4), "..t"))
    bad = rows(range(100, 103), "...")
    bad["obs"] = np.zeros((3, 7), np.float32)
    with pytest.raises(ValueError):
        buffer.extend(bad)
    assert len(buffer) == 3
    assert set(buffer.sample()["uid"].tolist()) == {1, 2, 3}
    assert buffer.extend(rows([4], "t")).tolist() == [3], "the next seq is the next"


@pytest.mark.parametrize("make", [lambda: None, lambda: SliceSampler(slice_len=2)])
def test_torchrl_empty_with_prefetch_served_stale_batches_or_raised(make):
    buffer = ReplayBuffer(LazyTensorStorage(20), make(), batch_size=4, prefetch=3, seed=0)
    buffer.extend(rows(range(10), "." * 10))
    buffer.sample()
    buffer.empty()
    buffer.extend(rows(range(100, 104), "...."))
    for _ in range(8):
        assert buffer.sample()["uid"].min() >= 100
    buffer.close()


def test_torchrl_slices_overwrote_stored_truncations():
    """A stored truncation inside a slice stays, and at its end is told from a cut."""
    data = rows(range(6), ".u..u.", chunk=np.zeros(6, int))
    buffer = ReplayBuffer(LazyTensorStorage(20), SliceSampler(slice_len=4, traj_key="chunk"))
    buffer.extend(data)
    for _ in range(30):
        batch = buffer.sample(4)
        stored = np.isin(batch["uid"], [1, 4])
        last = np.arange(4) == 3
        np.testing.assert_array_equal(batch["next", "truncated"], stored | last)
        np.testing.assert_array_equal(batch["collector", "slice_end"], last & ~stored)


def test_torchrl_slices_marked_a_terminated_end_truncated_too():
    buffer = ReplayBuffer(LazyTensorStorage(20), SliceSampler(slice_len=3), seed=0)
    buffer.extend(rows(range(3), "..t"))
    batch = buffer.sample(3)
    assert batch["next", "terminated"].tolist() == [False, False, True]
    assert batch["next", "truncated"].tolist() == [False, False, False]


def test_torchrl_prioritized_slices_forgot_is_init():
    buffer = ReplayBuffer(LazyTensorStorage(20), PrioritizedSliceSampler(slice_len=3), seed=0)
    buffer.extend(rows(range(9), "." * 8 + "t"))
    batch = buffer.sample(9)
    assert batch["is_init"].tolist() == [True, False, False] * 3
