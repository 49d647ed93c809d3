"""Other libraries' formats: there and back byte by byte, and what they cannot hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from contig import (
    DeviceStorage,
    DiskStorage,
    LayoutError,
    LazyTensorStorage,
    ReplayBuffer,
    RolloutDataset,
    Trajectory,
    TrajectoryReplayBuffer,
)
from contig.dataset import (
    from_hdf5,
    from_lerobot,
    from_minari,
    from_parquet,
    from_rlinf,
    to_arrow,
    to_hdf5,
    to_lerobot,
    to_minari,
    to_parquet,
    to_rlinf,
    to_rollouts,
)
from tests.dataset.tapes import assert_same, fill, filled, flat, lengths

# -- HDF5 ---------------------------------------------------------------------------------------


def test_hdf5(tmp_path):
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


@pytest.mark.parametrize("make", [filled, flat])
def test_hdf5_there_and_back(tmp_path, make):
    source = make([3, 5, 1, 40])
    assert to_hdf5(source, tmp_path / "out.hdf5") == 4
    assert [f.name for f in tmp_path.iterdir()] == ["out.hdf5"]
    back = LazyTensorStorage(1000)
    assert from_hdf5(tmp_path / "out.hdf5", back) == 4
    assert_same(source, back)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file["rewards"][:].tolist() == ReplayBuffer(source)[:]["next", "reward"].tolist()
        assert np.flatnonzero(file["terminals"][:] | file["timeouts"][:]).tolist() == [2, 7, 8, 48]


def test_what_hdf5_cannot_hold(tmp_path):
    out = tmp_path / "out.hdf5"
    with pytest.raises(LayoutError, match='"half".*cannot hold bfloat16.*drop='):
        to_hdf5(filled(half=lambda i: i.astype(ml_dtypes.bfloat16)), out)
    with pytest.raises(LayoutError, match="joined with '/', and 'a/b' is none"):
        to_hdf5(filled(**{"a/b": lambda i: i}), out)
    for name, first in (("actions", "action"), ("rewards", "next.*reward"), ("terminals", "next")):
        with pytest.raises(LayoutError, match=f'"{first}.*both are {name} in|"{name}".*both are'):
            to_hdf5(filled(**{name: lambda i: i}), out)
        assert to_hdf5(filled(**{name: lambda i: i}), out, drop=[name]) == 2
        out.unlink()
    storage = LazyTensorStorage(10)
    storage.bind_keys(None, "last")  # so that a terminated row inside is no end
    step = {"observation": np.zeros(3), "action": np.zeros(3), "last": np.array([0, 0, 1])}
    step["next"] = {"reward": np.zeros(3), "terminated": np.array([True, False, True])}
    storage.writer().extend_trajectory(step)
    with pytest.raises(LayoutError, match="episode 0: .*terminated.* set before the last row"):
        to_hdf5(storage, out)
    storage = LazyTensorStorage(10)
    storage.writer().extend_trajectory({"observation": np.zeros(3), "next": {"reward": np.ones(3)}})
    with pytest.raises(LayoutError, match="action: missing; an HDF5 file of this form has actions"):
        to_hdf5(storage, out)
    assert not list(tmp_path.iterdir())
    out.write_bytes(b"something else")
    with pytest.raises(LayoutError, match="is damaged, or no HDF5 file"):
        from_hdf5(out, storage)


# -- Minari -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")  # Minari wants to know more
@pytest.mark.parametrize("reward", [np.float32, np.float64])
def test_minari_there_and_back(tmp_path, monkeypatch, reward):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    source = filled([3, 5, *[2] * 70], reward)
    made = to_minari(source, "contig/made-v0", description="made by a test")
    assert made.total_episodes == 72 and made.total_steps == 148
    back = LazyTensorStorage(1000)
    assert from_minari("contig/made-v0", back) == 72
    assert_same(source, back)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_minari_cannot_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(LayoutError, match="next.observation: missing; the data has"):
        to_minari(filled(after=False), "contig/bad-v0")
    with pytest.raises(LayoutError, match='"value".*Minari dataset has no place.*drop='):
        to_minari(filled(value=lambda i: i), "contig/more-v0")
    assert to_minari(filled(value=lambda i: i), "contig/more-v0", drop=["value"]).total_steps == 8
    slash = LazyTensorStorage(10)
    seen = {"camera/left": np.zeros((3, 2), np.float32)}
    step = {"observation": seen, "action": np.zeros(3), "next": {"reward": np.zeros(3)}}
    step["next"]["observation"] = seen
    slash.writer().extend_trajectory(step)
    with pytest.raises(LayoutError, match="joined with '/', and 'camera/left' is none; rename it"):
        to_minari(slash, "contig/slash-v0")
    with pytest.raises(
        LayoutError, match="valeu.*there is no such leaf; the data has action, next"
    ):
        to_minari(filled(), "contig/typo-v0", drop=["valeu"])
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


@pytest.mark.parametrize("write", [to_parquet, to_arrow])
@pytest.mark.parametrize("make", [filled, flat])
def test_tables_there_and_back(tmp_path, write, make):
    source = make([3, 5, 1, 40])
    assert write(source, tmp_path / "out") == 4
    back = LazyTensorStorage(1000)
    assert from_parquet(tmp_path / "out", back) == 4
    assert_same(source, back)


def test_every_dtype_that_tables_hold(tmp_path):
    kinds = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]
    more = {f"x{k}": lambda i, k=k: (i % 2)[:, None, None].repeat(2, 1).astype(k) for k in kinds}
    odd = np.array([np.nan, -0.0, np.inf], np.float64)
    source = filled([3], odd=lambda i: odd, **more)
    for write in (to_parquet, to_arrow):
        write(source, tmp_path / "out")
        back = LazyTensorStorage(100)
        from_parquet(tmp_path / "out", back)
        assert_same(source, back)


def test_what_tables_cannot_hold(tmp_path):
    out = tmp_path / "out.parquet"
    for bad, match in (
        ({"episode": lambda i: 0 * i}, "episode: the table has a column of its own"),
        ({"a.b": lambda i: i}, "joined with '.', and 'a.b' is none"),
        ({"half": lambda i: i.astype(ml_dtypes.bfloat16)}, "cannot hold bfloat16"),
        ({"none": lambda i: np.zeros((len(i), 0))}, r"cannot hold float64 \[0\]"),
    ):
        with pytest.raises(LayoutError, match=match):
            to_parquet(filled(**bad), out)
    assert not list(tmp_path.iterdir())
    assert to_parquet(filled(episode=lambda i: 0 * i), out, drop=["episode"]) == 2
    whole = out.read_bytes()
    out.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LayoutError, match="out.parquet is damaged"):
        from_parquet(out, LazyTensorStorage(10))
    parquet.write_table(pa.table({"a": [1, 2]}), out)
    with pytest.raises(LayoutError, match="it lacks contig.shapes"):
        from_parquet(out, LazyTensorStorage(10))


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


@pytest.mark.parametrize("make", [filled, flat])
def test_rlinf_there_and_back(tmp_path, make):
    source = make([3, 5, 1])
    assert to_rlinf(source, tmp_path / "out") == 3
    back = LazyTensorStorage(1000)
    assert from_rlinf(tmp_path / "out", back) == 3
    assert_same(source, back)  # an observation that is one array, too
    buffer = TrajectoryReplayBuffer()
    buffer.load_checkpoint(tmp_path / "out")
    assert buffer.total_samples == 9 and buffer.trajectory_counter == 3
    with pytest.raises(LayoutError, match='"value".*RLinf rollout has no place for it'):
        to_rlinf(filled(value=lambda i: i), tmp_path / "more")
    assert not (tmp_path / "more").exists()


# -- rollout directories ------------------------------------------------------------------------


@pytest.mark.parametrize("after", [True, False])
def test_rollout_directories_read_as_the_storage_does(tmp_path, after):
    source = flat([3, 5, 1, 9], after=after)
    assert to_rollouts(source, tmp_path / "out", frames_per_file=4) == 4
    read = [list(RolloutDataset(data, device="cpu")) for data in (tmp_path / "out", source)]
    assert len(read[0]) == len(read[1]) == 18
    for ours, theirs in zip(*read):
        for a, b in zip(ours, theirs):
            assert (a is None and b is None) or (torch.equal(a, b) and a.dtype == b.dtype)


def test_what_rollout_directories_cannot_hold(tmp_path):
    with pytest.raises(LayoutError, match="observation: nested; a rollout directory has one array"):
        to_rollouts(filled(), tmp_path / "a")
    with pytest.raises(LayoutError, match='"value".*rollout directory has no place for it'):
        to_rollouts(filled(value=lambda i: i), tmp_path / "b")


# -- all of them --------------------------------------------------------------------------------


def private_bytes() -> int:
    """Memory of this process that no file backs."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("write", [to_parquet, to_arrow, to_hdf5, to_rlinf, to_rollouts])
