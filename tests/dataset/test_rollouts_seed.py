"""RolloutDataset under the names and with the arguments of instinct_rl's."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from contig import NothingEligibleError, RolloutDataset, RolloutWriter
from contig.dataset import Transition
from tests.dataset.made import identities, trajectory, written
from tests.waiting import Task


def frames_of(dataset: Any) -> list[float]:
    return [float(x) for batch in dataset for x in batch.reward]


def test_the_type_of_a_transition_is_the_datasets(tmp_path: Path) -> None:
    assert RolloutDataset.Transition is Transition
    dataset = RolloutDataset(written(tmp_path, [3]), 1, device="cpu")
    assert isinstance(dataset.get_batch(), RolloutDataset.Transition)


def test_the_frame_range_of_a_name_needs_no_dataset() -> None:
    assert RolloutDataset.get_frame_range("traj_100_200.pkl") == (100, 200)


def test_fewer_loops_than_one_are_endless(tmp_path: Path) -> None:
    lengths = [3, 2]
    written(tmp_path, lengths)
    for loops in (0, -1):
        dataset = RolloutDataset(tmp_path, 1, loops, device="cpu")
        seen = [float(b.reward) for b in itertools.islice(dataset, 5 * 7)]
        assert seen == identities(lengths) * 7
        assert dataset.num_dataset_looped == 6


def numbered(path: Path, numbers: list[int], **options: Any) -> Path:
    """A directory whose trajectories have these numbers, in the order of time."""
    with RolloutWriter(path, **options) as writer:
        for number in numbers:
            writer.add_trajectory(trajectory(number, 2))
    for at, folder in enumerate(sorted(path.glob("trajectory_*"))):
        os.utime(folder, (1_000_000 + numbers[at], 1_000_000 + numbers[at]))
    return path


def test_several_directories_are_one_dataset(tmp_path: Path) -> None:
    """The oldest trajectory first, wherever it is."""
    first = numbered(tmp_path / "a", [0, 3])
    second = numbered(tmp_path / "b", [1, 2])
    for given in ([first, str(second)], (second, first)):
        dataset = RolloutDataset(given, 1, device="cpu")
        assert frames_of(dataset) == [0, 1, 1000, 1001, 2000, 2001, 3000, 3001]
    newest = RolloutDataset([first, second], 1, keep_latest_n_trajs=2, device="cpu")
    assert frames_of(newest) == [2000, 2001, 3000, 3001]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        RolloutDataset([first, tmp_path / "nowhere"], 1, device="cpu").reset()
    with pytest.raises(TypeError, match="data_dir"):
        RolloutDataset([], 1, device="cpu")


def test_trajectories_in_sub_directories_are_found(tmp_path: Path) -> None:
    numbered(tmp_path / "run_1" / "rank_0", [0])
    numbered(tmp_path / "run_1" / "rank_1", [2])
    numbered(tmp_path / "run_2", [1])
    numbered(tmp_path, [3])
    (tmp_path / "run_3" / "videos").mkdir(parents=True)
    dataset = RolloutDataset(tmp_path, 1, device="cpu")
    assert frames_of(dataset) == [0, 1, 1000, 1001, 2000, 2001, 3000, 3001]
    apart = RolloutDataset([tmp_path / "run_1", tmp_path / "run_2"], 3, device="cpu")
    assert sorted(apart.get_batch().reward.flatten().tolist()) == [0, 1000, 2000]


def test_each_directory_has_its_metadata(tmp_path: Path) -> None:
    """Which says how observations are put together there."""
    numbered(tmp_path / "a", [0], obs_segments={"x": [1], "y": [2]})
    numbered(tmp_path / "b", [1], obs_segments={"x": [2], "z": [1]})
    dataset = RolloutDataset(tmp_path, 1, device="cpu")
    assert [tuple(b.observation[0].tolist()) for b in dataset][::2] == [(0.0,) * 3, (1000.0,) * 3]


def test_the_newest_trajectories_are_waited_for(tmp_path: Path) -> None:
    written(tmp_path, [2, 2])
    few = RolloutDataset(tmp_path, 1, keep_latest_n_trajs=3, wait_s=0.1, device="cpu")
    assert not few.read_dataset_directory()
    with pytest.raises(NothingEligibleError, match=r"2 trajectories, .*keep_latest_n_trajs=3"):
        few.reset()
    dataset = RolloutDataset(tmp_path, 1, keep_latest_n_trajs=3, wait_s=100, device="cpu")
    reading = Task(frames_of, dataset)
    assert not reading.ends(0.3)
    with RolloutWriter(tmp_path) as writer:
        writer.add_trajectory(trajectory(2, 2))
    assert reading.result() == [0, 1, 1000, 1001, 2000, 2001]
