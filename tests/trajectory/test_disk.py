"""Trajectories in a directory: what is found again, after crashes and damage too."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import EmptyBufferError, LayoutError, ShapeDtype, TrajectoryReplayBuffer
from contig.tape.disk import files
from contig.tape.disk.extents import row_stride
from tests.trajectory.made import check, drawn, filled, made


def opened(path: Path, **options: Any) -> TrajectoryReplayBuffer:
    return TrajectoryReplayBuffer(auto_save=True, auto_save_path=path, **options)


def test_an_existing_directory_is_opened_with_what_it_holds(tmp_path: Path) -> None:
    with filled(7, auto_save=True, auto_save_path=tmp_path, sample_window_size=2) as buffer:
        before, batches = buffer.trajectory_index, drawn(buffer)
    with opened(tmp_path, sample_window_size=2) as buffer:
        assert buffer.trajectory_index == before and buffer.trajectory_counter == 7
        assert (buffer.size, buffer.total_samples, buffer.is_ready(7)) == (7, 56, True)
        assert drawn(buffer) == batches
        assert buffer.add_trajectories([made(7)]) == [7]
    with opened(tmp_path, sample_window_size=0) as buffer:
        assert set(check(buffer.sample(1000))[:, 0]) == set(range(8))


def test_versions_go_on(tmp_path: Path) -> None:
    with opened(tmp_path) as buffer:
        buffer.add_trajectories([made(0, weights="a"), made(1, weights="b")])
    with opened(tmp_path, max_staleness=0) as buffer:
        assert set(check(buffer.sample(50))[:, 0]) == {1}
        buffer.add_trajectories([made(2, weights="a"), made(3, weights="c"), made(4, weights="b")])
        assert set(check(buffer.sample(50))[:, 0]) == {3}


def test_versions_go_on_when_old_ones_are_gone(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_bytes": 4096 * 20, "max_staleness": 0, "sample_window_size": 0}
    with opened(tmp_path, **options) as buffer:
        for number in range(30):
            buffer.add_trajectories([made(number, 32, 8, weights=f"w{number}")])
    with opened(tmp_path, **options) as buffer:
        assert 1 < len(buffer) < 20
        assert set(check(buffer.sample(50))[:, 0]) == {29}
        buffer.add_trajectories([made(30, 32, 8, weights="new")])
        assert set(check(buffer.sample(50))[:, 0]) == {30}


def test_optional_fields_are_found_again(tmp_path: Path) -> None:
    optional = {"versions": ShapeDtype((), np.int64)}
    with opened(tmp_path, optional=optional) as buffer:
        buffer.add_trajectories([made(0)])
    with opened(tmp_path) as buffer:
        buffer.add_trajectories([made(1), made(2, versions=np.ones((4, 2), int))])
        batch = buffer.sample(100)
        assert np.array_equal(batch["mask"]["versions"].numpy(), check(batch)[:, 0] == 2)
    with pytest.raises(LayoutError, match='"rewards": the storage was made without it'):
        opened(tmp_path, optional=["rewards"])
    with opened(tmp_path, optional=optional) as buffer:
        assert len(buffer) == 3


def test_one_process_writes(tmp_path: Path) -> None:
    with filled(1, auto_save=True, auto_save_path=tmp_path) as buffer:
        assert len(buffer) == 1
        with pytest.raises(BlockingIOError, match=str(os.getpid())):
            opened(tmp_path)


def test_a_storage_of_something_else(tmp_path: Path) -> None:
    from contig import ReplayBuffer
    from contig.tape.disk import DiskStorage

    with DiskStorage(tmp_path) as storage:
        ReplayBuffer(storage).extend({"x": np.zeros(3)})
    with pytest.raises(LayoutError, match="no trajectories of a TrajectoryReplayBuffer"):
        opened(tmp_path)
    with pytest.raises(LayoutError, match="no trajectories of a TrajectoryReplayBuffer"):
        TrajectoryReplayBuffer().load_checkpoint(tmp_path)


def test_large_rows(tmp_path: Path) -> None:
    with opened(tmp_path) as buffer:
        images = np.arange(2 * 2 * 400_000, dtype=np.uint8).reshape(2, 2, 400, 1000)
        buffer.add_trajectories([{"rewards": np.zeros((2, 2)), "curr_obs": {"image": images}}])
        assert buffer.sample(3)["curr_obs"]["image"].shape == (3, 400, 1000)


def test_max_bytes_lets_the_oldest_go(tmp_path: Path) -> None:
    size = 4096 * 40
    with opened(tmp_path, max_bytes=size, sample_window_size=0) as buffer:
        for number in range(60):
            buffer.add_trajectories([made(number, 64, 8)])
            newest = check(buffer.sample(64))[:, 0].max()
            assert newest <= number
        kept = [e["trajectory_id"] for e in buffer.trajectory_index]
        assert 0 < len(kept) < 10 and kept == list(range(60 - len(kept), 60))
        with pytest.raises(ValueError, match="does not fit into max_bytes"):
            buffer.add_trajectories([made(60, 64, 800)])
    with opened(tmp_path, max_bytes=size) as buffer:
        assert [e["trajectory_id"] for e in buffer.trajectory_index] == kept
        assert buffer.trajectory_counter == 60


def test_killed_while_adding(tmp_path: Path) -> None:
    """A child adds and dies; what is found is a beginning of what it added, whole."""
    script = """