def test_memory_does_not_grow_with_the_tape(tmp_path, write):
    rows, width, count = 100, 4000, 60  # 1.6 MB each
    with DiskStorage(tmp_path / "tape") as storage:
        writer = storage.writer()
        for number in range(count):
            step = {"observation": np.full((rows, width), number, np.float32)}
            step |= {"action": np.zeros(rows), "next": {"reward": np.zeros(rows)}}
            writer.extend_trajectory(step)
        storage.flush()
        told, used = [], []

        def on_episode(done, total):
            told.append((done, total))
            used.append(private_bytes())

        assert write(storage, tmp_path / "out", on_episode=on_episode) == count
    assert told == [(n, count) for n in range(1, count + 1)]
    assert used[-1] - used[19] < 10 * rows * width * 4  # 40 trajectories later


def test_damaged_and_open_trajectories_are_left_out(tmp_path):
    storage = filled([3, 5])
    open_one = {"observation": {"state": np.zeros((2, 3), np.float32), "t": np.zeros(2, np.int64)}}
    open_one |= {"action": np.zeros((2, 1))}
    after = {"reward": np.zeros(2, np.float32), "observation": open_one["observation"]}
    storage.writer().extend({**open_one, "next": after})
    assert len(storage.episodes()) == 3
    assert to_parquet(storage, tmp_path / "out.parquet") == 2


