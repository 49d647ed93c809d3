"""Directories and checkpoints that contig 0.1 wrote, kept in `kept/format-1`.

`said.json` has what the buffer said of each, the batches that came after a checkpoint, and the
sizes of extent files, which are kept without the zeros at their ends.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contig import Trajectory, TrajectoryReplayBuffer, _native
from tests.tape.disk.victim import killed_at
from tests.trajectory.made import check, made
from tests.trajectory.test_failed_load import THINNED

KEPT = Path(__file__).parent / "kept" / "format-1"
SAID: dict[str, Any] = json.loads((KEPT / "said.json").read_text())
DIRECTORIES = ("directory", "killed", "cleared", "loaded")
JOURNAL = "trajectories.jsonl"
CHECKPOINTS = ("saved-directory", "saved-memory")


def kept(name: str, place: Path) -> Path:
    """A copy of one, as it was left."""
    path = place / name
    shutil.copytree(KEPT / name, path)
    for file, size in SAID["extents"].items():
        if file.startswith(name + "/"):
            os.truncate(place / file, size)
    return path


def trajectory(name: str, number: int) -> Trajectory:
    """What the trajectory of a number was made as."""
    if name == "cleared":
        return made(20 + number, 3, 1, weights=f"w{20 + number}")
    steps = 1 + number % 3
    more = {"versions": torch.full((steps, 2), number)} if number % 2 else {}
    found = made(number, steps, 2, weights="abc"[number % 3] if number < 6 else "d", **more)
    if number % 3 == 0:
        found.curr_obs["wrist"] = torch.full((steps, 2, 2), number, dtype=torch.uint8)
    return found


def leaves(tree: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Arrays and numbers of nested dicts, without what is None."""
    if not isinstance(tree, dict):
        return {} if tree is None else {path: tree}
    return {k: v for name, x in tree.items() for k, v in leaves(x, (*path, name)).items()}


def is_as_made(buffer: TrajectoryReplayBuffer, name: str, index: list[Any]) -> None:
    """Every value of every trajectory, and what is said of them."""
    assert buffer.trajectory_index == index
    assert buffer.size == len(buffer) == len(index)
    assert buffer.total_samples == sum(e["num_samples"] for e in index)
    assert buffer.get_stats()["damaged_trajectories"] == 0
    for entry in index:
        number = entry["trajectory_id"]
        read = leaves(buffer.read_trajectory(number))
        wanted = leaves(dict(vars(trajectory(name, number))))
        assert read.keys() == wanted.keys()
        for path, value in wanted.items():
            found = read[path]
            if isinstance(value, torch.Tensor):
                assert found.dtype == value.dtype and torch.equal(found, value), path
            else:
                assert found == value
    batch = buffer.sample(200)
    who = check(batch, 200)
    if name != "cleared":
        number = who[:, 0].astype(int)
        mask = batch["mask"]
        assert np.array_equal(mask["versions"].numpy(), number % 2 == 1)
        assert np.array_equal(mask["curr_obs"]["wrist"].numpy(), number % 3 == 0)
        assert np.array_equal(batch["versions"].numpy(), np.where(number % 2, number, 0))
        assert np.array_equal(
            batch["curr_obs"]["wrist"].numpy()[:, 0], np.where(number % 3, 0, number)
        )


def window(name: str, index: list[Any], size: int) -> set[int]:
    first = 20 if name == "cleared" else 0
    return {first + e["trajectory_id"] for e in index[-size:]}


def opened(path: Path, **options: Any) -> TrajectoryReplayBuffer:
    options = {"sample_window_size": 3, **options}
    return TrajectoryReplayBuffer(auto_save=True, auto_save_path=path, **options)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_opens_and_goes_on(tmp_path: Path, name: str) -> None:
    said, path = SAID[name], kept(name, tmp_path)
    with opened(path) as buffer:
        is_as_made(buffer, name, said["index"])
        assert buffer.trajectory_counter == said["counter"] and buffer.is_ready(said["size"])
        assert set(check(buffer.sample(300))[:, 0]) == window(name, said["index"], 3)
    with opened(path) as buffer:  # as it is now
        is_as_made(buffer, name, said["index"])
        number = said["counter"]
        assert buffer.add_trajectories([trajectory(name, number)]) == [number]
        index = buffer.trajectory_index
        assert index[:-1] == said["index"]
        is_as_made(buffer, name, index)
    with opened(path) as buffer:
        is_as_made(buffer, name, index)
        buffer.save_checkpoint(tmp_path / "saved")
    with TrajectoryReplayBuffer(sample_window_size=0) as buffer:
        buffer.load_checkpoint(tmp_path / "saved")
        is_as_made(buffer, name, index)


