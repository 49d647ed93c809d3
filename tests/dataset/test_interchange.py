"""Other libraries' formats; each test runs where its library is installed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from contig import LayoutError, LazyTensorStorage, ReplayBuffer, Trajectory, TrajectoryReplayBuffer
from contig.dataset import from_hdf5, from_minari, from_rlinf, to_minari, to_parquet


def lengths(storage) -> list[tuple[int, bool, bool]]:
    return [
        (int(e["steps"]), bool(e["terminated"]), bool(e["truncated"])) for e in storage.episodes()
    ]


def filled(frames=(3, 5), reward=np.float32, after=True) -> LazyTensorStorage:
    storage = LazyTensorStorage(1000)
    writer = storage.writer()
    for number, count in enumerate(frames):
        ids = 1000 * number + np.arange(count + 1)
        obs = {"state": np.repeat(ids[:, None], 3, 1).astype(np.float32), "t": ids}
        step = {
            "observation": {k: v[:-1] for k, v in obs.items()},
            "action": ids[:-1, None].astype(np.float64),
            "next": {"reward": ids[:-1].astype(reward)},
        }
        if after:
            step["next"]["observation"] = {k: v[1:] for k, v in obs.items()}
        writer.extend_trajectory(step, terminated=number == 0, truncated=number != 0)
    return storage


# -- HDF5 ---------------------------------------------------------------------------------------


def test_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    rows = 10
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        file["observations"] = np.repeat(np.arange(rows)[:, None], 3, 1).astype(np.float32)
        file["actions"] = np.arange(rows, dtype=np.float32)[:, None]
        file["rewards"] = np.arange(rows, dtype=np.float32)
        file["terminals"] = np.isin(np.arange(rows), [2])
        file["timeouts"] = np.isin(np.arange(rows), [6])
        file["infos/qpos"] = np.arange(rows, dtype=np.float64)[:, None]
        file["metadata/name"] = "made"
        file["metadata/version"] = 3
    storage = LazyTensorStorage(100)
    assert from_hdf5(tmp_path / "d4rl.hdf5", ReplayBuffer(storage)) == 3
    assert lengths(storage) == [(3, True, False), (4, False, True), (3, False, True)]
    batch = ReplayBuffer(storage)[:]
    assert batch["next", "reward"].tolist() == list(range(10))
    assert batch["observation"][:, 2].tolist() == batch["infos", "qpos"][:, 0].tolist()
    assert batch["infos", "qpos"].dtype == np.float64
    with h5py.File(tmp_path / "bad.hdf5", "w") as file:
        file["observations"] = np.zeros((4, 3))
        with pytest.raises(LayoutError, match="no actions; it has observations"):
            file.flush()
            from_hdf5(tmp_path / "bad.hdf5", LazyTensorStorage(10))
    with h5py.File(tmp_path / "short.hdf5", "w") as file:
        for name, count in (("observations", 4), ("actions", 4), ("rewards", 3), ("terminals", 4)):
            file[name] = np.zeros(count)
    with pytest.raises(LayoutError, match=r"rewards has shape \[3\], expected 4 rows"):
        from_hdf5(tmp_path / "short.hdf5", LazyTensorStorage(10))


# -- Minari -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")  # Minari wants to know more
@pytest.mark.parametrize("reward", [np.float32, np.float64])
def test_minari_there_and_back(tmp_path, monkeypatch, reward):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    pytest.importorskip("minari")
    source = filled([3, 5, *[2] * 70], reward)
    made = to_minari(source, "contig/made-v0", description="made by a test")
    assert made.total_episodes == 72 and made.total_steps == 148
    back = LazyTensorStorage(1000)
    assert from_minari("contig/made-v0", back) == 72
    assert lengths(back) == lengths(source)
    ours, theirs = (ReplayBuffer(s)[:] for s in (source, back))
    for leaf in ours.layout.leaves:
        assert theirs[leaf.path].dtype == leaf.dtype
        assert np.asarray(ours[leaf.path]).tobytes() == np.asarray(theirs[leaf.path]).tobytes()


def test_what_minari_cannot_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    pytest.importorskip("minari")
    with pytest.raises(LayoutError, match="'next', 'observation'.*missing"):
        to_minari(filled(after=False), "contig/bad-v0")
    with pytest.raises(LayoutError, match="no complete trajectory"):
        to_minari(LazyTensorStorage(10, example={"a": 0.0}), "contig/none-v0")
    storage = LazyTensorStorage(10)
    step = {"observation": np.arange(3.0), "action": np.zeros(3)}
    step["next"] = {"reward": np.zeros(3), "observation": np.full(3, 9.0)}
    storage.writer().extend_trajectory(step)
    with pytest.raises(LayoutError, match="episode 0: a next observation differs"):
        to_minari(storage, "contig/odd-v0")


# -- Parquet ------------------------------------------------------------------------------------


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    storage = filled()
    assert to_parquet(storage, tmp_path / "out.parquet") == 2
    assert [f.name for f in tmp_path.iterdir()] == ["out.parquet"]
    file = parquet.ParquetFile(tmp_path / "out.parquet")
    assert file.num_row_groups == 2
    table = file.read()
    batch = ReplayBuffer(storage)[:]
    assert table["episode"].to_pylist() == [0] * 3 + [1] * 5
    assert table["step"].to_pylist() == [0, 1, 2, 0, 1, 2, 3, 4]
    shapes = json.loads(table.schema.metadata[b"contig.shapes"])
    for leaf in batch.layout.leaves:
        name = ".".join(map(str, leaf.path))
        values = table[name].combine_chunks()
        if shapes[name]:
            values = values.flatten()
        ours = np.asarray(batch[leaf.path])
        stored = values.to_numpy(zero_copy_only=False).astype(ours.dtype).reshape(ours.shape)
        assert stored.tobytes() == ours.tobytes(), name
    with pytest.raises(LayoutError, match="no complete trajectory"):
        to_parquet(LazyTensorStorage(10, example={"a": 0.0}), tmp_path / "none.parquet")
    assert [f.name for f in tmp_path.iterdir()] == ["out.parquet"]


# -- RLinf --------------------------------------------------------------------------------------


def test_rlinf(tmp_path):
    steps, envs = 4, 2
    ids = (torch.arange(steps)[:, None] * 1000.0 + torch.arange(envs))[..., None]
    ends = torch.zeros(steps, envs, 1, dtype=torch.bool)
    ends[1, 1] = True
    buffer = TrajectoryReplayBuffer()
    rollout = Trajectory(
        actions=ids.expand(-1, -1, 2),
        rewards=ids,
        terminations=ends,
        truncations=torch.zeros_like(ends),
        dones=ends,
        curr_obs={"states": ids.expand(-1, -1, 3)},
        next_obs={"states": ids.expand(-1, -1, 3) + 1000},
    )
    buffer.add_trajectories([rollout])
    buffer.export_rlinf(tmp_path / "rlinf")
    storage = LazyTensorStorage(100)
    assert from_rlinf(tmp_path / "rlinf", storage) == 1
    found = [
        storage.read_episode(int(e["id"]))["next", "reward"].tolist() for e in storage.episodes()
    ]
    assert sorted(found) == [[0.0, 1000.0, 2000.0, 3000.0], [1.0, 1001.0], [2001.0, 3001.0]]
    batch = ReplayBuffer(storage)[:]
    assert np.array_equal(batch["observation", "states"][:, 0], batch["next", "reward"])
    assert np.array_equal(
        batch["next", "observation", "states"], batch["observation", "states"] + 1000
    )


def test_a_library_that_is_missing(monkeypatch):
    from contig.dataset import optional

    def none(name):
        raise ImportError(name)

    monkeypatch.setattr(optional.importlib, "import_module", none)
    with pytest.raises(ImportError, match="this format needs h5py: pip install h5py"):
        from_hdf5("x", LazyTensorStorage(10))
    with pytest.raises(TypeError, match="expected a storage or a ReplayBuffer, got str"):
        optional.storage_of("x")
