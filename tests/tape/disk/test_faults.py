"""Calls that fail, disks that are full, directories of others: an error that says so, nothing lost
that was there, and writing goes on when it can."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contig import ReplayBuffer, StorageFull
from contig.tape.disk import DiskStorage, files
from contig.tape.disk.index import DiskIndex
from tests.tape.disk import stored
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
WRITER = 50


def make(path: Path, capacity: int = 64, **options: Any) -> DiskStorage:
    options.setdefault("example", stored.example())
    return DiskStorage(path, capacity, rows_per_extent=stored.EXTENT, **options)


def fill(storage: DiskStorage, first: int, count: int) -> None:
    for number in range(first, first + count):
        storage.default_writer.extend_trajectory(stored.item(WRITER, number))


def check(storage: DiskStorage, last: int) -> None:
    """All rows are right, and item `last` is the newest."""
    fields, served = stored.contents(storage)
    assert served.all() and not storage.quarantined, storage.quarantined
    there = stored.check_order(fields, served, storage.tape.snapshot()[1])
    assert there[WRITER][1] == last
    stored.check_episodes(storage)


class Faults:
    """Makes calls of `files`, or of the index, fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.left = 0
        self.calls = 0

    def arm(self, name: str, number: int, times: int = 1 << 30, after: int = 0) -> None:
        call = getattr(files, name)
        self.left = times

        def failing(*args: Any) -> Any:
            self.calls += 1
            if self.calls > after and self.left > 0:
                self.left -= 1
                raise OSError(number, os.strerror(number))
            return call(*args)

        self._patch.setattr(files, name, failing)

    def arm_index(self, error: Exception, times: int = 1 << 30) -> None:
        call = DiskIndex.write
        self.left = times

        def failing(index: DiskIndex, changes: Any) -> None:
            self.calls += 1
            if self.left > 0:
                self.left -= 1
                raise error
            call(index, changes)

        self._patch.setattr(DiskIndex, "write", failing)

    def repair(self) -> None:
        self.left = 0


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


