"""ReplayBuffer: writing, sampling, reading by seq, iterating, emptying, counting."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from contig import (
    ClosedError,
    EmptyBufferError,
    FifoSampler,
    LazyTensorStorage,
    NothingEligibleError,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
)
from contig.tape.entry import ENTRY
from tests.tape.rows import pieces, row, rows


def test_every_way_of_writing_returns_seqs():
    buffer = ReplayBuffer(LazyTensorStorage(50, ndim=2))
    assert buffer.add(row(0, ".")) == 0
    assert buffer.add_step(rows([1, 10], "..")).tolist() == [1, 2]
    assert buffer.extend(rows([2, 3], ".t")).tolist() == [3, 4]
    assert buffer.extend(rows([[20, 21], [30, 31]], "....")).tolist() == [5, 6, 7, 8]
    assert buffer.extend_trajectory(rows([40, 41], ".t"), traj_id=9).tolist() == [9, 10]
    # A step's rows are its envs' own, and the other calls go on with each other.
    assert pieces(buffer.storage) == [[0, 2, 3], [1], [10], [20, 21], [30, 31], [40, 41]]
    assert len(buffer) == 11


def test_a_sample_is_a_batch_with_index_and_nothing_else():
    buffer = ReplayBuffer(LazyTensorStorage(50), batch_size=16, seed=0)
    data = rows(range(9), "..t..t..t", next={"reward": np.arange(9.0)})
    buffer.extend(data)
    batch = buffer.sample()
    assert set(batch.keys()) == {*buffer.storage.layout.by_path, ("index",)}
    assert batch["index"].dtype == np.int64 and batch.shape == (16,)
    np.testing.assert_array_equal(batch["uid"], batch["index"])
    np.testing.assert_array_equal(batch["next", "reward"], batch["index"].astype(float))
    np.testing.assert_array_equal(batch["next", "done"], batch["index"] % 3 == 2)


def test_index_is_a_seq_and_stays_one_after_the_ring_wrapped():
    buffer = ReplayBuffer(LazyTensorStorage(4), seed=0)
    for uid in range(11):
        buffer.add(row(uid, "."))
    batch = buffer.sample(50)
    assert set(batch["index"].tolist()) == {7, 8, 9, 10}
    np.testing.assert_array_equal(batch["index"], batch["uid"])


def test_a_stored_index_leaf_wins():
    """Data may have a leaf of that name: it comes back as it was."""
    buffer = ReplayBuffer(LazyTensorStorage(10), seed=0)
    buffer.extend({"index": np.array([50, 60, 70]), "done": np.zeros(3, bool)})
    assert set(buffer[:]["index"].tolist()) == {50, 60, 70}


def test_batch_sizes():
    buffer = ReplayBuffer(LazyTensorStorage(10))
    buffer.extend(rows(range(3), "..t"))
    with pytest.raises(ValueError, match="no batch size"):
        buffer.sample()
    for size in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            buffer.sample(size)
    assert len(buffer.sample(7)) == 7
    assert len(ReplayBuffer(buffer.storage, batch_size=5).sample()) == 5


def test_the_default_buffer_holds_a_million_rows():
    buffer = ReplayBuffer()
    assert buffer.storage.capacity == 1_000_000
    buffer.add({"x": 1.0})
    assert buffer.sample(2)["x"].tolist() == [1.0, 1.0]


def test_an_empty_buffer_says_so():
    buffer = ReplayBuffer(LazyTensorStorage(10), batch_size=2)
    with pytest.raises(EmptyBufferError, match="empty"):
        buffer.sample()
    buffer.add(row(0, "."))
    buffer.empty()
    with pytest.raises(EmptyBufferError, match="empty"):
        buffer.sample()


def test_nothing_eligible_says_what_is_there():
    buffer = ReplayBuffer(LazyTensorStorage(10), SliceSampler(slice_len=4, strict_length=True))
    buffer.extend(rows(range(5), "..t.."))
    with pytest.raises(NothingEligibleError, match=r"5 rows.*longest with 3.*strict_length"):
        buffer.sample(4)


def test_the_same_seed_gives_the_same_batches():
    storage = LazyTensorStorage(100)
    storage.writer().extend(rows(range(50), "....t" * 10))

    def draws(seed):
        buffer = ReplayBuffer(storage, seed=seed)
        return [buffer.sample(8)["index"].tolist() for _ in range(5)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert draws(None) != draws(None)


def test_the_global_generator_is_left_alone():
    buffer = ReplayBuffer(LazyTensorStorage(100), SliceSampler(slice_len=2))
    np.random.seed(0)
    before = np.random.get_state()[1].tobytes()
    buffer.extend(rows(range(50), "....t" * 10))
    buffer.sample(20)
    assert np.random.get_state()[1].tobytes() == before


# -- rows by seq -----------------------------------------------------------------------------------


def test_rows_by_seq():
    buffer = ReplayBuffer(LazyTensorStorage(5))
    for uid in range(8):
        buffer.add(row(uid, "."))
    assert buffer[4]["uid"].tolist() == [4]
    assert buffer[[7, 3, 3]]["uid"].tolist() == [7, 3, 3]
    assert buffer[np.array([5, 6])]["uid"].tolist() == [5, 6]
    assert "index" not in buffer[4]


def test_rows_by_position_from_the_oldest():
    buffer = ReplayBuffer(LazyTensorStorage(5))
    for uid in range(8):
        buffer.add(row(uid, "."))
    assert buffer[:]["uid"].tolist() == [3, 4, 5, 6, 7]
    assert buffer[1:3]["uid"].tolist() == [4, 5]
    assert buffer[-2:]["uid"].tolist() == [6, 7]
    assert buffer[::-2]["uid"].tolist() == [7, 5, 3]
    assert len(buffer[3:3]) == 0


@pytest.mark.parametrize("index", [2, 8, -6, [3, 8], [2, 3], [-1]])
def test_rows_that_are_not_stored(index):
    buffer = ReplayBuffer(LazyTensorStorage(5))
    for uid in range(8):
        buffer.add(row(uid, "."))
    with pytest.raises(IndexError, match="rows 3 to 7 are stored"):
        buffer[index]


# -- priorities ------------------------------------------------------------------------------------


def test_update_priority_moves_the_draws():
    buffer = ReplayBuffer(LazyTensorStorage(20), PrioritizedSampler(), seed=0)
    buffer.extend(rows(range(10), "." * 10))
    buffer.update_priority(np.arange(10), np.array([0] * 9 + [2.0]))
    assert set(buffer.sample(30)["uid"].tolist()) == {9}
    buffer.update_priority([3], 5.0)
    assert set(buffer.sample(60)["uid"].tolist()) == {3, 9}


@pytest.mark.parametrize("output", ["numpy", "torch", "tensordict"])
def test_update_tensordict_priority_takes_a_sample_back(output):
    buffer = ReplayBuffer(LazyTensorStorage(20), PrioritizedSampler(), seed=0, output=output)
    buffer.extend(rows(range(10), "." * 10, td_error=np.zeros((10, 1), np.float32)))
    batch = buffer.sample(64)
    batch["td_error"][...] = (batch["index"] == 4).reshape(-1, 1) * -1.0  # whatever the sign
    assert set(batch["index"].tolist()) == set(range(10))
    buffer.update_tensordict_priority(batch)
    assert set(buffer.sample(30)["index"].tolist()) == {4}


def test_update_tensordict_priority_with_another_key():
    buffer = ReplayBuffer(LazyTensorStorage(20), PrioritizedSampler(), seed=0)
    buffer.extend(rows(range(4), "...."))
    buffer.update_tensordict_priority({"index": [0, 1, 2, 3], "loss": [0, 0, 0, -2]}, key="loss")
    assert set(buffer.sample(30)["index"].tolist()) == {3}


def test_priorities_of_a_sampler_without_any():
    buffer = ReplayBuffer(LazyTensorStorage(20))
    buffer.extend(rows(range(4), "...."))
    with pytest.raises(TypeError, match="RandomSampler has no priorities"):
        buffer.update_priority([0], [1.0])


def test_a_priority_of_an_evicted_row_is_counted_and_never_applied():
    """Not to the row that took its place."""
    buffer = ReplayBuffer(LazyTensorStorage(4), PrioritizedSampler(), seed=0)
    buffer.extend(rows(range(4), "...."))
    old = buffer.sample(8)["index"]
    buffer.extend(rows(range(4, 8), "...."))
    buffer.update_priority(old, np.zeros(8))
    assert buffer.stats().stale_priority_updates == 8
    assert set(buffer.sample(60)["index"].tolist()) == {4, 5, 6, 7}


# -- iterating, emptying, counting -----------------------------------------------------------------


def test_iteration_does_not_end():
    buffer = ReplayBuffer(LazyTensorStorage(20), SamplerWithoutReplacement(), batch_size=2, seed=0)
    buffer.extend(rows(range(4), "...."))
    seen = []
    for n, batch in enumerate(buffer):
        seen += batch["uid"].tolist()
        if n == 5:
            break
    assert [sorted(seen[i : i + 4]) for i in (0, 4, 8)] == [[0, 1, 2, 3]] * 3


def test_empty_keeps_the_seqs_going():
    buffer = ReplayBuffer(LazyTensorStorage(20), SliceSampler(slice_len=2), batch_size=4)
    buffer.extend(rows(range(6), ".....t"))
    buffer.empty()
    assert len(buffer) == 0 and len(buffer.storage.episodes()) == 0
    assert buffer.extend(rows([100, 101], ".t")).tolist() == [6, 7]
    assert set(buffer.sample()["uid"].tolist()) == {100, 101}


@pytest.mark.parametrize("per", ["rows", "trajectories"])
def test_a_fifo_goes_on_after_empty(per):
    buffer = ReplayBuffer(LazyTensorStorage(20), FifoSampler(per=per))
    buffer.extend(rows(range(4), ".t.t"))
    buffer.sample(1)
    buffer.empty()
    buffer.extend(rows([100, 101], ".t"))
    assert buffer.sample(2)["uid"].tolist() == [100, 101]


def test_stats():
    buffer = ReplayBuffer(LazyTensorStorage(4))
    assert buffer.stats()[:5] == (0, 4, 0, 0, 0)
    buffer.extend(rows(range(6), ".t.t.t"))
    buffer.add(row(6, "."))
    buffer.sample(3)
    buffer.sample(2)
    assert buffer.stats()._asdict() == {
        "rows": 4,
        "capacity": 4,
        "rows_written": 5,  # of six rows, two had no place
        "appends": 2,
        "trajectories": 3,
        "rows_sampled": 5,
        "batches_sampled": 2,
        "stale_priority_updates": 0,
    }


def test_a_closed_buffer_says_so_and_leaves_the_storage_open():
    with ReplayBuffer(LazyTensorStorage(4), batch_size=1) as buffer:
        buffer.add(row(0, "."))
    with pytest.raises(ClosedError, match="closed"):
        buffer.sample()
    assert ReplayBuffer(buffer.storage, batch_size=1).sample()["uid"].tolist() == [0]


def test_an_extend_larger_than_the_ring_keeps_the_last_rows():
    buffer = ReplayBuffer(LazyTensorStorage(4), SliceSampler(slice_len=2), seed=0)
    assert buffer.extend(rows(range(11), "....t.....t")).tolist() == [0, 1, 2, 3]
    assert buffer[:]["uid"].tolist() == [7, 8, 9, 10]
    assert set(buffer.sample(60)["uid"].tolist()) == {7, 8, 9, 10}


def test_seqs_are_64_bit(tmp_path):
    """A checkpoint moved to seqs beyond 32 bits: rows, index, slices and priorities still fit."""
    far = 2**33 + 3
    first = ReplayBuffer(LazyTensorStorage(8), SliceSampler(slice_len=3))
    first.extend(rows(range(6), ".....t"))
    first.save(tmp_path / "c")
    meta = json.loads((tmp_path / "c" / "checkpoint.json").read_text())
    for key in ("file_first", "tail", "head"):
        meta[key] += far
    entries = np.fromfile(tmp_path / "c" / "index.bin", ENTRY)
    entries["first"] += far
    entries["number"] += far
    entries.tofile(tmp_path / "c" / "index.bin")
    image = (tmp_path / "c" / "index.bin").read_bytes()
    meta["files"]["index.bin"] = [len(image), zlib.crc32(image)]
    (tmp_path / "c" / "checkpoint.json").write_text(json.dumps(meta))
    buffer = ReplayBuffer(LazyTensorStorage(8), SliceSampler(slice_len=3), seed=0)
    buffer.load(tmp_path / "c")
    assert buffer.extend(rows(range(6, 11), "..t..")).tolist() == [far + s for s in range(6, 11)]
    assert len(buffer) == 8
    for _ in range(20):
        batch = buffer.sample(6)
        np.testing.assert_array_equal(batch["index"], batch["uid"] + far)
        assert batch["uid"].min() >= 3
    prioritized = ReplayBuffer(buffer.storage, PrioritizedSampler(), seed=0)
    prioritized.update_priority(np.arange(far + 3, far + 11), [0] * 7 + [1])
    assert set(prioritized.sample(9)["uid"].tolist()) == {10}
