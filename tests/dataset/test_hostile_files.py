"""Files whose makers mean harm: they reach no other file, take no memory, and are refused."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from contig import LayoutError, LazyTensorStorage
from contig.dataset import from_hdf5, from_lerobot, from_minari
from tests.dataset.made_lerobot import write_lerobot
from tests.spoiled import spoiled

ROWS = 6


def d4rl(path):
    with h5py.File(path, "w") as file:
        file["observations"] = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
        file["actions"] = np.zeros((ROWS, 1), np.float32)
        file["rewards"] = np.ones(ROWS, np.float32)
        file["terminals"] = np.arange(ROWS) == ROWS - 1
    return path


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.bin"
    path.write_bytes(b"the key of this machine!" * 4)
    return path


def spoil_with_external_storage(file, secret):
    file.create_dataset("infos/x", (ROWS,), "u1", external=[(str(secret), 0, ROWS)])


def spoil_with_a_virtual_dataset(file, secret):
    other = d4rl(secret.with_name("other.hdf5"))
    layout = h5py.VirtualLayout((ROWS, 2), "f4")
    layout[:] = h5py.VirtualSource(str(other), "observations", (ROWS, 2))
    del file["observations"]
    file.create_virtual_dataset("observations", layout)


def spoil_with_an_external_link(file, secret):
    other = d4rl(secret.with_name("other.hdf5"))
    del file["rewards"]
    file["rewards"] = h5py.ExternalLink(str(other), "rewards")


@pytest.mark.parametrize(
    "spoil",
    [spoil_with_external_storage, spoil_with_a_virtual_dataset, spoil_with_an_external_link],
)
def test_hdf5_parts_that_lie_in_other_files_are_refused(tmp_path, secret, spoil):
    path = d4rl(tmp_path / "runs.hdf5")
    with h5py.File(path, "a") as file:
        spoil(file, secret)
    storage = LazyTensorStorage(100)
    with pytest.raises(LayoutError, match="lies in another file; copy its data into this one"):
        from_hdf5(path, storage)
    assert len(storage) == 0


def test_an_hdf5_group_that_is_its_own_member_is_read(tmp_path):
    path = d4rl(tmp_path / "runs.hdf5")
    with h5py.File(path, "a") as file:
        group = file.create_group("infos")
        group["again"] = group
        file["alias"] = h5py.SoftLink("/rewards")
    storage = LazyTensorStorage(100)
    assert from_hdf5(path, storage) == 1
    assert len(storage) == ROWS


@pytest.mark.filterwarnings("ignore::UserWarning")  # Minari wants to know more
def test_a_minari_dataset_with_external_storage_is_refused(tmp_path, monkeypatch, secret):
    minari = pytest.importorskip("minari")
    import gymnasium

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    episode = minari.data_collector.EpisodeBuffer(
        id=0,
        observations=np.zeros((ROWS + 1, 2), np.float32),
        actions=np.zeros((ROWS, 1), np.float32),
        rewards=[1.0] * ROWS,
        terminations=[False] * (ROWS - 1) + [True],
        truncations=[False] * ROWS,
    )
    box = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    dataset = minari.create_dataset_from_buffers(
        dataset_id="test/hostile-v0",
        buffer=[episode],
        action_space=box,
        observation_space=gymnasium.spaces.Box(-1, 1, (2,), np.float32),
    )
    (main,) = dataset.storage.data_path.glob("*.hdf5")
    with h5py.File(main, "a") as file:
        del file["episode_0"]["actions"]
        size = ROWS * 4
        file["episode_0"].create_dataset(
            "actions", (ROWS, 1), "f4", external=[(str(secret), 0, size)]
        )
    with pytest.raises(LayoutError, match="actions lies in another file"):
        from_minari(dataset, LazyTensorStorage(100))


@pytest.mark.parametrize(
    "template",
    [
        "data/{chunk_index:09999999999d}.parquet",
        "data/{file_index:99999d}.parquet",
        "data/{chunk_index.__class__}/{file_index}.parquet",
        "data/{chunk_index!r:>999999999}.parquet",
        "data/{chunk_index:{file_index}}.parquet",
        "data/{0}.parquet",
        "data/{other}.parquet",
        "data/{chunk_index",
        "../{chunk_index}{file_index}.parquet",
    ],
)
def test_path_templates_are_not_formatted_unless_they_are_harmless(tmp_path, template):
    path = write_lerobot(tmp_path / "set", [3], info={"data_path": template})
    with pytest.raises(LayoutError, match="path template"):
        from_lerobot(path, LazyTensorStorage(100))


JUNK = [None, True, -1, 0, 2**63, 1e400, "", "x" * 300, "f4", "|O", [], {}, [[]], [2**40], "\0"]


def test_a_description_of_a_lerobot_dataset_may_be_anything(tmp_path):
    """Each value of info.json is replaced by nonsense: it is read, or refused in our words."""
    path = write_lerobot(tmp_path / "set", [3])
    info = path / "meta" / "info.json"
    good = json.loads(info.read_text())
    for tree in spoiled(good, JUNK):
        info.write_text(json.dumps(tree))
        try:
            from_lerobot(path, LazyTensorStorage(100))
        except (ValueError, FileNotFoundError) as error:
            assert str(error)
