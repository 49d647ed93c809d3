"""Checkpoints of rows with leaves of any size: their bytes beside the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import Batch, LayoutError, LazyTensorStorage, RandomSampler, ReplayBuffer, SharedStorage
from contig.replay.redistribute import load_share, save_shard
from contig.replay.saved_rows import saved_rows
from tests.reference.any_size import EXAMPLE, Row, check, columns
from tests.waiting import Task

KNOWN = {uid: Row(uid, uid * 5 % 23, uid % 4, uid % 3, uid % 5 == 4) for uid in range(400)}


def filled(n: int, capacity: int = 50, ring: int = 700) -> ReplayBuffer:
    buffer = ReplayBuffer(LazyTensorStorage(capacity, example=EXAMPLE, blob_bytes=ring), seed=0)
    for at in range(0, n, 7):
        buffer.extend(columns([KNOWN[uid] for uid in range(at, min(at + 7, n))]))
    return buffer


def fresh(capacity: int = 50, ring: int | None = None) -> ReplayBuffer:
    return ReplayBuffer(LazyTensorStorage(capacity, blob_bytes=ring), seed=1)


def uids(buffer: ReplayBuffer) -> list[int]:
    return check(buffer[:], KNOWN)


@pytest.mark.parametrize("n", [1, 30, 60, 200])
def test_what_was_saved_is_loaded(n: int, tmp_path: Path) -> None:
    buffer = filled(n)
    buffer.save(tmp_path / "saved")
    other = fresh()
    other.load(tmp_path / "saved")
    assert uids(other) == uids(buffer)
    assert np.array_equal(other[:]["uid"], buffer[:]["uid"])
    # It goes on: with the same batches, and with rows behind those.
    buffer.load(tmp_path / "saved")
    again = fresh()
    again.load(tmp_path / "saved")
    assert check(again.sample(8), KNOWN) == check(buffer.sample(8), KNOWN)
    for uid in range(n, n + 60):
        other.add(KNOWN[uid].tree())
    assert uids(other)[-1] == n + 59


def test_a_smaller_ring_takes_the_newest_rows(tmp_path: Path) -> None:
    buffer = filled(60)
    buffer.save(tmp_path / "saved")
    other = fresh(ring=100)
    other.load(tmp_path / "saved")
    kept = uids(other)
    assert 0 < len(kept) < len(buffer) and kept == uids(buffer)[-len(kept) :]
    assert sum(KNOWN[uid].nbytes for uid in kept) <= 100
    assert sum(KNOWN[uid].nbytes for uid in uids(buffer)[-len(kept) - 1 :]) > 100


def test_a_row_that_is_too_large_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    filled(60).save(tmp_path / "saved")
    other = ReplayBuffer(LazyTensorStorage(9, example=EXAMPLE, blob_bytes=30), seed=1)
    other.add(Row(0).tree())
    before = other.storage.tape.snapshot()
    with pytest.raises(LayoutError, match="blob_bytes"):
        other.load(tmp_path / "saved")
    assert other.storage.tape.snapshot() == before and uids(other) == [0]


def test_ranks_have_their_trajectories(tmp_path: Path) -> None:
    buffer = filled(40)
    buffer.save(tmp_path / "saved")
    parts = []
    for rank in range(3):
        other = fresh()
        other.load(tmp_path / "saved", rank=rank, world_size=3)
        parts += uids(other)
    assert sorted(parts) == sorted(uids(buffer))


def test_shards_are_dealt_out(tmp_path: Path) -> None:
    sampler = RandomSampler()
    paths = []
    for k, n in enumerate((20, 33)):
        paths.append(tmp_path / f"shard-{k}")
        assert save_shard(filled(n).storage, sampler, sampler.state(), paths[-1])
    found: list[int] = []
    for share in range(3):
        storage = LazyTensorStorage(100)
        load_share(storage, sampler, paths, (share, 3))
        found += uids(ReplayBuffer(storage))
    assert sorted(found) == sorted([*range(20), *range(33)])


def test_formats(tmp_path: Path) -> None:
    """Bytes are a file of their own, and a format of its own, only where there are some."""
    filled(9).save(tmp_path / "any")
    plain = ReplayBuffer(LazyTensorStorage(9))
    plain.extend({"x": np.arange(4)})
    plain.save(tmp_path / "plain")
    for name, form, there in (("any", 3, True), ("plain", 2, False)):
        meta = json.loads((tmp_path / name / "checkpoint.json").read_text())
        assert meta["format"] == form
        assert (tmp_path / name / "blobs.bin").exists() == there == ("blob_first" in meta)


@pytest.mark.parametrize("damage", ["missing", "other", "short"])
def test_damaged_bytes_are_found(damage: str, tmp_path: Path) -> None:
    filled(30).save(tmp_path / "saved")
    file = tmp_path / "saved" / "blobs.bin"
    raw = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(raw[:-1] if damage == "short" else bytes([raw[0] ^ 1]) + raw[1:])
    other = fresh()
    with pytest.raises((LayoutError, FileNotFoundError), match=r"blobs\.bin"):
        other.load(tmp_path / "saved")
    assert other.storage.schema is None


@pytest.mark.parametrize("change", [{"blob_first": -1}, {"blob_first": 10**6}, {"blob_first": "x"}])
def test_positions_that_make_no_sense_are_refused(change: Any, tmp_path: Path) -> None:
    filled(30).save(tmp_path / "saved")
    file = tmp_path / "saved" / "checkpoint.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    other = fresh()
    with pytest.raises(LayoutError, match="damaged|cannot be loaded"):
        other.load(tmp_path / "saved")
    assert len(other.storage) == 0


def test_what_is_saved_while_writers_go_on_is_whole(tmp_path: Path) -> None:
    storage = SharedStorage(40, example=EXAMPLE, blob_bytes=900)
    buffer = ReplayBuffer(storage, seed=0)
    stop = False

    def write() -> None:
        uid = 0
        while not stop:
            buffer.extend(columns([KNOWN[u % 400] for u in range(uid, uid + 3)]))
            uid += 3

    writer = Task(write)
    try:
        for k in range(20):
            while not len(storage):
                pass
            buffer.save(tmp_path / f"saved-{k}")
            other = fresh()
            other.load(tmp_path / f"saved-{k}")
            assert uids(other)
    finally:
        stop = True
        writer.result()
        storage.close()


def test_rows_of_a_checkpoint_are_read_without_a_buffer(tmp_path: Path) -> None:
    buffer = filled(60)
    buffer.save(tmp_path / "saved")
    with saved_rows(tmp_path / "saved") as saved:
        contents = saved.contents
        records, blobs = contents.rows.pack(contents.tail + 2, contents.head)
        rows = records.reshape(-1, saved.layout.record_size)
        assert check(Batch.from_records(saved.layout, rows, blobs), KNOWN) == uids(buffer)[2:]
