"""RolloutDataset: every frame once per loop, in order, with the right ends."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
import tracemalloc
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from contig import (
    DiskStorage,
    LayoutError,
    LazyTensorStorage,
    NothingEligibleError,
    RolloutDataset,
    RolloutFileBase,
    RolloutWriter,
)
from contig.dataset import Transition
from tests.dataset.made import identities, trajectory, written


def rows(dataset) -> list[Transition]:
    return list(dataset)


def ids(batches, env: int = 0) -> list[float]:
    return [float(b.reward[env]) for b in batches]


def test_one_env_sees_every_frame_once(tmp_path):
    lengths = [5, 1, 9, 4]
    dataset = RolloutDataset(written(tmp_path, lengths), 1, device="cpu")
    for _ in range(2):  # iterating again starts anew
        batches = rows(dataset)
        assert ids(batches) == identities(lengths)
        assert dataset.num_dataset_looped == 1
    for batch in batches:
        frame = float(batch.reward[0])
        number, at = divmod(int(frame), 1000)
        last = at == lengths[number] - 1
        assert torch.equal(batch.observation, torch.full((1, 3), frame))
        assert torch.equal(batch.action, torch.full((1, 2), frame))
        assert bool(batch.done) == (at == 0 or last)
        assert bool(batch.timeout) == last
        # never another trajectory's
        assert torch.equal(batch.next_observation, batch.observation + (0 if last else 1))
        assert batch.privileged_observation is None and batch.next_privileged_observation is None


def test_several_envs_read_different_trajectories(tmp_path):
    lengths = [5, 7, 3, 6, 4, 8]
    dataset = RolloutDataset(written(tmp_path, lengths), 3, device="cpu")
    assert torch.equal(dataset.all_env_ids, torch.arange(3))
    seen = [float(x) for b in dataset for x in b.reward]
    assert len(seen) == len(set(seen)) and set(seen) <= set(identities(lengths))
    assert len(seen) % 3 == 0 and len(seen) > 15


@pytest.mark.parametrize("loops", [1, 3])
def test_loops_are_counted_and_end(tmp_path, loops):
    dataset = RolloutDataset(written(tmp_path, [3, 2]), 1, loops, device="cpu")
    assert ids(dataset) == identities([3, 2]) * loops
    assert dataset.num_dataset_looped == loops
    with pytest.raises(StopIteration, match=f"read {loops} times"):
        dataset.get_batch()
    assert dataset.num_dataset_looped == loops
    dataset.reset()
    assert float(dataset.get_batch().reward) == 0.0


def test_terminated_and_timed_out_ends(tmp_path):
    with RolloutWriter(tmp_path) as writer:
        for number, (done, late) in enumerate([(1, 0), (1, 1), (0, 0), (0, 1)]):
            flags = {"done": np.zeros(3), "timeout": np.zeros(3)}
            flags["done"][-1], flags["timeout"][-1] = done, late
            os.utime(writer.add_trajectory(trajectory(number, 3, **flags)), (number + 1,) * 2)
    batches = rows(RolloutDataset(tmp_path, device="cpu"))
    assert [bool(b.done) for b in batches] == [True, False, True] * 4
    ends = [bool(b.timeout) for b in batches]
    assert ends == [False] * 5 + [True, False, False, True, False, False, True]
    plain = RolloutDataset(tmp_path, device="cpu", first_frame_done=False)
    assert [bool(b.done) for b in plain] == [False, False, True] * 4


def test_an_episode_that_ends_inside_a_file_keeps_its_observation(tmp_path):
    done, late = np.array([0, 1, 0, 0, 0, 0]), np.array([0, 0, 0, 1, 0, 0])
    with RolloutWriter(tmp_path) as writer:
        writer.add_trajectory(trajectory(0, 6, done=done, timeout=late))
    batches = rows(RolloutDataset(tmp_path, device="cpu"))
    steps = [float(b.next_observation[0, 0] - b.observation[0, 0]) for b in batches]
    assert steps == [1, 0, 1, 0, 1, 0]
    assert [bool(b.timeout) for b in batches] == [False, False, False, True, False, True]


def test_next_observations_of_the_file_are_used(tmp_path):
    data = trajectory(0, 9)
    after = {"next_observation": data["observation"] + 0.5}
    seen = {"privileged_observation": data["observation"][:, :1] + 0.25}
    with RolloutWriter(tmp_path, frames_per_file=4) as writer:
        writer.add_trajectory({**data, **after, **seen})
    for batch in RolloutDataset(tmp_path, device="cpu"):
        assert torch.equal(batch.next_observation, batch.observation + 0.5)
        assert torch.equal(batch.privileged_observation, batch.observation[:, :1] + 0.25)
        moved = batch.next_privileged_observation - batch.privileged_observation
        assert float(moved) == (0 if float(batch.reward) == 8 else 1)


def test_several_steps_at_once(tmp_path):
    lengths = [6, 6, 6, 6]
    dataset = RolloutDataset(written(tmp_path, lengths), 2, device="cpu")
    first = dataset.get_batch(5)
    assert first.observation.shape == (5, 2, 3) and first.done.shape == (5, 2)
    assert first.reward[:, 1].tolist() == [1000.0 + f for f in range(5)]
    kept = first.reward.clone()
    second = dataset.get_batch(5)
    assert second.reward[:, 0].tolist() == [5.0, 2000.0, 2001.0, 2002.0, 2003.0]
    assert torch.equal(first.reward, kept)  # a fresh buffer for each batch
    assert second.done[:, 0].tolist() == [True, True, False, False, False]


def test_as_an_environment(tmp_path):
    dataset = RolloutDataset(written(tmp_path, [3, 3]), 2, device="cpu")
    s, a, r, d, info = dataset.get_transition_batch()
    assert s.shape == (2, 3) and a.shape == (2, 2) and r.tolist() == [0.0, 1000.0]
    assert d.tolist() == [True, True] and info["time_outs"].tolist() == [False, False]


def test_resetting_some_envs(tmp_path):
    dataset = RolloutDataset(written(tmp_path, [4] * 5), 2, device="cpu")
    dataset.get_batch()
    dataset.reset([1])
    assert dataset.get_batch().reward.tolist() == [1.0, 2000.0]
    buffer = dataset.get_buffer()
    buffer.reward.fill_(-1)
    dataset.fill_transition(buffer, [1])
    assert buffer.reward.tolist() == [-1.0, 2001.0]
    assert dataset.get_batch().reward.tolist() == [2.0, 2002.0]


def test_order_latest_and_start(tmp_path):
    written(tmp_path, [6, 6, 6])
    os.utime(tmp_path / "trajectory_0", (2_000_000,) * 2)  # the newest now
    assert ids(RolloutDataset(tmp_path, device="cpu"))[::6] == [1000.0, 2000.0, 0.0]
    latest = RolloutDataset(tmp_path, keep_latest_n_trajs=2, device="cpu")
    assert ids(latest)[::6] == [2000.0, 0.0]
    for seed in range(3):
        start = RolloutDataset(tmp_path, starting_frame_range=[1, 6], device="cpu", seed=seed)
        batches = rows(start)
        firsts = [b for b in batches if bool(b.done) and not bool(b.timeout)]
        assert all(1 <= float(b.reward) % 1000 < 6 for b in firsts)
        assert len([b for b in batches if bool(b.timeout)]) == 3
    late = RolloutDataset(tmp_path, starting_frame_range=[50, 51], device="cpu")
    assert [i % 1000 for i in ids(late)] == [5.0] * 3  # no further than the last frame


def test_shuffled_orders(tmp_path):
    written(tmp_path, [2] * 12)

    def order(seed):
        data = RolloutDataset(tmp_path, 1, 2, True, device="cpu", seed=seed)
        return [i // 1000 for i in ids(data)[::2]]

    first = order(1)
    assert sorted(first[:12]) == sorted(first[12:]) == list(range(12))
    assert first[:12] != first[12:] and first != order(2) and first == order(1)


def test_frame_ranges():
    dataset = RolloutDataset.__new__(RolloutDataset)
    assert dataset.get_frame_range("traj_100_200.pkl") == (100, 200)
    for bad in ("traj_100.npz", "traj_a_b.npz", "traj_5_5.npz", "x_1_2.npz"):
        with pytest.raises(ValueError, match="expected traj_<start>_<end>"):
            dataset.get_frame_range(bad)


def test_it_waits_for_data_and_not_for_ever(tmp_path, caplog):
    with pytest.raises(NothingEligibleError, match=r"0 trajectories, but num_envs=2 .* waited 0.1"):
        RolloutDataset(tmp_path, 2, device="cpu", wait_s=0.1).get_batch()
    assert "num_envs=2 envs read one each: waiting up to 0.1 s" in caplog.text
    written(tmp_path, [3])
    with pytest.raises(NothingEligibleError, match="1 trajectories, but num_envs=2"):
        RolloutDataset(tmp_path, 2, device="cpu", wait_s=0.0).get_batch()

    def later():
        time.sleep(0.2)
        with RolloutWriter(tmp_path) as writer:
            writer.add_trajectory(trajectory(1, 3))

    thread = threading.Thread(target=later)
    thread.start()
    batch = RolloutDataset(tmp_path, 2, device="cpu", wait_s=20).get_batch()
    thread.join()
    assert batch.reward.tolist() == [0.0, 1000.0]


def test_new_trajectories_are_read_before_a_loop_ends(tmp_path):
    written(tmp_path, [2])
    dataset = RolloutDataset(tmp_path, device="cpu")
    first = dataset.get_batch()
    with RolloutWriter(tmp_path) as writer:
        writer.add_trajectory(trajectory(1, 2))
    rest = [dataset.get_batch() for _ in range(3)]
    assert ids([first, *rest]) == identities([2, 2])
    with pytest.raises(StopIteration):
        dataset.get_batch()


@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_share_the_trajectories(tmp_path, shuffle):
    lengths = [3, 4, 5, 2, 6, 3, 4, 5]
    written(tmp_path, lengths)
    dataset = RolloutDataset(tmp_path, 1, 1, shuffle, device="cpu", seed=3)

    def seen():
        loader = DataLoader(dataset, batch_size=None, num_workers=2)
        return [float(b.reward[0]) for b in loader]

    first = seen()
    assert sorted(first) == identities(lengths)  # nothing twice, nothing lost
    assert seen() == first


def test_a_share_that_is_too_small(tmp_path, monkeypatch):
    worker = SimpleNamespace(id=0, num_workers=2)
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: worker)
    dataset = RolloutDataset(written(tmp_path, [2] * 8), 5, device="cpu", wait_s=0)
    with pytest.raises(NothingEligibleError, match=r"4 trajectories for worker 0 of 2"):
        dataset.get_batch()


# -- storages -----------------------------------------------------------------------------------


def steps(number: int, frames: int, **more) -> dict:
    data = trajectory(number, frames)
    return {
        "observation": data["observation"],
        "action": data["action"],
        "next": {"reward": data["reward"], **more},
    }


def test_a_live_storage_is_a_dataset(tmp_path):
    with DiskStorage(tmp_path / "tape") as storage:
        writer = storage.writer()
        writer.extend_trajectory(steps(0, 3), terminated=True, truncated=False)
        dataset = RolloutDataset(storage, device="cpu")
        got = [dataset.get_batch() for _ in range(3)]
        writer.extend_trajectory(steps(1, 2), terminated=False, truncated=True)
        got += [dataset.get_batch() for _ in range(2)]
        assert ids(got) == identities([3, 2])
        assert [bool(b.timeout) for b in got] == [False] * 4 + [True]
        assert [bool(b.done) for b in got] == [True, False, True, True, True]
        assert float(got[2].next_observation[0, 0]) == 2.0
        with pytest.raises(StopIteration):
            dataset.get_batch()
        storage.flush()
        other = RolloutDataset(DiskStorage(tmp_path / "tape", read_only=True), device="cpu")
        assert ids(other) == identities([3, 2])
        for workers in (1, 2):
            loader = DataLoader(RolloutDataset(storage, device="cpu"), None, num_workers=workers)
            assert sorted(ids(loader)) == identities([3, 2])
        other.source.storage.close()


def test_a_reader_follows_the_process_that_writes(tmp_path):
    with DiskStorage(tmp_path / "tape") as storage:
        storage.writer().extend_trajectory(steps(0, 2))
        storage.flush()
        reader = DiskStorage(tmp_path / "tape", read_only=True)
        dataset = RolloutDataset(reader, device="cpu", follow_s=20)
        got = [dataset.get_batch() for _ in range(2)]

        def later():
            time.sleep(0.2)
            storage.writer().extend_trajectory(steps(1, 2))
            storage.flush()

        thread = threading.Thread(target=later)
        thread.start()
        got += [dataset.get_batch() for _ in range(2)]
        thread.join()
        assert ids(got) == identities([2, 2])
        reader.close()


def test_open_trajectories_are_left_alone_and_leaves_are_needed():
    storage = LazyTensorStorage(100)
    storage.writer().extend(steps(0, 3, done=np.zeros(3, bool)))
    with pytest.raises(NothingEligibleError, match="0 trajectories"):
        RolloutDataset(storage, device="cpu", wait_s=0).get_batch()
    other = LazyTensorStorage(100)
    other.writer().extend_trajectory({"state": np.zeros(3), "next": {"reward": np.zeros(3)}})
    with pytest.raises(LayoutError, match="no leaf observation; it has .*state"):
        RolloutDataset(other, device="cpu").get_batch()


# -- bad input ----------------------------------------------------------------------------------


def test_empty_and_foreign_directories(tmp_path):
    def refuse():
        with pytest.raises(NothingEligibleError, match="0 trajectories, but num_envs=1"):
            RolloutDataset(tmp_path, device="cpu", wait_s=0).get_batch()

    refuse()
    (tmp_path / "trajectory_0").mkdir()
    refuse()
    (tmp_path / "trajectory_0" / "notes.txt").write_text("no frames")
    (tmp_path / "trajectory_0" / "traj_0_4.npz.tmp").write_bytes(b"not yet")
    (tmp_path / "trajectory_1").write_text("no directory")
    (tmp_path / "other").mkdir()
    refuse()


def test_bad_directories(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such directory"):
        RolloutDataset(tmp_path / "nowhere", device="cpu").get_batch()
    written(tmp_path, [9])
    file = tmp_path / "trajectory_0" / "traj_4_8.npz"
    whole = file.read_bytes()

    def read():
        return rows(RolloutDataset(tmp_path, device="cpu", wait_s=0))

    for cut in (0, 30, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(LayoutError, match="traj_4_8.npz is damaged"):
            read()
    noticed = total = 0
    for at in range(40, len(whole), 97):  # a changed byte never goes unnoticed
        total += 1
        changed = bytearray(whole)
        changed[at] ^= 0xFF
        file.write_bytes(changed)
        try:
            assert ids(read()) == identities([9])
        except LayoutError as error:
            assert "traj_4_8.npz" in str(error)
            noticed += 1
    assert noticed > total / 2, "most bytes are contents"
    file.write_bytes(whole)
    assert len(read()) == 9
    os.rename(file, file.with_name("traj_4_9.npz"))
    with pytest.raises(LayoutError, match="expected 5 frames first|do not follow"):
        read()
    os.remove(file.with_name("traj_4_9.npz"))
    with pytest.raises(LayoutError, match=r"traj_0_4.npz and traj_8_9.npz do not follow"):
        read()


def test_compressed_files_are_read_too(tmp_path):
    written(tmp_path, [3])
    np.savez_compressed(tmp_path / "trajectory_0" / "traj_0_3.npz", **trajectory(0, 3))
    assert ids(RolloutDataset(tmp_path, device="cpu")) == identities([3])


def test_a_packed_file_is_bounded_before_it_is_unpacked(tmp_path):
    written(tmp_path, [4])
    file = tmp_path / "trajectory_0" / "traj_0_4.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in ("observations", "actions"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                shape = (4, 40 << 20)
                np.lib.format.write_array_header_1_0(
                    member, {"descr": "|u1", "fortran_order": False, "shape": shape}
                )
                for _ in range(160):
                    member.write(bytes(1 << 20))
    assert file.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(LayoutError, match="traj_0_4.npz.*335,.* when they are unpacked.*savez"):
            rows(RolloutDataset(tmp_path, device="cpu", wait_s=0))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_files_that_do_not_fit_together(tmp_path):
    written(tmp_path, [4, 4])

    def replace(**fields):
        arrays = {**trajectory(1, 4), **fields}
        arrays = {k: v for k, v in arrays.items() if v is not None}
        np.savez(tmp_path / "trajectory_1" / "traj_0_4.npz", **arrays)
        os.utime(tmp_path / "trajectory_1", (3_000_000,) * 2)
        return rows(RolloutDataset(tmp_path, device="cpu"))

    with pytest.raises(LayoutError, match=r"trajectory_1.*observation has shape \[4, 5\]"):
        replace(observation=np.zeros((4, 5), np.float32))
    with pytest.raises(LayoutError, match="action is float64, float32 in the first"):
        replace(action=np.zeros((4, 2)))
    with pytest.raises(LayoutError, match="no action; it has observation, reward"):
        replace(action=None)
    with pytest.raises(LayoutError, match="privileged_observation is here, unlike"):
        replace(privileged_obs=np.zeros((4, 2)))
    with pytest.raises(LayoutError, match="reward has shape .* expected 4 frames first"):
        replace(reward=np.zeros(3))
    with pytest.raises(LayoutError, match="no observation, and .*json has no obs_segments"):
        replace(observation=None, obs_a=np.zeros((4, 2)))
    with pytest.raises(LayoutError, match="an array of objects"):
        replace(reward=np.array([None] * 4))
    (tmp_path / "metadata.json").write_text("{")
    with pytest.raises(LayoutError, match="metadata.json is damaged"):
        replace(observation=None, obs_a=np.zeros((4, 2)))


def test_not_finite_names_env_and_frame(tmp_path):
    written(tmp_path, [3, 3])
    bad = trajectory(2, 9)
    bad["observation"][6, 1] = np.nan
    with RolloutWriter(tmp_path, frames_per_file=4) as writer:
        writer.add_trajectory(bad)
    assert sum(1 for _ in RolloutDataset(tmp_path, device="cpu")) == 15
    dataset = RolloutDataset(tmp_path, 3, device="cpu", check_finite=True)
    for _ in range(3):
        dataset.get_batch()
    match = "trajectory_2, traj_4_8.npz: observation is not finite at frame 6, which env 2 was"
    with pytest.raises(ValueError, match=match):
        RolloutDataset(tmp_path, 3, 2, device="cpu", check_finite=True).get_batch(9)


def test_arguments():
    for bad in ({"num_envs": 0}, {"keep_latest_n_trajs": -1}, {"starting_frame_range": [2, 2]}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            RolloutDataset("x", **bad)
    assert RolloutDataset("x").device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(TypeError, match="abstract"):
        RolloutFileBase("x", 1)  # type: ignore[abstract]


# -- foreign files ------------------------------------------------------------------------------


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def test_foreign_pickles_are_read_and_never_run(tmp_path):
    folder = tmp_path / "trajectory_7"
    folder.mkdir()
    (tmp_path / "metadata.json").write_text(
        json.dumps(
            {
                "obs_segments": {"proprio": [2], "depth": [2, 2], "mode": [3]},
                "obs_disassemble_mapping": {"depth": "normalized_image", "mode": "one_hot"},
            }
        )
    )
    depth = np.arange(20, dtype=np.uint8).reshape(5, 2, 2)
    data = {
        "obs_proprio": np.arange(10, dtype=np.float32).reshape(5, 2),
        "obs_depth": depth,
        "obs_mode": np.array([0, 1, 2, 1, 0]),
        "actions": torch.arange(5.0)[:, None],
        "rewards": np.arange(5, dtype=np.float32),
        "dones": np.zeros(5, bool),
        "timeouts": np.zeros(5, bool),
        "privileged_obs": None,
    }
    with open(folder / "traj_000000_000005.pickle", "wb") as file:
        pickle.dump(data, file)
    dataset = RolloutDataset(tmp_path, device="cpu")
    batches = rows(dataset)
    assert len(batches) == 5
    whole = torch.cat([b.observation for b in batches]).numpy()
    assert np.array_equal(whole[:, :2], data["obs_proprio"])
    assert np.allclose(whole[:, 2:6], depth.reshape(5, 4) / 255)
    assert np.array_equal(whole[:, 6:].argmax(1), data["obs_mode"])
    assert np.array_equal(dataset.assemble_obs_components(data)["observation"], whole)
    with open(folder / "traj_000000_000005.pickle", "wb") as file:
        pickle.dump({**data, "extra": Evil()}, file)
    with pytest.raises(LayoutError, match="posix.system is in the pickle"):
        rows(RolloutDataset(tmp_path, device="cpu"))