def test_versions_of_a_directory_go_on(tmp_path: Path) -> None:
    with opened(kept("directory", tmp_path), max_staleness=1, sample_window_size=0) as buffer:
        assert set(check(buffer.sample(300))[:, 0]) == {2, 5, 6}  # "c" is one behind "d"
        buffer.add_trajectories([made(7, weights="b"), made(8, weights="new")])
        assert set(check(buffer.sample(300))[:, 0]) == {6, 8}


@pytest.mark.parametrize("name", (*DIRECTORIES, *CHECKPOINTS))
def test_one_is_loaded_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    said, path = SAID[name], kept(name, tmp_path)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.suffix != ".rec"}
    with TrajectoryReplayBuffer(sample_window_size=0) as buffer:
        buffer.load_checkpoint(path)
        is_as_made(buffer, name, said["index"])
        assert buffer.trajectory_counter == said["counter"]
    with opened(tmp_path / "rows", sample_window_size=0) as buffer:
        buffer.load_checkpoint(path)
        is_as_made(buffer, name, said["index"])
    with opened(tmp_path / "rows", sample_window_size=0) as buffer:
        is_as_made(buffer, name, said["index"])
    if name != "killed":  # there the index is settled by whoever opens it
        assert {p: p.read_bytes() for p in before} == before


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("to", ("memory", "disk"))
def test_the_stream_of_a_checkpoint_goes_on(tmp_path: Path, name: str, to: str) -> None:
    said, path = SAID[name], kept(name, tmp_path)
    size = 3 if name == "saved-directory" else 4
    options: dict[str, Any] = {"sample_window_size": size}
    if to == "disk":
        options |= {"auto_save": True, "auto_save_path": tmp_path / "rows"}
    with TrajectoryReplayBuffer(seed=99, **options) as buffer:
        buffer.load_checkpoint(path)
        assert buffer.seed == said["seed"]
        assert [check(buffer.sample(8)).tolist() for _ in said["next"]] == said["next"]


