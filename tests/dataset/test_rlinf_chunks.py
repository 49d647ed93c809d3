"""RLinf's rollouts of chunks: a flag for each action, and episodes that end where any is set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from contig import LazyTensorStorage, ReplayBuffer, Trajectory, TrajectoryReplayBuffer
from contig.dataset import from_rlinf, to_rlinf
from tests.dataset.tapes import assert_same, lengths

STEPS, ENVS, K = 6, 2, 4


def rollout() -> Trajectory:
    """Env 0 ends in the middle of chunk 2, env 1 is cut with chunk 4."""
    over, late = (torch.zeros(STEPS, ENVS, K, dtype=torch.bool) for _ in range(2))
    over[2, 0, 1:] = True
    late[4, 1, 3] = True
    t = torch.arange(STEPS * ENVS).reshape(STEPS, ENVS, 1)
    return Trajectory(
        actions=(t * 10 + torch.arange(2 * K)).float(),
        rewards=(t + torch.arange(K)).float(),
        terminations=over,
        truncations=late,
        dones=over | late,
        curr_obs={"states": t.float()},
    )


def test_episodes_end_where_any_flag_is_set(tmp_path: Path) -> None:
    buffer = TrajectoryReplayBuffer()
    buffer.add_trajectories([rollout()])
    buffer.export_rlinf(tmp_path / "rlinf")
    storage = LazyTensorStorage(100)
    assert from_rlinf(tmp_path / "rlinf", storage) == 1
    found = sorted(lengths(storage))
    assert found == [(1, False, False), (3, False, False), (3, True, False), (5, False, True)]
    rows = ReplayBuffer(storage)[:]
    assert rows["dones"].shape == (STEPS * ENVS, K) and rows["next", "done"].sum() == 2
    for name in ("terminations", "truncations", "dones"):
        flag = {"terminations": "terminated", "truncations": "truncated", "dones": "done"}[name]
        np.testing.assert_array_equal(rows["next", flag], rows[name].any(-1))
    # Which actions were the last ones comes back, too.
    assert to_rlinf(storage, tmp_path / "again") == 2
    back = LazyTensorStorage(100)
    from_rlinf(tmp_path / "again", back)
    complete = storage.episodes()
    kept = LazyTensorStorage(100)
    for entry in complete[complete["complete"]]:
        kept.writer().extend_trajectory(storage.read_episode(int(entry["id"])).tree())
    assert_same(kept, back)
