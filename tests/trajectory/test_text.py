"""Lists of strings in observations, such as task descriptions: stored and given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contig import LayoutError, Trajectory, TrajectoryReplayBuffer
from tests.trajectory.made import check, made


def word(number: int, t: int, b: int) -> str:
    return f"trajectory {number}, ü{'!' * b}, step {t}"


def described(number: int, steps: int = 4, envs: int = 2, **more: Any) -> Trajectory:
    trajectory = made(number, steps, envs, **more)
    words = [[word(number, t, b) for b in range(envs)] for t in range(steps)]
    trajectory.curr_obs["task_descriptions"] = words
    return trajectory


def is_right(batch: dict[str, Any]) -> None:
    who = check(batch).astype(int).tolist()
    assert batch["curr_obs"]["task_descriptions"] == [word(*one) for one in who]


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_there_and_back(tmp_path: Path, kind: str, output: str) -> None:
    options: dict[str, Any] = {"output": output}
    if kind == "disk":
        options |= {"auto_save": True, "auto_save_path": tmp_path / "rows"}
    with TrajectoryReplayBuffer(**options) as buffer:
        for number in range(5):
            buffer.add_trajectories([described(number)])
        is_right(buffer.sample(100))
        whole = buffer.read_trajectory(3)["curr_obs"]["task_descriptions"]
        assert whole == [[word(3, t, b) for b in range(2)] for t in range(4)]
        buffer.save_checkpoint(tmp_path / "saved")
        buffer.export_rlinf(tmp_path / "exported")
    for place in ("saved", "exported"):
        with TrajectoryReplayBuffer(output=output) as buffer:
            buffer.load_checkpoint(tmp_path / place)
            is_right(buffer.sample(100))


def test_forms() -> None:
    for given, rows in (
        (["a", "b"], ["a", "b"] * 3),  # of each env
        ([["a", "b"]] * 3, ["a", "b"] * 3),
        (np.array([["a", "b"]] * 3), ["a", "b"] * 3),
        ((("a", ""), ["b", "c"], ["d", "e"]), ["a", "", "b", "c", "d", "e"]),
    ):
        with TrajectoryReplayBuffer() as buffer:
            buffer.add_trajectories([{"x": torch.arange(6).reshape(3, 2), "obs": {"what": given}}])
            batch = buffer.sample(50)
            assert batch["obs"]["what"] == [rows[i] for i in batch["x"].tolist()]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (["a", "b", "c"], r"expected strings \[3, 2\] or \[2\]"),
        ([["a", "b"], ["c"]], "what"),
        ([["a", 3]] * 3, "what"),
        ([["a", "b\0"]] * 3, "zero"),
    ],
)
def test_what_is_refused(given: Any, match: str) -> None:
    with TrajectoryReplayBuffer() as buffer:
        with pytest.raises(ValueError, match=match):
            buffer.add_trajectories([{"x": torch.zeros(3, 2), "obs": {"what": given}}])
        assert len(buffer) == 0


def test_longer_text_than_there_is_room_for() -> None:
    with TrajectoryReplayBuffer() as buffer:
        rows = {"x": torch.zeros(3, 2)}
        buffer.add_trajectories([{**rows, "what": ["a" * 300, "b"]}])
        buffer.add_trajectories([{**rows, "what": ["c" * 300, "d"]}])
        with pytest.raises(LayoutError, match="what.*304 bytes"):
            buffer.add_trajectories([{**rows, "what": ["e" * 305, "d"]}])
        assert set(buffer.sample(100)["what"]) == {"a" * 300, "b", "c" * 300, "d"}


def test_optional_text_and_demos() -> None:
    demos = TrajectoryReplayBuffer()
    demos.add_trajectories([described(9)])
    optional = [("curr_obs", "task_descriptions")]
    with TrajectoryReplayBuffer(optional=optional) as buffer:
        buffer.add_trajectories([described(0), made(1)])
        batch = buffer.sample(100)
        has = batch["mask"]["curr_obs"]["task_descriptions"].tolist()
        for one, text, there in zip(
            check(batch).astype(int).tolist(), batch["curr_obs"]["task_descriptions"], has
        ):
            assert there == (one[0] == 0) and text == (word(*one) if there else "")
    with TrajectoryReplayBuffer(demo_buffer=demos) as buffer:
        buffer.add_trajectories([described(0)])
        is_right(buffer.sample(64))