import itertools, sys
import numpy as np
from contig import TrajectoryReplayBuffer

buffer = TrajectoryReplayBuffer(auto_save=True, auto_save_path=sys.argv[1])
for n in itertools.count():
    steps = 1 + n % 7
    buffer.add_trajectories([{"rewards": 100 * n + np.arange(steps * 3).reshape(steps, 3)}])
    if n % 10 == 9:
        buffer.flush()
        print(n, flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    acked = [int(child.stdout.readline()) for _ in range(5)][-1]
    child.kill()
    child.wait()
    child.stdout.close()
    with opened(tmp_path, sample_window_size=0) as buffer:
        found = buffer.trajectory_index
        assert [e["trajectory_id"] for e in found] == list(range(len(found)))
        assert len(found) > acked
        assert [e["num_samples"] for e in found] == [(1 + n % 7) * 3 for n in range(len(found))]
        for number in range(len(found)):
            rewards = buffer.read_trajectory(number)["rewards"]
            assert rewards.ravel().tolist() == [
                100 * number + i for i in range((1 + number % 7) * 3)
            ]
        assert buffer.get_stats()["damaged_trajectories"] == 0
        assert buffer.add_trajectories([{"rewards": np.zeros((1, 3), int)}]) == [len(found)]


def test_damaged_rows_are_not_sampled(tmp_path: Path) -> None:
    with filled(5, 64, 8, auto_save=True, auto_save_path=tmp_path) as buffer:
        buffer.flush()
        entry = buffer._rows.entries()[2]
        extent = next((tmp_path / "extents").iterdir())
        stride = row_stride(buffer._rows.storage.tape.record_size)
        with open(extent, "r+b") as file:
            file.seek(entry.first * stride + 5)
            byte = file.read(1)
            file.seek(entry.first * stride + 5)
            file.write(bytes([byte[0] ^ 1]))
        seen = {int(n) for _ in range(40) for n in check(buffer.sample(256))[:, 0]}
        assert {0, 1, 3, 4} <= seen
        with pytest.raises((LookupError, KeyError)):
            buffer.read_trajectory(2)
        check(buffer.sample(4096))
        assert buffer.get_stats()["damaged_trajectories"] == 1 and len(buffer) == 4
    with opened(tmp_path) as buffer:
        assert len(buffer) == 4 and buffer.get_stats()["damaged_trajectories"] == 1
        assert 2 not in check(buffer.sample(2000))[:, 0]


def kept_pages(path: Path) -> int:
    """Pages of the index in which there are fields."""
    with closing(sqlite3.connect(path / "index.sqlite")) as db:
        return int(db.execute("SELECT count(*) FROM fields").fetchone()[0])


def test_what_is_known_of_cleared_trajectories_goes(tmp_path: Path) -> None:
    with opened(tmp_path) as buffer:
        for _ in range(6):
            buffer.add_trajectories([made(n) for n in range(20)])
            buffer.clear()
            assert kept_pages(tmp_path) == 0
        buffer.add_trajectories([made(1)])
    with opened(tmp_path) as buffer:
        assert drawn(buffer) and len(buffer) == 1


def test_what_is_known_of_trajectories_that_are_gone_goes(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=4096 * 20) as buffer:
        for number in range(150):
            buffer.add_trajectories([made(number, 32, 8)])
        buffer.flush()
        index = buffer.trajectory_index
        assert len(index) < 20 and kept_pages(tmp_path) <= len(index) + 1
    for _ in range(2):
        with opened(tmp_path, max_bytes=4096 * 20) as buffer:
            assert buffer.trajectory_index == index and buffer.trajectory_counter == 150
            check(buffer.sample(20), 20)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = files.pwrite
    left = [1 << 60]

    def limited(fd: int, data: Any, offset: int) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "no space left")
        part = memoryview(data)[: left[0]]
        left[0] -= len(part)
        return real(fd, part, offset)

    monkeypatch.setattr(files, "pwrite", limited)
    with filled(2, auto_save=True, auto_save_path=tmp_path) as buffer:
        before = buffer.trajectory_index
        for room in (0, 7, 100, 250, 400, 700):
            left[0] = room
            number = buffer.trajectory_counter
            assert buffer.add_trajectories([made(2, 6, 3)]) == [number]
            with pytest.raises(OSError) as raised:
                buffer.flush()
            assert raised.value.errno == errno.ENOSPC
            left[0] = 1 << 60
            assert buffer.trajectory_index == before
            check(buffer.sample(50))
        # The ids of trajectories that were lost are not given again.
        assert buffer.add_trajectories([made(2)]) == [number + 1]
    with opened(tmp_path) as buffer:
        assert len(buffer) == 3 and set(check(buffer.sample(100))[:, 0]) == {0, 1, 2}


def test_a_directory_that_was_emptied(tmp_path: Path) -> None:
    with filled(2, auto_save=True, auto_save_path=tmp_path) as buffer:
        buffer.clear()
    with opened(tmp_path) as buffer:
        with pytest.raises(EmptyBufferError):
            buffer.sample(1)
        buffer.add_trajectories([made(5)])
        assert set(check(buffer.sample(5))[:, 0]) == {5}
