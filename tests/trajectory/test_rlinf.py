"""RLinf's directory: what it writes is read, what we write it could read; nothing in it is run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contig import LayoutError, LazyTensorStorage, TrajectoryReplayBuffer
from contig.dataset import from_rlinf
from contig.trajectory.rlinf import read_rlinf
from contig.trajectory.trajectory import flatten_trajectory
from tests.trajectory.made import check, drawn, filled, made

FORMATS = ["pt", "pkl"]


def theirs(path: Path, form: str, count: int, *, uuids: bool = False, **about: Any) -> list[str]:
    """A directory as RLinf writes it: whole fields, bootstrap rows included."""
    path.mkdir()
    index: dict[str, Any] = {}
    for number in range(count):
        trajectory = made(number, 4, 2 + number % 2, epochs=2, weights=f"w{number // 2}")
        fields = {k: v for k, v in vars(trajectory).items() if v is not None}
        name = path / f"trajectory_{number}_w{number // 2}.{form}"
        if form == "pt":
            torch.save(fields, name)
        else:
            name.write_bytes(pickle.dumps(fields))
        entry = {
            "num_samples": flatten_trajectory(trajectory).rows,
            "trajectory_id": number,
            "max_episode_length": trajectory.max_episode_length,
            "shape": list(trajectory.rewards.shape),
            "model_weights_id": trajectory.model_weights_id,
        }
        if uuids:
            entry["uuid"] = f"uuid-{number}"
        index[f"uuid-{number}" if uuids else str(number)] = entry
    order = list(index) if uuids else list(range(count))
    listing = {
        "trajectory_index": index,
        "trajectory_uuid_list" if uuids else "trajectory_id_list": order,
    }
    (path / "trajectory_index.json").write_text(json.dumps(listing))
    samples = sum(e["num_samples"] for e in index.values())
    metadata = {
        "trajectory_format": form,
        "size": count,
        "total_samples": samples,
        "trajectory_counter": count,
        "seed": 77,
    }
    (path / "metadata.json").write_text(json.dumps({**metadata, **about}))
    return list(index)


@pytest.mark.parametrize("uuids", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_theirs_is_read(tmp_path: Path, form: str, uuids: bool) -> None:
    theirs(tmp_path / "theirs", form, 5, uuids=uuids)
    buffer = TrajectoryReplayBuffer()
    buffer.load_checkpoint(str(tmp_path / "theirs"))
    assert (buffer.size, buffer.total_samples, buffer.trajectory_counter) == (5, 48, 5)
    assert buffer.seed == 77
    index = buffer.trajectory_index
    assert [e["trajectory_id"] for e in index] == [0, 1, 2, 3, 4]
    assert [e["model_weights_id"] for e in index] == ["w0", "w0", "w1", "w1", "w2"]
    assert [e["shape"] for e in index] == [[4, 2 + n % 2, 1] for n in range(5)]
    assert [e["max_episode_length"] for e in index] == [10, 11, 12, 13, 14]
    if uuids:
        assert [e["uuid"] for e in index] == [f"uuid-{n}" for n in range(5)]
    assert set(check(buffer.sample(500))[:, 0]) == set(range(5))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_there_and_back(tmp_path: Path, form: str, kind: str) -> None:
    disk = {"auto_save": True, "auto_save_path": tmp_path / "rows"} if kind == "disk" else {}
    with TrajectoryReplayBuffer(trajectory_format=form, seed=3, **disk) as buffer:  # type: ignore[arg-type]
        buffer.add_trajectories([made(n, 4, 3, epochs=2, weights=f"v{n}") for n in range(6)])
        buffer.export_rlinf(tmp_path / "theirs")
        index = buffer.trajectory_index
        expected = drawn(buffer)
    names = {p.name for p in (tmp_path / "theirs").iterdir()}
    assert names == {
        "metadata.json",
        "trajectory_index.json",
        *(f"trajectory_{n}_v{n}.{form}" for n in range(6)),
    }
    other = TrajectoryReplayBuffer()
    other.load_checkpoint(tmp_path / "theirs")
    assert other.trajectory_index == index and other.trajectory_counter == 6
    assert drawn(other) == expected  # the same seed, and as RLinf, from its beginning


@pytest.mark.parametrize("form", FORMATS)
def test_their_loader_reads_ours(tmp_path: Path, form: str) -> None:
    filled(2, trajectory_format=form).export_rlinf(tmp_path / "ours")
    path = tmp_path / f"ours/trajectory_1_w.{form}"
    fields = torch.load(path) if form == "pt" else pickle.loads(path.read_bytes())
    assert fields["max_episode_length"] == 11 and fields["model_weights_id"] == "w"
    assert torch.equal(fields["actions"], made(1).actions)
    assert torch.equal(fields["curr_obs"]["states"], made(1).actions)
    index = json.loads((tmp_path / "ours/trajectory_index.json").read_text())
    assert index["trajectory_index"]["1"]["num_samples"] == 8
    assert index["trajectory_id_list"] == [0, 1]


def test_pickles_of_numpy(tmp_path: Path) -> None:
    theirs(tmp_path / "theirs", "pkl", 1)
    path = tmp_path / "theirs/trajectory_0_w0.pkl"
    fields = pickle.loads(path.read_bytes())
    plain = {k: np.asarray(v) for k, v in fields.items() if isinstance(v, torch.Tensor)}
    plain["curr_obs"] = {
        "states": np.asfortranarray(fields["curr_obs"]["states"].numpy()),
        "deep": {"t": fields["curr_obs"]["deep"]["t"].numpy().astype(">f4")},
    }
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(plain, protocol))
        buffer = TrajectoryReplayBuffer()
        buffer.load_checkpoint(tmp_path / "theirs")
        check(buffer.sample(20), 20)


@pytest.mark.parametrize("form", FORMATS)
def test_files_that_are_listed_and_were_not_copied(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a run longer than its window: RLinf itself skips those."""
    theirs(tmp_path / "theirs", form, 17)
    for number in range(12):
        (tmp_path / f"theirs/trajectory_{number}_w{number // 2}.{form}").unlink()
    buffer = filled(2)
    buffer.load_checkpoint(tmp_path / "theirs")
    assert [e["trajectory_id"] for e in buffer.trajectory_index] == [12, 13, 14, 15, 16]
    assert (buffer.size, buffer.trajectory_counter) == (5, 17)
    assert set(check(buffer.sample(300))[:, 0]) == {12, 13, 14, 15, 16}
    assert "12 of 17 listed trajectories are not there" in caplog.text
    assert f"trajectory_0_w0.{form}, trajectory_1_w0.{form}, " in caplog.text
    assert "and 2 more" in caplog.text
    parts = []
    for rank in range(2):
        part = TrajectoryReplayBuffer()
        part.load_checkpoint(
            tmp_path / "theirs", is_distributed=True, local_rank=rank, world_size=2
        )
        parts += [e["trajectory_id"] for e in part.trajectory_index]
    assert parts == [12, 13, 14, 15, 16]
    storage = LazyTensorStorage(1000)
    assert from_rlinf(tmp_path / "theirs", storage) == 5
    assert len(read_rlinf(tmp_path / "theirs").missing) == 12


