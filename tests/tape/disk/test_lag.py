"""How much may be lost: appends wait when more than the lag is not committed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import ReplayBuffer, StorageFull
from contig.tape.disk import DiskStorage
from contig.tape.disk.index import DiskIndex
from contig.tape.entry import read_entries
from tests.tape.disk import stored
from tests.tape.disk.test_faults import ROOT, check, fill, make, until

ENVS = 64


def step_of(t: int) -> dict[str, Any]:
    """Row b of step t says which it is."""
    env = np.arange(ENVS)
    return {
        "id": env * (1 << 40) + t,
        "next": {"reward": np.ones(ENVS, np.float32), "done": np.zeros(ENVS, bool)},
    }


@pytest.mark.parametrize(
    ("rows", "seconds"), ((512, 0.2), (1 << 30, 0.1), (1 << 16, 0.2)), ids=("rows", "time", "both")
)
def test_killed_in_a_tight_loop(tmp_path: Path, rows: int, seconds: float) -> None:
    """64 envs by `add_step` as fast as it goes; what it returned and what is there."""
    code = f"""
    import os, struct, sys, time
    from contig import ReplayBuffer
    from contig.tape.disk import DiskStorage
    from tests.tape.disk.test_lag import step_of
    storage = DiskStorage(sys.argv[1], max_lag_rows={rows}, max_lag_s={seconds})
    buffer = ReplayBuffer(storage, batch_size=4)
    for t in range(1 << 30):
        buffer.add_step(step_of(t))
        os.pwrite(3, struct.pack("<qd", t + 1, time.monotonic()), t % 65536 * 16)
    """
    path, clock = tmp_path / "store", tmp_path / "returned"
    fd = os.open(clock, os.O_RDWR | os.O_CREAT)
    with subprocess.Popen(
        [sys.executable, "-c", "import os; os.dup2(int(__import__('sys').argv[2]), 3)\n"
         + textwrap.dedent(code), str(path), str(fd)],
        cwd=ROOT,
        pass_fds=(fd,),
    ) as process:  # fmt: skip
        until(lambda: clock.stat().st_size > 3000 * 16, "steps")
        os.kill(process.pid, signal.SIGKILL)
    returned = np.frombuffer(clock.read_bytes(), [("t", "<i8"), ("at", "<f8")])
    steps = int(returned["t"].max())
    with DiskStorage(path) as storage:
        there = len(storage)
        batch, lost = storage.gather(np.arange(there))
        assert not np.any(lost)
        seqs = np.arange(there)
        assert (np.asarray(batch["id"]) == seqs % ENVS * (1 << 40) + seqs // ENVS).all()
    missing = steps * ENVS - there
    assert missing <= max(rows, ENVS), f"{missing} of {steps * ENVS} rows are missing"
    # The last append but one did not go in before what was older than the lag was committed.
    at = returned["at"][np.argsort(returned["t"])]
    old = int((at < at[-2] - seconds).sum())
    assert there >= old * ENVS or steps > len(returned), f"{there} rows, {old * ENVS} are old"
    os.close(fd)


def test_appends_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a commit takes its time, as many rows as the bound go in, and no more."""
    go = threading.Event()
    write = DiskIndex.write

    def slow(index: DiskIndex, changes: Any) -> None:
        go.wait(30)
        write(index, changes)

    storage = make(tmp_path, 4096, max_lag_rows=40, max_lag_s=1e9)
    monkeypatch.setattr(DiskIndex, "write", slow)
    appended: list[int] = []

    def append() -> None:
        for n in range(30):
            fill(storage, n, 1)
            appended.append(n)

    thread = threading.Thread(target=append)
    thread.start()
    sizes = np.cumsum([len(stored.item(50, n)["fields"]) for n in range(30)])
    fit = int((sizes <= 40).sum())
    until(lambda: len(appended) == fit, "appends")
    select.select([], [], [], 0.2)
    assert len(appended) == fit, "more than the bound"
    assert storage.tape.snapshot()[0] == sizes[fit - 1], "what is not committed is there"
    go.set()
    thread.join()
    check(storage, 29)
    storage.close()
    with make(tmp_path, 4096) as storage:
        check(storage, 29)


def test_an_append_larger_than_the_bound(tmp_path: Path) -> None:
    with make(tmp_path, 4096, max_lag_rows=1) as storage:
        fill(storage, 0, 20)
        check(storage, 19)


def test_a_wait_ends_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    def full(index: DiskIndex, changes: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with make(tmp_path, 4096, max_lag_rows=10) as storage:
        with monkeypatch.context() as patch:
            patch.setattr(DiskIndex, "write", full)
            with pytest.raises(StorageFull):
                fill(storage, 0, 50)
        until(
            lambda: (
                storage.opened.committer is not None and storage.opened.committer._failure is None
            )
        )
        last = int(stored.contents(storage)[0][-1, 1])
        fill(storage, last + 1, 20)
        check(storage, last + 20)


def test_bounds_are_checked(tmp_path: Path) -> None:
    for options in ({"max_lag_rows": 0}, {"max_lag_s": 0.0}, {"max_lag_s": float("nan")}):
        with pytest.raises(ValueError, match="max_lag"):
            DiskStorage(tmp_path / "new", **options)
        assert not (tmp_path / "new").exists()


def test_one_row_runs(tmp_path: Path) -> None:
    """Runs of one row of many envs, some at a time: entries of one page in many transactions."""
    with DiskStorage(tmp_path, max_lag_rows=200) as storage:
        buffer = ReplayBuffer(storage, batch_size=4)
        for t in range(100):
            buffer.add_step(step_of(t))
            if t % 7 == 0:
                storage.flush()
        entries = read_entries(storage.tape)
    with DiskStorage(tmp_path) as storage:
        assert (read_entries(storage.tape) == entries).all() and len(entries) == 100 * ENVS
        for env in (0, 17, 63):
            episode = storage.read_episode(int(storage.episodes()["id"][env]))
            assert (np.asarray(episode["id"]) == env * (1 << 40) + np.arange(100)).all()