@pytest.mark.parametrize("name", (*DIRECTORIES, *CHECKPOINTS))
def test_ranks_of_one(tmp_path: Path, name: str) -> None:
    said, path = SAID[name], kept(name, tmp_path)
    found: list[Any] = []
    for rank in range(3):
        with TrajectoryReplayBuffer() as part:
            part.load_checkpoint(path, True, rank, 3)
            found.append(part.trajectory_index)
            is_as_made(part, name, found[-1])
    whole, count = said["index"], said["size"]
    assert [len(part) for part in found] == [(count + 2 - rank) // 3 for rank in range(3)]
    assert [entry for part in found for entry in part] == whole


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_becomes_a_directory(tmp_path: Path, name: str) -> None:
    said, path = SAID[name], kept(name, tmp_path)
    with opened(path, sample_window_size=0) as buffer:
        is_as_made(buffer, name, said["index"])
        number = buffer.trajectory_counter
        buffer.add_trajectories([trajectory(name, number)])
    with opened(path, sample_window_size=0) as buffer:
        assert buffer.size == said["size"] + 1
        is_as_made(buffer, name, buffer.trajectory_index)


def test_a_checkpoint_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    path = kept("saved-directory", tmp_path)
    with TrajectoryReplayBuffer() as buffer:
        buffer.add_trajectories([made(3)])
        buffer.save_checkpoint(path)
        index = buffer.trajectory_index
    with TrajectoryReplayBuffer() as buffer:
        buffer.load_checkpoint(path)
        assert buffer.trajectory_index == index


def test_one_of_an_empty_buffer(tmp_path: Path) -> None:
    with TrajectoryReplayBuffer() as buffer:
        buffer.add_trajectories([made(3)])
        buffer.load_checkpoint(kept("saved-empty", tmp_path))
        assert buffer.size == buffer.trajectory_counter == 0 and buffer.seed == 5


# -- lines of trajectories.jsonl, in which 0.1 kept what is fields now -----------------------------


def test_lines_without_rows_are_ignored(tmp_path: Path) -> None:
    path = kept("directory", tmp_path)
    lines = (path / JOURNAL).read_bytes().splitlines(keepends=True)
    values = json.loads(lines[-1].partition(b" ")[2])
    stray = json.dumps({**values, "first": 10**6, "trajectory_id": 77}).encode()
    with open(path / JOURNAL, "ab") as file:
        file.write(b"%08x %s\n" % (_native.crc32c(stray), stray) + b"0000 {half a line")
    with opened(path, sample_window_size=0) as buffer:
        is_as_made(buffer, "directory", SAID["directory"]["index"])


@pytest.mark.parametrize("to", ("opened", "loaded"))
@pytest.mark.parametrize("line", [0, 3, 6])
def test_a_damaged_line_sets_its_trajectory_aside(tmp_path: Path, line: int, to: str) -> None:
    index = SAID["directory"]["index"]
    lines = (KEPT / "directory" / JOURNAL).read_bytes().splitlines(keepends=True)
    for at in range(0, len(lines[line]) - 1, 40):
        path = kept("directory", tmp_path)
        changed = bytearray(lines[line])
        changed[at] ^= 1
        (path / JOURNAL).write_bytes(b"".join([*lines[:line], changed, *lines[line + 1 :]]))
        left = [entry for entry in index if entry["trajectory_id"] != line]
        for _ in range(2):  # converted, and opened as it is then
            with (
                TrajectoryReplayBuffer(sample_window_size=0)
                if to == "loaded"
                else opened(path, sample_window_size=0) as buffer
            ):
                if to == "loaded":
                    buffer.load_checkpoint(path)
                else:
                    assert buffer.get_stats()["damaged_trajectories"] == 1
                assert buffer.trajectory_index == left and buffer.size == len(left)
                assert buffer.total_samples == sum(e["num_samples"] for e in left)
                assert set(check(buffer.sample(400))[:, 0]) == {e["trajectory_id"] for e in left}
        shutil.rmtree(path)


def test_long_names_of_weights(tmp_path: Path) -> None:
    path = kept("directory", tmp_path)
    lines = (path / JOURNAL).read_bytes().splitlines()
    values = json.loads(lines[2].partition(b" ")[2])
    text = json.dumps({**values, "model_weights_id": "x" * 999}).encode()
    lines[2] = b"%08x %s" % (_native.crc32c(text), text)
    (path / JOURNAL).write_bytes(b"\n".join(lines) + b"\n")
    for _ in range(2):
        with opened(path) as buffer:
            assert buffer.trajectory_index[2]["model_weights_id"] == "x" * 999


# -- killed at it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("every", THINNED)
@pytest.mark.parametrize("name", ("directory", "saved-memory", "saved"))
def test_killed_while_it_is_converted(tmp_path: Path, name: str, every: int) -> None:
    """Who opens it next has all of it; what else is in the directory stays."""
    if name == "saved":  # a checkpoint of today
        with opened(kept("directory", tmp_path / "old")) as buffer:
            buffer.save_checkpoint(tmp_path / "made")
    said = SAID["directory" if name == "saved" else name]["index"]
    path, at, killed = tmp_path / name, 0, True
    while killed:
        at += every
        if name == "saved":
            shutil.copytree(tmp_path / "made", path)
        else:
            kept(name, tmp_path)
        (path / "notes.txt").write_text("mine")
        killed = killed_at(at, lambda: None, lambda _: opened(path))
        if at % 2:  # who only reads finds it too
            with TrajectoryReplayBuffer(sample_window_size=0) as reader:
                reader.load_checkpoint(path)
                is_as_made(reader, "directory", said)
        with opened(path, sample_window_size=0) as buffer:
            is_as_made(buffer, "directory", said)
        assert (path / "notes.txt").read_text() == "mine"
        names = {p.name for p in path.iterdir()}
        assert not names & {"converting", "converted", "moving", JOURNAL, "checkpoint.json"}
        shutil.rmtree(path)
    assert at > 3 * every
