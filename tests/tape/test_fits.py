"""Storages that will not fit into memory say so when their rows are known."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, Ragged, SharedStorage
from contig.tape import fits
from contig.tape.fits import Machine, available_bytes, bytes_per_step, warn_if_too_large

FRAMES = np.zeros((4, 84, 84), np.uint8)
ATARI = {"observation": FRAMES, "next": {"observation": FRAMES, "reward": np.float32(0)}}


def said(storage: Any, capacity: int, available: int) -> str:
    with pytest.warns(RuntimeWarning) as caught:
        warn_if_too_large("LazyTensorStorage", storage.schema, capacity, storage.asked, available)
    (warning,) = caught
    return str(warning.message)


def test_the_numbers_and_what_to_change() -> None:
    with LazyTensorStorage(8, example=ATARI, share_next=False) as storage:
        assert storage.schema is not None and storage.layout is not None
        step = bytes_per_step(storage.schema)
        assert step == storage.layout.record_size > 2 * FRAMES.nbytes
        text = said(storage, 1_000_000, 10_000_000_000)
    assert text.count("\n") == 0
    assert f"1,000,000 rows need 56.5 GB when it is full ({step:,} bytes a step)" in text
    assert "10.0 GB of memory are available" in text
    assert f"up to {10_000_000_000 // step:,} fit now" in text
    shared = re.search(r"share_next=None \(([\d,]+) bytes a step\)", text)
    assert shared and int(shared[1].replace(",", "")) < 0.51 * step
    assert "stack=" in text and "codecs=" in text and text.endswith("DiskStorage")


def test_what_is_done_already_is_not_advised() -> None:
    with LazyTensorStorage(8, example=ATARI, stack={"observation": 4}) as storage:
        assert storage.schema is not None and storage.layout is not None
        step = bytes_per_step(storage.schema)
        assert step < storage.layout.record_size / 7
        text = said(storage, 1_000_000, 1_000_000)
    assert f"{step:,} bytes a step; {storage.layout.record_size:,} in the plain form" in text
    assert "share_next" not in text and "stack=" not in text
    assert "1.0 MB of memory" in text


def test_bytes_of_any_size_count_if_they_were_asked_for() -> None:
    with LazyTensorStorage(8, example={"x": b""}, blob_bytes=1 << 20) as storage:
        assert storage.schema is not None
        assert "a smaller blob_bytes" in said(storage, 8, 1 << 20)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            more = (1 << 20) + 8 * storage.layout.record_size  # type: ignore[union-attr]
            warn_if_too_large("LazyTensorStorage", storage.schema, 8, storage.asked, more)


BOTH = {"observation": "zstd", ("next", "observation"): "zstd"}


@pytest.mark.parametrize("codecs", [BOTH, {"observation": "zstd"}, {"observation": "png"}])
def test_leaves_with_codecs_count_with_an_eighth(codecs: Any) -> None:
    image = np.zeros((84, 84, 4), np.uint8)
    row = {"observation": image, "next": {"observation": image, "reward": np.float32(0)}}
    with LazyTensorStorage(8, example=row, codecs=codecs) as storage:
        step, more = bytes_per_step(storage.schema), 2 * image.nbytes // 8
        text = said(storage, 1_000_000, 1_000_000_000)
    assert f"1,000,000 rows need {(step + more) / 1e3:.1f} GB when it is full" in text
    assert f"about {more:,} more of leaves of any size or with codecs" in text
    assert f"up to {1_000_000_000 // (step + more):,} fit now" in text
    assert 'share_next=True with the codec "lz4"' in text and "blob_bytes=" in text
    assert "codecs=," not in text


def test_leaves_that_are_encoded_once_count_with_an_eighth_of_a_frame() -> None:
    codecs = {"observation": "lz4"}
    with LazyTensorStorage(8, example=ATARI, codecs=codecs, stack={"observation": 4}) as storage:
        step = bytes_per_step(storage.schema)
        assert step < FRAMES[0].nbytes
        text = said(storage, 1_000_000, 1_000_000)
    assert f"({step:,} bytes a step; " in text
    assert "lz4" not in text and "blob_bytes" not in text


def test_leaves_of_any_size_count_with_a_kilobyte() -> None:
    with LazyTensorStorage(8, example={"x": b"", "y": Ragged(np.int64)}) as storage:
        step = bytes_per_step(storage.schema) + 1024
        text = said(storage, 1_000_000, 1_000_000)
    assert f"1,000,000 rows need {step / 1e3:.1f} GB" in text
    assert "about 1,024 more of leaves of any size" in text
    assert f"up to {1_000_000 // step:,} fit now" in text


@pytest.mark.parametrize("how", ["example", "first row"])
def test_codecs_do_not_hide_what_does_not_fit(how: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(fits, "available_bytes", lambda named: 100_000_000)
    with pytest.warns(RuntimeWarning, match="100,000 rows need .* MB"):
        if how == "example":
            storage = LazyTensorStorage(100_000, example=ATARI, codecs={"observation": "zstd"})
        else:
            storage = LazyTensorStorage(100_000, codecs={"observation": "zstd"})
            storage.default_writer.add(ATARI)
    storage.close()


@pytest.mark.parametrize("kind", [LazyTensorStorage, SharedStorage])
@pytest.mark.parametrize("how", ["example", "first row"])
def test_it_is_said_when_rows_are_known(kind: Any, how: str, monkeypatch: Any) -> None:
    asked = []
    monkeypatch.setattr(fits, "available_bytes", lambda named: asked.append(named) or 100_000_000)
    row = {"x": np.zeros(1000, np.float32)}
    with pytest.warns(RuntimeWarning, match=f"{kind.__name__}: 50,000 rows need 200.0 MB"):
        if how == "example":
            storage = kind(50_000, example=row)
        else:
            storage = kind(50_000)
            assert not asked
            storage.default_writer.add(row)
    storage.close()
    with kind(20_000, example=row):  # 80 MB: it fits
        pass
    with kind(1000, example=row):  # which fits everywhere: nobody is asked
        pass
    assert asked == [kind is SharedStorage] * 2


def test_a_warning_that_is_an_error_leaves_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(fits, "available_bytes", lambda named: 1)
    row = {"x": np.zeros(1000, np.float32)}
    with LazyTensorStorage(50_000) as storage:
        with pytest.raises(RuntimeWarning):
            storage.default_writer.add(row)
        assert storage.schema is None and len(storage) == 0


# -- what the machine has -----------------------------------------------------------------------


def machine(folder: Path, files: dict[str, str]) -> Machine:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Machine(folder / "proc", folder / "cgroup", folder / "shm")


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    5000 kB\n"}


def test_nobody_says(tmp_path: Path) -> None:
    assert available_bytes(True, machine(tmp_path, {})) is None


def test_the_system(tmp_path: Path) -> None:
    assert available_bytes(False, machine(tmp_path, MEMINFO)) == 5000 << 10


@pytest.mark.parametrize(
    ("own", "folder"), [("0::/\n", ""), ("0::/jobs/7\n", "jobs/7/"), ("0::/jobs/7\n", "jobs/")]
)
def test_a_control_group_and_those_above(own: str, folder: str, tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "1:name=systemd:/x\n" + own,
        f"cgroup/{folder}memory.max": "3000000\n",
        f"cgroup/{folder}memory.current": "2500000\n",
        f"cgroup/{folder}memory.stat": "anon 1\ninactive_file 300000\nactive_file 100000\n",
    }
    found = machine(tmp_path, {"cgroup/memory.max": "max\n", **MEMINFO, **files})
    assert available_bytes(False, found) == 900_000


def test_a_control_group_of_the_first_version(tmp_path: Path) -> None:
    files = {
        "cgroup/memory/memory.limit_in_bytes": "1000000",
        "cgroup/memory/memory.usage_in_bytes": "1500000",
    }
    assert available_bytes(False, machine(tmp_path, MEMINFO | files)) == 0


def test_shared_memory_has_a_size_of_its_own(tmp_path: Path, monkeypatch: Any) -> None:
    class Room:
        f_bavail, f_frsize = 3, 4096

    found = machine(tmp_path, MEMINFO)
    found.shared.mkdir()
    monkeypatch.setattr(fits.os, "statvfs", lambda path: Room() if path == found.shared else None)
    assert available_bytes(True, found) == 3 * 4096
    assert available_bytes(False, found) == 5000 << 10
