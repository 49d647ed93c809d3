"""LeRobot export: what comes back is what was there, and the files are what LeRobot expects."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from contig import DiskStorage, LayoutError, LazyTensorStorage, ReplayBuffer
from contig.dataset import from_lerobot, lerobot_export, lerobot_tasks, to_lerobot
from contig.dataset.video_writer import ENCODERS, VideoWriter
from tests.dataset.made_lerobot import HEIGHT, WIDTH, picture, shade, write_lerobot
from tests.dataset.tapes import assert_same, filled, flat, lengths

LENGTHS = (7, 3, 11, 1)
CAMERA = "observation.images.top"


def cameras(storage: Any, image: Any = picture, count: Any = LENGTHS, **fields: Any) -> Any:
    """Trajectories with images, whose every leaf says which row it is of: 100 * number + step."""
    writer = storage.writer()
    for number, steps in enumerate(count):
        ids = 100 * number + np.arange(steps)
        ends = np.arange(steps) == steps - 1
        step = {
            "observation": {
                "state": (ids[:, None] + [0, 0.25, 0.5]).astype(np.float32),
                "t": ids,
                "grid": np.broadcast_to(ids[:, None, None], (steps, 2, 3)).astype(np.float64),
                "images": {"top": np.stack([image(i) for i in ids])},
            },
            "action": ids[:, None].astype(np.float32),
            "gripper": ids.astype(np.int16),
            "next": {
                "reward": ids[:, None].astype(np.float32),
                "success": ends,
                "terminated": ends & (number % 2 == 0),
                "truncated": ends & (number % 2 == 1),
            },
        }
        own = {name: np.int32(values[number]) for name, values in fields.items()}
        writer.extend_trajectory(step, fields=own or None)
    return storage


def grey(identity: int) -> np.ndarray[Any, Any]:
    return np.full((HEIGHT, WIDTH, 3), shade(identity), np.uint8)


def back(path: Path) -> Any:
    storage = LazyTensorStorage(10_000)
    from_lerobot(path, storage)
    return storage


@pytest.mark.parametrize("video", [False, "libx264rgb"])
def test_what_comes_back_is_what_was_there(tmp_path: Path, video: Any) -> None:
    ours = cameras(LazyTensorStorage(100))
    assert to_lerobot(ours, tmp_path / "set", fps=10, video=video) == 4
    theirs = back(tmp_path / "set")
    assert_same(ours, theirs)
    assert theirs.layout.by_path["observation", "t"].shape == ()
    assert theirs.layout.by_path["next", "reward"].shape == (1,)
    more = {p for p in theirs.layout.by_path if p not in ours.layout.by_path}
    assert more == {("timestamp",), ("task_index",)}
    # And once more: now everything is there already.
    to_lerobot(theirs, tmp_path / "again", fps=10, video=video)
    assert_same(theirs, back(tmp_path / "again"))


@pytest.mark.parametrize("make", [flat, filled])
def test_other_storages(tmp_path: Path, make: Any) -> None:
    ours = make((3, 5, 2))
    to_lerobot(ReplayBuffer(ours), tmp_path / "set")
    assert_same(ours, back(tmp_path / "set"))
    assert_same(flat((3, 5)), back(_exported(tmp_path / "flat", flat((3, 5)))))


def _exported(path: Path, storage: Any) -> Path:
    to_lerobot(storage, path)
    return path


def test_images_of_any_order_and_number_of_channels(tmp_path: Path) -> None:
    storage, rng = LazyTensorStorage(100), np.random.default_rng(0)
    shapes = {
        "first": (3, 6, 8),
        "grey": (6, 8, 1),
        "alpha": (5, 7, 4),
        "plain": (6, 8),
        "odd": (9,),
    }
    leaves = {n: rng.integers(0, 256, (5, *s), dtype=np.uint8) for n, s in shapes.items()}
    storage.writer().extend_trajectory({**leaves, "next": {"done": np.arange(5) == 4}})
    to_lerobot(storage, tmp_path / "set", video=False)
    assert_same(storage, back(tmp_path / "set"))
    features = json.loads((tmp_path / "set/meta/info.json").read_text())["features"]
    kinds = {name: features[name]["dtype"] for name in shapes}
    assert kinds == {
        "first": "image",
        "grey": "image",
        "alpha": "image",
        "plain": "uint8",
        "odd": "uint8",
    }
    assert features["first"]["names"] == ["channels", "height", "width"]


def test_a_dataset_of_lerobots_own(tmp_path: Path) -> None:
    made = write_lerobot(tmp_path / "made", list(LENGTHS))
    ours = back(made)
    to_lerobot(ours, tmp_path / "set", fps=10, tasks=lerobot_tasks(made), video=False)
    assert_same(ours, back(tmp_path / "set"))
    assert lerobot_tasks(tmp_path / "set") == lerobot_tasks(made)


# -- the files ------------------------------------------------------------------------------------


def test_what_the_files_say(tmp_path: Path) -> None:
    ours = cameras(LazyTensorStorage(100))
    to_lerobot(ours, tmp_path, fps=10, tasks="push", robot_type="arm", video="libx264")
    info = json.loads((tmp_path / "meta/info.json").read_text())
    features = info.pop("features")
    assert info == {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "total_episodes": 4,
        "total_frames": 22,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": 10,
        "splits": {"train": "0:4"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    shapes = {name: (f["dtype"], f["shape"]) for name, f in features.items()}
    assert shapes == {
        "observation.state": ("float32", [3]),
        "observation.t": ("int64", [1]),
        "observation.grid": ("float64", [2, 3]),
        CAMERA: ("video", [HEIGHT, WIDTH, 3]),
        "action": ("float32", [1]),
        "gripper": ("int16", [1]),
        "next.reward": ("float32", [1]),
        "next.success": ("bool", [1]),
        "next.done": ("bool", [1]),
        "next.terminated": ("bool", [1]),
        "next.truncated": ("bool", [1]),
        "timestamp": ("float32", [1]),
        **{n: ("int64", [1]) for n in ("frame_index", "episode_index", "index", "task_index")},
    }
    assert features[CAMERA]["info"]["video.codec"] == "h264"
    assert features[CAMERA]["info"]["video.fps"] == 10
    rows = parquet.read_table(tmp_path / "data/chunk-000/file-000.parquet")
    assert rows["index"].to_pylist() == list(range(22))
    assert rows["frame_index"].to_pylist() == [f for n in LENGTHS for f in range(n)]
    assert rows["next.done"].to_pylist() == [f == n - 1 for n in LENGTHS for f in range(n)]
    assert CAMERA not in rows.column_names
    assert parquet.ParquetFile(tmp_path / "data/chunk-000/file-000.parquet").num_row_groups == 4
    episodes = parquet.read_table(tmp_path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [e["length"] for e in episodes] == list(LENGTHS)
    assert [(e["dataset_from_index"], e["dataset_to_index"]) for e in episodes] == [
        (0, 7),
        (7, 10),
        (10, 21),
        (21, 22),
    ]
    assert [e["tasks"] for e in episodes] == [["push"]] * 4
    of = f"videos/{CAMERA}"
    times = [(e[f"{of}/from_timestamp"], e[f"{of}/to_timestamp"]) for e in episodes]
    np.testing.assert_allclose(times, [(0, 0.7), (0.7, 1.0), (1.0, 2.1), (2.1, 2.2)])
    # LeRobot finds a task by its place, and the frame's index is the text.
    tasks = pd.read_parquet(tmp_path / "meta/tasks.parquet")
    assert tasks.iloc[0].name == "push" and tasks.iloc[0].task_index == 0
    assert tasks.index.name == "task" and list(tasks.columns) == ["task_index"]


def test_statistics(tmp_path: Path) -> None:
    ours = cameras(LazyTensorStorage(100))
    to_lerobot(ours, tmp_path, fps=10, video=False)
    rows = ReplayBuffer(ours)[:]
    stats = json.loads((tmp_path / "meta/stats.json").read_text())
    state = rows["observation", "state"].astype(np.float64)
    for name, want in (
        ("min", state.min(0)),
        ("max", state.max(0)),
        ("mean", state.mean(0)),
        ("std", state.std(0)),
    ):
        np.testing.assert_allclose(stats["observation.state"][name], want)
    assert stats["observation.state"]["count"] == [22]
    assert np.shape(stats["observation.grid"]["mean"]) == (2, 3)
    assert stats["observation.t"]["max"] == [300.0] and stats["index"]["max"] == [21.0]
    image = rows["observation", "images", "top"] / 255
    for name, want in (("min", image.min((0, 1, 2))), ("mean", image.mean((0, 1, 2)))):
        np.testing.assert_allclose(stats[CAMERA][name], want[:, None, None])
    np.testing.assert_allclose(stats[CAMERA]["std"], image.std((0, 1, 2))[:, None, None])
    episodes = parquet.read_table(tmp_path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert episodes[2]["stats/action/q50"] == [205.0] and episodes[2]["stats/action/count"] == [11]
    assert np.shape(episodes[2][f"stats/{CAMERA}/std"]) == (3, 1, 1)


def test_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot_export, "_DATA_MB", 0)  # every episode ends its file
    monkeypatch.setattr(lerobot_export, "_VIDEO_MB", 0)
    monkeypatch.setattr(lerobot_export, "_FILES_PER_CHUNK", 3)
    monkeypatch.setattr(lerobot_export, "_EPISODES", 2)
    ours = cameras(LazyTensorStorage(100), image=grey)
    to_lerobot(ours, tmp_path / "set", fps=10, video="libx264rgb")
    for kind, suffix in (("data", "parquet"), (f"videos/{CAMERA}", "mp4")):
        names = {
            str(p.relative_to(tmp_path / "set" / kind))
            for p in (tmp_path / "set" / kind).rglob("*.*")
        }
        assert names == {f"chunk-{n // 3:03d}/file-{n % 3:03d}.{suffix}" for n in range(4)}
    assert len(list((tmp_path / "set/meta/episodes").rglob("*.parquet"))) == 2
    assert_same(ours, back(tmp_path / "set"))


def test_videos_that_are_not_exact(tmp_path: Path) -> None:
    ours = cameras(LazyTensorStorage(100), image=grey)
    to_lerobot(ours, tmp_path, fps=10)  # whatever encoder there is
    about = json.loads((tmp_path / "meta/info.json").read_text())["features"][CAMERA]
    assert about["dtype"] == "video" and about["info"]["video.pix_fmt"] == "yuv420p"
    theirs = ReplayBuffer(back(tmp_path))[:]
    shades = theirs["observation", "images", "top"].reshape(22, -1).astype(float).mean(1)
    want = [shade(100 * n + f) for n, steps in enumerate(LENGTHS) for f in range(steps)]
    assert np.abs(shades - want).max() < 3  # others are 6 apart


def test_without_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = cameras(LazyTensorStorage(100))
    with pytest.raises(LayoutError, match="video='nonesuch': it cannot encode frames of 16 x 24"):
        to_lerobot(ours, tmp_path / "set", video="nonesuch")
    monkeypatch.setitem(sys.modules, "av", None)
    for video in (True, "libx264"):
        with pytest.raises(ImportError, match=r"pip install '\.\[video\]'"):
            to_lerobot(ours, tmp_path / "set", video=video)
    assert not (tmp_path / "set").exists()
    to_lerobot(ours, tmp_path / "set", fps=10)  # then they are images
    assert_same(ours, back(tmp_path / "set"))


# -- tasks, and what is refused -------------------------------------------------------------------


def test_tasks_are_fields_of_trajectories(tmp_path: Path) -> None:
    fields = {"task_index": np.int32(0)}
    ours = cameras(LazyTensorStorage(100, fields=fields), task_index=[0, 7, 7, 0])
    to_lerobot(ours, tmp_path / "set", tasks={7: "pick", 0: "push"}, video=False)
    assert lerobot_tasks(tmp_path / "set") == {0: "push", 1: "pick"}
    rows = ReplayBuffer(back(tmp_path / "set"))[:]
    assert rows["task_index"].tolist() == [0] * 7 + [1] * 14 + [0]
    episodes = parquet.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet")
    assert episodes["tasks"].to_pylist() == [["push"], ["pick"], ["pick"], ["push"]]
    with pytest.raises(LayoutError, match="task_index 7, and tasks= has texts for 0"):
        to_lerobot(ours, tmp_path / "other")
    for bad, error, match in (
        ({0: "a", 7: "a"}, ValueError, "there twice"),
        ({0: 3}, TypeError, r"tasks\[0\]: expected a text, got 3"),
    ):
        with pytest.raises(error, match=match):
            to_lerobot(ours, tmp_path / "other", tasks=bad)  # type: ignore[arg-type]


def test_refusals(tmp_path: Path) -> None:
    def refuse(match: str, error: Any = LayoutError, drop: Any = (), **more: Any) -> None:
        storage = LazyTensorStorage(100)
        steps = {"action": np.zeros((4, 2)), **more, "next": {"done": np.arange(4) == 3}}
        storage.writer().extend_trajectory(steps)
        with pytest.raises(error, match=match):
            to_lerobot(storage, tmp_path / "set", drop=drop)
        assert not (tmp_path / "set").exists()

    refuse("index: LeRobot has a feature of its own", index=np.arange(4))
    refuse("c: LeRobot has no complex64", c=np.zeros(4, np.complex64))
    refuse(r"deep: LeRobot has no shape \[1, 1, 1, 1, 1, 1\]", deep=np.zeros((4, 1, 1, 1, 1, 1, 1)))
    refuse("timestamp: not those of 30 frames per second", timestamp=np.arange(4.0))
    refuse("nothing.*: there is no such leaf", drop=["nothing"])
    with pytest.raises(ValueError, match="fps: expected"):
        to_lerobot(flat(), tmp_path / "set", fps=0)
    with pytest.raises(LayoutError, match="no complete trajectory"):
        to_lerobot(LazyTensorStorage(10), tmp_path / "set")
    with pytest.raises(LayoutError, match="no place for fields"):
        ours = cameras(LazyTensorStorage(100, fields={"who": np.int32(0)}), who=[1, 2, 3, 4])
        to_lerobot(ours, tmp_path / "set")
    to_lerobot(ours, tmp_path / "set", drop=["fields", CAMERA])
    assert CAMERA not in json.loads((tmp_path / "set/meta/info.json").read_text())["features"]


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    to_lerobot(flat((3, 5)), tmp_path / "set")
    to_lerobot(flat((2,)), tmp_path / "set")
    assert lengths(back(tmp_path / "set")) == [(2, True, False)]
    made = write_lerobot(tmp_path / "made", [3])
    before = sorted(p.name for p in made.rglob("*"))
    with pytest.raises(FileExistsError, match="is not that of an export of contig"):
        to_lerobot(flat(), made)
    (tmp_path / "set/notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt is there"):
        to_lerobot(flat(), tmp_path / "set")
    assert sorted(p.name for p in made.rglob("*")) == before
    with DiskStorage(tmp_path / "tape") as storage:
        flat((3,), storage)
        with pytest.raises(FileExistsError, match="storage that is being saved is there"):
            to_lerobot(storage, tmp_path / "tape")


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="scheduling as on Linux")
@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_encoder_leaves_scheduling_alone(encoder: str) -> None:
    """SVT-AV1, opened by root, makes threads real-time ones, the caller's among them."""

    def policies() -> set[int]:
        return {os.sched_getscheduler(int(task)) for task in os.listdir("/proc/self/task")}

    before = policies()
    writer = VideoWriter(io.BytesIO(), encoder, 64, 96, 30)
    writer.add(np.zeros((3, 64, 96, 3), np.uint8))
    assert policies() == before
    writer.close()
    assert policies() == before
