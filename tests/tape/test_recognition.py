"""Stacks of frames that first rows show, and rows that show none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, ReplayBuffer
from contig.tape.stacks import Stack, possible_stacks
from tests.tape.test_sharing import Array, frames, shared, stacks, steps

NONE = Stack(1, True)


def found(rows: Any, **options: Any) -> Stack:
    """What the observation is stored as, which comes out as it went in."""
    with LazyTensorStorage(1000, **options) as storage:
        storage.default_writer.extend(rows)
        got = ReplayBuffer(storage)[:]
        assert got["observation"].tobytes() == np.ascontiguousarray(rows["observation"]).tobytes()
        if "observation" in rows["next"]:
            following = np.ascontiguousarray(rows["next"]["observation"])
            assert got["next", "observation"].tobytes() == following.tobytes()
        leaf = shared(storage)[("observation",)]
        return Stack(leaf.frames, leaf.leading)


def channels(frame_shape: tuple[int, ...], k: int, leading: bool) -> dict[str, Any]:
    """As VecFrameStack has them: on the channels' axis."""
    seen = frames(40 + k, *frame_shape)
    every = [seen[i : i + 41] for i in range(k)]
    both = np.concatenate(every, 1 if leading else -1)
    return steps(both[:-1], both[1:])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("k", [2, 3, 4, 8])
@pytest.mark.parametrize("leading", [True, False])
def test_channels_of_any_number(count: int, k: int, leading: bool) -> None:
    shape = (count, 10, 11) if leading else (10, 11, count)
    assert found(channels(shape, k, leading)) == Stack(k, leading)


@pytest.mark.parametrize("k", [17, 20, 64])
def test_many_frames(k: int) -> None:
    assert found(steps(*stacks(frames(40 + k, 9, 9), k))) == Stack(k, True)


def test_what_may_be_a_stack() -> None:
    assert possible_stacks((84,)) == []
    assert [x.frames for x in possible_stacks((12, 3))] == [12, 6, 4, 3, 2]
    assert [x.frames for x in possible_stacks((1, 65, 4))] == [4, 2]
    assert max(x.frames for x in possible_stacks((128, 128, 128))) == 64


@pytest.mark.parametrize("pad", ["first frame", "zeros"])
@pytest.mark.parametrize(("count", "k"), [(1, 4), (1, 12), (3, 4), (2, 6)])
def test_the_first_step_of_an_episode(pad: str, count: int, k: int) -> None:
    """Its frames are almost all the same, and yet say how many channels each has."""
    one, two = frames(2, 10, 11, count)
    before = [one if pad == "first frame" else np.zeros_like(one)] * (k - 1)
    now, following = (np.concatenate(x, -1) for x in ([*before, one], [*before[1:], one, two]))
    assert found(steps(now[None], following[None])) == Stack(k, False)


# -- rows that are odd -----------------------------------------------------------------------------


def auto_reset(episode: int, flagged: bool) -> dict[str, Any]:
    """Steps of envs that begin again by themselves: what the last step of an episode leads to is
    where the next one begins; or a step more, that nobody marks, leads there."""
    now, following = stacks(frames(64, 6, 5), 4)
    ends = np.arange(episode - 1, len(now), episode)
    following = following.copy()
    following[ends] = frames(len(ends), 1, 6, 5, seed=1)
    return steps(now, following, ends if flagged else ())


@pytest.mark.parametrize(("episode", "flagged"), [(2, True), (10, True), (3, False), (40, False)])
def test_next_observations_after_a_reset(episode: int, flagged: bool) -> None:
    assert found(auto_reset(episode, flagged)) == Stack(4, True)


def test_one_byte_that_differs() -> None:
    now, following = stacks(frames(44, 6, 5), 4)
    following = following.copy()
    following[20, 0, 0, 0] ^= 1
    assert found(steps(now, following)) == Stack(4, True)


def test_steps_of_many_envs() -> None:
    """Half of them have just begun, and nothing moves there yet."""
    now, following = (x[:16].copy() for x in stacks(frames(44, 6, 5), 4))
    now[::2] = following[::2] = frames(1, 6, 5)
    with LazyTensorStorage(1000) as storage:
        storage.default_writer.add_step(steps(now, following))
        assert shared(storage)[("observation",)].frames == 4


# -- rows that show nothing ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (4, 84, 84), (6, 5, 4), (8, 8, 8)])
@pytest.mark.parametrize("value", [0, 1])
def test_one_value_all_over(shape: tuple[int, ...], value: float) -> None:
    same = np.full((1, *shape), value, np.float32)
    assert found(steps(same, same)) == NONE


def test_vectors_that_are_the_same_and_stay_so() -> None:
    """Eight agents at one place, say."""
    same = np.tile(np.arange(6, dtype=np.float32), (1, 8, 1))
    assert found(steps(same, same)) == NONE


def test_images_that_are_the_same_and_stay_so() -> None:
    """An episode that begins slowly; but three of them are colours."""
    image = frames(1, 10, 11, 1)
    for k, stack in ((4, Stack(4, False)), (3, NONE), (6, Stack(2, False)), (8, Stack(8, False))):
        same = np.repeat(image, k, -1)
        assert found(steps(same, same)) == stack


def grid(places: list[tuple[int, int]]) -> Array:
    out = np.zeros((len(places), 8, 8), np.float32)
    for i, (row, column) in enumerate(places):
        out[i, row, column] = 1
    return out


@pytest.mark.parametrize("row", [7, 5, 1])
def test_a_dot_that_moves_up(row: int) -> None:
    assert found(steps(grid([(row, 3)]), grid([(row - 1, 3)]))) == NONE


def test_half_of_the_rows() -> None:
    now, following = stacks(frames(44, 6, 5), 4)
    following = following.copy()
    following[::2] = frames(len(following[::2]), 4, 6, 5, seed=1)
    assert found(steps(now, following)) == NONE


# -- where frames lie ------------------------------------------------------------------------------

CUBES = [
    # frames on the first axis, or the last, where both have room for them
    ((12, 4), 4),
    ((4, 12, 12), 4),
    ((8, 8), 8),
]


@pytest.mark.parametrize("below", [True, False])
@pytest.mark.parametrize("leading", [True, False])
@pytest.mark.parametrize(("shape", "k"), CUBES)
def test_the_axis_on_which_rows_move(
    shape: tuple[int, ...], k: int, leading: bool, below: bool
) -> None:
    seen = frames(40 + k, *shape)
    every = [seen[i : i + 41] for i in range(k)]
    both = np.stack(every, 1)
    if not leading:
        both = np.ascontiguousarray(np.moveaxis(both, 1, -1))
    rows = steps(both[:-1], both[1:])
    if not below:
        del rows["next"]["observation"]
    assert found(rows, stack={"observation": k}) == Stack(k, leading)


def test_what_rows_do_not_show_is_the_likelier_axis() -> None:
    zeros = np.zeros((3, 4, 12, 4), np.uint8)
    assert found(steps(zeros, zeros), stack={"observation": 4}) == Stack(4, True)
    flat = np.arange(60, dtype=np.float32).reshape(3, 20)
    assert found(steps(flat, flat), stack={"observation": 5}) == Stack(5, True)