def test_a_library_that_is_missing(monkeypatch):
    from contig.dataset import episodes

    def none(name):
        raise ImportError(name)

    monkeypatch.setattr(episodes.importlib, "import_module", none)
    with pytest.raises(ImportError, match=r"this format needs h5py: .*pip install '\.\[hdf5\]'"):
        from_hdf5("x", LazyTensorStorage(10))
    with pytest.raises(TypeError, match="expected a storage or a ReplayBuffer, got str"):
        episodes.storage_of("x")


# -- Storages on a device -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [filled, flat])
@pytest.mark.parametrize("name", ["hdf5", "parquet", "arrow", "rlinf", "lerobot", "rollouts"])
def test_rows_on_a_device_are_exported_as_any_others(tmp_path, make, name):
    """They are tensors there, and files are written of arrays."""
    storage = DeviceStorage(1000, "cpu")
    source = fill(storage) if make is filled else flat(storage=storage)
    other = make()
    if make is filled and name in ("lerobot", "rollouts"):
        return  # which have no groups of observations
    to, read = {
        "hdf5": (to_hdf5, from_hdf5),
        "parquet": (to_parquet, from_parquet),
        "arrow": (to_arrow, from_parquet),
        "rlinf": (to_rlinf, from_rlinf),
        "lerobot": (to_lerobot, from_lerobot),
        "rollouts": (to_rollouts, None),
    }[name]
    assert to(source, tmp_path / "a") == to(other, tmp_path / "b")
    if read is None:
        here, there = ([*RolloutDataset(tmp_path / x, device="cpu")] for x in "ab")
        assert str(here) == str(there)
        return
    backs = [LazyTensorStorage(1000) for _ in "ab"]
    for back, path in zip(backs, "ab", strict=True):
        read(tmp_path / path, back)
    assert_same(*backs)
