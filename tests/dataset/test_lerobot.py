"""LeRobot v3 directories: every frame once, in its episode, with its images."""

from __future__ import annotations

import json
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from contig import DiskStorage, LayoutError, LazyTensorStorage, ReplayBuffer
from contig.dataset import from_lerobot, lerobot, lerobot_tasks
from tests.dataset.made_lerobot import HEIGHT, TASKS, WIDTH, picture, png, shade, write_lerobot

LENGTHS = [7, 3, 11, 1, 6]
CAMERA = "observation.images.side"


def ends(storage):
    return [(int(e["steps"]), bool(e["terminated"])) for e in storage.episodes()]


def identities() -> list[int]:
    return [100 * e + f for e, frames in enumerate(LENGTHS) for f in range(frames)]


@pytest.mark.parametrize("chunk_rows", [2, 128])
def test_every_frame_comes_once_and_in_its_episode(tmp_path, monkeypatch, chunk_rows):
    monkeypatch.setattr(lerobot, "_CHUNK_ROWS", chunk_rows)
    path = write_lerobot(tmp_path / "set", LENGTHS)
    with DiskStorage(tmp_path / "tape") as storage:
        assert from_lerobot(path, storage) == 5
        assert ends(storage) == [(7, True), (3, False), (11, True), (1, False), (6, True)]
        rows = ReplayBuffer(storage)[:]
        for entry in storage.episodes():
            batch = storage.read_episode(int(entry["id"]))
            first = 100.0 * int(entry["id"])
            assert batch["next", "reward"].tolist() == [first + f for f in range(len(batch))]
    want = np.array(identities())
    assert rows["action"].tolist() == want[:, None].tolist()
    assert rows["observation", "state"].tolist() == [[i, i + 0.25, i + 0.5] for i in want]
    assert rows["observation", "grid"].dtype == np.float64
    assert rows["observation", "grid"][:, 0, 0].tolist() == want.tolist()
    assert rows["observation", "grid"][-1, 1].tolist() == [2.0, 3.0]
    images = rows["observation", "images", "top"]
    assert images.dtype == np.uint8 and images.shape == (28, HEIGHT, WIDTH, 3)
    assert all(np.array_equal(image, picture(i)) for image, i in zip(images, want))
    assert rows["timestamp"].tolist() == [np.float32(i % 100 / 10) for i in want]
    assert rows["task_index"].tolist() == [i // 100 % 2 for i in want]
    assert lerobot_tasks(path) == dict(enumerate(TASKS))


def test_raw_images_and_images_in_files(tmp_path):
    raw = write_lerobot(tmp_path / "raw", [4], image=lambda i: picture(i).tobytes())
    storage = LazyTensorStorage(100)
    from_lerobot(raw, storage)
    images = ReplayBuffer(storage)[:]["observation", "images", "top"]
    assert all(np.array_equal(images[i], picture(i)) for i in range(4))

    first = {"dtype": "image", "shape": [3, HEIGHT, WIDTH], "names": ["channel", "height", "width"]}

    def stored(identity):
        (raw / f"{identity}.png").write_bytes(png(identity))
        return {"bytes": None, "path": f"{identity}.png"}

    write_lerobot(raw, [4], **{"observation.images.files": (first, stored)})
    storage = LazyTensorStorage(100)
    from_lerobot(raw, storage)
    images = ReplayBuffer(storage)[:]["observation", "images", "files"]
    assert all(np.array_equal(images[i], np.moveaxis(picture(i), -1, 0)) for i in range(4))
    uint8 = {"dtype": "uint8", "shape": [HEIGHT, WIDTH, 3], "names": None}
    write_lerobot(raw, [4], **{"observation.pixels": (uint8, lambda i: picture(i).tolist())})
    storage = LazyTensorStorage(100)
    from_lerobot(raw, storage)
    assert np.array_equal(ReplayBuffer(storage)[:]["observation", "pixels"][3], picture(3))


def test_videos(tmp_path, monkeypatch):
    monkeypatch.setattr(lerobot, "_CHUNK_ROWS", 4)
    path = write_lerobot(tmp_path, LENGTHS, camera=CAMERA)
    storage = LazyTensorStorage(100)
    assert from_lerobot(path, storage) == 5
    frames = ReplayBuffer(storage)[:]["observation", "images", "side"]
    assert frames.shape == (28, HEIGHT, WIDTH, 3)
    shades = frames.reshape(28, -1).astype(float).mean(1)
    assert np.abs(shades - [shade(i) for i in identities()]).max() < 3  # others are 6 apart


def test_videos_without_their_library_or_file(tmp_path, monkeypatch):
    path = write_lerobot(tmp_path, [4, 4, 4], camera=CAMERA)
    clip = path / "videos" / CAMERA / "chunk-000" / "file-001.mp4"
    whole = clip.read_bytes()
    clip.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LayoutError, match=r"file-001.mp4: (missing, damaged|it ends before)"):
        from_lerobot(path, LazyTensorStorage(100))
    clip.unlink()
    with pytest.raises(LayoutError, match="file-001.mp4: missing"):
        from_lerobot(path, LazyTensorStorage(100))
    monkeypatch.setitem(sys.modules, "av", None)
    storage = LazyTensorStorage(100)
    with pytest.raises(ImportError, match=r"videos need PyAV: .*pip install '\.\[video\]'.*skip"):
        from_lerobot(path, storage)
    assert len(storage) == 0
    assert from_lerobot(path, storage, skip=[CAMERA]) == 3
    assert ("observation", "images", "side") not in ReplayBuffer(storage)[:]


