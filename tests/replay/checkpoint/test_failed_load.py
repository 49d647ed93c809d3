"""A load that fails, for whatever reason, leaves rows, priorities, random numbers and counters."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import contig
from contig import DiskStorage, LayoutError, RateLimiter, ReplayBuffer
from contig.tape import PackedRows
from contig.tape.disk import files
from contig.testing import episode
from tests.replay.checkpoint.buffers import (
    CAPACITY,
    buffer_of,
    everything,
    filled,
    images,
    read_meta,
)
from tests.replay.checkpoint.buffers import write_meta as rewrite

NAMES = ["prioritized", "retiring", "without replacement", "fifo", "slices without replacement"]


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory on another file system than `tmp_path`."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as where:
        yield Path(where)


def used(storage: Any, name: str) -> ReplayBuffer:
    """A buffer with rows of its own, that was sampled from."""
    limiter = RateLimiter(1.0, error_buffer=10_000)
    buffer = buffer_of(storage, name, seed=3, limiter=limiter)
    for number in range(900, 906):
        buffer.extend(episode(number, 12))
    for _ in range(3):
        batch = buffer.sample()
        if ("priority_weight",) in batch.extras:
            buffer.update_priority(batch["index"], 2.0 + batch["index"] % 3)
    return buffer


def saved(path: Path, name: str, storage: Any = None) -> Path:
    buffer = buffer_of(filled(storage).storage, name)
    images(buffer, 3)
    buffer.save(path)
    return path


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O"), MemoryError(), KeyboardInterrupt()])
@pytest.mark.parametrize("name", NAMES)
def test_rows_that_cannot_be_read(
    name: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "a", name)
    buffer, twin = (used(contig.LazyTensorStorage(CAPACITY), name) for _ in range(2))
    before = everything(buffer)

    def failing(rows: PackedRows, first: int, last: int) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(PackedRows, "read", failing)
        with pytest.raises(type(error)):
            buffer.load(path)
    assert everything(buffer) == before
    assert images(buffer, 3) == images(twin, 3)
    buffer.load(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_makes_no_sense(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "a", name)
    buffer, twin = (used(contig.LazyTensorStorage(CAPACITY), name) for _ in range(2))
    before = everything(buffer)
    meta = read_meta(path)
    for key, value in (
        ("rng", meta["state"]["rng"][:3]),
        ("sampler", None),
        ("sampler", {"tree": {}, "left": {}, "times": 0}),
    ):
        rewrite(path, {**meta, "state": {**meta["state"], key: value}})
        with pytest.raises(LayoutError):
            buffer.load(path)
        assert everything(buffer) == before
    rewrite(path, meta)
    assert images(buffer, 3) == images(twin, 3)
    buffer.load(path)


def test_no_room_on_another_file_system(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that cannot be linked have to fit before what is there is let go of."""
    with (
        DiskStorage(elsewhere / "a", CAPACITY, rows_per_extent=16) as theirs,
        DiskStorage(tmp_path / "b", CAPACITY, rows_per_extent=16) as mine,
    ):
        path = saved(elsewhere / "saved", "prioritized", theirs)
        buffer = used(mine, "prioritized")
        before = everything(buffer)

        def full(*args: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(files, "free_bytes", lambda path: 1000)
            patched.setattr(shutil, "copyfile", full)
            with pytest.raises(contig.StorageFull, match="nothing was loaded"):
                buffer.load(path)
        assert everything(buffer) == before
        images(buffer, 2)
        buffer.load(path)
        assert len(buffer) == CAPACITY
