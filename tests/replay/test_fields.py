"""Fields of trajectories in checkpoints: whole, in shares, of old ones, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import LayoutError, LazyTensorStorage, RandomSampler, ReplayBuffer
from contig.replay.checkpoint import read_saved
from contig.replay.redistribute import load_share, save_shard
from contig.tape import Snapshot
from tests.tape.rows import rows

FIELDS = {"task": np.int32(0), "judge": {"score": np.zeros(2, np.float32)}}
COLUMNS = ("task", "judge.score")


def filled(capacity: int = 50, episodes: int = 6, first: int = 0, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(LazyTensorStorage(capacity, fields=FIELDS, **options))
    other = buffer.storage.writer()
    for n in range(first, first + episodes):
        buffer.extend(rows(range(10 * n, 10 * n + 3), "..."), fields={"task": n})
        other.add_step(rows(range(1000, 1002), "tt"))
        buffer.extend(rows(range(10 * n + 3, 10 * n + 5), ".t"), fields={"task": n + 100})
    ids = buffer.storage.episodes()["id"][::2]
    score = np.stack([ids, ids + 0.5], 1)
    assert buffer.set_fields(ids, {"judge": {"score": score}}) == len(ids)
    return buffer


def test_they_come_back(tmp_path: Path) -> None:
    buffer = filled()
    buffer.save(tmp_path / "saved")
    there = sorted(p.name for p in (tmp_path / "saved").iterdir())
    assert there == ["checkpoint.json", "fields.bin", "index.bin", "records.bin", "slots.bin"]
    for storage in (LazyTensorStorage(50), LazyTensorStorage(50, fields=FIELDS)):
        again = ReplayBuffer(storage)
        again.load(tmp_path / "saved")
        assert storage.fields == buffer.storage.fields
        assert storage.episodes().tobytes() == buffer.storage.episodes().tobytes()
        # And go on as they would have.
        assert again.set_fields([0], {"task": 7}) == 1
        assert storage.episodes()["task"][0] == 7
        again.extend(rows(range(3), "..t"), fields={"task": 9})
        assert storage.episodes()["task"][-1] == 9


def test_the_newest_rows_keep_theirs(tmp_path: Path) -> None:
    buffer = filled()
    buffer.save(tmp_path / "saved")
    small = ReplayBuffer(LazyTensorStorage(11))
    small.load(tmp_path / "saved")
    table, whole = small.storage.episodes(), buffer.storage.episodes()
    assert len(table) < len(whole)
    for name in COLUMNS:
        assert np.array_equal(table[name], whole[name][-len(table) :])


@pytest.mark.parametrize("world_size", [2, 3])
def test_shares_of_a_checkpoint(tmp_path: Path, world_size: int) -> None:
    buffer = filled()
    buffer.save(tmp_path / "saved")
    tasks: list[int] = []
    scores: list[Any] = []
    for rank in range(world_size):
        part = ReplayBuffer(LazyTensorStorage(50))
        part.load(tmp_path / "saved", rank, world_size)
        tasks += part.storage.episodes()["task"].tolist()
        scores += part.storage.episodes()["judge.score"].tolist()
    assert tasks == buffer.storage.episodes()["task"].tolist()
    assert scores == buffer.storage.episodes()["judge.score"].tolist()


def test_shards_into_another_number_of_shards(tmp_path: Path) -> None:
    shards = [filled(first=10 * k, episodes=3 + k) for k in range(3)]
    plain = ReplayBuffer(LazyTensorStorage(50))
    plain.extend(rows(range(900, 905), "....t"))
    paths = [tmp_path / str(k) for k in range(4)]
    wanted = np.concatenate([s.storage.episodes()["task"] for s in shards]).tolist() + [0]
    for path, shard in zip(paths, (*shards, plain)):
        assert save_shard(shard.storage, RandomSampler(), None, path)
    got: list[int] = []
    for share in range(2):
        storage = LazyTensorStorage(100)
        load_share(storage, RandomSampler(), paths, (share, 2))
        got += storage.episodes()["task"].tolist()
    assert got == wanted
    odd = ReplayBuffer(LazyTensorStorage(50, fields={"task": np.int64(0)}))
    odd.extend(rows(range(3), "..t"))
    save_shard(odd.storage, RandomSampler(), None, tmp_path / "odd")
    with pytest.raises(LayoutError, match=r"odd: .* other fields"):
        load_share(LazyTensorStorage(9), RandomSampler(), [*paths, tmp_path / "odd"], (0, 1))


def test_without_fields_a_checkpoint_is_what_it_was(tmp_path: Path) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(20, share_next=False))
    buffer.extend(rows(range(4), "...t"))
    buffer.save(tmp_path / "saved")
    meta = json.loads((tmp_path / "saved" / "checkpoint.json").read_text())
    assert meta["format"] == 2
    assert "fields" not in meta
    assert "fields.bin" not in meta["files"]
    # A storage with fields takes it in: nobody gave any.
    again = ReplayBuffer(LazyTensorStorage(20, fields=FIELDS))
    again.load(tmp_path / "saved")
    assert again.storage.episodes()["task"].tolist() == [0]
    assert again.set_fields([0], {"task": 3}) == 1


def test_a_failed_load_changes_nothing(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    filled().save(saved)
    no_fields = ReplayBuffer(LazyTensorStorage(20))
    no_fields.extend(rows(range(4), "...t"))
    other_fields = ReplayBuffer(LazyTensorStorage(20, fields={"task": np.int64(0)}))
    for buffer, message in ((no_fields, "no fields"), (other_fields, "other fields")):
        before = contents_of(buffer.storage)
        with pytest.raises(LayoutError, match=rf"{saved}: .*{message}"):
            buffer.load(saved)
        assert contents_of(buffer.storage) == before
    # Damaged, or not all there.
    mine = filled(first=50)
    before = contents_of(mine.storage)
    image = (saved / "fields.bin").read_bytes()
    (saved / "fields.bin").write_bytes(image[:-1] + bytes([image[-1] ^ 1]))
    with pytest.raises(LayoutError, match=r"fields\.bin is damaged"):
        mine.load(saved)
    (saved / "fields.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"fields\.bin is missing"):
        mine.load(saved)
    assert contents_of(mine.storage) == before


def contents_of(storage: Any) -> Any:
    return (storage.tape.snapshot(), storage.episodes().tobytes(), str(storage.fields))


def test_parts_of_a_snapshot(tmp_path: Path) -> None:
    buffer = filled()
    buffer.save(tmp_path / "saved")
    whole = read_saved(tmp_path / "saved", "RandomSampler").contents
    assert whole.fields is not None and len(whole.fields) == len(whole.entries)
    ordinals = whole.ordinals()
    odd, even = whole.only(ordinals[1::2].tolist()), whole.only(ordinals[::2].tolist())
    for part, mine in ((odd, ordinals[1::2]), (even, ordinals[::2])):
        kept = np.isin(whole.entries["ordinal"], mine)
        assert np.array_equal(part.fields, whole.fields[kept])
    joined = Snapshot.joined([odd, even._replace(fields=None)])
    assert joined.fields is not None
    assert np.array_equal(joined.fields[: len(odd.entries)], odd.fields)
    assert not joined.fields[len(odd.entries) :].any()
    newest = whole.newest(7)
    assert np.array_equal(newest.fields, whole.fields[-len(newest.entries) :])
