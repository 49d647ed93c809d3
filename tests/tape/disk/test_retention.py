"""What is let go and when; checkpoints that take the place of what is there."""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import contig
import contig.tape.disk.retention as retention
from contig import LayoutError
from contig.tape.disk import DiskStorage, clock, files
from tests.tape.disk import stored
from tests.tape.disk.test_faults import WRITER, Faults, check, faults, fill, make, until

__all__ = ["faults"]


def buffer_of(storage: DiskStorage) -> contig.ReplayBuffer:
    return contig.ReplayBuffer(storage, contig.RandomSampler(), batch_size=8)


def items(storage: DiskStorage) -> list[int]:
    fields, served = stored.contents(storage)
    assert served.all()
    return sorted(set(fields[:, 1].tolist()))


def extents(path: Path) -> list[int]:
    return sorted(int(f.stem) for f in (path / "extents").iterdir())


def change(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 7
    path.write_bytes(data)


@pytest.mark.parametrize("most", (1, 3))
def test_episodes(tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_LOOK_S", 0.0)
    with make(tmp_path, 1 << 12, max_episodes=most) as storage:
        for n in range(30):
            fill(storage, n, 1)
            assert items(storage) == list(range(max(n + 1 - most, 0), n + 1))
            assert len(storage.episodes()) == min(n + 1, most)
            assert not storage.episodes()["trimmed"].any()
        storage.flush()
        head, tail, _, _ = storage.tape.snapshot()
        until(lambda: extents(tmp_path) == list(range(tail // 8, -(-head // 8))))
        check(storage, 29)
    with make(tmp_path, 1 << 12) as storage:
        assert items(storage) == list(range(30 - most, 30))


def test_episodes_when_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also of a storage that was not bounded before; what is let go is logged."""
    with make(tmp_path, 1 << 12) as storage:
        fill(storage, 0, 30)
        storage.retain()
        assert items(storage) == list(range(30))
    with make(tmp_path, 1 << 12, max_episodes=4) as storage:
        assert items(storage) == list(range(30))
        with caplog.at_level(logging.INFO, "contig.disk"):
            storage.retain()
            storage.flush()
            until(lambda: any("let go" in line for line in caplog.messages))
        assert extents(tmp_path)[0] == storage.tape.snapshot()[1] // 8
        storage.retain()
        assert items(storage) == list(range(26, 30))


def test_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make(tmp_path, 1 << 12, max_age_s=50.0) as storage:
        fill(storage, 0, 5)
        between = clock.uptime_ns()
        while clock.uptime_ns() <= between:
            pass
        fill(storage, 5, 5)
        storage.retain()
        assert items(storage) == list(range(10))
        monkeypatch.setattr(clock, "uptime_ns", lambda: between + 50 * 10**9)
        storage.retain()
        assert items(storage) == list(range(5, 10))
        monkeypatch.setattr(clock, "uptime_ns", lambda: between + 5000 * 10**9)
        storage.retain()
        assert len(storage) == 0 and not len(storage.episodes())
        storage.flush()
        head = storage.tape.snapshot()[0]
        until(lambda: extents(tmp_path) == ([head // 8] if head % 8 else []))
        monkeypatch.undo()
        fill(storage, 10, 2)
        assert items(storage) == [10, 11]
    with make(tmp_path, 1 << 12) as storage:
        assert items(storage) == [10, 11]


def test_index_does_not_grow(tmp_path: Path) -> None:
    with make(tmp_path, 24) as storage:
        fill(storage, 0, 60)
        storage.flush()
        _, _, index_head, index_tail = storage.tape.snapshot()
        assert storage.opened.index is not None
        (pages,) = storage.opened.index._db.execute("SELECT count(*) FROM pages").fetchone()
        assert pages == (index_head - 1) // 32 - index_tail // 32 + 1


# -- checkpoints -----------------------------------------------------------------------------------


def test_checkpoint_into_a_storage_in_use(tmp_path: Path) -> None:
    """Loading a checkpoint waits for commits, which let go of files: no deadlock."""
    for durability in ("committed", "durable"):
        folder = tmp_path / durability
        with make(folder / "a", durability=durability) as storage:
            buffer = contig.ReplayBuffer(storage, contig.RandomSampler(), batch_size=8)
            fill(storage, 0, 30)
            buffer.save(folder / "checkpoint")
            fill(storage, 30, 30)
            buffer.load(folder / "checkpoint")
            check(storage, 29)
            fill(storage, 30, 10)
            check(storage, 39)
        with make(folder / "a", durability=durability) as storage:
            check(storage, 39)


@pytest.mark.parametrize("rows_per_extent", (stored.EXTENT, 4 * stored.EXTENT))
def test_damaged_checkpoint_changes_nothing(tmp_path: Path, rows_per_extent: int) -> None:
    """Whether its files are linked or copied."""
    with DiskStorage(tmp_path / "a", 256, rows_per_extent=stored.EXTENT) as storage:
        fill(storage, 0, 9)
        buffer_of(storage).save(tmp_path / "checkpoint")
        assert storage.tape.snapshot()[0] % stored.EXTENT, "there is no open file"
    change(max((tmp_path / "checkpoint" / "extents").iterdir()), 100)
    with DiskStorage(tmp_path / "b", 256, rows_per_extent=rows_per_extent) as storage:
        fill(storage, 20, 20)
        with pytest.raises(LayoutError, match="checksum"):
            buffer_of(storage).load(tmp_path / "checkpoint")
        check(storage, 39)
        fill(storage, 40, 1)
        check(storage, 40)
    with DiskStorage(tmp_path / "b", 256) as storage:
        check(storage, 40)


def test_quarantine_ends_with_what_was_there(tmp_path: Path) -> None:
    """Trajectories of a checkpoint have the numbers of those whose place they take."""
    with make(tmp_path / "store", 256) as storage:
        fill(storage, 0, 9)
        buffer_of(storage).save(tmp_path / "checkpoint")
        assert storage.tape.snapshot()[0] % stored.EXTENT, "there is no open file"
    change(max((tmp_path / "store" / "extents").iterdir()), 10)
    with make(tmp_path / "store", 256) as storage:
        assert storage.quarantined
        buffer_of(storage).load(tmp_path / "checkpoint")
        check(storage, 8)
    with make(tmp_path / "store", 256) as storage:
        check(storage, 8)


def test_sync_fails_while_a_checkpoint_is_saved(tmp_path: Path, faults: Faults) -> None:
    """What it should have synced is never said to be durable."""
    storage = make(tmp_path / "store", durability="durable")
    fill(storage, 0, 5)
    storage.flush()
    committer = storage.opened.committer
    assert committer is not None
    with committer._role:  # the rows are not committed before the checkpoint syncs them
        fill(storage, 5, 1)
        faults.arm("fsync", errno.EIO, times=1)
        with pytest.raises(OSError):
            buffer_of(storage).save(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()
    for _ in range(2):
        with pytest.raises(OSError, match="synced"):
            storage.flush()
    with pytest.raises(OSError, match="synced"):
        storage.close()
    with make(tmp_path / "store") as again:
        fields, served = stored.contents(again)
        there = stored.check_order(fields, served, 0)
        assert there[WRITER][1] >= 4


def test_empty_storage_is_saved(tmp_path: Path) -> None:
    """Nothing in it, and no file of rows either."""
    with make(tmp_path / "store") as storage:
        fill(storage, 0, 3)
        storage.empty()
    for file in (tmp_path / "store" / "extents").iterdir():
        file.unlink()
    with make(tmp_path / "store") as storage:
        head = storage.tape.snapshot()[0]
        buffer_of(storage).save(tmp_path / "checkpoint")
        fill(storage, 3, 5)
        buffer_of(storage).load(tmp_path / "checkpoint")
        assert len(storage) == 0 and storage.tape.snapshot()[0] == head
        fill(storage, 3, 2)
        assert np.array_equal(items(storage), [3, 4])


YEAR_NS = 365 * 86_400 * 10**9


class Clocks:
    """The wall clock, which may be set, and the time since the system started."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.set_by_ns = self.passed_ns = 0
        wall, uptime = time.time_ns, clock.uptime_ns
        patch.setattr(time, "time_ns", lambda: wall() + self.set_by_ns + self.passed_ns)
        patch.setattr(clock, "uptime_ns", lambda: uptime() + self.passed_ns)


@pytest.mark.parametrize("step_ns", (YEAR_NS, -YEAR_NS))
@pytest.mark.parametrize("reopened", (False, True))
def test_the_clock_is_set(
    tmp_path: Path, step_ns: int, reopened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ages are not judged by it while the system runs, by this process or the next one."""
    clocks = Clocks(monkeypatch)
    storage = make(tmp_path, 1 << 12, max_age_s=1000.0)
    fill(storage, 0, 5)
    storage.flush()
    clocks.set_by_ns = step_ns
    if reopened:
        storage.close()
        storage = make(tmp_path, 1 << 12, max_age_s=1000.0)
    storage.retain()
    assert items(storage) == list(range(5)), "they are fresh"
    fill(storage, 5, 5)
    clocks.passed_ns = 900 * 10**9
    storage.retain()
    assert items(storage) == list(range(10))
    fill(storage, 10, 1)
    clocks.passed_ns += 200 * 10**9
    storage.retain()
    assert items(storage) == [10], "the others are old"
    storage.close()


def test_ages_over_a_restart_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the wall clock counts. A row that it has not come to yet is as old as the opening."""
    with make(tmp_path / "store", 1 << 12, max_age_s=50.0) as storage:
        fill(storage, 0, 5)
    monkeypatch.setattr(clock, "boot_id", lambda: 12345)
    for passed_s, there in ((20, True), (80, False), (-1000, True)):
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        with pytest.MonkeyPatch.context() as patch:
            clocks = Clocks(patch)
            clocks.set_by_ns = passed_s * 10**9
            with make(tmp_path / "copy", 1 << 12, max_age_s=50.0) as storage:
                storage.retain()
                # When the rows of the newest run came, nobody knows.
                assert len(items(storage)) == (5 if there else 1), passed_s
                clocks.passed_ns = 51 * 10**9
                storage.retain()
                assert items(storage) == []
        shutil.rmtree(tmp_path / "copy")


def test_age_of_a_long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trajectory that goes on for longer than `max_age_s` loses its old rows, and no others."""
    now = start = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    monkeypatch.setattr(clock, "uptime_ns", lambda: now - start)
    with make(tmp_path, 1 << 12, max_age_s=50.0) as storage:
        row = stored.first_row(stored.item(stored.SINGLE, 0, part_of=1 << 20))
        heads = []
        for _ in range(12):  # ten seconds each
            for _ in range(10):
                storage.default_writer.add(row)
            heads.append(storage.tape.snapshot()[0])
            storage.retain()
            now += 10 * 10**9
        assert len(storage.episodes()) == 1
        storage.retain()
        head, tail, _, _ = storage.tape.snapshot()
        assert (head, tail) == (120, 80), "rows of the last 50 s are kept"
        assert heads[-5] == 80
        now += 35 * 10**9
        storage.retain()
        assert storage.tape.snapshot()[1] == 110
        storage.flush()
    with make(tmp_path, 1 << 12, max_age_s=50.0) as storage:  # it does not know when they came
        storage.retain()
        assert storage.tape.snapshot()[:2] == (120, 110)
        now += 50 * 10**9
        storage.default_writer.extend_trajectory(stored.item(WRITER, 0))
        now += 51 * 10**9
        storage.default_writer.extend_trajectory(stored.item(WRITER, 1))
        storage.retain()
        assert storage.tape.snapshot()[1] >= 120


def files_in(path: Path) -> int:
    """Bytes that files of rows take; they are deleted meanwhile."""
    found = 0
    for file in (path / "extents").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += file.stat().st_blocks * 512
    return found


@pytest.mark.parametrize("any_size", (False, True))
@pytest.mark.parametrize("row_bytes", (40, 3_000, 70_000, 2 << 20))
def test_bytes_bound_the_files(tmp_path: Path, row_bytes: int, any_size: bool) -> None:
    """Within two extents of each kind, rows of whatever size, after every append."""
    most = max(20 * row_bytes, 1 << 20)
    leaf: object = np.zeros(row_bytes, np.uint8)
    example = {"n": np.int64(0), "x": contig.Blob() if any_size else leaf}
    with DiskStorage(tmp_path, max_bytes=most, example=example) as storage:
        for n in range(4 * most // row_bytes // 10):
            x = np.full((10, row_bytes), n % 251, np.uint8)
            if any_size:
                x = np.array([row.tobytes() for row in x], object)
            storage.default_writer.extend({"n": np.arange(10) + 10 * n, "x": x})
            opened = storage.opened
            assert opened is not None
            allowed = most + 2 * opened.extents.nbytes
            if opened.bytes is not None:
                allowed += 2 * opened.bytes.files.nbytes
            assert files_in(tmp_path) <= allowed + 10 * row_bytes, n
        storage.flush()
        until(lambda: files_in(tmp_path) <= allowed)
        assert allowed <= 2 * most, "extents are small beside what is kept"
        assert len(storage) > 0


def test_a_commit_does_not_list_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is known which are there; and what was made, deleted or replaced since is known."""
    listed, listing = [], files.listing

    def counted(path: Path) -> list[str]:
        listed.append(path)
        return listing(path)

    with make(tmp_path / "other", 1 << 12) as other:
        fill(other, 500, 3)
        buffer_of(other).save(tmp_path / "saved")
    with make(tmp_path / "store", 64) as storage:
        for turn in range(2):
            fill(storage, 0, 30)
            storage.flush()
            monkeypatch.setattr(files, "listing", counted)
            for n in range(30, 60):
                fill(storage, n, 1)
                storage.flush()
            assert not listed
            monkeypatch.undo()
            head, tail, _, _ = storage.tape.snapshot()
            folder = storage.opened.extents.folder
            there = list(range(tail // 8, -(-head // 8)))
            until(lambda folder=folder, there=there: rows_in(folder) == there)
            if turn == 0:
                buffer_of(storage).load(tmp_path / "saved")


def rows_in(folder: Path) -> list[int]:
    return sorted(int(f.stem) for f in folder.glob("*.rec"))


def test_a_file_that_cannot_be_deleted_goes_later(tmp_path: Path, faults: Faults) -> None:
    with make(tmp_path, 16) as storage:
        fill(storage, 0, 5)
        storage.flush()
        faults.arm("unlink", errno.EIO)
        fill(storage, 5, 20)
        storage.flush()
        faults.repair()
        fill(storage, 25, 2)
        storage.flush()
        head, tail, _, _ = storage.tape.snapshot()
        until(lambda: extents(tmp_path) == list(range(tail // 8, -(-head // 8))))
