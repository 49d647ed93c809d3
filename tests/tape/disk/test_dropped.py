"""Storages that nobody closed: what they had is committed, and nothing of them is left."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from contig import LazyMemmapStorage, RandomSampler, ReplayBuffer
from contig.tape.disk import DiskStorage
from tests.tape.disk import stored
from tests.tape.disk.test_faults import ROOT, WRITER, check, fill, make, until

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> list[str]:
    return sorted(t.name for t in threading.enumerate())


def collected() -> None:
    for _ in range(3):
        gc.collect()


def test_many_are_dropped(fast_path: Path) -> None:
    """Descriptors, threads and locks are as before; all rows are there."""
    collected()
    fds, running = descriptors(), threads()
    for n in range(20):
        storage = make(fast_path / str(n), durability="durable" if n % 5 == 0 else "committed")
        fill(storage, 0, n % 4 + 2)  # nobody waits until they are committed
        assert descriptors() > fds and threads() != running
        del storage
        if n % 2:
            collected()
    collected()
    until(lambda: threads() == running, "their threads end")
    until(lambda: descriptors() <= fds, "their descriptors are closed")
    for n in range(20):
        with make(fast_path / str(n)) as again:  # the lock is free
            check(again, n % 4 + 1)


def test_another_process_opens_it(tmp_path: Path) -> None:
    storage = make(tmp_path)
    fill(storage, 0, 5)
    del storage
    collected()
    code = f"""
        from pathlib import Path
        from tests.tape.disk.test_faults import check, fill, make
        with make(Path({str(tmp_path)!r})) as storage:
            check(storage, 4)
            fill(storage, 5, 1)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, check=True, timeout=60)


def test_it_is_said(tmp_path: Path) -> None:
    make(tmp_path / "closed").close()
    for read_only in (False, True):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            storage = make(tmp_path / "closed", read_only=read_only, example=None)
            del storage
            collected()
        texts = [str(w.message) for w in said if issubclass(w.category, ResourceWarning)]
        assert [t for t in texts if str(tmp_path / "closed") in t and "close()" in t], texts


@pytest.mark.parametrize("prefetch", (0, 3))
def test_a_buffer_and_its_readers(tmp_path: Path, prefetch: int) -> None:
    collected()
    fds, running = descriptors(), threads()
    buffer = ReplayBuffer(make(tmp_path), RandomSampler(), batch_size=4, seed=1, prefetch=prefetch)
    for number in range(5):
        buffer.storage.default_writer.extend_trajectory(stored.item(WRITER, number))
    buffer.storage.on_commit(buffer.storage.poll)  # as a server does
    buffer.storage.flush()
    reader = DiskStorage(tmp_path, read_only=True)
    following = ReplayBuffer(reader, RandomSampler(), batch_size=4, prefetch=prefetch)
    for one in (buffer, following):
        stored.check_batch(one.sample())
        stored.check_batch(one.sample())
    del buffer, reader, following, one
    collected()
    until(lambda: threads() == running, "their threads end")
    collected()
    until(lambda: descriptors() <= fds, "their descriptors are closed")
    with make(tmp_path) as again:
        check(again, 4)


def test_a_temporary_one_goes(tmp_path: Path) -> None:
    storage: Any = LazyMemmapStorage(64, example=stored.example())
    fill(storage, 0, 3)
    path = storage.path
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        del storage
        collected()
        until(lambda: not path.exists(), "its directory is removed")
    assert not [w for w in said if str(path) in str(w.message)]


def test_a_fork_does_not_keep_it(tmp_path: Path) -> None:
    """Nor does the fork's copy commit or delete anything."""
    storage = make(tmp_path)
    fill(storage, 0, 3)
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        del storage
        collected()
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    fill(storage, 3, 3)
    del storage
    collected()
    with make(tmp_path) as again:
        check(again, 5)
    os.close(told)
    assert os.waitpid(pid, 0)[1] == 0


def test_the_process_ends(tmp_path: Path) -> None:
    """What a script appended last and did not flush is there."""
    code = f"""
        from pathlib import Path
        from tests.tape.disk.test_faults import fill, make
        storage = make(Path({str(tmp_path)!r}), max_lag_s=5.0)
        fill(storage, 0, 8)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, check=True, timeout=60)
    with make(tmp_path) as storage:
        check(storage, 7)
        assert not (tmp_path / "quarantine").exists()