def test_what_a_tape_cannot_hold(tmp_path):
    words = ({"dtype": "string", "shape": [1], "names": None}, str)
    path = write_lerobot(tmp_path, [3], **{"instruction": words})
    with pytest.raises(LayoutError, match=r'instruction is string.*skip=\["instruction"\]'):
        from_lerobot(path, LazyTensorStorage(10))
    assert from_lerobot(path, LazyTensorStorage(10), skip=["instruction"]) == 1
    with pytest.raises(LayoutError, match="skip: no feature nothing; it has observation.state"):
        from_lerobot(path, LazyTensorStorage(10), skip=["nothing"])


def test_bad_directories(tmp_path):
    def refuse(path, match, error=LayoutError):
        with pytest.raises(error, match=match):
            from_lerobot(path, LazyTensorStorage(100))

    refuse(tmp_path / "nowhere", "info.json: missing; expected a LeRobot v3", FileNotFoundError)
    old = write_lerobot(tmp_path / "old", [3], info={"codebase_version": "v2.1"})
    refuse(old, "version v2.1, expected v3; LeRobot converts")
    out = write_lerobot(tmp_path / "out", [3], info={"data_path": "../{chunk_index}{file_index}"})
    refuse(out, "leads out of the dataset")
    path = write_lerobot(tmp_path / "set", [3, 4])
    info, data = path / "meta/info.json", path / "data/chunk-000/file-000.parquet"
    episodes = path / "meta/episodes/chunk-000/file-000.parquet"
    good = {file: file.read_bytes() for file in (info, data, episodes)}
    for file, match in ((data, "file-000.parquet is damaged"), (episodes, "is damaged")):
        file.write_bytes(good[file][: len(good[file]) // 2])
        refuse(path, match)
        file.write_bytes(good[file])
    info.write_text("{")
    refuse(path, "info.json is damaged")
    described = json.loads(good[info])
    described["features"]["observation.more"] = {"dtype": "float32", "shape": [2]}
    info.write_text(json.dumps(described))
    refuse(path, "no column observation.more, which meta/info.json lists")
    del described["features"]["observation.more"]
    described["features"]["observation.state"]["shape"] = [5]
    info.write_text(json.dumps(described))
    refuse(path, r"observation.state: 9 numbers in 3 rows of shape \[5\]")
    info.write_bytes(good[info])
    listed = parquet.read_table(episodes).to_pylist()
    for change, match in (
        ({"length": 5}, "rows of episode 1 where meta/episodes has episode 0"),
        ({"data/file_index": 7}, "file-007.parquet: missing; meta/episodes lists it"),
    ):
        parquet.write_table(pa.Table.from_pylist([{**listed[0], **change}, listed[1]]), episodes)
        refuse(path, match)
    parquet.write_table(pa.Table.from_pylist([listed[0], {**listed[1], "length": 9}]), episodes)
    refuse(path, "too few rows for episode 1")
    episodes.unlink()
    refuse(path, "no chunk-000/file-000.parquet")
    bad = write_lerobot(tmp_path / "bad", [3], image=lambda i: b"\x89PNG\r\n\x1a\n broken")
    refuse(bad, "observation.images.top: a damaged image")
    short = write_lerobot(tmp_path / "short", [3], image=lambda i: b"abc")
    refuse(short, r"3 bytes that are neither PNG nor JPEG, nor raw uint8 of shape \[16, 24, 3\]")
