"""Which directory it is: a path is resolved once; one that takes its place is somebody else's."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from contig.tape.disk import DiskStorage
from tests.tape.disk import stored
from tests.tape.disk.test_environment import image
from tests.tape.disk.test_faults import ROOT, check, fill, make, run

MOVED = "not the directory that was opened"


def logs(path: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in path.glob("*-wal")}


@pytest.mark.parametrize("durability", ("committed", "durable"))
@pytest.mark.parametrize("occupied", (False, True))
def test_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, occupied: bool
) -> None:
    """The working directory changes, to one where the same name means another storage."""
    other = tmp_path / "there" / "runs"
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    if occupied:
        with make(other, 4096) as storage:
            fill(storage, 500, 40)
    before = image(other)
    monkeypatch.chdir(tmp_path / "here")
    storage = make(Path("runs"), 4096, durability=durability)
    fill(storage, 0, 10)
    monkeypatch.chdir(tmp_path / "there")
    assert storage.path == tmp_path / "here" / "runs"
    fill(storage, 10, 60)
    storage.flush()
    committer = storage.opened.committer
    assert committer is not None and committer.fold()
    check(storage, 69)
    storage.close()
    assert image(other) == before
    assert other.exists() == occupied
    with make(tmp_path / "here" / "runs", 4096) as storage:
        check(storage, 69)


@pytest.mark.parametrize("killed", (False, True))
@pytest.mark.parametrize("occupied", (False, True))
def test_moved(tmp_path: Path, occupied: bool, killed: bool) -> None:
    """The directory is moved while it is written, and perhaps another is put in its place: what
    returned is where the directory went, and nothing in the one that took its place is touched."""
    path, moved = tmp_path / "runs", tmp_path / "elsewhere"
    if occupied:  # as a killed process leaves it, with a log that matters
        with make(tmp_path / "live", 4096) as storage:
            fill(storage, 500, 40)
            storage.flush()
            shutil.copytree(tmp_path / "live", tmp_path / "other")
            (tmp_path / "other" / "index.sqlite-shm").unlink()
        foreign, log = image(tmp_path / "other"), logs(tmp_path / "other")
        assert any(log.values())
    code = """
    import errno, os, signal, sys
    from pathlib import Path
    from tests.tape.disk.test_faults import fill, make
    path, moved, occupied, killed = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
    storage = make(path, 4096)
    fill(storage, 0, 60)
    storage.flush()
    fill(storage, 60, 5)
    os.rename(path, moved)
    if occupied:
        os.rename(path.parent / "other", path)
    for _ in range(2):
        try:
            fill(storage, 65, 1)
        except OSError as error:
            assert error.errno == errno.ESTALE and str(moved) in str(error), error
        else:
            raise AssertionError("it goes on")
    storage.flush()
    storage.opened.committer.fold()
    if killed:
        os.kill(os.getpid(), signal.SIGKILL)
    storage.close()
    """
    try:
        run(code, str(path), str(moved), str(int(occupied)), str(int(killed)))
    except AssertionError as error:
        assert killed and not str(error).split("assert")[0].strip("'\\ \n"), error
    with make(moved, 4096) as storage:
        check(storage, 64)
    assert path.exists() == occupied
    if occupied:
        assert image(path) == foreign and logs(path) == log
        with make(path, 4096) as storage:
            check(storage, 539)


@pytest.mark.parametrize("occupied", (False, True))
def test_deleted(tmp_path: Path, occupied: bool) -> None:
    path = tmp_path / "runs"
    storage = make(path, 4096)
    fill(storage, 0, 5)
    storage.flush()
    shutil.copytree(path, tmp_path / "other")
    shutil.rmtree(path)
    if occupied:
        os.rename(tmp_path / "other", path)
    log = logs(path)
    with pytest.raises(OSError, match=MOVED) as caught:
        fill(storage, 5, 1)
    assert caught.value.errno == errno.ESTALE
    storage.close()
    assert path.exists() == occupied and logs(path) == log
    if occupied:
        with make(path, 4096) as storage:
            check(storage, 4)


def test_a_link_that_is_changed(tmp_path: Path) -> None:
    """`latest` leads to another run now: this storage is of the one that it led to."""
    for name in ("one", "two"):
        make(tmp_path / name).close()
    (tmp_path / "latest").symlink_to("one")
    with make(tmp_path / "latest", 4096) as storage:
        fill(storage, 0, 3)
        (tmp_path / "latest").unlink()
        (tmp_path / "latest").symlink_to("two")
        fill(storage, 3, 3)
    with make(tmp_path / "one", 4096) as storage:
        check(storage, 5)
    with make(tmp_path / "two", 4096) as storage:
        assert len(storage) == 0


def test_followed_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that was given a relative path, handed to a process with another directory."""
    monkeypatch.chdir(tmp_path)
    with make(Path("runs"), 4096) as storage:
        fill(storage, 0, 5)
        storage.flush()
        make_reader, arguments = storage.__reduce__()
        monkeypatch.chdir(ROOT)
        with make_reader(*arguments) as reader:
            check(reader, 4)


@pytest.mark.parametrize("gone", ("lock", "nothing"))
def test_two_writers(tmp_path: Path, gone: str) -> None:
    """One at a time, whatever is deleted."""
    with make(tmp_path / "runs") as storage:
        if gone == "lock":
            os.unlink(tmp_path / "runs" / "lock")
        with pytest.raises(BlockingIOError, match="one process writes"):
            make(tmp_path / "runs")
        code = """
        import sys
        from pathlib import Path
        from tests.tape.disk.test_faults import make
        try:
            make(Path(sys.argv[1]))
        except BlockingIOError:
            pass
        else:
            raise AssertionError("two writers")
        """
        run(code, str(tmp_path / "runs"))
        fill(storage, 0, 4)
    with make(tmp_path / "runs") as storage:
        check(storage, 3)


def test_a_fork_leaves(tmp_path: Path) -> None:
    """A child that leaves the block in which it was forked neither hangs nor closes anything."""
    with make(tmp_path / "runs") as storage:
        fill(storage, 0, 4)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                storage.__exit__(None, None, None)
                storage.close()
                status = 0
            finally:
                os._exit(status)
        deadline, status = 2000, None
        while deadline and status is None:
            done, found = os.waitpid(pid, os.WNOHANG)
            status = found if done else None
            deadline -= 1
            time.sleep(0.01)
        if status is None:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        assert status == 0, "the child hangs"
        fill(storage, 4, 4)
        storage.flush()
        check(storage, 7)
        with pytest.raises(BlockingIOError):
            make(tmp_path / "runs")
    with make(tmp_path / "runs") as storage:
        check(storage, 7)
        fields, served = stored.contents(storage)
        assert served.all() and len(fields)


def test_a_name_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError):
        DiskStorage(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "x"


def test_a_fork_of_a_temporary_storage(tmp_path: Path) -> None:
    """Neither its leaving nor its end removes what is the parent's."""
    code = """
    import os, sys
    from contig import LazyMemmapStorage
    from tests.tape.disk.test_faults import check, fill
    from tests.tape.disk import stored
    for leaves in (True, False):
        with LazyMemmapStorage(64, example=stored.example()) as storage:
            fill(storage, 0, 4)
            pid = os.fork()
            if pid == 0:
                if leaves:
                    storage.close()
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            fill(storage, 4, 2)
            check(storage, 5)
        assert not storage.path.exists()
    """
    run(code)
