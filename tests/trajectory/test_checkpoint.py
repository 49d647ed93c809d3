"""Checkpoints: the same batches afterwards, shards for any number of ranks, whole or not there."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import LayoutError, ShapeDtype, TrajectoryReplayBuffer
from contig.tape.disk.extents import row_stride
from contig.tape.disk.index import DiskIndex
from contig.trajectory import buffer as buffers
from contig.trajectory.folder import shard
from tests.trajectory.made import check, drawn, filled, made

KINDS = ["memory", "disk"]


def options(kind: str, path: Path) -> dict[str, Any]:
    return {"auto_save": True, "auto_save_path": path} if kind == "disk" else {}


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("prefetch", [0, 3])
def test_the_stream_goes_on(tmp_path: Path, source: str, to: str, prefetch: int) -> None:
    about = {"sample_window_size": 4, "prefetch": prefetch}
    with filled(6, **about, **options(source, tmp_path / "a")) as buffer:
        drawn(buffer)
        buffer.save_checkpoint(tmp_path / "saved")
        index, counter = buffer.trajectory_index, buffer.trajectory_counter
        expected = [drawn(buffer)]
        buffer.add_trajectories([made(6, 9, 1)])
        if prefetch:
            buffer.sample(1)  # another size: what was drawn ahead is thrown away
        expected.append(drawn(buffer))
    with TrajectoryReplayBuffer(seed=99, **about, **options(to, tmp_path / "b")) as buffer:
        buffer.add_trajectories([made(50), made(51)])
        drawn(buffer)
        buffer.load_checkpoint(tmp_path / "saved")
        assert buffer.trajectory_index == (index if to == "disk" else index[-4:])
        assert buffer.trajectory_counter == counter and buffer.seed == 1234
        found = [drawn(buffer)]
        buffer.add_trajectories([made(6, 9, 1)])
        if prefetch:
            buffer.sample(1)
        found.append(drawn(buffer))
        assert found == expected


@given(count=st.integers(0, 40), world=st.integers(1, 12))
def test_shards(count: int, world: int) -> None:
    parts = [list(range(count))[shard(count, rank, world)] for rank in range(world)]
    assert list(itertools.chain(*parts)) == list(
        range(count)
    )  # contiguous, in order, nothing twice
    assert [len(p) for p in parts] == [
        count // world + (rank < count % world) for rank in range(world)
    ]


def test_eight_over_three() -> None:
    numbers = list(range(8))
    parts = [numbers[shard(8, rank, 3)] for rank in range(3)]
    assert parts == [[0, 1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.parametrize("form", ["own", "rlinf"])
def test_ranks(tmp_path: Path, form: str) -> None:
    with filled(8, auto_save=True, auto_save_path=tmp_path / "rows") as buffer:
        if form == "own":
            buffer.save_checkpoint(tmp_path / "saved")
        else:
            buffer.export_rlinf(tmp_path / "saved")
        whole = buffer.trajectory_index
    for world in (1, 2, 3, 8, 11):
        found: list[Any] = []
        for rank in range(world):
            part = TrajectoryReplayBuffer()
            part.load_checkpoint(
                str(tmp_path / "saved"), is_distributed=True, local_rank=rank, world_size=world
            )
            mine = part.trajectory_index
            assert part.size == len(mine) and part.total_samples == 8 * len(mine)
            assert part.trajectory_counter == (mine[-1]["trajectory_id"] + 1 if mine else 0)
            if mine:
                who = check(part.sample(300))
                assert set(who[:, 0]) == {e["trajectory_id"] for e in mine}
            found += mine
        assert found == whole


def test_ranks_draw_different_numbers(tmp_path: Path) -> None:
    filled(8).save_checkpoint(tmp_path / "saved")
    streams = []
    for rank in range(2):
        part = TrajectoryReplayBuffer()
        part.load_checkpoint(tmp_path / "saved", True, rank, 2)
        streams.append([[n % 4, *rest] for n, *rest in itertools.chain(*drawn(part))])
    assert streams[0] != streams[1]
    # without is_distributed, rank and world size do not count
    part.load_checkpoint(tmp_path / "saved", False, 1, 2)
    assert part.size == 8


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0), (1, 1)])
def test_no_such_rank(tmp_path: Path, rank: int, world: int) -> None:
    filled(2).save_checkpoint(tmp_path / "saved")
    buffer = filled(1)
    with pytest.raises(ValueError, match="0 <= local_rank < world_size"):
        buffer.load_checkpoint(tmp_path / "saved", True, rank, world)
    assert buffer.size == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_goes_on_does_not_change_it(tmp_path: Path, kind: str) -> None:
    with filled(5, sample_window_size=0, **options(kind, tmp_path / "rows")) as buffer:
        buffer.save_checkpoint(tmp_path / "saved")
        buffer.add_trajectories([made(n, 30, 5) for n in range(5, 40)])
        buffer.clear()
        buffer.add_trajectories([made(77)])
    other = TrajectoryReplayBuffer(sample_window_size=0)
    other.load_checkpoint(tmp_path / "saved")
    assert set(check(other.sample(500))[:, 0]) == set(range(5))


def test_what_is_not_committed_yet_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DiskIndex.write

    def slow(index: DiskIndex, changes: Any) -> None:
        time.sleep(0.1)
        real(index, changes)

    monkeypatch.setattr(DiskIndex, "write", slow)
    with filled(4, auto_save=True, auto_save_path=tmp_path / "rows") as buffer:
        buffer.save_checkpoint(tmp_path / "saved")
        other = TrajectoryReplayBuffer()
        other.load_checkpoint(tmp_path / "saved")
        assert other.trajectory_index == buffer.trajectory_index and other.size == 4


def test_a_directory_of_another_buffer_can_be_loaded(tmp_path: Path) -> None:
    with filled(4, auto_save=True, auto_save_path=tmp_path / "rows") as buffer:
        index = buffer.trajectory_index
    other = TrajectoryReplayBuffer()
    other.load_checkpoint(tmp_path / "rows")
    assert other.trajectory_index == index
    check(other.sample(9), 9)


def test_optional_fields(tmp_path: Path) -> None:
    form = {"versions": ShapeDtype((), np.int64)}
    buffer = TrajectoryReplayBuffer(optional=form)
    buffer.add_trajectories([made(0), made(1, versions=np.full((4, 2), 6))])
    buffer.save_checkpoint(tmp_path / "saved")
    expected = [b["mask"]["versions"].tolist() for b in (buffer.sample(9), buffer.sample(9))]
    for declared in ({}, form):
        other = TrajectoryReplayBuffer(optional=declared)
        other.load_checkpoint(tmp_path / "saved")
        found = [other.sample(9) for _ in range(2)]
        assert [b["mask"]["versions"].tolist() for b in found] == expected
        other.add_trajectories([made(2)])
        assert "versions" not in other.read_trajectory(0)


def test_of_an_empty_buffer(tmp_path: Path) -> None:
    TrajectoryReplayBuffer(seed=5).save_checkpoint(tmp_path / "a")
    buffer = filled(2)
    buffer.load_checkpoint(tmp_path / "a")
    assert buffer.size == buffer.trajectory_counter == 0 and buffer.seed == 5
    with filled(2, auto_save=True, auto_save_path=tmp_path / "rows") as rows:
        rows.clear()
        rows.save_checkpoint(tmp_path / "b")
    buffer.load_checkpoint(tmp_path / "b")
    assert buffer.size == 0


def test_a_checkpoint_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    buffer = filled(2)
    for _ in range(3):
        buffer.add_trajectories([made(buffer.trajectory_counter)])
        buffer.save_checkpoint(tmp_path / "saved")
    buffer.export_rlinf(tmp_path / "saved")
    buffer.save_checkpoint(tmp_path / "saved")
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]
    other = TrajectoryReplayBuffer()
    other.load_checkpoint(tmp_path / "saved")
    assert other.size == 5


def test_other_things_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="thesis.tex"):
        filled(1).save_checkpoint(tmp_path)
    with pytest.raises(FileExistsError, match="thesis.tex"):
        filled(1).export_rlinf(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_own_directory_is_no_checkpoint(tmp_path: Path) -> None:
    with filled(1, auto_save=True, auto_save_path=tmp_path) as buffer:
        with pytest.raises(ValueError, match="auto_save_path"):
            buffer.load_checkpoint(tmp_path)
        for call in (buffer.save_checkpoint, buffer.export_rlinf):
            with pytest.raises(FileExistsError, match="the storage that is being saved is there"):
                call(tmp_path)
        check(buffer.sample(9), 9)


def test_a_failed_save_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = filled(3)
    buffer.save_checkpoint(tmp_path / "saved")
    buffer.add_trajectories([made(3)])

    def failing(path: Path, value: Any) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(buffers, "write_json", failing)
    with pytest.raises(OSError, match="no space"):
        buffer.save_checkpoint(tmp_path / "saved")
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]
    other = TrajectoryReplayBuffer()
    other.load_checkpoint(tmp_path / "saved")
    assert other.size == 3


def test_what_is_not_there_or_damaged_changes_nothing(tmp_path: Path) -> None:
    filled(3).save_checkpoint(tmp_path / "good")
    buffer = filled(2)
    before = drawn(filled(2))

    def broken(change: Any) -> Path:
        shutil.rmtree(tmp_path / "bad", ignore_errors=True)
        shutil.copytree(tmp_path / "good", tmp_path / "bad")
        change(tmp_path / "bad")
        return tmp_path / "bad"

    cases: list[tuple[Path, type[Exception]]] = [(tmp_path / "nowhere", FileNotFoundError)]
    for path, error in cases:
        with pytest.raises(error):
            buffer.load_checkpoint(path)
    for change, error in (
        (lambda p: (p / "metadata.json").write_text("{"), LayoutError),
        (lambda p: (p / "metadata.json").write_text("[]"), LayoutError),
        (lambda p: (p / "checkpoint.json").write_text("{}"), LayoutError),
        (lambda p: (p / "checkpoint.json").unlink(), FileNotFoundError),
        (lambda p: (p / "index.bin").write_bytes(b"x" * 5000), LayoutError),
        (lambda p: (p / "fields.bin").write_bytes(b"x" * 5000), LayoutError),
        (lambda p: (p / "records.bin").unlink(), FileNotFoundError),
    ):
        with pytest.raises(error):
            buffer.load_checkpoint(broken(change))
    assert drawn(buffer) == before


def test_metadata(tmp_path: Path) -> None:
    buffer = filled(3, seed=8)
    buffer.save_checkpoint(tmp_path / "saved")
    about = json.loads((tmp_path / "saved/metadata.json").read_text())
    assert about.pop("rng") and about == {
        "trajectory_format": "contig",
        "format": 2,
        "size": 3,
        "total_samples": 24,
        "trajectory_counter": 3,
        "seed": 8,
    }


def test_a_checkpoint_can_be_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    with filled(3, auto_save=True, auto_save_path=tmp_path / "rows") as buffer:
        buffer.save_checkpoint(tmp_path / "saved")
    names = sorted(p.name for p in (tmp_path / "saved").iterdir())
    other = TrajectoryReplayBuffer()
    other.load_checkpoint(tmp_path / "saved")
    assert sorted(p.name for p in (tmp_path / "saved").iterdir()) == names


def test_damaged_rows_of_a_checkpoint(tmp_path: Path) -> None:
    with filled(5, 64, 8, auto_save=True, auto_save_path=tmp_path / "rows") as saved:
        saved.save_checkpoint(tmp_path / "saved")
        entry = saved._rows.entries()[3]
        stride = row_stride(saved._rows.storage.tape.record_size)
    extent = next((tmp_path / "saved/extents").iterdir())
    with open(extent, "r+b") as file:
        file.seek(entry.first * stride + 7)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))
    buffer = filled(2)
    try:
        buffer.load_checkpoint(tmp_path / "saved")
    except LayoutError:
        assert set(check(buffer.sample(200))[:, 0]) == {0, 1} and buffer.trajectory_counter == 2
    else:  # found when it was opened
        assert {e["trajectory_id"] for e in buffer.trajectory_index} == {0, 1, 2, 4}
        assert set(check(buffer.sample(2000))[:, 0]) == {0, 1, 2, 4}


def test_a_directory_that_somebody_writes_to_can_be_loaded(tmp_path: Path) -> None:
    with filled(4, auto_save=True, auto_save_path=tmp_path / "rows") as buffer:
        other = TrajectoryReplayBuffer(sample_window_size=0)
        assert len(buffer) == 4  # they are stored, so there is a directory
        seen = []
        for number in range(4, 12):
            buffer.add_trajectories([made(number)])
            other.load_checkpoint(tmp_path / "rows")
            ids = [e["trajectory_id"] for e in other.trajectory_index]
            assert ids == list(range(len(ids)))
            if ids:
                check(other.sample(20), 20)
            seen.append(len(ids))
        assert seen == sorted(seen)
        buffer.flush()
        other.load_checkpoint(tmp_path / "rows")
        assert other.size == 12


@pytest.mark.parametrize("key", ["rng", "seed"])
def test_metadata_that_makes_no_sense(tmp_path: Path, key: str) -> None:
    filled(3).save_checkpoint(tmp_path / "saved")
    path = tmp_path / "saved/metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: "x"}))
    buffer = filled(2)
    with pytest.raises((ValueError, TypeError)):
        buffer.load_checkpoint(tmp_path / "saved")
    assert buffer.size == 2 and drawn(buffer) == drawn(filled(2))
