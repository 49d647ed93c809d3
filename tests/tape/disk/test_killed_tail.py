"""Rows behind the newest that the index knows: deleted if it is known that they were never
committed, put aside if it is not."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contig.tape.disk import DiskStorage
from contig.tape.disk.repair import repair, verify
from tests.tape.disk import stored
from tests.tape.disk.test_faults import WRITER, check, fill, make


def killed(path: Path, committed: int, lost: int) -> None:
    """A process commits some items, appends more, and is killed before these are committed."""
    pid = os.fork()
    if pid == 0:
        try:
            storage = make(path, 4096, max_lag_s=1000.0, example=stored.example())
            first = len(stored.contents(storage)[0]) and int(stored.contents(storage)[0][-1, 1]) + 1
            fill(storage, first, committed)
            storage.flush()
            storage.opened.committer._role.acquire()  # nobody commits any more
            fill(storage, first + committed, lost)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def behind(path: Path) -> int:
    with DiskStorage(path, 4096, read_only=True) as storage:
        return storage.rows_beyond()


def aside(path: Path) -> list[Path]:
    return sorted((path / "quarantine").iterdir()) if (path / "quarantine").exists() else []


def test_kills_leave_nothing(tmp_path: Path) -> None:
    for n in range(6):
        killed(tmp_path, 3 if n != 1 else 0, 1 + n % 4)  # one that never committed anything
        assert behind(tmp_path) == 0
    for _ in range(2):
        with make(tmp_path, 4096) as storage:
            assert not verify(storage).trajectories
            last = int(stored.contents(storage)[0][-1, 1])
            fill(storage, last + 1, 1)
            check(storage, last + 1)
    assert last == 15 and not aside(tmp_path)
    killed(tmp_path, 1, 5)
    assert repair(tmp_path) == ["nothing is damaged"]
    assert not aside(tmp_path)


def test_a_row_cut_short(tmp_path: Path) -> None:
    """It was killed while it wrote."""
    killed(tmp_path, 3, 2)
    with make(tmp_path, 4096) as storage:
        head = storage.tape.snapshot()[0]
        count = sum(len(stored.item(WRITER, n)["fields"]) for n in (3, 4))
    extent, at = divmod(head + count - 1, stored.EXTENT)
    with open(tmp_path / "extents" / f"{extent:08d}.rec", "r+b") as file:
        file.seek(at * 512 + 100)
        file.write(bytes(412))
    assert behind(tmp_path) == 0
    with make(tmp_path, 4096) as storage:
        fill(storage, 3, 1)
        check(storage, 3)
    assert not aside(tmp_path)


def _older_index(path: Path) -> None:
    for file in path.glob("index.sqlite*"):
        file.unlink()
    shutil.copy(path.parent / "older.sqlite", path / "index.sqlite")


def _no_log(path: Path) -> None:
    (path / "index.sqlite-wal").unlink()
    (path / "index.sqlite-shm").unlink(missing_ok=True)


def _no_marker(path: Path) -> None:
    (path / "committed").unlink()


def _copied_marker(path: Path) -> None:
    """As from a backup: it says what it said, but the file is newer than that."""
    data = (path / "committed").read_bytes()
    time.sleep(1.1)
    (path / "committed").write_bytes(data)


def _hole(path: Path) -> None:
    """Rows that nobody can have left there in this order."""
    files = sorted((path / "extents").glob("*.rec"))
    shutil.copy(files[0], path / "extents" / f"{int(files[-1].stem) + 5:08d}.rec")


def _foreign(path: Path) -> None:
    files = sorted((path / "extents").glob("*.rec"))
    shutil.copy(files[0], files[-1])


@pytest.mark.parametrize(
    "change", (_older_index, _no_log, _no_marker, _copied_marker, _hole, _foreign)
)
def test_what_cannot_be_explained_is_kept(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "store"
    with make(path, 4096) as storage:
        fill(storage, 0, 4)
    shutil.copy(path / "index.sqlite", tmp_path / "older.sqlite")
    killed(path, 6, 8)
    change(path)
    count = behind(path)
    assert count > 0
    rows = {
        file.read_bytes()[at : at + 512]
        for file in (path / "extents").glob("*.rec")
        for at in range(0, 4096, 512)
    }
    with make(path, 4096) as storage:
        last = int(stored.contents(storage)[0][-1, 1])
        fill(storage, last + 1, 1)
    assert len(aside(path)) == 1
    kept = {
        file.read_bytes()[at : at + 512]
        for file in path.rglob("*.rec")
        for at in range(0, 4096, 512)
    }
    assert rows <= kept


def test_a_load_that_was_not_committed(tmp_path: Path) -> None:
    """Its folder goes, too, if the index is known to be the newest."""
    path = tmp_path / "store"
    with make(path, 4096) as storage:
        fill(storage, 0, 4)
    shutil.copytree(path / "extents", path / "extents" / "load-1")
    with make(path, 4096) as storage:
        check(storage, 3)
    assert not aside(path) and not (path / "extents" / "load-1").exists()
    shutil.copytree(path / "extents", path / "extents" / "load-1")
    _no_marker(path)
    make(path, 4096).close()
    assert len(aside(path)) == 1
