"""Checkpoints of storages that store observations once: the same rows, and not more memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage, LazyTensorStorage, ReplayBuffer, SharedStorage
from contig.replay.redistribute import load_shard, load_share, save_shard
from contig.sample import RandomSampler
from tests.tape.observations import Env, Form, batch_bytes, stacked

FORM = Form(frames=4, image=True, state=True)
CAPACITY = 300
LZ4 = {"obs": "lz4", "state": "lz4"}
HOW: dict[str, Any] = {
    "recognised": lambda **more: LazyTensorStorage(CAPACITY, **more),
    "told": lambda **more: SharedStorage(CAPACITY, stack={"obs": 4}, **more),
    "next only": lambda **more: LazyTensorStorage(CAPACITY, stack={}, **more),
    "lz4": lambda **more: LazyTensorStorage(CAPACITY, share_next=True, codecs=LZ4, **more),
    "plain": lambda **more: LazyTensorStorage(CAPACITY, share_next=False, **more),
}


class Steady(Env):
    """One whose next observations are always where the next step begins."""

    def row(self, end: bool = False) -> dict[str, Any]:
        now = self.seen(self.frames)
        self.frames = [*self.frames[1:], self.frame()]
        following = self.seen(self.frames)
        flags = {"reward": np.float32(self.count), "done": np.bool_(end)}
        if end:
            self.reset()
        return {**now, "action": np.int64(self.count), "next": {**following, **flags}}


def fill(storage: Any, rows: int = 400) -> None:
    rnd = np.random.default_rng(2)
    env = Steady(FORM, 1, rnd)
    pair = [Steady(FORM, 2 + i, rnd) for i in range(2)]
    single = storage.writer()
    for i in range(rows // 8):
        single.extend(stacked([env.row(i % 5 == 4 and j == 5) for j in range(6)]))
        storage.default_writer.add_step(stacked([e.row(i % 7 == 6) for e in pair]))


def rows_of(storage: Any) -> dict[Any, bytes]:
    return batch_bytes(ReplayBuffer(storage)[:])


def frames_of(storage: Any) -> int:
    sharing = storage.schema.sharing
    return 0 if sharing is None else max(x.frames for x in sharing.leaves)


@pytest.mark.parametrize("here", HOW)
@pytest.mark.parametrize("there", HOW)
def test_any_into_any(here: str, there: str, tmp_path: Path) -> None:
    with HOW[here]() as first, HOW[there]() as second, HOW[there]() as beside:
        fill(first)
        fill(beside)  # what is stored when rows come one by one
        ReplayBuffer(first).save(tmp_path / "a")
        ReplayBuffer(second).load(tmp_path / "a")
        assert rows_of(first) == rows_of(second)
        assert second.codecs == beside.codecs
        assert second.nbytes <= beside.nbytes
        assert frames_of(second) == {"next only": 1, "plain": 0}.get(there, 4)
        assert second.tape.snapshot() == first.tape.snapshot()
        fill(second, 80)  # and it goes on
        fill(first, 80)
        assert rows_of(first) == rows_of(second)


def test_into_one_that_has_rows(tmp_path: Path) -> None:
    with LazyTensorStorage(CAPACITY) as first, LazyTensorStorage(CAPACITY) as second:
        fill(first)
        fill(second, 800)
        before = second.nbytes
        ReplayBuffer(first).save(tmp_path / "a")
        for _ in range(20):
            ReplayBuffer(second).load(tmp_path / "a")
            assert rows_of(second) == rows_of(first)
            fill(second, 16)
        assert second.nbytes <= 1.5 * before


def test_to_disk_and_back(tmp_path: Path) -> None:
    with (
        LazyTensorStorage(CAPACITY) as first,
        DiskStorage(tmp_path / "disk", CAPACITY) as disk,
        LazyTensorStorage(CAPACITY) as last,
    ):
        fill(first)
        ReplayBuffer(first).save(tmp_path / "a")
        ReplayBuffer(disk).load(tmp_path / "a")
        ReplayBuffer(disk).save(tmp_path / "b")
        ReplayBuffer(last).load(tmp_path / "b")
        assert frames_of(disk) == 4
        assert rows_of(first) == rows_of(disk) == rows_of(last)
        assert frames_of(last) == 4 and last.nbytes <= first.nbytes


@pytest.mark.parametrize("here", HOW)
def test_any_into_a_new_one_on_disk(here: str, tmp_path: Path) -> None:
    """Stacks are recognised there as in rows that are written."""
    with HOW[here]() as first, DiskStorage(tmp_path / "written", CAPACITY) as written:
        fill(first)
        fill(written)
        ReplayBuffer(first).save(tmp_path / "a")
        asked: dict[str, Any] = {} if here != "told" else {"stack": {}}  # which is kept to
        with DiskStorage(tmp_path / "loaded", CAPACITY, **asked) as loaded:
            ReplayBuffer(loaded).load(tmp_path / "a")
            assert frames_of(loaded) == (1 if asked else 4)
            assert rows_of(first) == rows_of(loaded)
            if not asked:
                assert loaded.schema.sharing == written.schema.sharing
                assert loaded.nbytes <= 1.05 * written.nbytes


def test_shards(tmp_path: Path) -> None:
    """Three shards of a cluster's buffer become two: each trajectory is in one of them, whole."""
    sampler = RandomSampler()
    written: dict[bytes, bytes] = {}
    for shard in range(3):
        with LazyTensorStorage(CAPACITY) as storage:
            env = Steady(FORM, shard, np.random.default_rng(shard))
            for _ in range(8):
                rows = [env.row(j == 9) for j in range(10)]
                storage.default_writer.extend(stacked(rows))
                for row in rows:
                    written[row["obs"].tobytes()] = row["next"]["obs"].tobytes()
            assert save_shard(storage, sampler, None, tmp_path / str(shard))
    paths = [tmp_path / str(shard) for shard in range(3)]
    found: dict[bytes, bytes] = {}
    for share in range(2):
        with LazyTensorStorage(CAPACITY) as storage:
            load_share(storage, sampler, paths, (share, 2))
            assert frames_of(storage) == 4
            batch = ReplayBuffer(storage)[:]
            for now, following in zip(batch["obs"], batch["next", "obs"]):
                found[now.tobytes()] = following.tobytes()
    assert found == written
    with LazyTensorStorage(CAPACITY) as storage:
        load_shard(storage, sampler, paths[1])
        assert frames_of(storage) == 4 and len(storage) == 80


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_leaves_without_elements(shape: tuple[int, ...], tmp_path: Path) -> None:
    """What an env that shows nothing has beside others: rows are looked at for stacks all the same
    when a checkpoint is taken in."""
    rnd = np.random.default_rng(3)
    env = Steady(Form(frames=4, image=True), 1, rnd)
    empty = {"empty": np.zeros((50, *shape), np.float32)}
    rows = stacked([env.row(i % 9 == 8) for i in range(50)])
    rows = {**rows, **empty, "next": {**rows["next"], **empty}}
    with LazyTensorStorage(CAPACITY) as storage:
        buffer = ReplayBuffer(storage)
        buffer.extend(rows)
        buffer.save(tmp_path / "a")
        written = rows_of(storage)
    for make in (LazyTensorStorage, SharedStorage):
        for options in ({}, {"share_next": True, "stack": {}}, {"share_next": False}):
            with make(CAPACITY, **options) as other:
                ReplayBuffer(other).load(tmp_path / "a")
                assert rows_of(other) == written
                assert frames_of(other) == (4 if not options else min(len(options) - 1, 1))