@contextlib.contextmanager
def limit(which: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(which)
    resource.setrlimit(which, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(which, (soft, hard))


# -- writing rows fails ----------------------------------------------------------------------------


FAILING = [(name, after) for name in ("pwrite", "create") for after in range(3)]
FAILING += [("open_to_write", 0), ("open_to_write", 1), ("truncate", 0), ("truncate", 1)]


@pytest.mark.parametrize("capacity", (64, 24))
@pytest.mark.parametrize(("name", "after"), FAILING)
@pytest.mark.parametrize("number", (errno.ENOSPC, errno.EIO))
def test_rows_cannot_be_written(
    tmp_path: Path, faults: Faults, name: str, number: int, after: int, capacity: int
) -> None:
    """The append is refused whole, whatever was written of it; then all goes on."""
    with make(tmp_path, capacity) as storage:
        fill(storage, 0, 30)
    storage = make(tmp_path, capacity)  # the newest file is opened again
    before = storage.tape.snapshot()
    last = 30
    faults.arm(name, number, after=after)
    for n in range(30, 60):
        try:
            fill(storage, n, 1)
        except OSError as error:
            assert error.errno == number
            assert isinstance(error, StorageFull) == (number == errno.ENOSPC)
            assert str(tmp_path) in str(error)
            break
        last = n + 1
        before = storage.tape.snapshot()
    else:
        raise AssertionError(f"{name} is not called")
    assert storage.tape.snapshot() == before, "a refused append changed something"
    check(storage, last - 1)
    faults.repair()
    check(storage, last - 1)
    fill(storage, last, 10)
    check(storage, last + 9)
    storage.close()
    with make(tmp_path, capacity) as again:
        check(again, last + 9)


@pytest.mark.parametrize("name", ("open_to_read", "make_dir"))
def test_opening_fails(tmp_path: Path, faults: Faults, name: str) -> None:
    with make(tmp_path) as storage:
        fill(storage, 0, 30)
    before = len(os.listdir("/proc/self/fd"))
    faults.arm(name, errno.EIO)
    for read_only in (False, True):
        if name == "open_to_read" or not read_only:
            with pytest.raises(OSError) as caught:
                make(tmp_path, read_only=read_only, example=None)
            assert caught.value.errno == errno.EIO
            del caught
    assert len(os.listdir("/proc/self/fd")) <= before
    faults.repair()
    with make(tmp_path) as storage:
        check(storage, 29)


def test_no_descriptor_is_lost(tmp_path: Path, faults: Faults) -> None:
    storage = make(tmp_path, 256)
    fill(storage, 0, 60)
    storage.flush()
    for name in ("pwrite", "create", "open_to_read"):
        faults.arm(name, errno.ENOSPC)
        faults.calls = 0
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(40):
            with contextlib.suppress(OSError):
                storage.default_writer.extend(stored.item(WRITER, 60))
        assert faults.calls, f"{name} is not called"
        faults.repair()
        assert len(os.listdir("/proc/self/fd")) <= before + 10
        fill(storage, 60, 1)
        storage.close()
        storage = make(tmp_path, 256)
        storage.empty()
        fill(storage, 0, 60)
    storage.close()


def test_many_extents_need_few_descriptors(tmp_path: Path) -> None:
    """An extent that is not written any more is not kept open."""
    highest = max(map(int, os.listdir("/proc/self/fd")))
    with make(tmp_path, 4096) as storage, limit(resource.RLIMIT_NOFILE, highest + 40):
        fill(storage, 0, 200)
        storage.flush()
        assert len(os.listdir(tmp_path / "extents")) > 100
        check(storage, 199)


@pytest.mark.parametrize("number", (errno.ENOSPC, errno.EIO))
def test_index_cannot_be_written(tmp_path: Path, faults: Faults, number: int) -> None:
    """The failure is raised at the next calls, and over when it is over: nothing was lost."""
    full = number == errno.ENOSPC
    text = "database or disk is full" if full else "disk I/O error"
    storage = make(tmp_path)
    fill(storage, 0, 5)
    storage.flush()
    faults.arm_index(sqlite3.OperationalError(text))
    fill(storage, 5, 1)
    until(lambda: faults.calls > 0)
    with pytest.raises(StorageFull if full else OSError, match=text):
        storage.flush()
    with pytest.raises(StorageFull if full else OSError, match=text):
        fill(storage, 6, 1)
    check(storage, 5)
    faults.repair()
    until(lambda: _works(storage.flush))
    fill(storage, 6, 5)
    storage.flush()
    storage.close()
    with make(tmp_path) as again:
        check(again, 10)


def _works(call: Callable[[], Any]) -> bool:
    try:
        call()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("error", (ValueError("odd"), OverflowError("odd"), MemoryError("odd")))
def test_index_fails_in_an_unknown_way(tmp_path: Path, faults: Faults, error: Exception) -> None:
    """Nothing waits for ever for a thread that is gone."""
    storage = make(tmp_path)
    fill(storage, 0, 5)
    storage.flush()
    faults.arm_index(error)
    fill(storage, 5, 1)
    until(lambda: faults.calls > 0)
    with pytest.raises(Exception, match="odd"):
        storage.flush(timeout_s=5)
    with pytest.raises(Exception, match="odd"):
        fill(storage, 6, 1)
    with pytest.raises(Exception, match="odd"):
        storage.close()
    faults.repair()
    with make(tmp_path) as again:
        assert stored.check_order(*stored.contents(again), 0)[WRITER][1] == 4


def test_interrupted(tmp_path: Path, faults: Faults) -> None:
    """Ctrl-C during a flush, which commits in its own thread: nothing is lost, and all goes on."""
    for durability in ("committed", "durable"):
        with make(tmp_path / durability, durability=durability) as storage:
            fill(storage, 0, 5)
            storage.flush()
            committer = storage.opened.committer
            assert committer is not None
            with committer._role:  # so that the committer's own thread does not come first
                fill(storage, 5, 1)
                faults.arm_index(KeyboardInterrupt(), times=1)  # type: ignore[arg-type]
                with pytest.raises(KeyboardInterrupt):
                    committer._commit()
            storage.flush()
            fill(storage, 6, 3)
            storage.flush()
            check(storage, 8)
        with make(tmp_path / durability) as storage:
            check(storage, 8)


@pytest.mark.parametrize("name", ("fsync", "fsync_dir"))
def test_sync_fails(tmp_path: Path, faults: Faults, name: str) -> None:
    """After a failed fsync nobody knows what is on the disk: it is never said to be durable."""
    storage = make(tmp_path, durability="durable")
    fill(storage, 0, 5)
    storage.flush()
    faults.arm(name, errno.EIO, times=1)
    for n in range(5, 17):
        with contextlib.suppress(OSError):
            fill(storage, n, 1)
    for _ in range(2):
        with pytest.raises(OSError):
            storage.flush()
    with pytest.raises(OSError):
        storage.close()
    with make(tmp_path, durability="durable") as again:
        fields, served = stored.contents(again)
        there = stored.check_order(fields, served, again.tape.snapshot()[1])
        assert served.all() and there[WRITER][1] >= 4


def test_retention_fails(tmp_path: Path, faults: Faults) -> None:
    """Files that cannot be removed stay; nothing else suffers, and they go later."""
    storage = make(tmp_path, 24)
    fill(storage, 0, 20)
    storage.flush()
    faults.arm("unlink", errno.EIO)
    for n in range(20, 30):
        fill(storage, n, 1)
        storage.flush(timeout_s=30)
    check(storage, 29)
    assert faults.calls
    faults.repair()
    fill(storage, 30, 5)
    storage.flush(timeout_s=30)
    check(storage, 34)
    rows = (tmp_path / "extents").glob
    until(lambda: len([*rows("*.rec")]) <= 24 // stored.EXTENT + 2)
    until(lambda: len([*rows("*.bin")]) <= 24 * 8 * 2 * stored.OBS_WORDS // 4096 + 5)
    storage.close()
    with make(tmp_path, 24) as again:
        check(again, 34)


@pytest.mark.parametrize("name", ("write_new", "rename", "fsync", "make_dir", "fsync_dir"))
def test_first_row_fails(tmp_path: Path, faults: Faults, name: str) -> None:
    """A new storage whose files cannot be made; then they can."""
    path = tmp_path / "store"
    faults.arm(name, errno.ENOSPC)
    with contextlib.ExitStack() as stack:
        with pytest.raises(OSError):
            stack.enter_context(make(path))
        faults.repair()
        storage = stack.enter_context(make(path))
        fill(storage, 0, 3)
        check(storage, 2)


def test_no_room_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that cannot end well is refused before anything is let go of."""
    with ReplayBuffer(make(tmp_path / "one"), batch_size=4) as buffer:
        fill(buffer.storage, 0, 6)
        buffer.save(tmp_path / "saved")
    with ReplayBuffer(make(tmp_path / "two"), batch_size=4) as buffer:
        fill(buffer.storage, 0, 9)
        monkeypatch.setattr(files, "free_bytes", lambda folder: 10)
        with pytest.raises(StorageFull, match="10 are free; nothing was loaded"):
            buffer.load(tmp_path / "saved")
        check(buffer.storage, 8)
        monkeypatch.undo()
        buffer.load(tmp_path / "saved")
        check(buffer.storage, 5)


def test_first_row_fails_and_the_storage_goes_on(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with a storage whose layout comes with the first row."""
    for turn, name in enumerate(("write_new", "rename", "connect")):
        path = tmp_path / str(turn)
        with DiskStorage(path, 64, rows_per_extent=stored.EXTENT) as storage:
            with monkeypatch.context() as patch:
                if name == "connect":

                    def refuse(*args: Any, **kwargs: Any) -> Any:
                        raise sqlite3.OperationalError("disk I/O error")

                    patch.setattr(sqlite3, "connect", refuse)
                else:
                    Faults(patch).arm(name, errno.ENOSPC)
                with pytest.raises((OSError, ValueError)):
                    fill(storage, 0, 1)
            fill(storage, 0, 3)
            check(storage, 2)


def test_small_disk(tmp_path: Path) -> None:
    """A real full disk, of 800 kB; four times there is some room again."""
    code = """
    import sys
    from pathlib import Path
    from contig import StorageFull
    from tests.tape.disk.test_faults import check, fill, make
    from tests.waiting import until
    path = Path(sys.argv[1]) / "store"
    ballast = [Path(sys.argv[1]) / f"ballast-{i}" for i in range(4)]
    for file in ballast:
        file.write_bytes(bytes(100_000))
    last = 0
    def flushed():
        try:
            storage.flush()
        except StorageFull:
            return False
        return True
    with make(path, 4096) as storage:
        for file in ballast:
            try:
                for n in range(last, last + 1000):
                    fill(storage, n, 1)
                    last = n + 1
                    storage.flush()
            except StorageFull as error:
                assert "No space" in str(error) or "full" in str(error)
            else:
                raise AssertionError("the disk is never full")
            check(storage, last - 1)
            file.unlink()
            until(flushed, "there is room, but nothing goes on")
        fill(storage, last, 1)
        last += 1
        storage.flush()
        check(storage, last - 1)
    with make(path, 4096) as storage:
        check(storage, last - 1)
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no filesystem can be mounted here; the same by injected errors, above")
    try:
        run(code, str(disk))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def run(code: str, *arguments: str) -> None:
    """A script in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
