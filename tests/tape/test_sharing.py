"""What is stored once: as it is asked for, as it is recognised, and how many bytes that leaves."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

from benchmarks.frames import game_frames
from contig import LayoutError, LazyTensorStorage, Ragged, ReplayBuffer, SharedStorage
from contig.tape.sharing import SharedLeaf
from tests.tape.observations import batch_bytes

Array = np.ndarray[Any, Any]


def frames(n: int, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def stacks(seen: Array, k: int, axis: int = 1) -> tuple[Array, Array]:
    """Stacks of all k frames that follow one another, and those one step on."""
    n = len(seen) - k
    every = [seen[i : i + n + 1] for i in range(k)]
    if axis == 1:
        out = np.stack(every, 1)
    else:
        out = np.concatenate(every, -1)
    return out[:-1], out[1:]


def steps(now: Array, following: Array, ends: Any = ()) -> dict[str, Any]:
    done = np.zeros(len(now), np.bool_)
    done[list(ends)] = True
    reward = np.arange(len(now), dtype=np.float32)
    return {"observation": now, "next": {"observation": following, "reward": reward, "done": done}}


def shared(storage: Any) -> dict[Any, SharedLeaf]:
    sharing = storage.schema.sharing
    return {} if sharing is None else {x.path: x for x in sharing.leaves}


def wrote(rows: Any, **options: Any) -> Any:
    storage = LazyTensorStorage(1000, **options)
    storage.default_writer.extend(rows)
    return storage


# -- arguments -------------------------------------------------------------------------------------

PIXELS = np.zeros((4, 6, 5), np.uint8)
ROW = {
    "observation": PIXELS,
    "state": np.zeros(3, np.float32),
    "next": {"observation": PIXELS, "state": np.zeros(3, np.float32), "reward": np.float32(0)},
}
ALONE = {"observation": PIXELS, "next": {"reward": np.float32(0), "done": False}}


@pytest.mark.parametrize("kind", [LazyTensorStorage, SharedStorage])
def test_what_is_below_next_too_is_stored_once(kind: Any) -> None:
    with kind(8, example=ROW) as storage:
        assert set(shared(storage)) == {("observation",), ("state",)}
    with kind(8, example=ROW, share_next=False) as storage:
        assert shared(storage) == {}
    with kind(8, example=ROW, stack={"observation": 4}) as storage:
        assert shared(storage)[("observation",)] == SharedLeaf(("observation",), 4, True)
        assert shared(storage)[("state",)].frames == 1


def test_rows_that_would_not_be_smaller_are_left_alone() -> None:
    small = {"x": np.zeros(2, np.float32), "next": {"x": np.zeros(2, np.float32)}}
    with LazyTensorStorage(8, example=small) as storage:
        assert shared(storage) == {}
    with LazyTensorStorage(8, example=small, share_next=True) as storage:
        assert set(shared(storage)) == {("x",)}


@pytest.mark.parametrize("name", ["reward", "done", "terminated", "truncated"])
def test_what_says_how_a_step_went_is_no_observation(name: str) -> None:
    wide = {"x": np.zeros(8), "next": {"x": np.zeros(8)}}
    flag = np.zeros(16, np.bool_) if name != "reward" else np.zeros(16)
    if name == "reward":
        row = {**wide, name: flag, "next": {**wide["next"], name: flag}}
    else:
        row = {**wide, "deep": {name: flag}, "next": {**wide["next"], "deep": {name: flag}}}
    with LazyTensorStorage(8, example=row) as storage:
        assert set(shared(storage)) == {("x",)}


@pytest.mark.parametrize(
    ("shape", "given", "leading"),
    [
        ((4, 6, 5), 4, True),
        ((6, 5, 4), 4, False),
        ((8, 8, 4), 4, False),
        ((4, 8, 8), 4, True),
        ((12, 16, 16), 4, True),  # colours
        ((16, 16, 12), 4, False),
        ((4, 4), 4, True),
        ((4, 4), (4, -1), False),
        ((4, 4), [4, 0], True),
        ((20,), 5, True),
    ],
)
def test_where_frames_are(shape: tuple[int, ...], given: Any, leading: bool) -> None:
    row = {"x": np.zeros(shape), "next": {"x": np.zeros(shape)}}
    with LazyTensorStorage(8, example=row, stack={"x": given}) as storage:
        found = shared(storage)[("x",)]
        assert (found.frames, found.leading) == (np.ravel(given)[0], leading)


@pytest.mark.parametrize(
    ("stack", "error", "match"),
    [
        (4, TypeError, 'frames by leaf, as in {"observation": 4}'),
        ({"observation": 1}, ValueError, "stack: .*observation.*a number of frames"),
        ({"observation": 65}, ValueError, "at most 64 frames, got 65"),
        ({"observation": (4, 1)}, ValueError, "the first axis, 0, or the last, -1; got 1"),
        ({"observation": (4, 0, 0)}, (TypeError, ValueError), "observation"),
        ({"pixels": 4}, LayoutError, "no leaf .*pixels.*; there are .*observation"),
        ({"observation": 7}, LayoutError, "no axis of 7 frames, first or last"),
        ({"observation": (4, -1)}, LayoutError, "no axis of 4 frames"),
        ({"empty": 4}, LayoutError, "which has no elements, so none to store once; leave it out"),
        ({"empty": (4, 0)}, LayoutError, "has no elements"),
        ({("next", "observation"): 4}, LayoutError, "name the leaf at the root"),
        ({"observation": 4, ("next", "observation"): 4}, LayoutError, "name the leaf at the root"),
    ],
)
def test_stacks_that_there_cannot_be(stack: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        LazyTensorStorage(8, example={**ROW, "empty": np.zeros((4, 0))}, stack=stack)


def test_one_or_the_other() -> None:
    with pytest.raises(LayoutError, match="Leave one of the two out"):
        LazyTensorStorage(8, example=ROW, share_next=False, stack={"observation": 4})
    with LazyTensorStorage(8, example=ROW, share_next=False, stack={}) as storage:
        assert shared(storage) == {}
    mixed = {**ROW, "alone": np.zeros((4, 3))}
    with pytest.raises(LayoutError, match="alone.* is not below next, and other stacks are"):
        LazyTensorStorage(8, example=mixed, stack={"observation": 4, "alone": 4})


def test_leaves_with_codecs_are_no_stacks() -> None:
    pixels = np.zeros((6, 5, 4), np.uint8)
    row = {"x": pixels, "next": {"x": pixels}}
    with pytest.raises(LayoutError, match='"x" has png, and is stored once with stack='):
        LazyTensorStorage(8, example=row, codecs={"x": "png"}, stack={"x": 4})
    any_size = {"x": Ragged(np.uint8), "next": {"x": Ragged(np.uint8)}}
    with pytest.raises(LayoutError, match="without a codec"):
        LazyTensorStorage(8, example=any_size, stack={"x": 4})


def test_a_refused_stack_fixes_nothing() -> None:
    with LazyTensorStorage(100, stack={"observation": 7}) as storage:
        with pytest.raises(LayoutError, match="no axis of 7"):
            storage.default_writer.add(ROW)
        assert storage.schema is None and len(storage) == 0


def test_stacks_that_are_not_below_next() -> None:
    now, _ = stacks(frames(40, 6, 5), 4)
    flags = {"reward": np.zeros(36, np.float32), "done": np.zeros(36, np.bool_)}
    with LazyTensorStorage(100, stack={"observation": 4}) as storage:
        storage.default_writer.extend({"observation": now, "next": flags})
        assert not storage.schema.sharing.paired
        assert storage.tape.slots_given == 36 + 3
        np.testing.assert_array_equal(ReplayBuffer(storage)[:]["observation"], now)


# -- recognised ------------------------------------------------------------------------------------


class Camera(gym.Env[Any, Any]):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self.rng, self.t = np.random.default_rng(0), 0

    def frame(self) -> Any:
        return self.rng.integers(0, 256, self.observation_space.shape, np.uint8)

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return self.frame(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.frame(), 1.0, False, self.t == 7, {}


def played(env: Any, n: int) -> list[dict[str, Any]]:
    rows = []
    obs, _ = env.reset()
    for _ in range(n):
        following, reward, _, truncated, _ = env.step(0)
        flags = {"reward": np.float32(reward), "terminated": False, "truncated": truncated}
        rows.append({"observation": obs, "next": {"observation": following, **flags}})
        obs = env.reset()[0] if truncated else following
    return rows


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)])
def test_gymnasiums_frame_stacks(padding: str, shape: tuple[int, ...]) -> None:
    rows = played(FrameStackObservation(Camera(shape), 4, padding_type=padding), 70)
    with LazyTensorStorage(100) as storage:
        for row in rows:
            storage.default_writer.add(row)
        assert shared(storage) == {("observation",): SharedLeaf(("observation",), 4, True)}
        # 10 episodes: a frame for each step and each reset; zeros are one more.
        assert storage.tape.slots_given == 70 + 10 * (1 if padding == "reset" else 2)
        got = ReplayBuffer(storage)[:]
        for path in [("observation",), ("next", "observation")]:
            want = [r[path[0]] if len(path) == 1 else r["next"]["observation"] for r in rows]
            assert got[path].tobytes() == np.stack(want).tobytes()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("axis", [1, -1])
def test_stacked_channels(channels: int, axis: int) -> None:
    """As SB3's VecFrameStack has them: on the channels' axis."""
    seen = frames(44, 6, 5, channels)
    now, following = stacks(seen, 4, -1)
    if axis == 1:
        now, following = (np.ascontiguousarray(np.moveaxis(x, -1, 1)) for x in (now, following))
    storage = wrote(steps(now, following))
    assert shared(storage)[("observation",)] == SharedLeaf(("observation",), 4, axis == 1)
    assert storage.tape.slots_given == 44
    np.testing.assert_array_equal(ReplayBuffer(storage)[:]["next", "observation"], following)
    storage.close()


def no_stacks() -> dict[str, dict[str, Any]]:
    seen = frames(41, 4, 6, 5)
    now, following = stacks(frames(44, 6, 5), 4)
    still = np.broadcast_to(frames(1, 6, 5, 1), (40, 6, 5, 3))
    return {
        "frames of four planes": steps(seen[:-1], seen[1:]),
        "newest first": steps(now[:, ::-1].copy(), following[:, ::-1].copy()),
        "grey, as three colours, and nothing moves": steps(still.copy(), still.copy()),
    }


@pytest.mark.parametrize("which", no_stacks())
def test_no_stacks(which: str) -> None:
    rows = no_stacks()[which]
    storage = wrote(rows)
    assert shared(storage)[("observation",)].frames == 1
    got = ReplayBuffer(storage)[:]
    np.testing.assert_array_equal(got["observation"], rows["observation"])
    np.testing.assert_array_equal(got["next", "observation"], rows["next"]["observation"])
    storage.close()


def test_stack_of_nothing_turns_recognition_off() -> None:
    storage = wrote(steps(*stacks(frames(44, 6, 5), 4)), stack={})
    assert shared(storage)[("observation",)].frames == 1
    storage.close()


def test_no_stack_after_all() -> None:
    """It looked like one: then each frame is stored, and what comes out is right."""
    now, following = stacks(frames(84, 6, 5), 4)
    odd = frames(30, 4, 6, 5, seed=1)
    storage = wrote(steps(now, following))
    storage.default_writer.extend(steps(odd, odd[::-1].copy()))
    got = ReplayBuffer(storage)[:]
    assert got["observation"].tobytes() == np.concatenate([now, odd]).tobytes()
    assert got["next", "observation"].tobytes() == np.concatenate([following, odd[::-1]]).tobytes()
    storage.close()


# -- bytes -----------------------------------------------------------------------------------------


def test_nobody_has_bytes_before_the_first_row() -> None:
    with LazyTensorStorage(1000) as storage:
        assert storage.nbytes == 0
        storage.default_writer.add(ROW)
        assert storage.nbytes > 0


def filled(rows: Any, n: int, writes: int, **options: Any) -> int:
    """Bytes of a storage that has turned once."""
    storage = LazyTensorStorage(n * writes // 2, **options)
    for _ in range(writes):
        storage.default_writer.extend(rows)
    assert len(storage) == storage.capacity
    nbytes = storage.nbytes
    storage.close()
    return nbytes


def test_bytes_of_stacked_frames() -> None:
    """4 x 84 x 84 with next observations: at most a seventh."""
    n = 500
    rows = steps(*stacks(frames(n + 4, 84, 84), 4), ends=range(99, n, 100))
    plain = filled(rows, n, 8, share_next=False)
    assert plain >= 2000 * 2 * 4 * 84 * 84
    assert filled(rows, n, 8) * 7 <= plain
    assert filled(rows, n, 8, stack={}) * 1.9 <= plain


def test_bytes_of_encoded_frames() -> None:
    """Frames like those of games, once and as lz4 blocks: at most a thirtieth."""
    n = 500
    rows = steps(*stacks(game_frames(n + 4), 4), ends=range(99, n, 100))
    plain = filled(rows, n, 8, share_next=False)
    assert filled(rows, n, 8, share_next=True, codecs={"observation": "lz4"}) * 30 <= plain


def test_bytes_of_vectors() -> None:
    """17 floats, 6 actions: at most 0.65."""
    n = 10_000
    seen = np.random.default_rng(0).normal(size=(n + 1, 17)).astype(np.float32)
    rows = {**steps(seen[:-1], seen[1:], range(499, n, 500)), "action": seen[:-1, :6].copy()}
    plain = filled(rows, n, 20, share_next=False)
    assert plain >= 100_000 * (2 * 17 + 6) * 4
    assert filled(rows, n, 20) <= 0.65 * plain


def test_each_step_of_many_envs_costs_one_observation() -> None:
    seen = frames(31, 64, 10, 10)
    with LazyTensorStorage(10_000) as storage:
        for now, following in itertools.pairwise(seen):
            storage.default_writer.add_step(steps(now, following))
        assert storage.tape.slots_given == 64 * 31


def test_memory_of_evicted_observations_serves_new_ones() -> None:
    rows = steps(*stacks(frames(204, 30, 30), 4))
    with LazyTensorStorage(400) as storage:
        for _ in range(2):
            storage.default_writer.extend(rows)
        storage.default_writer.extend(rows)
        full = storage.nbytes
        for _ in range(40):
            storage.default_writer.extend(rows)
        assert storage.nbytes <= 1.3 * full


@pytest.mark.parametrize("capacity", [1, 2, 5, 63])
@pytest.mark.parametrize("by", ["rows", "at once"])
def test_capacities_smaller_than_an_episode(capacity: int, by: str) -> None:
    now, following = stacks(frames(204, 6, 5), 4)
    rows = steps(now, following, ends=[199])
    both = [LazyTensorStorage(capacity), LazyTensorStorage(capacity, share_next=False)]
    for storage in both:
        if by == "at once":
            storage.default_writer.extend(rows)
        else:
            for i in range(200):
                flags = {k: v[i] for k, v in rows["next"].items()}
                storage.default_writer.add({"observation": now[i], "next": flags})
    first, second = (batch_bytes(ReplayBuffer(s)[:]) for s in both)
    assert first == second and len(both[0]) == capacity
    for storage in both:
        storage.close()


def test_leaves_without_bytes() -> None:
    """They lie where another leaf does."""
    rng = np.random.default_rng(0)
    seen = rng.standard_normal((21, 9)).astype(np.float32)
    rows = {
        "a": np.arange(20.0),
        "b": np.zeros((20, 0), np.float32),
        "observation": seen[:-1],
        "next": {"observation": seen[1:], "done": np.arange(20) == 19},
        "z": np.zeros((20, 3, 0)),
    }
    with LazyTensorStorage(50) as storage:
        storage.default_writer.extend(rows)
        assert storage.schema is not None and storage.schema.sharing is not None
        batch = storage.gather(np.arange(20))[0]
        np.testing.assert_array_equal(batch["a"], rows["a"])
        np.testing.assert_array_equal(batch["next", "observation"], seen[1:])
        assert batch["b"].shape == (20, 0) and batch["z"].shape == (20, 3, 0)
