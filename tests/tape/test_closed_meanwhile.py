"""A storage that is closed while another thread's call waits for its lock.

The descriptor's number may be another file's by then: the call must not touch that file.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, SharedStorage, Storage, TrajectorySampler
from contig.errors import ClosedError
from contig.replay import ReplayBuffer
from contig.tape.segment import Segment
from tests.waiting import Task, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there it has a descriptor")

MANY = 300_000  # rows of more than one extent: room for them has to be reserved


class Waiting(Task):
    """A call that waits for the lock of a storage."""

    def __init__(self, storage: Storage, call: Callable[[], Any]) -> None:
        control = storage._open().control
        self._from, self._to = control.ctypes.data, control.ctypes.data + control.nbytes
        super().__init__(call)
        until(self._waits, "the call does not wait for the lock")

    def _waits(self) -> bool:
        assert self.is_alive(), self.error
        if self.native_id is None:
            return False
        # System call 202 of x86-64, 98 of others, is futex; its first argument says which.
        words = Path(f"/proc/self/task/{self.native_id}/syscall").read_text().split()
        return words[0] in ("202", "98") and self._from <= int(words[1], 16) < self._to


@contextmanager
def lock_held(storage: Storage) -> Iterator[None]:
    """The lock is held by another thread."""
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with storage._lock_held():
            held.set()
            free.wait()

    holder = Task(hold)
    assert held.wait(60)
    try:
        yield
    finally:
        free.set()
        holder.result()


def rows(n: int) -> dict[str, Any]:
    return {"uid": np.arange(n), "obs": np.arange(4 * n, dtype=np.float32).reshape(n, 4)}


def extend(storage: Storage, _: Path) -> Callable[[], Any]:
    storage.default_writer.extend(rows(4))
    return lambda: storage.default_writer.extend(rows(MANY))


def extend_first(storage: Storage, _: Path) -> Callable[[], Any]:
    return lambda: storage.default_writer.extend(rows(4))


def add_whole(storage: Storage, _: Path) -> Callable[[], Any]:
    storage.default_writer.extend(rows(4))
    return lambda: storage.default_writer.extend_trajectory(rows(MANY))


def set_fields(storage: Storage, _: Path) -> Callable[[], Any]:
    storage.default_writer.extend(rows(4), fields={"score": 1.0})
    return lambda: storage.set_fields(storage.episodes()["id"], {"score": 2.0})


def load(storage: Storage, path: Path) -> Callable[[], Any]:
    source = ReplayBuffer(LazyTensorStorage(MANY), TrajectorySampler(2), batch_size=2)
    source.extend(rows(MANY))
    source.save(path / "saved")
    target = ReplayBuffer(storage, TrajectorySampler(2), batch_size=2)
    return lambda: target.load(path / "saved")


CALLS = [extend, extend_first, add_whole, set_fields, load]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_waiting_call_leaves_other_files_alone(
    call: Callable[[Storage, Path], Callable[[], Any]], shared: bool, tmp_path: Path
) -> None:
    storage: Storage = SharedStorage(MANY) if shared else LazyTensorStorage(MANY)
    waits_for = call(storage, tmp_path)
    number = storage._open().fd
    with lock_held(storage):
        waiting = Waiting(storage, waits_for)
        storage.close()
        # What the next open() of the process may get: the same number.
        other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
        assert other == number or os.dup2(other, number) == number
    try:
        with pytest.raises(ClosedError, match="this storage is closed"):
            waiting.result()
        assert os.fstat(other).st_size == 0, "it wrote into another file"
        assert os.fstat(other).st_blocks == 0
    finally:
        os.close(other)
        if number != other:
            os.close(number)


def test_a_waiting_call_changes_nothing_that_others_share(tmp_path: Path) -> None:
    storage = SharedStorage(MANY, example={"uid": 0})
    with SharedStorage.attach(storage.name) as other:
        with lock_held(other):
            waiting = Waiting(storage, lambda: storage.default_writer.extend({"uid": np.arange(2)}))
            storage.close()
        with pytest.raises(ClosedError):
            waiting.result()
        assert len(other) == 0
        other.default_writer.extend({"uid": np.arange(7)})
        assert other.read_episode(0)["uid"].tolist() == list(range(7))


def test_a_closed_segment_maps_nothing() -> None:
    segment = Segment.anonymous(4096, lambda _: None, 4096)
    segment.close()
    with pytest.raises(ClosedError):
        segment.map_data(0, 4096)
    with pytest.raises(ClosedError):
        segment.read(0, 8)
