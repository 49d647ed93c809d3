"""An index as contig 0.1 left it: entries say how many runs are before them, not a rank."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig.tape.disk.index_tables as index_tables
from contig import ReplayBuffer, SliceSampler
from contig.tape.disk import DiskStorage
from contig.tape.disk.index_pages import pack, unpack
from contig.tape.entry import read_entries
from tests.waiting import until

ENVS, STEPS = 3, 400


def step(t: int) -> dict[str, Any]:
    uid = np.arange(ENVS) * 1000 + t
    return {"uid": uid, "next": {"reward": np.ones(ENVS, "f4"), "done": np.zeros(ENVS, bool)}}


def make_old(path: Path) -> None:
    db = sqlite3.connect(path / "index.sqlite")
    kept = unpack([page for (page,) in db.execute("SELECT entries FROM pages ORDER BY page")])
    kept = kept.copy()
    depth: dict[int, int] = {}
    for entry in kept:
        depth[int(entry["number"])] = depth.get(int(entry["prev"]), -1) + 1
        entry["depth"] = depth[int(entry["number"])]
    db.executemany("INSERT OR REPLACE INTO pages VALUES (?, ?)", pack(kept))
    db.commit()
    db.close()
    assert max(depth.values()) == STEPS - 1


def slices_are_whole(storage: DiskStorage) -> None:
    sampler = SliceSampler(slice_len=40, strict_length=True)
    uid = ReplayBuffer(storage, sampler, batch_size=400, seed=0).sample()["uid"].reshape(-1, 40)
    assert (np.diff(uid, axis=1) == 1).all() and (uid // 1000 == uid[:, :1] // 1000).all()


@pytest.mark.parametrize("pages", (256, 3))
def test_an_old_index_opens_and_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    monkeypatch.setattr(index_tables, "_READ_PAGES", pages)  # taken in at once, or part by part
    path = tmp_path / "store"
    with DiskStorage(path) as storage:
        for t in range(STEPS):
            storage.default_writer.add_step(step(t))
        before = read_entries(storage.tape)
    make_old(path)
    with DiskStorage(path) as storage, DiskStorage(path, read_only=True) as reader:
        np.testing.assert_array_equal(read_entries(storage.tape), before)
        slices_are_whole(storage)
        slices_are_whole(reader)
        for t in range(50):  # a new writer: trajectories of its own
            storage.default_writer.add_step(step(500 + t))
        storage.flush()

        def follows() -> bool:
            reader.poll()
            return bool(reader.tape.snapshot() == storage.tape.snapshot())

        until(follows, "the reader follows")
        a, b = (read_entries(s.tape) for s in (storage, reader))
        np.testing.assert_array_equal(a, b)
        slices_are_whole(reader)
        assert len(reader.episodes()) == 2 * ENVS
