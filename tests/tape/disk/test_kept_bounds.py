"""What a directory keeps of rows and bytes: as a writer said last, whoever opens it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage
from contig.tape.disk.description import sealed

ROW = {"n": 0, "data": b""}


def write(storage: DiskStorage, first: int, rows: int) -> None:
    numbers = np.arange(first, first + rows)
    storage.writer().extend({"n": numbers, "data": [bytes(n % 7) for n in numbers]})


def bounds(path: Path, **options: Any) -> tuple[int, int]:
    with DiskStorage(path, **options) as storage:
        return storage.capacity, storage.blob_ring


def test_they_are_kept(tmp_path: Path) -> None:
    with DiskStorage(tmp_path, 300, example=ROW, blob_bytes=100_000) as storage:
        write(storage, 0, 300)
    assert bounds(tmp_path) == (300, 100_000)
    with DiskStorage(tmp_path) as storage:
        write(storage, 300, 50)
        assert len(storage) == 300


def test_what_is_said_counts_from_then_on(tmp_path: Path) -> None:
    DiskStorage(tmp_path, 300, example=ROW, blob_bytes=100_000).close()
    assert bounds(tmp_path, capacity=1000) == (1000, 100_000)
    with DiskStorage(tmp_path) as storage:
        write(storage, 0, 1000)
        assert (len(storage), storage.capacity) == (1000, 1000)
    # Nothing goes that a writer wanted to keep.
    with DiskStorage(tmp_path) as storage:
        assert len(storage) == 1000
    assert bounds(tmp_path, blob_bytes=5000) == (1000, 5000)
    assert bounds(tmp_path) == (1000, 5000)


def test_who_reads_has_what_is_there(tmp_path: Path) -> None:
    with DiskStorage(tmp_path, 20, example=ROW) as storage:
        write(storage, 0, 20)
    before = (tmp_path / "layout.json").read_bytes()
    with DiskStorage(tmp_path, 5, read_only=True) as reader:
        assert len(reader) == 5
    with DiskStorage(tmp_path, read_only=True) as reader:
        assert len(reader) == 20
    assert (tmp_path / "layout.json").read_bytes() == before


def test_without_them_and_in_an_older_directory(tmp_path: Path) -> None:
    DiskStorage(tmp_path / "none", example=ROW).close()
    free = bounds(tmp_path / "none")
    assert free[0] >= 2**30 and free[1] >= 2**36
    DiskStorage(tmp_path / "old", 300, example=ROW, blob_bytes=100_000).close()
    layout = tmp_path / "old" / "layout.json"
    described = {k: v for k, v in json.loads(layout.read_text()).items() if k != "crc"}
    del described["kept"]
    layout.write_bytes(sealed(described))
    assert bounds(tmp_path / "old") == free
    assert bounds(tmp_path / "old", capacity=40)[0] == 40
    assert bounds(tmp_path / "old")[0] == 40


def test_a_refused_opening_changes_nothing(tmp_path: Path) -> None:
    DiskStorage(tmp_path, 300, example=ROW).close()
    with pytest.raises(ValueError):
        DiskStorage(tmp_path, 10, fields={"task": 0})
    with pytest.raises(ValueError):
        DiskStorage(tmp_path, 10, codecs={"n": "zstd"})
    assert bounds(tmp_path)[0] == 300
