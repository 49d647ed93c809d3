"""The Collector: every stored trajectory is what the environment emitted, in order, once."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import Collector, LazyTensorStorage, ReplayBuffer, SerialEnv, SliceSampler, StepCounter
from tests.collect.envs import (
    Steps,
    check_storage,
    check_trajectory,
    make_steps,
    plan,
    split,
    steps_of,
)

ENVS: dict[str, Any] = {
    "one": lambda n: Steps(),
    "wrapped": lambda n: StepCounter(Steps()),  # not on the short road
    "serial": lambda n: SerialEnv(n, make_steps),
    "next": lambda n: _vector(n, "NEXT_STEP"),
    "same": lambda n: _vector(n, "SAME_STEP"),
    "disabled": lambda n: _vector(n, "DISABLED"),
}


def _vector(n: int, mode: str) -> Any:
    return gym.vector.SyncVectorEnv(
        [make_steps] * n, autoreset_mode=getattr(gym.vector.AutoresetMode, mode)
    )


def lanes_of(kind: str, n: int) -> int:
    return 1 if kind in ("one", "wrapped") else n


options = st.fixed_dictionaries(
    {
        "trajs_per_batch": st.none() | st.integers(1, 4),
        "set_truncated": st.booleans(),
        "reset_at_each_iter": st.booleans(),
        "max_frames_per_traj": st.none() | st.integers(1, 5),
        "init_random_frames": st.sampled_from([0, 5]),
    }
)


@given(
    kind=st.sampled_from(sorted(ENVS)),
    n=st.integers(1, 3),
    rows=st.integers(1, 9),
    total=st.integers(1, 60),
    ndim=st.integers(1, 3),
    seed=st.integers(0, 1000),
    options=options,
)
def test_a_buffer_holds_what_the_environment_emitted(
    kind: str, n: int, rows: int, total: int, ndim: int, seed: int, options: Any
) -> None:
    lanes = lanes_of(kind, n)
    buffer = ReplayBuffer(
        LazyTensorStorage(1000, ndim=ndim), SliceSampler(slice_len=3), batch_size=12, seed=0
    )
    collector = Collector(
        ENVS[kind](n),
        frames_per_batch=rows * lanes,
        total_frames=total,
        replay_buffer=buffer,
        seed=seed,
        **options,
    )
    assert set(collector) <= {None}
    assert collector.frames == total
    cuts = options["set_truncated"]
    found = check_storage(buffer.storage, anywhere=cuts)
    stored = sum(len(x) for x in found)
    whole = options["trajs_per_batch"] is not None
    assert stored + (collector.dropped_frames if whole else 0) == total
    if whole:
        assert all(x["next", "done"][-1] for x in found)
    if options["max_frames_per_traj"] is not None:
        assert all(len(x) <= options["max_frames_per_traj"] for x in found)
    every = sorted(s for x in found for s in steps_of(x))
    assert {s[0] for s in every} <= set(range(seed, seed + lanes))
    if not whole:
        for lane in range(lanes):
            mine = [s for s in every if s[0] == seed + lane]
            assert len(mine) == total // lanes + (lane < total % lanes)
            # Nothing is left out: each episode from 0, and the next one after it. A reset of all
            # lanes at the end of a batch may leave an episode without a step.
            if mine and not options["reset_at_each_iter"]:
                assert sorted({s[1] for s in mine}) == list(range(mine[-1][1] + 1))
    if stored:
        sample = buffer.sample()
        for piece in _slices(sample):
            steps = steps_of(piece)
            assert [s[2] for s in steps] == list(range(steps[0][2], steps[0][2] + len(steps)))
            assert len({s[:2] for s in steps}) == 1
    collector.shutdown()


def _slices(batch: Any) -> list[Any]:
    ends = np.flatnonzero(batch["collector", "slice_end"] | batch["next", "done"]) + 1
    edges = [0, *ends.tolist()]
    return [batch[a:b] for a, b in itertools.pairwise(edges) if b > a]


@given(
    kind=st.sampled_from(sorted(ENVS)),
    n=st.integers(1, 3),
    rows=st.integers(1, 9),
    total=st.integers(1, 60),
    seed=st.integers(0, 1000),
    options=options,
)
def test_batches_hold_what_the_environment_emitted(
    kind: str, n: int, rows: int, total: int, seed: int, options: Any
) -> None:
    lanes = lanes_of(kind, n)
    collector = Collector(
        ENVS[kind](n), frames_per_batch=rows * lanes, total_frames=total, seed=seed, **options
    )
    batches = list(collector)
    wanted = options["trajs_per_batch"]
    if wanted is not None:
        for batch in batches:
            pieces = split(batch)
            assert len(pieces) == wanted and len(batch.shape) == 1
            for piece in pieces:
                check_trajectory(piece, starts_anywhere=options["set_truncated"])
                assert piece["next", "done"][-1]
        kept = sum(len(b) for b in batches)
        assert kept + collector.dropped_frames == total
        return
    full, rest = divmod(total // lanes * lanes, rows * lanes)
    lengths = [rows] * full + ([rest // lanes] if rest else [])
    lead = () if kind in ("one", "wrapped") else (lanes,)
    assert [b.shape for b in batches] == [(*lead, t) for t in lengths]
    every = [s for b in batches for s in steps_of(b)]
    assert len(set(every)) == len(every)
    for batch in batches:
        last = batch["next", "done"][..., -1]
        if options["set_truncated"] or options["reset_at_each_iter"]:
            assert last.all()
        if options["reset_at_each_iter"]:
            assert batch["is_init"][..., 0].all()
    collector.shutdown()


@pytest.mark.parametrize("kind", ["one", "serial", "next"])
@pytest.mark.parametrize("trajs", [None, 2])
def test_pieces_cut_by_set_truncated_end_but_only_the_first_begins(kind: str, trajs: Any) -> None:
    """What the guide says of set_truncated with trajs_per_batch and with complete_only."""
    lanes = lanes_of(kind, 2)
    sampler = SliceSampler(slice_len=2, complete_only=True)
    buffer = ReplayBuffer(LazyTensorStorage(1000), sampler, batch_size=400, seed=0)
    collector = Collector(
        ENVS[kind](lanes),
        frames_per_batch=4 * lanes,
        total_frames=80 * lanes,
        replay_buffer=buffer,
        set_truncated=True,
        trajs_per_batch=trajs,
        seed=0,
    )
    list(collector)
    found = check_storage(buffer.storage, anywhere=True)
    episodes = buffer.storage.episodes()
    assert len(found) == len(episodes) and not episodes["complete"].all()
    for entry, piece in zip(episodes, found):
        assert bool(entry["complete"]) == bool(piece["is_init"][0])
    assert sum(len(x) for x in found) + collector.dropped_frames == 80 * lanes
    if trajs is None or kind != "next":
        assert not collector.dropped_frames  # nothing is left open; lanes ahead may be, at the end
    rows = {s: (x, i) for x in found for i, s in enumerate(steps_of(x))}
    cuts = 0
    for piece in found:
        env, episode, t = steps_of(piece)[-1]
        length, terminates = plan(env, episode, 6)
        assert piece["next", "done"][-1]
        assert bool(piece["next", "terminated"][-1]) == (terminates and t + 1 == length)
        if t + 1 < length:  # the episode goes on, in another trajectory, without a reset
            cuts += 1
            assert piece["next", "truncated"][-1]
            after, at = rows.get((env, episode, t + 1), (None, 0))
            if after is not None:
                assert at == 0 and not after["is_init"][0]
                assert after["collector", "traj_ids"][0] != piece["collector", "traj_ids"][0]
    assert cuts > 5
    drawn = {id(rows[s][0]): rows[s][0] for s in steps_of(buffer.sample())}.values()
    assert all(piece["is_init"][0] for piece in drawn)  # complete_only: no other piece
    assert any(plan(*steps_of(p)[-1][:2], 6)[0] != len(p) for p in drawn)  # cut ones, too


def test_the_policy_runs_while_actions_are_random() -> None:
    calls = []

    def policy(inputs: Any) -> Any:
        calls.append(len(inputs["is_init"]))
        return {"action": np.full(2, 4), "value": np.ones((2, 1), np.float32)}

    collector = Collector(
        SerialEnv(2, make_steps),
        policy,
        frames_per_batch=200,
        total_frames=200,
        init_random_frames=100,
        seed=0,
    )
    (batch,) = collector
    assert len(calls) == 100 and set(calls) == {2}
    assert set(batch["action"][:, :50].ravel()) == {0, 1, 2, 3, 4}
    assert (batch["action"][:, 50:] == 4).all() and (batch["value"] == 1).all()


@settings(max_examples=20)
@given(
    kind=st.sampled_from(sorted(ENVS)),
    n=st.integers(1, 3),
    rows=st.integers(1, 9),
    random=st.integers(0, 40),
)
def test_random_frames_are_exactly_as_many(kind: str, n: int, rows: int, random: int) -> None:
    def policy(inputs: Any) -> Any:
        return np.full(len(inputs["is_init"]), 9)  # which is never drawn

    lanes = lanes_of(kind, n)
    collector = Collector(
        ENVS[kind](n),
        policy,
        frames_per_batch=rows * lanes,
        total_frames=120,
        init_random_frames=random,
        replay_buffer=(buffer := ReplayBuffer(LazyTensorStorage(200))),
        seed=0,
    )
    list(collector)
    actions = buffer[:]["action"]
    assert len(actions) == 120 and np.count_nonzero(actions != 9) == random


def test_the_same_seed_gives_the_same_batches() -> None:
    for make in ENVS.values():
        runs = [list(Collector(make(2), frames_per_batch=30, total_frames=60, seed=9))]
        runs.append(list(Collector(make(2), frames_per_batch=30, total_frames=60, seed=9)))
        for one, other in zip(*runs):
            for key in one.layout.by_path:
                if key != ("collector", "traj_ids"):
                    np.testing.assert_array_equal(one[key], other[key])


def test_short_and_long_road_give_the_same_rows() -> None:
    fast, slow = (
        list(Collector(ENVS[k](1), frames_per_batch=13, total_frames=60, seed=4))
        for k in ("one", "wrapped")
    )
    for one, other in zip(fast, slow):
        for key in one.layout.by_path:
            if key != ("collector", "traj_ids"):
                np.testing.assert_array_equal(one[key], other[key])


def test_postproc_runs_before_write_and_hook_after() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(100), batch_size=4)
    seen: list[Any] = []

    def add(batch: Any) -> Any:
        return batch.with_leaves({"doubled": batch["next", "reward"] * 2})

    def hook(batch: Any) -> None:
        seen.append((len(buffer), batch.shape, "doubled" in batch))

    collector = Collector(
        Steps(),
        frames_per_batch=10,
        total_frames=30,
        replay_buffer=buffer,
        postproc=add,
        post_collect_hook=hook,
        seed=0,
    )
    assert list(collector) == [None] * 3
    assert seen == [(10, (10,), True), (20, (10,), True), (30, (10,), True)]
    rows = buffer[:]
    np.testing.assert_array_equal(rows["doubled"], rows["next", "reward"] * 2)
    yielded = list(Collector(Steps(), frames_per_batch=10, total_frames=10, postproc=add, seed=0))
    assert "doubled" in yielded[0]


def test_a_transform_of_the_buffer_sees_each_batch() -> None:
    buffer = ReplayBuffer(
        LazyTensorStorage(100), transform=lambda data: data.reshape(-1), batch_size=4
    )
    list(
        Collector(
            SerialEnv(2, make_steps),
            frames_per_batch=20,
            total_frames=40,
            replay_buffer=buffer,
            seed=0,
        )
    )
    check_storage(buffer.storage)


def test_split_trajectories_are_padded() -> None:
    with pytest.warns(UserWarning, match="SliceSampler"):
        collector = Collector(
            SerialEnv(2, make_steps), frames_per_batch=40, total_frames=40, split_trajs=True, seed=0
        )
    (batch,) = collector
    assert batch["mask"].sum() == 40
    for row in range(batch.shape[0]):
        piece = batch[row : row + 1].reshape(-1)
        check_trajectory(piece[np.flatnonzero(piece["mask"])])
        assert not piece["next", "done"][~piece["mask"]].any()


def test_refused_arguments() -> None:
    env = SerialEnv(2, make_steps)
    for wrong, message in (
        ({"frames_per_batch": 3}, "not a multiple of the 2 environments"),
        ({"frames_per_batch": 0}, "at least 1"),
        ({"frames_per_batch": 2, "total_frames": 0}, "total_frames"),
        ({"frames_per_batch": 2, "trajs_per_batch": 0}, "trajs_per_batch"),
        ({"frames_per_batch": 2, "max_frames_per_traj": 0}, "max_frames_per_traj"),
        ({"frames_per_batch": 2, "init_random_frames": -1}, "init_random_frames"),
    ):
        with pytest.raises(ValueError, match=message):
            Collector(env, **wrong)
    with pytest.raises(TypeError, match="replay_buffer"):
        Collector(env, frames_per_batch=2, replay_buffer=[])
    with pytest.raises(ValueError, match="replay_buffer"):
        Collector(env, frames_per_batch=2).start()


def test_started_in_a_thread_and_every_order_of_its_life() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(200), SliceSampler(slice_len=2), batch_size=8)
    collector = Collector(
        Steps(), frames_per_batch=50, replay_buffer=buffer, trajs_per_batch=2, seed=0
    )
    collector.pause()  # before start: it waits
    collector.start()
    collector.start()
    assert len(buffer) == 0
    collector.resume()
    buffer.sample()  # waits for the first rows
    collector.pause()
    rows = buffer.stats().rows_written
    collector.update_policy_weights_()  # no weights: nothing happens
    assert buffer.stats().rows_written == rows
    collector.pause()
    collector.resume()
    collector.resume()
    with pytest.raises(RuntimeError, match="was started"):
        next(iter(collector))
    collector.async_shutdown()
    collector.async_shutdown()
    collector.resume()
    collector.pause()
    for call in (collector.start, lambda: next(iter(collector))):
        with pytest.raises(RuntimeError, match="shut down"):
            call()
    found = check_storage(buffer.storage)
    assert all(x["next", "done"][-1] for x in found)


def test_a_failure_in_the_thread_is_raised_by_the_next_call() -> None:
    def broken(inputs: Any) -> Any:
        raise ZeroDivisionError("in the policy")

    for call in ("sample", "pause", "async_shutdown"):
        buffer = ReplayBuffer(LazyTensorStorage(100), batch_size=8)
        collector = Collector(Steps(), broken, frames_per_batch=10, replay_buffer=buffer)
        collector.start()
        collector._thread.join(60)  # type: ignore[union-attr]
        with pytest.raises(RuntimeError, match="in the policy"):
            getattr(buffer if call == "sample" else collector, call)()
        collector.async_shutdown()  # told once


@given(total=st.integers(1, 40), rows=st.integers(1, 12))
def test_exact_frame_counts(total: int, rows: int) -> None:
    collector = Collector(Steps(), frames_per_batch=rows, total_frames=total, seed=0)
    assert sum(len(b) for b in collector) == total == collector.frames
