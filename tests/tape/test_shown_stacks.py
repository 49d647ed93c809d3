"""Stacks that an example of a row shows, and those that it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage, LazyTensorStorage, ReplayBuffer, SharedStorage
from tests.tape.test_sharing import frames, shared, stacks, steps

GIVEN = steps(*stacks(frames(44, 6, 5), 4), ends=[39])
STACKED = (("observation",), 4)


def row(given: Any, number: int = 0) -> Any:
    return {k: row(v, number) if isinstance(v, dict) else v[number] for k, v in given.items()}


def stacks_of(storage: Any) -> list[Any]:
    return [(x.path, x.frames) for x in shared(storage).values()]


@pytest.fixture(params=["lazy", "shared", "disk"])
def make(request: Any, tmp_path: Path) -> Any:
    if request.param == "disk":
        return lambda **more: DiskStorage(tmp_path / "store", 100, **more)
    kind = LazyTensorStorage if request.param == "lazy" else SharedStorage
    return lambda **more: kind(100, **more)


def test_a_real_step_shows_them(make: Any) -> None:
    with make(example=row(GIVEN, 3)) as storage:
        assert stacks_of(storage) == [STACKED]
        storage.default_writer.extend(GIVEN)
        batch = ReplayBuffer(storage)[:]
        np.testing.assert_array_equal(batch["observation"], GIVEN["observation"])
        np.testing.assert_array_equal(batch["next", "observation"], GIVEN["next"]["observation"])


def test_the_first_step_of_an_episode_too(make: Any) -> None:
    """A stack begins with its first frame, repeated."""
    seen = frames(2, 6, 5)
    now = np.stack([seen[0]] * 4)
    following = np.stack([seen[0]] * 3 + [seen[1]])
    example = {"observation": now, "next": {"observation": following, "reward": np.float32(0)}}
    with make(example=example) as storage:
        assert stacks_of(storage) == [STACKED]


@pytest.mark.parametrize("pixel", [0, 7])
def test_zeros_show_nothing(pixel: int, make: Any) -> None:
    same = np.full((4, 6, 5), pixel, np.uint8)
    example = {"observation": same, "next": {"observation": same, "reward": np.float32(0)}}
    with make(example=example) as storage:
        assert stacks_of(storage) == [(("observation",), 1)]


def test_of_zeros_it_can_be_said(make: Any) -> None:
    same = np.zeros((4, 6, 5), np.uint8)
    example = {"observation": same, "next": {"observation": same, "reward": np.float32(0)}}
    with make(example=example, stack={"observation": 4}) as storage:
        assert stacks_of(storage) == [STACKED]


def test_a_real_step_may_be_none(make: Any) -> None:
    with make(example=row(GIVEN, 3), stack={}) as storage:
        assert stacks_of(storage) == [(("observation",), 1)]
