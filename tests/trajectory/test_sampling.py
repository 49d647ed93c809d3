"""What comes out: uniform over the window, whole rows, own random numbers, masks, staleness."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from contig import (
    ClosedError,
    EmptyBufferError,
    LayoutError,
    NothingEligibleError,
    ShapeDtype,
    Trajectory,
    TrajectoryReplayBuffer,
)
from tests.trajectory.made import check, drawn, filled, made


@pytest.fixture(params=["memory", "disk"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "memory":
        return {}
    return {"auto_save": True, "auto_save_path": tmp_path / "rows"}


def test_shapes_and_kinds(where: dict[str, Any]) -> None:
    with filled(3, **where) as buffer:
        batch = buffer.sample(11)
        assert type(batch["actions"]) is torch.Tensor and batch["actions"].shape == (11, 3)
        assert batch["curr_obs"]["deep"]["t"].shape == (11, 1)
        assert sorted(batch) == ["actions", "curr_obs", "dones", "prev_values", "rewards"]
        assert batch["curr_obs", "states"].shape == (11, 3)
        check(batch, 11)


def test_more_chunks_than_samples_are_drawn_with_replacement(where: dict[str, Any]) -> None:
    with filled(1, 2, 1, **where) as buffer:
        assert len(check(buffer.sample(500), 500)) == 500


@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=12),
    window=st.integers(0, 5),
    seed=st.integers(0, 3),
)
def test_only_the_window(sizes: list[tuple[int, int]], window: int, seed: int) -> None:
    buffer = TrajectoryReplayBuffer(seed, sample_window_size=window, output="numpy")
    for number, (steps, envs) in enumerate(sizes):
        buffer.add_trajectories([made(number, steps, envs)])
        who = check(buffer.sample(64), 64)
        oldest = max(number + 1 - window, 0) if window else 0
        assert set(who[:, 0]) <= set(range(oldest, number + 1))
        for name, t, b in who.astype(int):
            assert t < sizes[name][0] and b < sizes[name][1]
    kept = sizes[-window:] if window else sizes
    assert buffer.size == len(buffer) == len(kept)
    assert buffer.total_samples == sum(t * b for t, b in kept)
    assert buffer.trajectory_counter == len(sizes)


@pytest.mark.parametrize("stale", [None, 1])
def test_uniform_over_the_samples_of_the_window(where: dict[str, Any], stale: int | None) -> None:
    sizes = [(30, 2), (1, 1), (7, 3), (2, 8), (50, 1), (3, 3), (4, 1)]
    with TrajectoryReplayBuffer(5, sample_window_size=5, max_staleness=stale, **where) as buffer:
        for number, (steps, envs) in enumerate(sizes):
            buffer.add_trajectories([made(number, steps, envs, weights=str(number // 2))])
        used = [n for n in range(2, 7) if stale is None or n // 2 >= 6 // 2 - stale]
        cells = [(n, t, b) for n in used for t in range(sizes[n][0]) for b in range(sizes[n][1])]
        counts = dict.fromkeys(cells, 0)
        for _ in range(20):
            for row in check(buffer.sample(2000)).astype(int).tolist():
                counts[tuple(row)] += 1
        assert len(counts) == len(cells)
        assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_own_random_numbers(where: dict[str, Any]) -> None:
    before = (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state())  # type: ignore[index]
    buffer = filled(3, **where)
    first = drawn(buffer)
    after = (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state())  # type: ignore[index]
    assert before[:2] == after[:2] and torch.equal(before[2], after[2])
    buffer.close()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert drawn(filled(3)) == first
    assert drawn(filled(3, seed=7)) != first
    assert drawn(filled(3, seed=None)) != drawn(filled(3, seed=None))


def test_adding_and_sampling_in_turn_is_the_same_in_memory_and_on_disk(tmp_path: Path) -> None:
    disk = {"auto_save": True, "auto_save_path": tmp_path / "rows"}
    with filled(0, sample_window_size=3) as memory, filled(0, sample_window_size=3, **disk) as rows:
        for number in range(12):
            trajectory = made(number, 1 + number % 5, 2)
            memory.add_trajectories([trajectory])
            rows.add_trajectories([trajectory])
            assert drawn(memory) == drawn(rows)


def test_memory_is_that_of_the_window() -> None:
    buffer = TrajectoryReplayBuffer(sample_window_size=4)
    for number in range(60):
        buffer.add_trajectories([made(number, 64, 32)])
    assert buffer._rows.storage.capacity == 5 * 64 * 32
    assert buffer.size == 4 and buffer.trajectory_counter == 60
    assert buffer.is_ready(60) and not buffer.is_ready(61)


def test_memory_grows_with_longer_trajectories() -> None:
    buffer = TrajectoryReplayBuffer(sample_window_size=3)
    for number in range(12):
        buffer.add_trajectories([made(number, 2**number, 2)])
        who = check(buffer.sample(256))
        assert set(who[:, 0]) <= {number, number - 1, number - 2}
    seen = {int(n) for _ in range(20) for n in check(buffer.sample(500))[:, 0]}
    assert seen == {9, 10, 11}


def test_nothing_there(where: dict[str, Any]) -> None:
    buffer = TrajectoryReplayBuffer(**where)
    assert (buffer.size, buffer.total_samples, buffer.trajectory_counter) == (0, 0, 0)
    assert buffer.is_ready(0) and not buffer.is_ready(1)
    with pytest.raises(EmptyBufferError, match="no trajectory has been added"):
        buffer.sample(1)
    assert buffer.add_trajectories([]) == []
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="num_chunks: expected .*, at least 1"):
            buffer.sample(wrong)
    buffer.close()
    buffer.close()
    for call in (lambda: buffer.sample(1), lambda: buffer.add_trajectories([]), buffer.clear):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"auto_save": True}, "needs auto_save_path"),
        ({"trajectory_format": "npz"}, "pt or pkl"),
        ({"output": "jax"}, "torch or numpy"),
        ({"sample_window_size": -1}, "sample_window_size: expected .*, at least 0"),
        ({"max_staleness": -1}, "max_staleness: expected .*, at least 0"),
        ({"prefetch": -1}, "prefetch: expected .*, at least 0"),
        ({"cache_size": 0}, "max_size: expected .*, at least 1"),
        ({"demo_ratio": 1.5}, "demo_ratio must be between 0 and 1"),
    ],
)
def test_refused_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TrajectoryReplayBuffer(**options)


def test_index_and_stats(where: dict[str, Any]) -> None:
    with filled(0, sample_window_size=1, **where) as buffer:
        assert buffer.add_trajectories([made(0, 4, 2), made(1, 3, 5, weights="v")]) == [0, 1]
        entry = buffer.trajectory_index[-1]
        assert list(entry) == [
            "uuid", "trajectory_id", "num_samples", "shape", "max_episode_length",
            "model_weights_id",
        ]  # fmt: skip
        assert len(entry.pop("uuid")) == 36
        assert entry == {
            "trajectory_id": 1,
            "num_samples": 15,
            "shape": [3, 5, 1],
            "max_episode_length": 11,
            "model_weights_id": "v",
        }
        assert len({e["uuid"] for e in buffer.trajectory_index}) == len(buffer)
        known = buffer.get_stats()
        assert known["num_trajectories"] == len(buffer) == (2 if where else 1)
        assert known["total_samples"] == buffer.total_samples == (23 if where else 15)
        assert (known["window_trajectories"], known["window_samples"]) == (1, 15)
        assert known["damaged_trajectories"] == 0


def test_the_statistics_count_the_trajectories_in_the_cache(where: dict[str, Any]) -> None:
    with TrajectoryReplayBuffer(cache_size=3, **where) as buffer:
        counted = []
        for number in range(5):
            buffer.add_trajectories([made(number)])
            counted.append(buffer.get_stats()["cache_size"])
        assert counted == [1, 2, 3, 3, 3]
        assert [number for number, _ in buffer.cache.items()] == [2, 3, 4]
        for number in range(5):  # from the cache, and into it
            read = Trajectory(**buffer.read_trajectory(number))
            assert torch.equal(read.actions, made(number).actions)
            assert read.max_episode_length == made(number).max_episode_length
            assert buffer.get_stats()["cache_size"] == 3
        buffer.clear()
        assert buffer.get_stats()["cache_size"] == 0
    with TrajectoryReplayBuffer(enable_cache=False, **where) as buffer:
        buffer.add_trajectories([made(0)])
        assert buffer.get_stats()["cache_size"] == 0


def test_the_cache_has_no_trajectory_that_was_evicted() -> None:
    with filled(6, sample_window_size=2) as buffer:
        assert buffer.get_stats()["cache_size"] == len(buffer) == 2


def test_cached_rows_are_their_own_while_others_are_staged(where: dict[str, Any]) -> None:
    """Memory of staged copies is used again, but never while a cached trajectory is in it."""
    with TrajectoryReplayBuffer(cache_size=2, **where) as buffer:
        for number in range(12):
            buffer.add_trajectories([made(number)])
            for cached in range(max(0, number - 1), number + 1):
                read = Trajectory(**buffer.read_trajectory(cached))
                assert torch.equal(read.actions, made(cached).actions)
        assert len(buffer._rows._blocks._free) > 0


def test_clear(where: dict[str, Any]) -> None:
    with filled(3, **where) as buffer:
        buffer.read_trajectory(1)
        buffer.clear()
        assert (buffer.size, buffer.total_samples, buffer.trajectory_counter) == (0, 0, 0)
        assert buffer.trajectory_index == [] and not buffer.is_ready(1)
        with pytest.raises(EmptyBufferError):
            buffer.sample(1)
        assert buffer.add_trajectories([made(9)]) == [0]
        assert set(check(buffer.sample(8))[:, 0]) == {9}


def test_read_trajectory(where: dict[str, Any]) -> None:
    with filled(2, cache_size=1, **where) as buffer:
        read = Trajectory(**buffer.read_trajectory(1))
        assert torch.equal(read.actions, made(1).actions) and read.max_episode_length == 11
        assert buffer.get_stats()["cache_size"] == 1
        read.actions[:] = -1  # what was read belongs to the caller
        again = buffer.read_trajectory(1)
        assert torch.equal(again["actions"], made(1).actions)
        with pytest.raises(KeyError, match="no trajectory 2"):
            buffer.read_trajectory(2)


def test_refused_trajectories_change_nothing(where: dict[str, Any]) -> None:
    with filled(2, **where) as buffer:
        before = buffer.trajectory_index
        other = made(2)
        other.rewards = other.rewards.expand(-1, -1, 2)
        wrong: list[Any] = [{"rewards": np.zeros((2, 2, 1))}, made(2, next_obs={"x": 1}), other]
        for one in wrong:
            for many in ([one], [made(2), one], [made(2), made(3), one]):
                with pytest.raises(ValueError):
                    buffer.add_trajectories(many)
                assert buffer.trajectory_index == before and buffer.trajectory_counter == 2
        buffer.add_trajectories([made(2)])
        assert set(check(buffer.sample(200))[:, 0]) == {0, 1, 2}


def test_a_refused_first_one_fixes_nothing(where: dict[str, Any]) -> None:
    buffer = TrajectoryReplayBuffer(optional=["versions"], **where)
    with pytest.raises(LayoutError, match='"versions" is not in the first trajectory'):
        buffer.add_trajectories([made(0)])
    buffer.add_trajectories([{"rewards": np.zeros((2, 2, 5)), "versions": np.zeros((2, 2))}])
    assert buffer.sample(3)["rewards"].shape == (3, 5)
    buffer.close()


def test_values_are_kept_or_refused(where: dict[str, Any]) -> None:
    with TrajectoryReplayBuffer(**where) as buffer:
        buffer.add_trajectories(
            [{"rewards": np.zeros((1, 2), np.float32), "n": np.ones((1, 2), np.int8)}]
        )
        buffer.add_trajectories([{"rewards": np.full((1, 2), 0.5), "n": np.full((1, 2), 3.0)}])
        with pytest.raises(ValueError, match=r'"trajectory", "n".*3.5'):
            buffer.add_trajectories([{"rewards": np.zeros((1, 2)), "n": np.full((1, 2), 3.5)}])
        batch = buffer.sample(50)
        assert batch["n"].dtype == torch.int8 and batch["rewards"].dtype == torch.float32
        assert set(zip(batch["rewards"].tolist(), batch["n"].tolist())) == {(0.0, 1), (0.5, 3)}


def test_bfloat16_and_names_that_mark_rows_elsewhere(where: dict[str, Any]) -> None:
    values = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2)
    flags = torch.ones(3, 2, dtype=torch.bool)
    fields = {"rewards": values, "done": flags, "episode": values, "next": {"done": flags}}
    with TrajectoryReplayBuffer(**where) as buffer:
        buffer.add_trajectories([fields, fields])
        batch = buffer.sample(30)
        assert sorted(batch) == ["done", "episode", "next", "rewards"] and len(buffer) == 2
        assert batch["rewards"].dtype == torch.bfloat16
        assert set(batch["rewards"].tolist()) <= set(range(6))


# -- optional fields ----------------------------------------------------------------------------


def test_optional_fields_are_masked(where: dict[str, Any]) -> None:
    optional = {
        "prev_logprobs": ShapeDtype((3,), np.float32),
        ("curr_obs", "wrist"): ShapeDtype((2, 2), np.uint8),
        "forward_inputs": {"a": ShapeDtype((), np.int64), "b": ShapeDtype((1,), np.float32)},
    }
    with TrajectoryReplayBuffer(optional=optional, **where) as buffer:
        for number in range(8):
            more: dict[str, Any] = {}
            if number & 1:
                more["prev_logprobs"] = torch.full((4, 2, 3), float(number))
            if number & 4:
                more["forward_inputs"] = {
                    "a": torch.full((4, 2), number),
                    "b": torch.full((4, 2, 1), float(number)),
                }
            trajectory = made(number, **more)
            if number & 2:
                trajectory.curr_obs["wrist"] = torch.full((4, 2, 2, 2), number, dtype=torch.uint8)
            buffer.add_trajectories([trajectory])
        batch = buffer.sample(500)
        number = check(batch)[:, 0].astype(int)
        mask = batch["mask"]
        assert sorted(mask) == ["curr_obs", "forward_inputs", "prev_logprobs"]
        found = (mask["prev_logprobs"], mask["curr_obs"]["wrist"], mask["forward_inputs"])
        for bit, given in zip((1, 2, 4), found):
            assert given.dtype == torch.bool
            assert np.array_equal(given.numpy(), (number & bit) != 0)
        for bit, values in (
            (1, batch["prev_logprobs"][:, 0]),
            (2, batch["curr_obs"]["wrist"][:, 1, 1]),
            (4, batch["forward_inputs"]["a"]),
            (4, batch["forward_inputs"]["b"][:, 0]),
        ):
            assert np.array_equal(values.numpy(), np.where(number & bit, number, 0))
        assert "prev_logprobs" not in buffer.read_trajectory(2)
        assert "prev_logprobs" in buffer.read_trajectory(3)


def test_optional_by_name_takes_its_form_from_the_first(where: dict[str, Any]) -> None:
    versions = torch.ones(4, 2, 1)
    with TrajectoryReplayBuffer(optional=["versions"], **where) as buffer:
        buffer.add_trajectories([made(0, versions=versions), made(1)])
        batch = buffer.sample(100)
        number = check(batch)[:, 0]
        assert np.array_equal(batch["mask"]["versions"].numpy(), number == 0)
        assert np.array_equal(batch["versions"][:, 0].numpy(), number == 0)


def test_what_is_not_optional_must_be_there(where: dict[str, Any]) -> None:
    with filled(1, **where) as buffer:
        with pytest.raises(LayoutError, match=r'"versions".*optional=\{"versions"'):
            buffer.add_trajectories([made(1, versions=torch.ones(4, 2))])
        lacking = made(1)
        lacking.dones = None
        with pytest.raises(LayoutError, match=r'"dones": missing.*optional=\["dones"\]'):
            buffer.add_trajectories([lacking])


def test_optional_declarations() -> None:
    with pytest.raises(TypeError, match="expected a list of fields"):
        TrajectoryReplayBuffer(optional="versions")
    with pytest.raises(ValueError, match="is part of"):
        TrajectoryReplayBuffer(optional=["curr_obs", ("curr_obs", "x")])
    both = {"curr_obs": {"a": ShapeDtype((), np.int64), "b": ShapeDtype((), np.int64)}}
    buffer = TrajectoryReplayBuffer(optional=both)
    one = {"rewards": np.zeros((1, 1)), "curr_obs": {"a": np.zeros((1, 1), int)}}
    with pytest.raises(LayoutError, match="given whole or not at all"):
        buffer.add_trajectories([one])
    with pytest.raises(LayoutError, match='a field named "mask"'):
        buffer.add_trajectories([{"rewards": np.zeros((1, 1)), "mask": np.zeros((1, 1))}])


# -- staleness ----------------------------------------------------------------------------------


def test_staleness_counts_weights_in_the_order_of_their_coming(where: dict[str, Any]) -> None:
    with TrajectoryReplayBuffer(max_staleness=1, **where) as buffer:
        for number, weights in enumerate(["a", "b", "a", "b", "c", "a", "b"]):
            buffer.add_trajectories([made(number, weights=weights)])
        assert set(check(buffer.sample(300))[:, 0]) == {1, 3, 4, 6}  # "a" is two behind "c"
        assert buffer.get_stats()["window_trajectories"] == 4
        buffer.add_trajectories([made(7, weights="d")])
        assert set(check(buffer.sample(300))[:, 0]) == {4, 7}


def test_all_too_stale() -> None:
    buffer = TrajectoryReplayBuffer(max_staleness=0, sample_window_size=1)
    buffer.add_trajectories([made(0, weights="a"), made(1, weights="b"), made(2, weights="a")])
    with pytest.raises(NothingEligibleError, match="within max_staleness=0"):
        buffer.sample(1)
