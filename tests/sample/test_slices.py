"""Slice samplers: where slices start, how long they are, and that they never leave a trajectory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import contig
from contig import (
    NothingEligibleError,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from contig.sample import Draw, Index, Request, Rng
from contig.testing import World, episode
from contig.testing.world import lengths_of
from tests.sample.drawing import (
    SCENES,
    agrees,
    draw,
    linked,
    per_step,
    per_trajectory,
    plain,
    seam,
    slice_starts,
    starts_of,
    uniform,
)

scenes = pytest.mark.parametrize("scene", SCENES)
overs = pytest.mark.parametrize("over", ["trajectories", "steps"])


def weights(over: str, starts: dict[int, list[int]]) -> dict[int, float]:
    return per_trajectory(starts) if over == "trajectories" else per_step(starts)


# -- starts ---------------------------------------------------------------------------------------


@scenes
@overs
@pytest.mark.parametrize("length", [1, 3, 5])
def test_starts(scene: str, over: str, length: int) -> None:
    world = SCENES[scene]()
    found = draw(world, SliceSampler(slice_len=length, over=over), 8000, length)
    world.check(found, Request(8000, length), length)
    agrees(starts_of(found).tolist(), weights(over, slice_starts(world, length)))
    # Each is as long as it can be.
    whole = {n: len(seqs) for n, seqs in world.episodes().items()}
    for group in world.groups(found):
        assert len(group) == min(length, whole[group[0][0]])


@scenes
@overs
def test_starts_strict(scene: str, over: str) -> None:
    world = SCENES[scene]()
    sampler = SliceSampler(slice_len=4, over=over, strict_length=True)
    found = draw(world, sampler, 8000, 4)
    agrees(starts_of(found).tolist(), weights(over, slice_starts(world, 4, strict=True)))
    assert set(lengths_of(found)) == {4}


@scenes
@overs
def test_starts_complete_only(scene: str, over: str) -> None:
    world = SCENES[scene]()
    sampler = SliceSampler(slice_len=3, over=over, complete_only=True)
    found = draw(world, sampler, 8000, 3)
    starts = slice_starts(world, 3, complete=True)
    assert 0 < len(starts) < len(world.episodes())
    agrees(starts_of(found).tolist(), weights(over, starts))


@overs
def test_starts_when_nearly_nothing_is_eligible(over: str) -> None:
    # Rejection gives up; the exact pass must have the same distribution.
    world = World(contig.LazyTensorStorage(3000))
    world.extend(9)
    for _ in range(900):
        world.extend(2)
    world.extend(12)
    sampler = SliceSampler(slice_len=7, over=over, strict_length=True)
    found = draw(world, sampler, 4000, 7)
    agrees(starts_of(found).tolist(), weights(over, slice_starts(world, 7, strict=True)))


@overs
def test_few_and_many_eligible_are_drawn_alike(over: str) -> None:
    # Some draws of this batch succeed by rejection, others by the exact pass.
    world = World(contig.LazyTensorStorage(3000))
    for k in range(300):
        world.extend(8 if k % 60 == 0 else 2)
    sampler = SliceSampler(slice_len=5, over=over, strict_length=True)
    found = draw(world, sampler, 4000, 5)
    agrees(starts_of(found).tolist(), weights(over, slice_starts(world, 5, strict=True)))


def test_uniform_over_trajectories_while_the_ring_turns() -> None:
    world = World(contig.LazyTensorStorage(24))
    sampler, rng, index = (
        SliceSampler(slice_len=2, strict_length=True),
        Rng(3),
        Index(world.storage),
    )
    ranks = []
    for _ in range(500):
        world.extend(4)
        if len(world.stored()) < 24:
            continue
        index.refresh()
        found = sampler.draw(index, rng, Request(6, 2))
        assert found is not None
        newest = max(world.ended)
        ranks += [newest - g[0][0] for g in world.groups(found)]
    uniform(ranks, range(6))


# -- what a slice is ------------------------------------------------------------------------------


def test_strict_with_nothing_long_enough_says_so() -> None:
    world = seam()
    sampler = SliceSampler(slice_len=5, strict_length=True)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=10)
    with pytest.raises(NothingEligibleError, match="longest with 4 steps"):
        buffer.sample()


def test_reference_of_the_seam() -> None:
    world = seam()
    assert world.episodes() == {2: [4, 5, 6, 7], 3: [8, 9, 10, 11], 4: [12, 13]}
    found = draw(world, SliceSampler(slice_len=4), 600, 4)
    seen = {tuple(g) for g in world.groups(found)}
    assert seen == {
        tuple((2, t) for t in range(4)),
        tuple((3, t) for t in range(4)),
        tuple((4, t) for t in range(2)),
    }


@scenes
@pytest.mark.parametrize("span", [(0, 2), (2, 0), (1, 2), 3, True])
def test_span_over_steps(scene: str, span: Any) -> None:
    # A slice of 4 laid anywhere, also over an edge; what lies outside is cut off.
    world = SCENES[scene]()
    length = 4
    left, right = span if isinstance(span, tuple) else (span, span)
    left, right = (length - 1 if x is True else x for x in (left, right))
    expected: Counter[tuple[int, int]] = Counter()
    for seqs in world.episodes().values():
        for at in range(-left, len(seqs) - length + right + 1):
            if len(seqs) >= length:
                rows = seqs[max(at, 0) : at + length]
                expected[rows[0], len(rows)] += 1
    sampler = SliceSampler(slice_len=length, over="steps", strict_length=True, span=span)
    found = draw(world, sampler, 10_000, length)
    world.check(found, Request(10_000, length), length)
    agrees(zip(starts_of(found).tolist(), lengths_of(found)), dict(expected))
    assert min(lengths_of(found)) == max(length - max(left, right), 1)


def test_span_over_trajectories() -> None:
    world = linked()
    expected: Counter[tuple[int, int]] = Counter()
    long = [seqs for seqs in world.episodes().values() if len(seqs) >= 4]
    for seqs in long:
        places = range(-1, len(seqs) - 4 + 1 + 1)
        for at in places:
            rows = seqs[max(at, 0) : at + 4]
            expected[rows[0], len(rows)] += 1 / len(places)  # type: ignore[assignment]
    sampler = SliceSampler(slice_len=4, strict_length=True, span=1)
    found = draw(world, sampler, 10_000, 4)
    agrees(zip(starts_of(found).tolist(), lengths_of(found)), dict(expected))


@overs
@pytest.mark.parametrize("span", [1, 2, (0, 2)])
def test_span_keeps_slice_len_minus_span_rows(over: str, span: Any) -> None:
    # Of an episode that is shorter than slice_len, too: as far as it has rows at all.
    world = plain()
    found = draw(world, SliceSampler(slice_len=5, over=over, span=span), 4000, 5)
    most = max(span) if isinstance(span, tuple) else span
    whole = {n: len(seqs) for n, seqs in world.episodes().items()}
    for group in world.groups(found):
        assert len(group) >= min(5 - most, whole[group[0][0]])


@scenes
@overs
def test_burn_in(scene: str, over: str) -> None:
    world = SCENES[scene]()
    length, burn = 3, 2
    found = draw(world, SliceSampler(slice_len=length, burn_in=burn, over=over), 8000, length)
    flag = found.columns["collector", "burn_in"]
    starts, at = [], 0
    episodes = world.episodes()
    for group in world.groups(found):
        warm = int(flag[at : at + len(group)].sum())
        assert flag[at : at + len(group)].tolist() == [True] * warm + [False] * (len(group) - warm)
        seqs = episodes[group[0][0]]
        start = int(found.seqs[at + warm])
        # As many rows before the slice as there are, up to two.
        assert warm == min(burn, seqs.index(start))
        assert len(group) - warm == min(length, len(seqs))
        starts.append(start)
        at += len(group)
    agrees(starts, weights(over, slice_starts(world, length)))


@scenes
def test_marks_of_slices(scene: str) -> None:
    world = SCENES[scene]()
    buffer = ReplayBuffer(world.storage, SliceSampler(slice_len=3, burn_in=1), batch_size=600)
    batch = buffer.sample()
    steps = [world.step_at[s] for s in batch["index"].tolist()]
    first = np.array([a != (b[0], b[1] + 1) for a, b in zip(steps, [(-1, 0), *steps])])
    last = np.r_[first[1:], True]
    assert not np.any(~batch["is_init"] & first)
    newest = {seqs[-1] for seqs in world.episodes().values()}
    final = np.array([s in newest for s in batch["index"].tolist()])
    ended = np.array([world.ended[n] for n, _ in steps])
    terminated = final & (ended == "terminated")
    truncated = final & (ended == "truncated")
    # Where two slices of one episode happen to follow each other the cut is no visible step.
    cut = batch["collector", "slice_end"]
    assert not np.any(last & ~cut & ~terminated & ~truncated)
    np.testing.assert_array_equal(batch["next", "terminated"], terminated)
    np.testing.assert_array_equal(batch["next", "truncated"], truncated | cut)
    np.testing.assert_array_equal(batch["next", "done"], terminated | truncated | cut)


@pytest.mark.parametrize("truncated_key", [("next", "truncated"), None])
def test_padded_rows_mark_nothing(truncated_key: Any) -> None:
    storage = contig.LazyTensorStorage(50)
    for n in range(4):
        storage.writer().extend({**episode(n, 1), "is_init": np.array([True])})
    sampler = SliceSampler(slice_len=3, pad_output=True, truncated_key=truncated_key)
    batch = ReplayBuffer(storage, sampler, batch_size=12).sample()
    assert batch["collector", "mask"].tolist() == [True, False, False] * 4
    assert batch["is_init"].tolist() == [True, False, False] * 4
    if truncated_key is not None:
        assert batch["next", "terminated"].tolist() == [True, False, False] * 4
        assert not batch["next", "truncated"].any()


def test_mask_is_there_also_when_nothing_was_padded() -> None:
    world = World(contig.LazyTensorStorage(50))
    world.extend(20)
    buffer = ReplayBuffer(world.storage, SliceSampler(slice_len=4, pad_output=True), batch_size=12)
    batch = buffer.sample()
    assert batch["collector", "mask"].tolist() == [True] * 12


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_slices": 0},
        {"slice_len": 0},
        {"slice_len": 3, "over": "rows"},
        {"slice_len": 3, "pad_output": True, "strict_length": True},
        {"slice_len": 3, "burn_in": -1},
        {"slice_len": 3, "traj_key": "a", "trajectory_key": "b"},
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        SliceSampler(**arguments)


def test_data_without_marks_is_refused_with_what_was_looked_for() -> None:
    buffer = ReplayBuffer(contig.LazyTensorStorage(20), SliceSampler(slice_len=2), batch_size=4)
    buffer.extend({"x": np.arange(6.0)})
    with pytest.raises(NothingEligibleError, match="traj_ids.*episode.*done"):
        buffer.sample()


# -- without replacement --------------------------------------------------------------------------


def epochs(
    world: World, n: int, sampler: SliceSamplerWithoutReplacement, groups: int
) -> list[Draw]:
    index, rng = Index(world.storage), Rng(0)
    index.refresh()
    out = []
    for _ in range(n):
        found = sampler.draw(index, rng, Request(groups, 3))
        assert found is not None
        out.append(found)
    return out


@scenes
def test_each_trajectory_once_per_epoch(scene: str) -> None:
    world = SCENES[scene]()
    numbers = list(world.episodes())
    drawn = epochs(world, 600, SliceSamplerWithoutReplacement(slice_len=3), 2)
    order = [g[0][0] for found in drawn for g in world.groups(found)]
    for at in range(0, len(order) - len(numbers), len(numbers)):
        assert sorted(order[at : at + len(numbers)]) == numbers


@scenes
def test_order_and_starts_of_epochs_are_uniform(scene: str) -> None:
    world = SCENES[scene]()
    numbers = list(world.episodes())
    drawn = epochs(world, 2500, SliceSamplerWithoutReplacement(slice_len=3), len(numbers))
    orders = [[g[0][0] for g in world.groups(found)] for found in drawn]
    for place in (0, len(numbers) // 2, len(numbers) - 1):
        uniform([o[place] for o in orders], numbers)
    starts = [s for found in drawn for s in starts_of(found).tolist()]
    agrees(starts, per_trajectory(slice_starts(world, 3)))


def test_drop_last_of_trajectories() -> None:
    world = World(contig.LazyTensorStorage(100))
    for _ in range(7):
        world.extend(4)
    short = epochs(world, 6, SliceSamplerWithoutReplacement(slice_len=3), 3)
    assert [d.groups for d in short] == [3, 3, 1] * 2
    whole = epochs(world, 6, SliceSamplerWithoutReplacement(slice_len=3, drop_last=True), 3)
    assert [d.groups for d in whole] == [3] * 6
    for a, b in zip(whole[::2], whole[1::2]):
        both = [g[0][0] for d in (a, b) for g in world.groups(d)]
        assert len(set(both)) == 6


def test_trajectories_evicted_within_an_epoch_are_left_out_of_it() -> None:
    world = World(contig.LazyTensorStorage(32))
    for _ in range(8):
        world.extend(4)
    sampler = SliceSamplerWithoutReplacement(slice_len=4, complete_only=True)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=8, seed=1)
    seen = [world.step_at[s][0] for s in buffer.sample()["index"].tolist()[::4]]
    for _ in range(3):
        world.extend(4)  # evicts 1, 2 and 3
    while True:
        batch = [world.step_at[s][0] for s in buffer.sample()["index"].tolist()[::4]]
        if max(batch) > 8 or set(batch) & set(seen):
            break
        seen += batch
    assert set(range(4, 9)) <= set(seen) and len(set(seen)) == len(seen)


def test_over_steps_has_no_meaning_without_replacement() -> None:
    with pytest.raises(ValueError, match="once"):
        SliceSamplerWithoutReplacement(slice_len=3, over="steps")
