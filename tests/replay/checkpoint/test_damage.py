"""Damaged checkpoints: a clear error, and a buffer that is as it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import EmptyBufferError, LayoutError, ReplayBuffer
from contig.testing import World, episode
from tests.replay.checkpoint.buffers import (
    SAMPLERS,
    buffer_of,
    everything,
    filled,
    fresh,
    images,
    read_meta,
    write_meta,
)

FILES = ("checkpoint.json", "records.bin", "slots.bin", "index.bin", "array-0.npy")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that has a file of every kind."""
    path = tmp_path_factory.mktemp("damage") / "whole"
    world = filled()
    buffer = buffer_of(world.storage, "prioritized")
    images(buffer, 3)
    buffer.save(path)
    assert sorted(f.name for f in path.iterdir()) == sorted(FILES)
    return path


def refused(path: Path, name: str = "prioritized") -> str:
    """Loads into an empty buffer and into one in use; returns the error's text.

    Both must be left as they were: contents, counters, random numbers, what comes next.
    """
    text = ""
    for rounds in (0, 5):
        world = World(contig.LazyTensorStorage(170))
        world.write(rounds)
        buffer, twin = (buffer_of(world.storage, name, seed=4) for _ in range(2))
        if rounds:
            assert images(buffer, 2) == images(twin, 2)
        before = everything(buffer)
        with pytest.raises((LayoutError, FileNotFoundError)) as caught:
            buffer.load(path)
        text = str(caught.value)
        assert everything(buffer) == before, f"changed by a load that failed: {text}"
        assert str(path) in text, f"does not say which checkpoint: {text}"
        if rounds:
            assert images(buffer, 2) == images(twin, 2)
            world.write(1)
            buffer.sample()
        else:
            # Still free to take any layout.
            buffer.extend({"x": np.arange(3.0), "next": {"done": np.arange(3) == 2}})
            assert len(buffer) == 3
    return text


def copy_of(whole: Path, tmp_path: Path) -> Path:
    path = tmp_path / "damaged"
    shutil.copytree(whole, path)
    return path


def _garbage(size: int) -> bytes:
    return np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()


def _flip(data: bytes, at: float) -> bytes:
    out = bytearray(data)
    out[int(len(out) * at)] ^= 0x10
    return bytes(out)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "without its last 128 bytes": lambda data: data[:-128],
    "garbage": lambda data: _garbage(len(data)),
    "garbage at the end": lambda data: data + _garbage(128),
    "zeros": lambda data: bytes(len(data)),
    "one bit": lambda data: _flip(data, 0.6),
}


@pytest.mark.parametrize(
    ("file", "how"),
    # A flipped bit in the JSON may be another valid number: nothing can tell.
    [(f, h) for f in FILES for h in DAMAGE if (f, h) != ("checkpoint.json", "one bit")],
)
def test_damaged_file(whole: Path, tmp_path: Path, file: str, how: str) -> None:
    path = copy_of(whole, tmp_path)
    damaged = path / file
    damaged.write_bytes(DAMAGE[how](damaged.read_bytes()))
    refused(path)


@pytest.mark.parametrize("file", FILES)
def test_removed_file(whole: Path, tmp_path: Path, file: str) -> None:
    path = copy_of(whole, tmp_path)
    (path / file).unlink()
    assert file in refused(path)


def test_nothing_there(tmp_path: Path) -> None:
    assert "no checkpoint" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no checkpoint" in refused(tmp_path / "empty")


def test_a_file_instead_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    with pytest.raises((LayoutError, OSError)):
        fresh("random").load(tmp_path / "file")


# -- checkpoint.json that is JSON, but not ours ---------------------------------------------------


def edited(
    whole: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], Any], seal: bool = False
) -> Path:
    """A copy whose checkpoint.json says something else."""
    path = copy_of(whole, tmp_path)
    meta = read_meta(path)
    edit(meta)
    write_meta(path, meta, seal)
    return path


def test_another_format(whole: Path, tmp_path: Path) -> None:
    path = edited(whole, tmp_path, lambda meta: meta.update(format=99), seal=True)
    assert "format 99" in refused(path)


@pytest.mark.parametrize("instead", [[], {}, 3, None, "text"])
def test_other_json(whole: Path, tmp_path: Path, instead: Any) -> None:
    path = copy_of(whole, tmp_path)
    write_meta(path, instead)
    refused(path)


