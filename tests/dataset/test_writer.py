"""RolloutWriter: complete before visible, codecs, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from contig import ClosedError, LayoutError, RolloutDataset, RolloutWriter
from contig.dataset.codecs import decode, encode
from contig.dataset.frames import load_frames
from contig.tape.disk import files
from tests.dataset.made import identities, trajectory, written


def visible(path) -> list[str]:
    return sorted(str(f.relative_to(path)) for f in path.glob("trajectory_*/*"))


def test_files_of_a_trajectory(tmp_path):
    written(tmp_path, [9, 4])
    assert visible(tmp_path) == [
        "trajectory_0/traj_0_4.npz",
        "trajectory_0/traj_4_8.npz",
        "trajectory_0/traj_8_9.npz",
        "trajectory_1/traj_0_4.npz",
    ]
    with np.load(tmp_path / "trajectory_0" / "traj_4_8.npz", allow_pickle=False) as arrays:
        assert sorted(arrays) == ["actions", "observations", "rewards"]
        assert arrays["rewards"].tolist() == [4.0, 5.0, 6.0, 7.0]
    with RolloutWriter(tmp_path) as writer:  # goes on behind what is there
        assert writer.add_trajectory(trajectory(2, 1)).name == "trajectory_2"


def test_steps_of_several_envs(tmp_path):
    done = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]])
    with RolloutWriter(tmp_path, 3, frames_per_file=2) as writer:
        for step in range(5):
            ids = step + np.arange(3) * 1000.0
            writer.add_step(
                {
                    "obs": np.repeat(ids[:, None], 3, 1).astype(np.float32),
                    "actions": ids[:, None].astype(np.float32),
                    "rewards": ids.astype(np.float32),
                    "dones": done[step],
                }
            )
            assert len(list(tmp_path.glob("trajectory_*"))) == int(done[: step + 1].sum())
    assert len(list(tmp_path.glob("trajectory_*"))) == 5
    for number, folder in enumerate(sorted(tmp_path.glob("trajectory_*"))):
        os.utime(folder, (number + 1,) * 2)
    seen = [(float(b.reward), bool(b.timeout)) for b in RolloutDataset(tmp_path, device="cpu")]
    assert sorted(i for i, _ in seen) == identities([5, 5, 5])
    late = {i for i, timeout in seen if timeout}
    assert late == {4.0, 1004.0, 2004.0}  # left open by close; 3 and 1001 terminated


def test_nothing_is_visible_before_it_is_complete(tmp_path, monkeypatch):
    """At every call that touches files, what a reader finds is whole."""
    calls = 0

    def checked(function):
        def call(*args):
            nonlocal calls
            calls += 1
            for file in tmp_path.glob("trajectory_*/traj_*.npz"):
                load_frames(file)
            folders = list(tmp_path.glob("trajectory_*"))
            assert all(len(list(f.iterdir())) == 3 for f in folders)
            return function(*args)

        return call

    for name in ("create", "pwrite", "fsync", "rename", "close", "make_dir", "fsync_dir"):
        monkeypatch.setattr(files, name, checked(getattr(files, name)))
    written(tmp_path, [9, 9])
    assert calls > 20


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    writer = RolloutWriter(tmp_path, frames_per_file=4)
    real, count = files.pwrite, 0

    def full(*args):
        nonlocal count
        count += 1
        if count == 2:
            raise OSError(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr(files, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        writer.add_trajectory(trajectory(0, 9))
    assert sorted(os.listdir(tmp_path)) == ["metadata.json"]
    monkeypatch.setattr(files, "pwrite", real)
    writer.add_trajectory(trajectory(0, 9))
    assert len(list(RolloutDataset(tmp_path, device="cpu"))) == 9


CODECS = {
    "depth": "normalized_image",
    "mode": "one_hot",
    "angle": {"codec": "quantised", "low": -2.0, "high": 2.0, "dtype": "uint16"},
}
SEGMENTS = {"proprio": 3, "depth": [2, 2], "mode": [5], "angle": [1]}


def test_parts_of_observations_come_back(tmp_path):
    rng = np.random.default_rng(0)
    frames = 20
    proprio = rng.normal(size=(frames, 3))
    depth = rng.integers(0, 256, (frames, 4)) / 255
    mode = np.eye(5)[rng.integers(0, 5, frames)]
    angle = rng.uniform(-2, 2, (frames, 1))
    obs = np.concatenate([proprio, depth, mode, angle], 1).astype(np.float32)
    with RolloutWriter(tmp_path, obs_segments=SEGMENTS, codecs=CODECS) as writer:
        writer.add_trajectory({**trajectory(0, frames), "observation": obs})
    stored = load_frames(tmp_path / "trajectory_0" / "traj_0_20.npz")
    assert stored["obs_depth"].dtype == np.uint8 and stored["obs_depth"].shape == (20, 2, 2)
    assert stored["obs_mode"].dtype == np.uint8 and stored["obs_angle"].dtype == np.uint16
    back = np.concatenate([b.observation for b in RolloutDataset(tmp_path, device="cpu")])
    assert np.array_equal(back[:, :3], obs[:, :3]) and np.array_equal(back[:, 7:12], obs[:, 7:12])
    assert np.allclose(back[:, 3:7], obs[:, 3:7], atol=1e-6)
    assert np.allclose(back[:, 12], obs[:, 12], atol=4 / 65535)
    described = json.loads((tmp_path / "metadata.json").read_text())
    assert list(described["obs_segments"]) == list(SEGMENTS)
    with pytest.raises(LayoutError, match="obs_segments is .* write to another directory"):
        RolloutWriter(tmp_path, obs_segments={"other": 3})


def test_codecs_refuse_what_they_cannot_hold():
    with pytest.raises(LayoutError, match="depth: values from 0.0 to 2.0, expected 0.0 to 1.0"):
        encode("depth", "normalized_image", np.array([[0.0, 2.0]]))
    with pytest.raises(LayoutError, match="mode: a row is not one-hot"):
        encode("mode", "one_hot", np.array([[0.5, 0.5]]))
    with pytest.raises(LayoutError, match="mode: 7, expected less than 5"):
        decode("mode", "one_hot", np.array([7]), (5,))
    with pytest.raises(LayoutError, match=r"a: shape \[2, 3\], expected \[2, 4\]"):
        decode("a", None, np.zeros((2, 3)), (4,))
    wide = np.eye(300)
    assert encode("mode", "one_hot", wide).dtype == np.uint16


def test_refusals(tmp_path):
    with pytest.raises(LayoutError, match="codec 'zip'; known are"):
        RolloutWriter(tmp_path, obs_segments={"a": 3}, codecs={"a": "zip"})
    with pytest.raises(LayoutError, match="quantised needs"):
        RolloutWriter(tmp_path, obs_segments={"a": 3}, codecs={"a": {"codec": "quantised"}})
    with pytest.raises(LayoutError, match="b is not among the obs_segments"):
        RolloutWriter(tmp_path, obs_segments={"a": 3}, codecs={"b": "one_hot"})
    with pytest.raises(LayoutError, match="one_hot is for a vector"):
        RolloutWriter(tmp_path, obs_segments={"a": [2, 2]}, codecs={"a": "one_hot"})
    with pytest.raises(ValueError, match="frames_per_file=0"):
        RolloutWriter(tmp_path, frames_per_file=0)
    writer = RolloutWriter(tmp_path / "x", 2, obs_segments={"a": 3})
    with pytest.raises(LayoutError, match="action: missing"):
        writer.add_trajectory({"observation": np.zeros((2, 3)), "reward": np.zeros(2)})
    with pytest.raises(LayoutError, match="odd: unknown"):
        writer.add_trajectory({**trajectory(0, 2), "odd": np.zeros(2)})
    with pytest.raises(LayoutError, match=r"reward: shape \[5\], expected \[2, ...\]"):
        writer.add_trajectory({**trajectory(0, 2), "reward": np.zeros(5)})
    with pytest.raises(LayoutError, match=r"shape \[2, 4\], expected \[2, 3\], the sum of"):
        writer.add_trajectory({**trajectory(0, 2), "observation": np.zeros((2, 4))})
    with pytest.raises(LayoutError, match="expected numbers"):
        writer.add_trajectory({**trajectory(0, 2), "reward": np.array(["a", "b"])})
    with pytest.raises(LayoutError, match=r"expected \[at least 1, ...\]"):
        writer.add_trajectory(trajectory(0, 0))
    writer.add_trajectory(trajectory(0, 2))
    with pytest.raises(LayoutError, match="done: given now, but not before"):
        writer.add_step({**trajectory(0, 2), "done": np.zeros(2)})
    writer.close()
    writer.close()
    with pytest.raises(ClosedError):
        writer.add_trajectory(trajectory(0, 2))
    assert sorted(os.listdir(tmp_path / "x")) == ["metadata.json", "trajectory_0"]


def test_one_writer_at_a_time(tmp_path, monkeypatch):
    first = RolloutWriter(tmp_path / "data")
    first.add_trajectory(trajectory(0, 3))
    with pytest.raises(BlockingIOError, match="another RolloutWriter"):
        RolloutWriter(tmp_path / "data")
    code = f"""
