"""Leaves with codecs of several tapes in one batch, and from the workers of a collector."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest

from contig import (
    LazyTensorStorage,
    MultiSyncCollector,
    NStepSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
)
from contig.dataset import to_parquet
from contig.replay.shards import ShardReader, read_shards
from contig.sample import Rng
from contig.tape.decoding import stored_bytes
from tests.codecs.frames import check, codecs, pixels, rows


@pytest.mark.parametrize("names", [("lz4", "lz4"), ("png", "zstd", None)])
@pytest.mark.parametrize(
    "make", [RandomSampler, lambda: SliceSampler(slice_len=4), lambda: NStepSampler(3, 0.9)]
)
def test_shards_decode_into_one_batch(names, make):
    sampler, readers = make(), []
    for shard, name in enumerate(names):
        storage = LazyTensorStorage(100, codecs=codecs(name) if name else None)
        for first in range(20 * shard, 20 * shard + 20, 5):
            n = np.arange(first, first + 5)
            storage.default_writer.extend(rows(n, n % 5 == 4))
        readers.append(ShardReader(storage, copy.deepcopy(sampler), shard))
    rng, seen = Rng(0), set()
    for _ in range(10):
        batch = read_shards(sampler, rng, readers, sampler.request(16), lambda _: None)
        assert np.array_equal(batch["pixels"], pixels(batch["t"]))
        last = batch["t"] + batch.get("steps_to_next_obs", 1)
        assert np.array_equal(batch["next", "pixels"], pixels(last))
        seen |= set((batch["t"] // 20).tolist())
    assert seen == set(range(len(names)))


def spoiled(first, n):
    """A storage of n rows, numbered from `first` on; the first five cannot be decoded."""
    storage = LazyTensorStorage(100, codecs=codecs("lz4"), blob_bytes=1 << 18)
    for at in range(first, first + n, 5):
        storage.default_writer.extend_trajectory(rows(np.arange(at, at + 5)), terminated=True)
    size = sum(len(stored_bytes(storage, x, np.arange(5)).values) for x in codecs("lz4"))
    storage._segment.map_data(storage.tape.blob_range[0], size)[:] = 7
    return storage


@pytest.mark.parametrize("make", [RandomSampler, lambda: SliceSampler(slice_len=4)])
def test_shards_go_without_rows_that_cannot_be_decoded(make):
    sampler = make()
    readers = [ShardReader(spoiled(20 * i, 20), copy.deepcopy(sampler), i) for i in range(2)]
    rng, seen = Rng(0), set()
    for _ in range(10):
        batch = read_shards(sampler, rng, readers, sampler.request(16), lambda _: None)
        assert len(batch) == 16
        assert np.array_equal(batch["pixels"], pixels(batch["t"]))
        seen |= set((batch["t"]).tolist())
    assert seen <= {*range(5, 20), *range(25, 40)}
    assert {t // 20 for t in seen} == {0, 1}


def test_exports_leave_them_out(tmp_path):
    storage = spoiled(0, 20)
    assert to_parquet(ReplayBuffer(storage), tmp_path / "out.parquet") == 3


class Frames(gymnasium.Env):
    """Every observation is the picture of its number."""

    observation_space = gymnasium.spaces.Box(0, 255, pixels(0).shape, np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return pixels(0), {}

    def step(self, action):
        self.t += 1
        return pixels(self.t), float(self.t), False, self.t == 7, {}


def test_workers_of_a_collector_encode_what_they_write():
    coded = {"observation": "png", ("next", "observation"): "lz4"}
    storage = LazyTensorStorage(400, ndim=2, codecs=coded)
    buffer = ReplayBuffer(storage, batch_size=32, seed=0)
    collector = MultiSyncCollector(
        [Frames] * 2, None, frames_per_batch=28, total_frames=112, replay_buffer=buffer
    )
    for _ in collector:
        pass
    collector.shutdown()
    assert len(buffer) == 112
    everything = buffer[:]
    numbers = everything["next", "reward"].astype(int)
    assert set(numbers.tolist()) == set(range(1, 8))
    assert np.array_equal(everything["next", "observation"], pixels(numbers))
    assert np.array_equal(everything["observation"], pixels(numbers - 1))
    frames = stored_bytes(storage, "observation", np.arange(112))
    assert all(bytes(x).startswith(b"\x89PNG") for x in frames)


def test_slices_of_a_buffer_that_check_themselves():
    buffer = ReplayBuffer(LazyTensorStorage(50, codecs=codecs("qoi")), batch_size=8, seed=0)
    buffer.extend(rows(np.arange(20)))
    check(buffer[5:9])
    check(buffer[np.array([3, 3, 19])])
