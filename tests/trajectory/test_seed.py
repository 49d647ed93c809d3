"""Seed 002: its flow, with the names and arguments it uses; and what importing costs."""

from __future__ import annotations

import queue
import subprocess
import sys
from pathlib import Path

import pytest
import torch

T, B = 4, 2


def rollout(number: int) -> list[dict[str, torch.Tensor]]:
    """A rollout worker's chunk steps: the observation before and after, action, reward, done."""
    at = [torch.full((B, 3), float(10 * number + t)) for t in range(T + 1)]
    return [
        {
            "obs": at[t],
            "next_obs": at[t + 1],
            "act": torch.full((B, 1), float(t)),
            "r": torch.full((B, 1), float(number)),
            "dones": torch.full((B, 1), t == T - 1),
        }
        for t in range(T)
    ]


@pytest.mark.parametrize("persist", [False, True])
def test_data_flow(tmp_path: Path, persist: bool) -> None:
    from contig import Trajectory, TrajectoryCache, TrajectoryReplayBuffer

    buffer = TrajectoryReplayBuffer(
        seed=1234,
        enable_cache=True,
        cache_size=5,
        sample_window_size=100,
        auto_save=persist,
        auto_save_path=str(tmp_path / "auto") if persist else "",
        trajectory_format="pt",
    )
    assert isinstance(buffer.cache, TrajectoryCache)
    channel: queue.Queue[Trajectory] = queue.Queue()
    for number in range(8):
        steps = rollout(number)
        stacked = {key: torch.stack([s[key] for s in steps]) for key in steps[0]}
        first = torch.zeros(1, B, 1, dtype=torch.bool)
        channel.put(
            Trajectory(
                max_episode_length=T,
                actions=stacked["act"],
                rewards=stacked["r"],
                dones=torch.cat([first, stacked["dones"]]),
                curr_obs={"states": stacked["obs"]},
                next_obs={"states": stacked["next_obs"]},
            )
        )
    trajectories = [channel.get() for _ in range(8)]

    buffer.add_trajectories(trajectories)
    num_chunks = 32
    batch = buffer.sample(num_chunks)

    assert all(value.shape[0] == num_chunks for value in (batch["actions"], batch["rewards"]))
    assert torch.equal(batch["next_obs"]["states"], batch["curr_obs"]["states"] + 1)
    assert torch.equal(batch["curr_obs"]["states"][:, :1], 10 * batch["rewards"] + batch["actions"])
    assert torch.equal(batch["dones"], batch["actions"] == T - 1)
    assert buffer.is_ready(8) and len(buffer) == buffer.size == 8
    assert buffer.total_samples == 8 * T * B and buffer.trajectory_counter == 8
    assert buffer.get_stats()["total_samples"] == 8 * T * B

    buffer.save_checkpoint(str(tmp_path / "checkpoint"))
    sizes = []
    for rank in range(3):
        part = TrajectoryReplayBuffer()
        part.load_checkpoint(
            load_path=str(tmp_path / "checkpoint"),
            is_distributed=True,
            local_rank=rank,
            world_size=3,
        )
        assert (part.size, part.total_samples) == (len(part), len(part) * T * B)
        sizes.append([entry["trajectory_id"] for entry in part.trajectory_index])
    assert sizes == [[0, 1, 2], [3, 4, 5], [6, 7]]
    buffer.close()


def test_without_torch(tmp_path: Path) -> None:
    """Everything but tensors and RLinf's files works where torch is not installed."""
    script = """
import sys
sys.modules["torch"] = None
import numpy as np
from contig import Trajectory, TrajectoryCache, TrajectoryReplayBuffer

buffer = TrajectoryReplayBuffer(output="numpy", auto_save=True, auto_save_path=sys.argv[1] + "/a")
rewards = np.arange(6.0).reshape(3, 2)
flags = rewards > 3
buffer.add_trajectories([Trajectory(rewards=rewards, intervene_flags=flags)])
assert set(buffer.sample(50)["rewards"].tolist()) <= set(range(6))
assert [t.rewards.tolist() for t in Trajectory(rewards=rewards, intervene_flags=flags)
        .extract_intervene_traj()] == [[[4.0]], [[5.0]]]
assert buffer.read_trajectory(0)["rewards"].tolist() == rewards.tolist()
buffer.save_checkpoint(sys.argv[1] + "/b")
buffer.load_checkpoint(sys.argv[1] + "/b")
buffer.close()
try:
    other = TrajectoryReplayBuffer()
    other.add_trajectories([{"rewards": rewards}])
    other.sample(1)
except ImportError:
    print("as it should be")
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.stdout == "as it should be\n", run.stderr


def test_importing_does_not_import_torch() -> None:
    script = "import contig, sys; contig.TrajectoryReplayBuffer; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
