"""Directories of others, in other processes, and with other contents: an error that says so."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage, LayoutError, LazyTensorStorage, ReplayBuffer, SharedStorage
from tests.tape.disk import stored
from tests.tape.disk.test_faults import ROOT, check, fill, make, run

# -- what was emptied ------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [None, {"level": np.int64(0)}], ids=["plain", "fields"])
def test_a_storage_that_was_emptied(tmp_path: Path, fields: Any) -> None:
    def rows(first: int) -> dict[str, Any]:
        return {"x": first + np.arange(6), "next": {"done": np.arange(6) % 2 == 1}}

    with DiskStorage(tmp_path / "disk", 16, fields=fields) as storage:
        writing = ReplayBuffer(storage)
        writing.extend(rows(0))
        writing.empty()
        writing.save(tmp_path / "saved")
        writing.close()
    with DiskStorage(tmp_path / "disk", 16, fields=fields) as storage:
        assert len(storage) == 0
        again = ReplayBuffer(storage)
        again.extend(rows(10))
        assert again[:]["x"].tolist() == list(range(10, 16))
    for kind in (LazyTensorStorage, SharedStorage):
        other = ReplayBuffer(kind(16, fields=fields))
        other.load(tmp_path / "saved")
        other.extend(rows(20))
        assert other[:]["x"].tolist() == list(range(20, 26))
        assert len(other.storage.episodes()) == 3
        other.close()


# -- other processes -------------------------------------------------------------------------------


def test_second_writer(tmp_path: Path) -> None:
    code = """
    import os, sys
    from contig.tape.disk import DiskStorage
    storage = DiskStorage(sys.argv[1], 64)
    print(os.getpid(), flush=True)
    sys.stdin.read()
    """
    make(tmp_path).close()
    first = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert first.stdin is not None and first.stdout is not None
    try:
        pid = first.stdout.readline().decode().strip()
        for _ in range(2):
            with pytest.raises(BlockingIOError, match=rf"process {pid}\b.*read_only"):
                make(tmp_path)
        make(tmp_path, read_only=True, example=None).close()
        first.kill()
        first.wait(30)
        with make(tmp_path) as storage:  # a killed one leaves no lock
            fill(storage, 0, 2)
            with pytest.raises(BlockingIOError, match=rf"process {os.getpid()}\b"):
                make(tmp_path)
            check(storage, 1)
    finally:
        first.kill()
        first.stdin.close()
        first.stdout.close()
        first.wait(30)


@pytest.mark.parametrize("told", [True, False])
def test_lock_does_not_outlive_the_writer_in_a_fork(tmp_path: Path, told: bool) -> None:
    """A forked worker that lives on does not keep the directory locked; not while it has not come
    to hear that it was forked either, or if it is another program that never does."""
    fork = "os.fork()" if told else "ctypes.PyDLL(None).fork()"
    code = f"""
    import ctypes, os, sys
    from pathlib import Path
    from tests.tape.disk.test_faults import check, fill, make
    path = Path(sys.argv[1])
    storage = make(path)
    fill(storage, 0, 3)
    ours, theirs = os.pipe()
    pid = {fork}
    if pid == 0:
        os.close(theirs)
        os.read(ours, 1)  # until the parent is gone
        os._exit(0)
    try:
        storage.close()
        with make(path) as again:
            check(again, 2)
    finally:
        os.close(theirs)
        os.waitpid(pid, 0)
    """
    run(code, str(tmp_path))


def test_forked_writer(tmp_path: Path) -> None:
    """A forked child may not write with what it has of its parent, and says so; the parent's rows
    are untouched by its trying."""
    code = """
    import os, sys
    from pathlib import Path
    from tests.tape.disk import stored
    from tests.tape.disk.test_faults import check, fill, make
    path = Path(sys.argv[1])
    storage = make(path)
    fill(storage, 0, 3)
    storage.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            storage.default_writer.extend(stored.item(77, 0))
            print("appended in a child", file=sys.stderr)
        except Exception as error:
            ok = str(os.getppid()) in str(error) or "fork" in str(error)
            print(error, file=sys.stderr)
            code = 0 if ok else 2
        try:
            storage.flush(timeout_s=5)
        except Exception:
            pass
        else:
            code = code or 0
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    fill(storage, 3, 10)
    storage.flush()
    check(storage, 12)
    storage.close()
    with make(path) as again:
        check(again, 12)
    """
    run(code, str(tmp_path))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
def test_directory_of_somebody_else(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Read by another user, who cannot write there; while it is written, and afterwards."""

    path = Path(tempfile.mkdtemp(prefix="contig-disk-"))
    try:
        path.chmod(0o755)
        with make(path / "store") as storage:
            fill(storage, 0, 10)
            storage.flush()
        code = """
        import os, sys
        from pathlib import Path
        import pytest
        from tests.tape.disk.test_faults import check, make
        os.setgid(65534)
        os.setuid(65534)
        path = Path(sys.argv[1])
        with pytest.raises(PermissionError) as caught:
            make(path)
        assert str(path) in str(caught.value)
        with make(path, read_only=True, example=None) as storage:
            check(storage, 9)
        """
        run(code, str(path / "store"))
        with make(path / "store") as storage:
            fill(storage, 10, 1)
            storage.flush()
    finally:
        shutil.rmtree(path)


# -- other contents --------------------------------------------------------------------------------


def test_another_layout(tmp_path: Path) -> None:
    with make(tmp_path) as storage:
        fill(storage, 0, 2)
    other = {**stored.example(), "words": np.zeros(9, np.float32), "extra": 1.0}
    with pytest.raises(LayoutError) as caught:
        make(tmp_path, example=other)
    for part in ("words", "53", "9", "extra"):
        assert part in str(caught.value), str(caught.value)
    with make(tmp_path, example=None) as storage:
        with pytest.raises(LayoutError):
            storage.default_writer.add(other)
        check(storage, 1)
        fill(storage, 2, 1)


def test_refused_opening_leaves_no_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:

    make(tmp_path).close()
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(LayoutError):
            make(tmp_path, example={"other": 1.0})
    assert threading.active_count() <= before
    make(tmp_path).close()


def test_newer_formats(tmp_path: Path) -> None:
    with make(tmp_path) as storage:
        fill(storage, 0, 2)
    layout = tmp_path / "layout.json"
    text = layout.read_text()
    layout.write_text(json.dumps({**json.loads(text), "format": 7}))
    for read_only in (False, True):
        with pytest.raises(ValueError, match="format 7.*newer"):
            make(tmp_path, read_only=read_only, example=None)
    layout.write_text(text)
    db = sqlite3.connect(tmp_path / "index.sqlite")
    db.execute("PRAGMA user_version=9")
    db.close()
    for read_only in (False, True):
        with pytest.raises(ValueError, match="format 9.*newer"):
            make(tmp_path, read_only=read_only, example=None)
    db = sqlite3.connect(tmp_path / "index.sqlite")
    db.execute("PRAGMA user_version=2")
    db.close()
    with make(tmp_path) as storage:
        check(storage, 1)


def test_nothing_there_to_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no storage"):
        make(tmp_path / "none", read_only=True, example=None)
    assert not (tmp_path / "none").exists()
