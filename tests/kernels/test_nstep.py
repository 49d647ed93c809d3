"""Folding rows into n-step transitions, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import (
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    WindowSampler,
    _native,
)
from contig.tape import FoldedSteps, Recipe
from tests.reference import nstep

REWARDS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16")
FLAGS = ("?", "u1", "i4", "f4", "f8")


@st.composite
def rows(draw: Any) -> dict[str, Any]:
    n = draw(st.integers(1, 40))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    dtype = np.dtype(draw(st.sampled_from(REWARDS)))
    reward = rng.integers(0, 2 if dtype.kind == "b" else 100, (n, *shape)).astype(dtype)
    if dtype.kind in "fc":
        reward = (reward * dtype.type(0.37) - dtype.type(9)).astype(dtype)
    tree: dict[str, Any] = {
        "uid": np.arange(n),
        "flags": rng.random((n, 3)) < 0.5,
        "next": {"uid": np.arange(n) + 1000, "reward": reward},
    }
    flag = draw(st.sampled_from([None, *FLAGS]))
    if flag is not None:
        of = draw(st.sampled_from([(), (1,), (2,)]))  # the last: flags of agents, which end nothing
        done = rng.random((n, *of)) < 0.2
        tree["next"]["done"] = np.where(done, 1, -0.0 if flag[0] == "f" else 0).astype(flag)
    return tree


@settings(deadline=None, max_examples=150)
@given(rows(), st.integers(1, 12), st.sampled_from([0.0, 0.5, 0.97, 1.0]), st.integers(0, 2**31))
def test_folds_as_the_reference(tree: Any, n: int, gamma: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = len(tree["uid"])
    storage = LazyTensorStorage(count + 3)
    storage.default_writer.extend(tree)
    starts = rng.integers(0, count, rng.integers(1, 20))
    lengths = np.minimum(rng.integers(1, n + 1, len(starts)), count - starts)
    flat = np.concatenate([np.arange(s, s + k) for s, k in zip(starts, lengths)])
    recipe = Recipe(tuple(gamma ** np.arange(n)))
    batch, lost = storage.gather(starts, (), FoldedSteps(flat, lengths, recipe))
    assert not lost
    reward, done = tree["next"]["reward"], tree["next"].get("done")
    if done is not None and done.shape[1:] not in ((), (1,)):
        done = None
    last, steps, sums = nstep.fold(
        reward[flat], None if done is None else done[flat], lengths, gamma
    )
    assert batch["uid"].tolist() == starts.tolist()
    np.testing.assert_array_equal(batch["flags"], tree["flags"][starts])
    assert batch["next", "uid"].tolist() == (flat[last] + 1000).tolist()
    if "done" in tree["next"]:
        np.testing.assert_array_equal(batch["next", "done"], tree["next"]["done"][flat[last]])
    assert batch["steps_to_next_obs"].tolist() == steps.tolist()
    got = batch["next", "reward"]
    kept = np.dtype(np.float32) if reward.dtype.kind in "biu" else reward.dtype
    assert got.dtype == kept and got.shape == (len(starts), *reward.shape[1:])
    np.testing.assert_array_equal(got, sums.astype(kept))


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.123])
def test_every_half_float_is_read_and_rounded_as_numpy_does(gamma: float) -> None:
    values = np.arange(65536, dtype=np.uint16).view(np.float16)
    values = values[np.isfinite(values)]
    pairs = np.stack([values, np.roll(values, 777)], 1).reshape(-1)
    storage = LazyTensorStorage(len(pairs))
    storage.default_writer.extend({"next": {"reward": pairs}})
    starts = np.arange(0, len(pairs), 2)
    lengths = np.full(len(starts), 2)
    steps = FoldedSteps(np.arange(len(pairs)), lengths, Recipe((1.0, gamma)))
    batch, _ = storage.gather(starts, (), steps)
    wide = pairs.astype(np.float64).reshape(-1, 2)
    with np.errstate(over="ignore"):
        expected = (wide[:, 0] + wide[:, 1] * gamma).astype(np.float16)
    got = batch["next", "reward"]
    # -0 + 0 is 0 here and there; bits say which numbers they are.
    assert (got.view(np.uint16) == expected.view(np.uint16)).all()


SAMPLERS = {
    "uniform": RandomSampler,
    "epochs": SamplerWithoutReplacement,
    "priorities": PrioritizedSampler,
    "window": lambda: WindowSampler(last_rows=15),
    "window of priorities": lambda: WindowSampler(
        sampler=PrioritizedSampler(), last_trajectories=3
    ),
    "retiring": lambda: RandomSampler(max_times_sampled=40),
}


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(SAMPLERS)),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 9)), max_size=25),
    st.integers(1, 5),
    st.integers(8, 60),
)
def test_follows_trajectories_however_they_were_written(
    inner: str, writes: list[tuple[int, int, int]], n: int, capacity: int
) -> None:
    """Steps of three envs, pieces of one trajectory, and rows of a second writer between them."""
    storage = LazyTensorStorage(capacity)
    writers = [storage.writer() for _ in range(3)]
    where: dict[int, tuple[int, int]] = {}  # seq -> (trajectory, step)
    ends: dict[int, int] = {}  # trajectory -> steps, once it is over
    now = [0] * 6  # steps of the open trajectory of each lane; lanes 0-2 are envs
    open_ids, fresh = list(range(6)), 6

    def row(lane: int, done: bool) -> dict[str, Any]:
        nonlocal fresh
        key = (open_ids[lane], now[lane])
        now[lane] += 1
        if done:
            ends[open_ids[lane]] = now[lane]
            open_ids[lane], now[lane], fresh = fresh, 0, fresh + 1
        uid = np.array(key)
        reward = np.float32(key[0] * 100 + key[1])
        return {"uid": uid, "next": {"uid": uid + 1, "reward": reward, "done": done}}

    def write(call: Any, made: list[dict[str, Any]]) -> None:
        tree = {
            "uid": np.stack([r["uid"] for r in made]),
            "next": {k: np.stack([r["next"][k] for r in made]) for k in made[0]["next"]},
        }
        seqs = call(tree)
        for r, seq in zip(made[len(made) - len(seqs) :], seqs.tolist()):
            where[seq] = (int(r["uid"][0]), int(r["uid"][1]))

    for kind, many, mark in [(0, 1, 9), *writes]:
        if kind < 2:
            for i in range(many):
                write(writers[0].add_step, [row(e, (i + e + mark) % 7 == 0) for e in range(3)])
        else:
            lane = kind + 1
            made = [row(lane, mark == 3 and i == many - 1) for i in range(many)]
            write(writers[kind - 1].extend, made)
    buffer = ReplayBuffer(storage, NStepSampler(n, 0.5, SAMPLERS[inner]()), seed=0)
    head, tail, _, _ = storage.tape.snapshot()
    for _ in range(2):
        batch = buffer.sample(16)
        assert len(batch) >= 1
        for i, seq in enumerate(batch["index"].tolist()):
            assert tail <= seq < head
            traj, at = where[seq]
            stored = {t for s, (j, t) in where.items() if j == traj and s >= tail}
            k = 1
            while k < n and at + k in stored:
                k += 1
            assert batch["uid"][i].tolist() == [traj, at]
            assert batch["steps_to_next_obs"][i] == k, (seq, traj, at)
            assert batch["next", "uid"][i].tolist() == [traj + 1, at + k]
            expected = sum(0.5**j * (traj * 100 + at + j) for j in range(k))
            assert batch["next", "reward"][i] == np.float32(expected)
            assert batch["next", "done"][i] == (ends.get(traj) == at + k)


def test_more_steps_than_there_are_and_other_ones_later() -> None:
    storage = LazyTensorStorage(10)
    storage.default_writer.extend({"next": {"reward": np.arange(5, dtype=np.float32)}})
    sampler = NStepSampler(100_000, 1.0)
    buffer = ReplayBuffer(storage, sampler, batch_size=50, seed=0)
    for n, gamma in ((100_000, 1.0), (2, 1.0), (3, 0.5)):
        sampler.n, sampler.gamma = n, gamma
        batch = buffer.sample()
        k = np.minimum(n, 5 - batch["index"])
        assert batch["steps_to_next_obs"].tolist() == k.tolist()
        for i, at in enumerate(batch["index"].tolist()):
            expected = sum(gamma**j * (at + j) for j in range(k[i]))
            assert batch["next", "reward"][i] == expected


def test_misuse_is_an_error_and_no_crash() -> None:
    storage = LazyTensorStorage(10)
    storage.default_writer.extend({"next": {"reward": np.zeros(5, np.float32)}})
    one = np.zeros(1, np.int64)
    recipe = Recipe((1.0, 0.5))
    for rows_, lengths in (([0, 1, 2], [3]), ([0], [0]), ([0, 1], [1]), ([0], [1, 1])):
        with pytest.raises(ValueError):
            storage.gather(
                one, (), FoldedSteps(np.array(rows_, np.int64), np.array(lengths, np.int64), recipe)
            )
    wide = storage.schema.folded(storage.tape, (), recipe)
    with pytest.raises(ValueError):
        wide.gatherer.gather(one)
    plain = storage.schema.wide(storage.tape, ())
    with pytest.raises(ValueError):
        plain.gatherer.gather_folded(one, one, one + 1)
    assert not _native.can_fold("f", 1) and not _native.can_fold("V", 2)