from contig import RolloutWriter
try:
    RolloutWriter({str(tmp_path / "data")!r})
except BlockingIOError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=100
    )
    assert "another RolloutWriter" in ran.stdout
    for name in os.listdir(tmp_path / "data"):  # nothing in it is the lock
        if not name.startswith("trajectory_"):
            os.remove(tmp_path / "data" / name)
    with pytest.raises(BlockingIOError):
        RolloutWriter(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    relative = RolloutWriter("other")
    os.mkdir("elsewhere")
    monkeypatch.chdir("elsewhere")
    relative.add_trajectory(trajectory(0, 3))
    assert (tmp_path / "other" / "trajectory_0").is_dir() and not os.path.exists("other")
    relative.close()
    first.close()
    with RolloutWriter(tmp_path / "data") as again:
        again.add_trajectory(trajectory(1, 3))
    assert sorted(p.name for p in (tmp_path / "data").glob("t*")) == [
        "trajectory_0",
        "trajectory_1",
    ]
    del again, first  # one that is dropped without close lets go too
    dropped = RolloutWriter(tmp_path / "data")
    del dropped
    RolloutWriter(tmp_path / "data").close()


def test_a_directory_that_was_replaced(tmp_path):
    writer = RolloutWriter(tmp_path / "data")
    step = {k: v[:1] for k, v in trajectory(0, 1).items()}
    writer.add_step(step)
    os.rename(tmp_path / "data", tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match="was moved or removed while this writer had it"):
        writer.add_trajectory(trajectory(0, 3))
    written(tmp_path / "data", [2])
    before = sorted(p.name for p in (tmp_path / "data").iterdir())
    for call in (lambda: writer.add_trajectory(trajectory(1, 3)), lambda: writer.add_step(step)):
        with pytest.raises(FileNotFoundError, match="was moved or removed"):
            call()
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == before
    os.rename(tmp_path / "data", tmp_path / "third")
    os.rename(tmp_path / "moved", tmp_path / "data")
    writer.close()  # it is back, and so nothing is lost
    assert (tmp_path / "data" / "trajectory_0").is_dir()


def test_a_forked_child_does_not_write(tmp_path):
    writer = RolloutWriter(tmp_path / "data")
    pid = os.fork()
    if pid == 0:
        try:
            writer.add_trajectory(trajectory(0, 3))
        except RuntimeError as error:
            os._exit(0 if "belongs to process" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    writer.add_trajectory(trajectory(0, 3))
    pipe = os.pipe()
    pid = os.fork()
    if pid == 0:  # lives on, with the lock's descriptor
        os.close(pipe[1])
        os.read(pipe[0], 1)
        os._exit(0)
    with pytest.raises(BlockingIOError):
        RolloutWriter(tmp_path / "data")
    writer.close()
    RolloutWriter(tmp_path / "data").close()
    os.close(pipe[0])
    os.close(pipe[1])
    os.waitpid(pid, 0)
