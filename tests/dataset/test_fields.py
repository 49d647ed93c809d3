"""Fields of trajectories and leaves of any size, into other formats and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DeviceStorage, DiskStorage, LayoutError, LazyTensorStorage, Ragged, ReplayBuffer
from contig.dataset import (
    from_checkpoint,
    from_hdf5,
    from_parquet,
    to_arrow,
    to_checkpoint,
    to_hdf5,
    to_minari,
    to_parquet,
    to_rlinf,
    to_rollouts,
)

FIELDS = {"task": np.int32(0), "where": {"goal": np.zeros(3, np.float32)}, "success": False}
LENGTHS = (3, 1, 5, 4)
WAYS: dict[str, Any] = {
    "parquet": (to_parquet, from_parquet),
    "arrow": (to_arrow, from_parquet),
    "hdf5": (to_hdf5, from_hdf5),
    "checkpoint": (to_checkpoint, from_checkpoint),
}


def rows(number: int, steps: int) -> dict[str, Any]:
    """Every value says which trajectory and step it is of."""
    at = number * 100 + np.arange(steps)
    done = np.arange(steps) == steps - 1
    return {
        "observation": at[:, None].astype(np.float32),
        "action": at.astype(np.int64),
        "tokens": Ragged.of([np.full(t % 4, number * 100 + t, np.int32) for t in range(steps)]),
        "text": [f"{number}/{t} ä" * (t % 3) for t in range(steps)],
        "blob": [bytes([number, t]) * t for t in range(steps)],
        "next": {"reward": at.astype(np.float32), "terminated": done, "truncated": ~done & done},
    }


def of(number: int) -> dict[str, Any]:
    goal = np.arange(3) + number / 2
    return {"task": number, "where": {"goal": goal}, "success": number % 2 == 1}


def filled(storage: Any, any_size: bool = True) -> Any:
    buffer = ReplayBuffer(storage, batch_size=4)
    for number, steps in enumerate(LENGTHS):
        made = rows(number, steps)
        if not any_size:
            for name in ("tokens", "text", "blob"):
                del made[name]
        buffer.extend_trajectory(made, fields=of(number))
    return storage


def check(storage: Any, any_size: bool = True) -> None:
    episodes = storage.episodes()
    assert episodes["steps"].tolist() == list(LENGTHS)
    for number, episode in enumerate(episodes):
        want = of(number)
        assert episode["task"] == want["task"] and episode["success"] == want["success"]
        assert np.array_equal(episode["where.goal"], want["where"]["goal"])
        found, made = storage.read_episode(episode["id"]), rows(number, LENGTHS[number])
        assert np.array_equal(found["observation"], made["observation"])
        if any_size:
            assert found["tokens"] == made["tokens"]
            assert list(found["text"]) == made["text"] and list(found["blob"]) == made["blob"]


def of_kind(kind: str, path: Path, **options: Any) -> Any:
    if kind == "disk":
        return DiskStorage(path, 100, **options)
    if kind == "device":
        pytest.importorskip("torch")
        return DeviceStorage(100, "cpu", **options)
    return LazyTensorStorage(100, **options)


@pytest.mark.parametrize("codecs", [None, {"observation": "zstd"}], ids=["plain", "coded"])
@pytest.mark.parametrize("kind", ["memory", "disk", "device"])
@pytest.mark.parametrize("way", WAYS)
def test_there_and_back(tmp_path: Path, way: str, kind: str, codecs: Any) -> None:
    source = filled(of_kind(kind, tmp_path / "tape", codecs=codecs))
    write, read = WAYS[way]
    assert write(source, tmp_path / "out") == 4
    for options in ({}, {"fields": FIELDS}):
        back = of_kind(kind if kind == "device" else "memory", tmp_path, **options)
        assert read(tmp_path / "out", back) == 4
        check(back)
    if kind == "disk":
        source.close()


def test_a_directory_as_a_checkpoint(tmp_path: Path) -> None:
    with DiskStorage(tmp_path / "tape", 100) as source:
        filled(source).flush()
        back = LazyTensorStorage(100)
        assert from_checkpoint(tmp_path / "tape", back) == 4
        check(back)


def test_codecs_in_checkpoints(tmp_path: Path) -> None:
    storage = LazyTensorStorage(100, codecs={"pixels": "zstd"})
    pixels = np.random.default_rng(0).integers(0, 4, (6, 20, 20)).astype(np.uint8)
    ReplayBuffer(storage, batch_size=2).extend_trajectory({"pixels": pixels, "at": np.arange(6)})
    to_checkpoint(storage, tmp_path / "out")
    back = LazyTensorStorage(100)
    assert from_checkpoint(tmp_path / "out", back) == 1
    assert np.array_equal(back.read_episode(back.episodes()["id"][0])["pixels"], pixels)


def test_left_out(tmp_path: Path) -> None:
    source = filled(LazyTensorStorage(100))
    to_parquet(source, tmp_path / "out", drop=["fields", "text", "blob"])
    back = LazyTensorStorage(100)
    from_parquet(tmp_path / "out", back)
    assert back.fields is None and back.layout is not None
    assert ("tokens",) in back.layout.by_path and ("text",) not in back.layout.by_path


@pytest.mark.parametrize("write", [to_rollouts, to_rlinf, to_minari])
def test_formats_without_a_place_for_them(tmp_path: Path, write: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    out = "contig/fields-v0" if write is to_minari else tmp_path / "out"
    with pytest.raises(LayoutError, match="no leaves of any size.*drop=.*parquet"):
        write(filled(LazyTensorStorage(100)), out)
    with pytest.raises(LayoutError, match="no place for fields of trajectories.*drop=.*fields"):
        write(filled(LazyTensorStorage(100), any_size=False), out)


@pytest.mark.parametrize("form", WAYS)
def test_arrays_of_any_length(tmp_path: Path, form: str) -> None:
    write, read = WAYS[form]
    storage = LazyTensorStorage(100)
    made = [rows(0, 3), rows(1, 5)]
    for number, part in enumerate(made):
        part["tokens"] = Ragged.of(
            [np.full((t, 2, 3), number + t, np.int32) for t in range(len(part["action"]))]
        )
        ReplayBuffer(storage, batch_size=2).extend_trajectory(part)
    write(storage, tmp_path / "out.file")
    back = LazyTensorStorage(100)
    read(tmp_path / "out.file", back)
    for number, part in zip(back.episodes()["id"], made, strict=True):
        assert back.read_episode(int(number))["tokens"] == part["tokens"]


def test_hdf5_has_numbers_only(tmp_path: Path) -> None:
    storage = LazyTensorStorage(100)
    made = rows(0, 3)
    made["tokens"] = Ragged.of([np.zeros((t, 2), np.complex64) for t in range(3)])
    ReplayBuffer(storage, batch_size=2).extend_trajectory(made)
    with pytest.raises(LayoutError, match=r"tokens.*HDF5 cannot hold rows of any number.*\[2\]"):
        to_hdf5(storage, tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()