def test_a_directory_without_any_of_its_files(tmp_path: Path) -> None:
    theirs(tmp_path / "theirs", "pt", 3)
    for file in (tmp_path / "theirs").glob("*.pt"):
        file.unlink()
    buffer = filled(2)
    with pytest.raises(FileNotFoundError, match="lists 3 trajectories, and none is there.*0_w0.pt"):
        buffer.load_checkpoint(tmp_path / "theirs")
    assert buffer.size == 2


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("envs", [1, 2, 3])
@pytest.mark.parametrize("epochs", [1, 2])
def test_values_that_were_saved_flat(tmp_path: Path, epochs: int, envs: int, flat: bool) -> None:
    """In memory RLinf keeps rows flat; what has bootstrap rows is not put into shape again."""
    theirs(tmp_path / "theirs", "pt", 1)
    trajectory = made(0, 4, envs, epochs=epochs, weights="w0")
    rows_of = flatten_trajectory(trajectory).columns
    fields = {k: v for k, v in vars(trajectory).items() if v is not None}
    for name in ("dones", "terminations", "truncations"):  # these it cuts
        if fields.get(name) is not None:
            rows = torch.from_numpy(rows_of[(name,)])
            fields[name] = rows.reshape(4, envs, *rows.shape[1:])
    values = fields["prev_values"]
    assert values.shape[0] == 4 + epochs
    if flat:
        fields["prev_values"] = values.reshape(-1, *values.shape[2:])
    torch.save(fields, tmp_path / "theirs/trajectory_0_w0.pt")
    path = tmp_path / "theirs/trajectory_index.json"
    index = json.loads(path.read_text())
    index["trajectory_index"]["0"] |= {"num_samples": 4 * envs, "shape": [4, envs, 1]}
    path.write_text(json.dumps(index))
    buffer = TrajectoryReplayBuffer()
    buffer.load_checkpoint(tmp_path / "theirs")
    check(buffer.sample(200), 200)


