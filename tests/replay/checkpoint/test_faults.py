"""Every call that touches files fails once, while a checkpoint is saved or loaded: nothing is lost,
and a whole checkpoint is where one was."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

import contig
from contig import DiskStorage, LayoutError, ReplayBuffer
from contig.testing import episode
from contig.testing.contents import contents
from tests.replay.checkpoint.buffers import CAPACITY, buffer_of, everything, fresh, images
from tests.replay.checkpoint.faults import faults
from tests.tape.disk.conftest import fast_path  # noqa: F401

ERRORS = pytest.mark.parametrize("number", (errno.EIO, errno.ENOSPC), ids=("EIO", "ENOSPC"))
KINDS = pytest.mark.parametrize("kind", ("memory", "once", "disk"))


def make(kind: str, path: Path) -> ReplayBuffer:
    storage: Any = contig.LazyTensorStorage(CAPACITY, share_next=kind == "once")
    if kind == "disk":
        storage = DiskStorage(path, CAPACITY, rows_per_extent=16)
    return buffer_of(storage, "prioritized")


def loaded(path: Path) -> Any:
    buffer = fresh("prioritized")
    buffer.load(path)
    images(buffer, 1)
    return contents(buffer.storage)


@ERRORS
@KINDS
def test_save(kind: str, number: int, fast_path: Path) -> None:  # noqa: F811
    store, path = fast_path / "store", fast_path / "saved" / "a"
    buffer = make(kind, store)
    for n in range(14):
        buffer.extend(episode(n, 12))
    buffer.save(path)
    failed = 0
    for n, fault in enumerate(faults(number), 14):
        before = loaded(path)
        buffer.extend(episode(n, 12))
        buffer.storage.flush()
        now = contents(buffer.storage)
        raised = False
        try:
            with fault.armed():
                buffer.save(path)
        except OSError as error:
            # Or the earlier one could not be looked at, and is not replaced.
            assert fault.happened and (error.errno == number or isinstance(error, FileExistsError))
            raised = True
        failed += raised
        assert loaded(path) in ((before, now) if raised else (now,))
        assert contents(buffer.storage) == now
        if kind == "disk" and raised:  # what could not be synced is not trusted until it is opened
            with contextlib.suppress(OSError):
                buffer.storage.close()
            buffer = make(kind, store)
            assert contents(buffer.storage) == now
        buffer.save(path)
        assert (path / "slots.bin").exists() == (kind == "once")
        assert loaded(path) == now
        assert os.listdir(path.parent) == ["a"], "leftovers"
    assert failed > 10
    buffer.storage.close()


@ERRORS
@KINDS
def test_load(kind: str, number: int, fast_path: Path) -> None:  # noqa: F811
    path, own = fast_path / "saved", fast_path / "own"
    with make(kind, fast_path / "other").storage as other:
        buffer = buffer_of(other, "prioritized")
        for n in range(14):
            buffer.extend(episode(n, 12))
        images(buffer, 2)
        buffer.save(path)
        expected = contents(other)
    buffer = make(kind, fast_path / "store")
    for n in range(900, 906):
        buffer.extend(episode(n, 12))
    images(buffer, 2)
    buffer.save(own)
    failed = 0
    for fault in faults(number):
        buffer.load(own)
        before = everything(buffer)
        try:
            with fault.armed():
                buffer.load(path)
        except (OSError, LayoutError):
            assert fault.happened and everything(buffer) == before
            failed += 1
        else:
            assert contents(buffer.storage) == expected
        images(buffer, 1)
    assert failed > 3
    buffer.storage.close()
    assert loaded(path) == expected
