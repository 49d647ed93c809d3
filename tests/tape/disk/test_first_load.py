"""A load into a storage to which nothing was ever written: it has rows and a layout, or neither."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import LayoutError
from contig.tape.disk import DiskStorage, files
from contig.tape.disk.index import DiskIndex
from tests.tape.disk import stored
from tests.tape.disk.test_faults import fill, make
from tests.tape.disk.test_loads import CALLS, THINNED, _Stop, buffer_of, failing, items
from tests.tape.disk.victim import killed_at

OTHER = {"x": np.arange(3), "next": {"done": np.zeros(3, bool)}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("first")
    with make(root / "store", 4096) as storage:
        fill(storage, 0, 12)
        buffer_of(storage).save(root / "checkpoint")
    return root / "checkpoint"


def fresh(path: Path) -> DiskStorage:
    return DiskStorage(path, 4096, rows_per_extent=stored.EXTENT)


def whole(path: Path, checkpoint: Path) -> list[tuple[int, int]]:
    with fresh(path) as storage:
        buffer_of(storage).load(checkpoint)
        return items(storage)


def takes_another_layout(storage: DiskStorage) -> None:
    """Nothing is fixed."""
    assert storage.layout is None and len(storage) == 0
    buffer_of(storage).extend(OTHER)
    storage.flush()
    assert len(storage) == 3


@THINNED
@pytest.mark.parametrize("error", (OSError(errno.EIO, "I/O error"), _Stop()))
def test_a_call_fails(checkpoint: Path, fast_path: Path, error: BaseException, every: int) -> None:
    """Every one that touches files; also of what undoes it."""
    after = whole(fast_path / "whole", checkpoint)
    path = fast_path / "store"
    failures = 0
    for name in CALLS:
        if not hasattr(files, name):
            continue
        at = 1
        while True:
            with fresh(path) as storage:
                raised = False
                with pytest.MonkeyPatch.context() as patch:
                    calls = failing(name, at, error, patch)
                    try:
                        buffer_of(storage).load(checkpoint)
                    except type(error):
                        raised = True
                    except LayoutError as found:  # of the checkpoint, when it is read
                        raised = found.__cause__ is error
                    reached = calls() >= at
                if raised and not storage.restored:
                    failures += 1
                    takes_another_layout(storage)
                else:
                    assert items(storage) == after, (name, at)
                there = len(storage)
            with fresh(path) as storage:
                assert len(storage) == there, (name, at)
            assert not (path / "layout.load.json").exists()
            assert not (path / "quarantine").exists(), (name, at)
            shutil.rmtree(path)
            if not reached:
                break
            at += every
    assert failures > 8


@pytest.mark.parametrize("after", (False, True))
def test_the_index_fails(
    checkpoint: Path, fast_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    call = DiskIndex._put

    def put(index: DiskIndex, *args: Any) -> None:
        if after:
            call(index, *args)
        monkeypatch.setattr(DiskIndex, "_put", call)
        raise sqlite3.OperationalError("database or disk is full")

    with fresh(fast_path / "a") as storage:
        monkeypatch.setattr(DiskIndex, "_put", put)
        with pytest.raises(OSError):
            buffer_of(storage).load(checkpoint)
        takes_another_layout(storage)
    with fresh(fast_path / "a") as storage:
        assert len(storage) == 3


@THINNED
def test_killed(checkpoint: Path, fast_path: Path, every: int) -> None:
    after = whole(fast_path / "whole", checkpoint)
    path = fast_path / "store"
    at, seen = 0, []
    while True:
        at += every
        killed = killed_at(
            at, lambda: fresh(path), lambda storage: buffer_of(storage).load(checkpoint)
        )
        with fresh(path) as storage:
            seen.append(storage.layout is not None)
            if seen[-1]:
                assert items(storage) == after
            else:
                takes_another_layout(storage)
        assert not (path / "quarantine").exists(), at
        shutil.rmtree(path)
        if not killed:
            break
    assert seen == sorted(seen) and not seen[0] and seen[-1]