@pytest.mark.parametrize(
    "key",
    ["format", "layout", "keys", "file_first", "tail", "head", "trajectories", "state", "limiter"]
    + ["shared"],
)
def test_missing_entry(whole: Path, tmp_path: Path, key: str) -> None:
    refused(edited(whole, tmp_path, lambda meta: meta.pop(key)))


@pytest.mark.parametrize(
    "values",
    [
        {"head": -1},
        {"head": 10**9},
        {"head": "many"},
        {"tail": -5},
        {"tail": 10**9},
        {"file_first": -5},
        {"file_first": 10**9},
        {"trajectories": -1},
        {"trajectories": 0},
        {"limiter": {}},
        {"limiter": {"inserted": -1, "sampled": 0}},
        {"state": {}},
        {"state": {"rng": [1, 2], "sampler": {}}},
        {"layout": []},
        {"shared": {}},
        {"shared": []},
        {"shared": {"leaves": [], "paired": True}},
        {"shared": {"leaves": [[["next", "reward"], 1, True]], "paired": True}},
        {"keys": {}},
        {"state": {"rng": [1, 2, 3, 4], "sampler": {"__array__": 7}}},
        {"state": {"rng": [1, 2, 3, 4], "sampler": {"__array__": "../../index"}}},
    ],
    ids=str,
)
def test_wrong_entry(whole: Path, tmp_path: Path, values: dict[str, Any]) -> None:
    refused(edited(whole, tmp_path, lambda meta: meta.update(values)))


# -- whole checkpoints that do not fit ------------------------------------------------------------


def test_another_layout(tmp_path: Path) -> None:
    other = ReplayBuffer(contig.LazyTensorStorage(50), batch_size=4)
    other.extend({"x": np.arange(9.0)})
    other.save(tmp_path / "other")
    world = filled()
    buffer = buffer_of(world.storage, "random")
    before = everything(buffer)
    with pytest.raises(LayoutError, match="another layout"):
        buffer.load(tmp_path / "other")
    assert everything(buffer) == before


ALIKE = {
    "retiring": "random",
    "without replacement, drop_last": "without replacement",
    "fifo of trajectories": "fifo",
}


@pytest.mark.parametrize("loading", SAMPLERS)
def test_checkpoint_of_another_sampler(tmp_path: Path, loading: str) -> None:
    # Taken if the samplers are of a kind; if not, it is refused as a whole.
    wrong, refused = {}, set()
    others = ("random", "without replacement", "prioritized", "fifo", "n-step", "window")
    for saved in others:
        world = filled()
        buffer = buffer_of(world.storage, saved)
        images(buffer, 2)
        buffer.save(tmp_path / saved)
        other = World(contig.LazyTensorStorage(150))
        other.write(4)
        target = buffer_of(other.storage, loading, seed=3)
        images(target, 1)
        before = everything(target)
        try:
            target.load(tmp_path / saved)
        except ValueError:
            refused.add(saved)
            assert everything(target) == before
            continue
        except Exception as error:
            changed = "" if everything(target) == before else ", and the buffer is changed"
            wrong[saved] = f"{error!r}{changed}"
            continue
        for batch in (target.sample() for _ in range(3)):
            steps = [tuple(s) for s in batch["observation"].astype(int).tolist()]
            assert steps == [world.step_at[s] for s in batch["index"].tolist()]
    assert not wrong
    assert refused == set(others) - {ALIKE.get(loading, loading)}


def test_other_boundary_keys(tmp_path: Path) -> None:
    saved = ReplayBuffer(
        contig.LazyTensorStorage(50), contig.SliceSampler(slice_len=2, traj_key="run"), batch_size=4
    )
    data = {"run": np.repeat([1, 2, 3], 3), "lane": np.zeros(9, np.int64), "x": np.arange(9.0)}
    saved.extend(data)
    saved.save(tmp_path / "a")
    target = ReplayBuffer(
        contig.LazyTensorStorage(50),
        contig.SliceSampler(slice_len=2, traj_key="lane"),
        batch_size=4,
    )
    with pytest.raises(ValueError, match="lane"):
        target.load(tmp_path / "a")
    assert len(target) == 0 and target.storage.layout is None


def test_nothing_to_save(tmp_path: Path) -> None:
    buffer = fresh("random")
    with pytest.raises(EmptyBufferError, match="nothing was ever written"):
        buffer.save(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    buffer.extend(episode(0, 3))
    buffer.save(tmp_path / "a")
    assert (tmp_path / "a").is_dir()
