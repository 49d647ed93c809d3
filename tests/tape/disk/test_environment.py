"""What is in the way of an index is not damage: it is called by its name; nothing is changed."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig.tape.disk.index as index_module
import contig.tape.disk.sqlite as sqlite_module
from contig import StorageFull
from contig.cli.main import main
from contig.tape.disk import DiskStorage
from contig.tape.disk.repair import repair
from tests.tape.disk import stored
from tests.tape.disk.test_faults import check, fill, limit, make, run


def image(path: Path) -> dict[str, bytes]:
    """All files but those that SQLite makes and removes as it likes."""
    return {
        str(f.relative_to(path)): f.read_bytes()
        for f in path.rglob("*")
        if f.is_file() and not f.name.endswith(("-shm", "-wal")) and f.name != "lock"
    }


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with make(tmp_path / "store") as storage:
        fill(storage, 0, 30)
    return tmp_path / "store"


def refused(path: Path, number: int, capsys: Any) -> None:
    """Opening and repairing fail with an error of the system, and say nothing of damage."""
    for attempt in (lambda: DiskStorage(path), lambda: repair(path)):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == number, caught.value
        text = str(caught.value)
        assert str(path) in text and "--repair" not in text and "is damaged" not in text, text
    assert main(["inspect", str(path), "--repair"]) == 2
    assert "--repair" not in capsys.readouterr()[1]


def test_locked(store: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program, say a backup, has the index locked."""
    monkeypatch.setattr(sqlite_module, "_TIMEOUT_S", 0.05)
    before = image(store)
    db = sqlite3.connect(store / "index.sqlite", isolation_level=None)
    db.execute("PRAGMA locking_mode=EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    refused(store, errno.EBUSY, capsys)
    db.execute("ROLLBACK")
    db.close()
    assert image(store) == before
    with make(store) as storage:
        check(storage, 29)


def test_no_descriptors(store: Path, capsys: Any) -> None:
    before = image(store)
    seen = set()
    with no_free_descriptors() as lowest:
        for spare in range(12):
            seen |= scarce(store, lowest + spare)
            assert image(store) == before, spare
    assert seen == {errno.EMFILE}
    with make(store) as storage:
        check(storage, 29)


@contextlib.contextmanager
def no_free_descriptors() -> Iterator[int]:
    """Every number below the one given is taken: a limit counts numbers, not files, and what other
    tests have left may be closed at any time."""
    gc.collect()
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] <= highest:
        taken.append(os.dup(taken[0]))
    try:
        yield taken[-1] + 1
    finally:
        for number in taken:
            os.close(number)


def scarce(store: Path, most: int) -> set[int | None]:
    """Opens and repairs with descriptors below `most`; what was missing."""
    seen = set()
    with limit(resource.RLIMIT_NOFILE, most):
        try:
            DiskStorage(store).close()
        except OSError as error:
            seen.add(error.errno)
        try:
            assert repair(store) == ["nothing is damaged"]
        except OSError as error:
            seen.add(error.errno)
    return seen


def test_long_path(tmp_path: Path) -> None:
    """SQLite takes 512 bytes; everything else a few thousand."""
    path = tmp_path
    while len(str(path)) < 600:
        path = path / ("d" * 60)
    for example in (stored.example(), None):
        with pytest.raises(OSError, match="at most 500 bytes") as caught:
            make(path, example=example)
        assert caught.value.errno == errno.ENAMETOOLONG
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
def test_no_permission(store: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    os.chown(store, 65534, 65534)
    os.chown(store / "extents", 65534, 65534)
    (store / "lock").chmod(0o666)
    (store / "index.sqlite").chmod(0o600)
    before = image(store)
    code = """
    import errno, os, sys
    from pathlib import Path
    from contig.tape.disk import DiskStorage
    from contig.tape.disk.repair import repair
    os.setgid(65534); os.setuid(65534)
    for attempt in (DiskStorage, lambda p: DiskStorage(p, read_only=True), repair):
        try:
            attempt(Path(sys.argv[1]))
        except OSError as error:
            assert error.errno == errno.EACCES, error
            assert sys.argv[1] in str(error) and "is damaged" not in str(error), error
        else:
            raise AssertionError("it works")
    """
    run(code, str(store))
    assert image(store) == before
    with make(store) as storage:
        check(storage, 29)


def test_full_disk(tmp_path: Path) -> None:
    """Really full, with a log to recover; then the advice that is printed is followed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no filesystem can be mounted here")
    code = """
    import os, shutil, sys
    from pathlib import Path
    from contig import StorageFull
    from contig.tape.disk import DiskStorage
    from contig.tape.disk.repair import repair
    from tests.tape.disk.test_environment import image
    from tests.tape.disk.test_faults import check, fill, make
    disk = Path(sys.argv[1])
    with make(disk / "live", 4096) as storage:
        fill(storage, 0, 120)
        storage.flush()
        shutil.copytree(disk / "live", disk / "store")  # as a killed process leaves it
        (disk / "store" / "index.sqlite-shm").unlink()
    shutil.rmtree(disk / "live")
    before = image(disk / "store")
    with open(disk / "ballast", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    for attempt in (make, repair):
        try:
            attempt(disk / "store")
        except StorageFull as error:
            assert "damaged (" not in str(error)
        else:
            raise AssertionError("there is room")
        assert image(disk / "store") == before
    (disk / "ballast").unlink()
    assert repair(disk / "store") == ["nothing is damaged"]
    with make(disk / "store", 4096) as storage:
        check(storage, 119)
    """
    try:
        run(code, str(disk))
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_full_while_rebuilding(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new index that cannot be written leaves the old one where it was."""
    data = bytearray((store / "index.sqlite").read_bytes())
    data[:100] = b"\xa7" * 100
    (store / "index.sqlite").write_bytes(data)
    before = image(store)

    def full(*args: Any) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = 13
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(index_module.DiskIndex, "write", full)
        with pytest.raises(StorageFull):
            repair(store)
    after = image(store)
    assert {name: after.get(name) for name in before} == before
    assert "could not be read" in repair(store)[0]


def test_threads_find_damage(tmp_path: Path) -> None:
    """Threads that come upon different damaged rows at the same time."""
    path = tmp_path / "store"
    with make(path, 1 << 12) as storage:
        fill(storage, 0, 300)
    for file in sorted((path / "extents").iterdir())[:-2:2]:
        with open(file, "r+b") as changed:
            changed.seek(100)
            changed.write(b"\x55" * 8)
    errors: list[BaseException] = []

    def read(storage: DiskStorage, ready: threading.Barrier, seed: int) -> None:
        try:
            seqs = np.random.default_rng(seed).permutation(
                np.arange(*storage.tape.snapshot()[1::-1])
            )
            ready.wait()
            for some in np.array_split(seqs, 200):
                batch, lost = storage.gather(some)
                good = ~lost if isinstance(lost, np.ndarray) else np.ones(len(some), bool)
                right = stored.words_of(batch["fields"], np.asarray(batch["next", "done"]))
                assert (np.asarray(batch["words"]) == right)[good].all()
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for turn in range(4):
            with DiskStorage(path, 1 << 12, read_only=True) as storage:
                ready = threading.Barrier(6)
                threads = [
                    threading.Thread(target=read, args=(storage, ready, 10 * turn + i))
                    for i in range(6)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert not errors, errors
                _, served = stored.contents(storage)
                assert storage.quarantined and not served.all()
    finally:
        sys.setswitchinterval(before)
