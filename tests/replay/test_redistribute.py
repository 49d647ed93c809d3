"""Checkpoints of shards into another number of shards."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import (
    DiskStorage,
    LayoutError,
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
)
from contig.replay.redistribute import load_shard, load_share, save_shard


def rows(shard: int, trajectory: int, start: int, steps: int) -> dict[str, Any]:
    at = shard * 100_000 + trajectory * 100 + start + np.arange(steps)
    return {"at": at, "next": {"reward": at.astype(np.float64), "done": np.zeros(steps, np.bool_)}}


def written(storage: Any, shard: int, lengths: list[int], pieces: int) -> None:
    """Trajectories in pieces, one trajectory's after another's: they are linked runs."""
    writers = [storage.writer() for _ in lengths]
    for piece in range(pieces):
        for t, (writer, n) in enumerate(zip(writers, lengths)):
            bounds = np.linspace(0, n, pieces + 1).astype(int)
            start, stop = bounds[piece], bounds[piece + 1]
            if start < stop:
                data = rows(shard, t, start, stop - start)
                data["next"]["done"][-1:] = stop == n
                writer.extend(data, continues=bool(start))


def contents(storage: Any) -> dict[int, list[int]]:
    """Rows of each trajectory, by what they are."""
    out: dict[int, list[int]] = {}
    for episode in storage.episodes():
        at = storage.read_episode(int(episode["id"]))["at"]
        assert len(set((at // 100).tolist())) == 1
        assert int(at[0]) // 100 not in out
        out[int(at[0]) // 100] = at.tolist()
    return out


@settings(deadline=None, max_examples=40)
@given(
    shards=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4),
    to=st.integers(1, 5),
    pieces=st.integers(1, 3),
    capacity=st.sampled_from([20, 1000]),
)
def test_all_trajectories_once(
    shards: list[list[int]], to: int, pieces: int, capacity: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths, want, weights = [], {}, {}
        for shard, lengths in enumerate(shards):
            storage = LazyTensorStorage(capacity)
            written(storage, shard, lengths, pieces)
            buffer = ReplayBuffer(storage, PrioritizedSampler(alpha=1.0, eps=0.0))
            seqs = np.arange(*storage.tape.snapshot()[1::-1])
            at = storage.gather(seqs)[0]["at"]
            buffer.update_priority(seqs, 1.0 + at % 100)
            weights.update(zip(at.tolist(), (1.0 + at % 100).tolist()))
            paths.append(Path(folder) / f"shard-{shard}")
            save_shard(storage, buffer.sampler, buffer.sampler.state(), paths[-1])
            want.update(contents(storage))
        found: dict[int, list[int]] = {}
        for share in range(to):
            storage = LazyTensorStorage(1000)
            sampler = PrioritizedSampler(alpha=1.0, eps=0.0)
            state = load_share(storage, sampler, paths, (share, to))
            mine = contents(storage)
            assert len(mine) in (len(want) // to, -(-len(want) // to))
            assert not set(found) & set(mine)
            found.update(mine)
            if not mine:
                assert state is None
                continue
            sampler.load(state)
            buffer = ReplayBuffer(storage, sampler, seed=1)
            batch = buffer.sample(50)
            least = min(weights[at] for t in mine.values() for at in t)
            want_weights = [(weights[at] / least) ** -0.4 for at in batch["at"].tolist()]
            assert np.allclose(batch["priority_weight"], want_weights, rtol=1e-5)
            more = rows(9, 1, 0, 4)
            assert len(storage.default_writer.extend(more)) == 4  # and it goes on
        assert found == want


def test_one_to_one_keeps_seqs(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path / "disk", capacity=100)
    written(storage, 3, [60, 70], 2)
    assert save_shard(storage, RandomSampler(), {}, tmp_path / "saved")
    seqs = np.arange(*storage.tape.snapshot()[1::-1])
    at = storage.gather(seqs)[0]["at"]
    storage.close()
    other = LazyTensorStorage(100)
    assert load_shard(other, RandomSampler(), tmp_path / "saved") == {}
    assert np.array_equal(other.gather(seqs)[0]["at"], at)


def test_draws_that_are_left(tmp_path: Path) -> None:
    """Rows that retired stay so."""
    storage, sampler = LazyTensorStorage(100), RandomSampler(max_times_sampled=1)
    written(storage, 0, [10, 10], 1)
    used = ReplayBuffer(storage, sampler, seed=1).sample(12)["at"].tolist()
    save_shard(storage, sampler, sampler.state(), tmp_path / "saved")
    rest: list[int] = []
    for share in range(2):
        storage, sampler = LazyTensorStorage(100), RandomSampler(max_times_sampled=1)
        sampler.load(load_share(storage, sampler, [tmp_path / "saved"], (share, 2)))
        rest += ReplayBuffer(storage, sampler, seed=1).sample(10)["at"].tolist()
    assert sorted(used + rest) == sorted(np.r_[0:10, 100:110].tolist())


def test_refused(tmp_path: Path) -> None:
    assert not save_shard(LazyTensorStorage(10), RandomSampler(), {}, tmp_path / "nothing")
    for name in ("a", "b"):
        storage = LazyTensorStorage(10)
        storage.default_writer.extend({name: np.arange(3.0)})
        save_shard(storage, RandomSampler(), {}, tmp_path / name)
    with pytest.raises(LayoutError, match="its rows differ"):
        load_share(LazyTensorStorage(10), RandomSampler(), [tmp_path / "a", tmp_path / "b"], (0, 1))
    with pytest.raises(LayoutError, match="saved with RandomSampler"):
        load_share(LazyTensorStorage(10), PrioritizedSampler(), [tmp_path / "a"], (0, 1))


def test_ranks_of_one_buffer() -> None:
    """Streams of ranks differ, and are the same each time."""
    from contig import SamplerWithoutReplacement

    storage = LazyTensorStorage(1000)
    written(storage, 0, [50, 50], 1)

    def stream(rank: int, sampler: Any) -> list[int]:
        buffer = ReplayBuffer(storage, sampler, seed=4, rank=rank, world_size=2)
        return [int(at) for _ in range(5) for at in buffer.sample(10)["at"]]

    assert stream(0, RandomSampler()) == stream(0, RandomSampler()) != stream(1, RandomSampler())
    parts = [stream(rank, SamplerWithoutReplacement()) for rank in (0, 1)]
    assert sorted(parts[0] + parts[1]) == sorted(np.r_[0:50, 100:150].tolist())
    with pytest.raises(ValueError, match="rank 2 of 2"):
        ReplayBuffer(storage, rank=2, world_size=2)
