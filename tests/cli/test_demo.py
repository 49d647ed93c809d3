"""``contig demo``, shortened, and what it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contig import LazyTensorStorage, ReplayBuffer, SliceSampler
from contig.cli.demo import Checker, Returns
from contig.cli.main import main


@pytest.fixture(autouse=True)
def keep_threads() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_the_demonstration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "new" / "curve.png"
    limits = ["--seconds", "100", "--rows", "4000"]
    assert main(["demo", *limits, "--envs", "4", "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert "Not solved: mean return" in out and "rows/s in" in out and "versions stale" in out
    assert "0 rows do not follow the one before them" in out
    assert "No slice crossed an episode." in out
    assert plot.read_bytes().startswith(b"\x89PNG") and str(plot) in out


def rows(length: int, episode: int) -> dict[str, Any]:
    at = np.arange(length + 1, dtype=np.float32)[:, None] + 1000 * episode
    done = np.arange(length) == length - 1
    return {
        "observation": at[:-1],
        "collector": {"traj_ids": np.full(length, episode)},
        "next": {"observation": at[1:], "reward": np.ones(length), "done": done},
    }


def filled() -> ReplayBuffer:
    buffer = ReplayBuffer(LazyTensorStorage(500), SliceSampler(slice_len=8), batch_size=64, seed=0)
    for episode in range(6):
        buffer.extend(rows(20 + episode, episode))
    return buffer


def test_the_checker_counts_what_does_not_follow() -> None:
    batch = filled().sample()
    checker = Checker()
    checker.check(batch)
    assert (checker.batches, checker.rows, checker.slices, checker.crossed) == (1, 64, 8, 0)
    joined = np.zeros(64, bool)
    joined[0] = True  # as if it were all one slice
    checker.check(batch.with_leaves({"is_init": joined}))
    assert checker.crossed == 7
    skipped = batch["observation"].copy()
    skipped[13] += 1  # a row of the same episode, but another one
    checker.check(batch.with_leaves({"observation": skipped}))
    assert checker.crossed == 8


def test_returns_are_those_of_finished_episodes_once_each() -> None:
    buffer, returns = filled(), Returns()
    assert np.isnan(returns.mean) and not returns.solved
    for _ in range(2):
        returns.look(buffer.storage.episodes(), 135)
        assert returns.returns == [20, 21, 22, 23, 24, 25]
    open_end = rows(30, 9)
    open_end["next"]["done"][:] = False
    buffer.extend(open_end)
    buffer.extend(rows(40, 10))
    returns.look(buffer.storage.episodes(), 205)
    assert returns.returns == [20, 21, 22, 23, 24, 25, 40]
    assert returns.mean == 25 and returns.rows[-1] == 205


def test_solved_needs_fifty_episodes() -> None:
    returns = Returns()
    returns.returns = [450.0] * 100 + [10.0] * 10
    assert not returns.solved  # 362 on average
    returns.returns = [450.0] * 49
    assert not returns.solved
    returns.returns.append(400.0)
    assert returns.solved