@pytest.mark.parametrize("weights", ["../../etc/passwd", "a/b", "..\\..\\x/../y", "a\0b"])
def test_names_that_lead_elsewhere(tmp_path: Path, weights: str) -> None:
    theirs(tmp_path / "theirs", "pt", 1)
    index = json.loads((tmp_path / "theirs/trajectory_index.json").read_text())
    index["trajectory_index"]["0"]["model_weights_id"] = weights
    (tmp_path / "theirs/trajectory_index.json").write_text(json.dumps(index))
    with pytest.raises(LayoutError, match="cannot be part of a file's name"):
        TrajectoryReplayBuffer().load_checkpoint(tmp_path / "theirs")
    buffer = TrajectoryReplayBuffer()
    buffer.add_trajectories([made(0, weights=weights)])
    with pytest.raises(LayoutError, match="cannot be part of a file's name"):
        buffer.export_rlinf(tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("metadata.json", '{"trajectory_format": "exe"}', "expected pt or pkl"),
        ("metadata.json", "no json", "is damaged"),
        ("trajectory_index.json", "{}", "is damaged"),
        ("trajectory_index.json", '{"trajectory_index": {}, "trajectory_id_list": [1]}', "damaged"),
        ("trajectory_index.json", '{"trajectory_index": {"0": {}}}', "num_samples"),
        ("trajectory_index.json", '{"trajectory_index": [1]}', "is damaged"),
    ],
)
def test_damaged_descriptions(tmp_path: Path, name: str, text: str, words: str) -> None:
    theirs(tmp_path / "theirs", "pt", 1)
    (tmp_path / "theirs" / name).write_text(text)
    with pytest.raises(LayoutError, match=words):
        TrajectoryReplayBuffer().load_checkpoint(tmp_path / "theirs")


@pytest.mark.parametrize("form", FORMATS)
def test_damaged_files(tmp_path: Path, form: str) -> None:
    theirs(tmp_path / "theirs", form, 1)
    path = tmp_path / f"theirs/trajectory_0_w0.{form}"
    data = path.read_bytes()
    for bad in (b"", b"x", data[: len(data) // 2], data[10:]):
        path.write_bytes(bad)
        buffer = filled(1)
        with pytest.raises(LayoutError, match="trajectory_0_w0"):
            buffer.load_checkpoint(tmp_path / "theirs")
        assert buffer.size == 1


def test_an_index_that_disagrees_with_a_file(tmp_path: Path) -> None:
    theirs(tmp_path / "theirs", "pt", 1)
    index = json.loads((tmp_path / "theirs/trajectory_index.json").read_text())
    index["trajectory_index"]["0"]["num_samples"] = 9
    (tmp_path / "theirs/trajectory_index.json").write_text(json.dumps(index))
    with pytest.raises(LayoutError, match="has 8 samples, the index says 9"):
        TrajectoryReplayBuffer().load_checkpoint(tmp_path / "theirs")


class Evil:
    """Pickles to a call of os.system."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        import os

        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_in_a_file_is_run(tmp_path: Path, form: str) -> None:
    theirs(tmp_path / "theirs", form, 1)
    path, ran = tmp_path / f"theirs/trajectory_0_w0.{form}", tmp_path / "ran"
    fields = {"rewards": torch.zeros(4, 2, 1), "x": Evil(ran)}
    if form == "pt":
        torch.save(fields, path)
    else:
        path.write_bytes(pickle.dumps(fields))
    with pytest.raises(LayoutError, match="trajectory_0_w0"):
        TrajectoryReplayBuffer().load_checkpoint(tmp_path / "theirs")
    assert not ran.exists()
    if form == "pkl":  # the same file, read the usual way
        pickle.loads(path.read_bytes())
        assert ran.exists()
