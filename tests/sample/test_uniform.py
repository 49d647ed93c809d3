"""RandomSampler and SamplerWithoutReplacement draw what they say, in every state of the ring."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

import contig
from contig import NothingEligibleError, RandomSampler, ReplayBuffer, SamplerWithoutReplacement
from contig.sample import Draw, Index, Request, Rng
from contig.testing import World
from tests.sample.drawing import SCENES, draw, plain, uniform

scenes = pytest.mark.parametrize("scene", SCENES)


def world_of(rows: int, capacity: int = 1000) -> World:
    world = World(contig.LazyTensorStorage(capacity))
    world.extend(rows)
    return world


# -- with replacement -----------------------------------------------------------------------------


@scenes
def test_rows_are_uniform(scene: str) -> None:
    world = SCENES[scene]()
    found = draw(world, RandomSampler(), 20_000)
    uniform(found.seqs.tolist(), world.stored())


@scenes
def test_rows_of_a_batch_are_independent(scene: str) -> None:
    world = SCENES[scene]()
    rows = sorted(world.stored())[:10]
    seqs = draw(world, RandomSampler(), 60_000).seqs.tolist()
    pairs = [p for p in itertools.pairwise(seqs) if p[0] in rows and p[1] in rows]
    uniform(pairs, itertools.product(rows, rows))


def test_small_batches_are_as_uniform_as_large_ones() -> None:
    world = plain()
    index, rng, sampler = Index(world.storage), Rng(5), RandomSampler()
    seqs: list[int] = []
    for _ in range(5000):
        index.refresh()
        found = sampler.draw(index, rng, Request(3))
        assert found is not None
        seqs += found.seqs.tolist()
    uniform(seqs, world.stored())


def test_uniform_while_the_ring_turns() -> None:
    # Position in the ring, not the row, is what stays: every one must come alike.
    world = world_of(17, capacity=17)
    index, rng, sampler = Index(world.storage), Rng(2), RandomSampler()
    places: list[int] = []
    for _ in range(400):
        world.extend(1)
        index.refresh()
        found = sampler.draw(index, rng, Request(20))
        assert found is not None
        places += (found.seqs - index.tail).tolist()
    uniform(places, range(17))


# -- each row only so many times ------------------------------------------------------------------


@scenes
@pytest.mark.parametrize("times", [1, 3])
def test_retiring_rows_come_exactly_so_many_times(scene: str, times: int) -> None:
    world = SCENES[scene]()
    buffer = ReplayBuffer(world.storage, RandomSampler(times), batch_size=7, seed=1)
    counts: Counter[int] = Counter()
    with pytest.raises(NothingEligibleError, match=f"sampled {times} times"):
        while True:
            counts.update(buffer.sample()["index"].tolist())
    assert counts == dict.fromkeys(world.stored(), times)


def test_retiring_rows_are_uniform_among_those_left() -> None:
    world = plain()
    index = Index(world.storage)
    index.refresh()
    first, second = [], []
    for seed in range(1500):
        sampler, rng = RandomSampler(1), Rng(seed)
        a = sampler.draw(index, rng, Request(1))
        b = sampler.draw(index, rng, Request(1))
        assert a is not None and b is not None
        first.append(int(a.seqs[0]))
        second.append(int(b.seqs[0]))
        assert first[-1] != second[-1]
    uniform(first, world.stored())
    uniform(second, world.stored())


def test_one_batch_does_not_take_a_row_too_often() -> None:
    world = world_of(5)
    found = draw(world, RandomSampler(2), 100)
    assert Counter(found.seqs.tolist()) == dict.fromkeys(range(5), 2)


def test_new_rows_in_the_place_of_retired_ones_are_fresh() -> None:
    world = world_of(8, capacity=8)
    buffer = ReplayBuffer(world.storage, RandomSampler(1), batch_size=8, seed=0)
    assert sorted(buffer.sample()["index"].tolist()) == list(range(8))
    world.extend(3)
    assert sorted(buffer.sample()["index"].tolist()) == [8, 9, 10]
    world.extend(20)
    assert sorted(buffer.sample()["index"].tolist()) == sorted(world.stored())


def test_max_times_sampled_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="max_times_sampled"):
        RandomSampler(0)


# -- without replacement --------------------------------------------------------------------------


def epochs(world: World, n: int, batch: int, sampler: SamplerWithoutReplacement) -> list[Draw]:
    index, rng = Index(world.storage), Rng(0)
    index.refresh()
    out = []
    for _ in range(n):
        found = sampler.draw(index, rng, Request(batch))
        assert found is not None
        out.append(found)
    return out


@scenes
def test_each_row_once_per_epoch(scene: str) -> None:
    world = SCENES[scene]()
    rows = len(world.stored())
    batches = epochs(world, 300, 4, SamplerWithoutReplacement())
    seqs = np.concatenate([b.seqs for b in batches]).tolist()
    for at in range(0, len(seqs) - rows, rows):
        assert sorted(seqs[at : at + rows]) == sorted(world.stored())


@scenes
def test_every_place_of_an_epoch_is_uniform(scene: str) -> None:
    world = SCENES[scene]()
    rows = sorted(world.stored())
    drawn = epochs(world, 2000, len(rows), SamplerWithoutReplacement())
    places = np.array([b.seqs for b in drawn])
    for place in (0, 1, len(rows) // 2, len(rows) - 1):
        uniform(places[:, place].tolist(), rows)


def test_every_permutation_comes_alike() -> None:
    world = world_of(5)
    orders = [tuple(b.seqs.tolist()) for b in epochs(world, 6000, 5, SamplerWithoutReplacement())]
    uniform(orders, itertools.permutations(range(5)))


@pytest.mark.parametrize("rows", [8, 16, 20])
def test_rows_that_follow_each_other_in_an_epoch_are_uniform(rows: int) -> None:
    drawn = epochs(world_of(rows), 25_000, rows, SamplerWithoutReplacement())
    pairs = [tuple(b.seqs[:2].tolist()) for b in drawn]
    uniform(pairs, itertools.permutations(range(rows), 2))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16, 17, 64, 65, 100])
def test_permutation_of_any_size(rows: int) -> None:
    world = world_of(rows)
    for found in epochs(world, 5, rows, SamplerWithoutReplacement()):
        assert sorted(found.seqs.tolist()) == list(range(rows))


def test_last_batch_of_an_epoch_is_shorter() -> None:
    sizes = [len(b.seqs) for b in epochs(world_of(10), 9, 4, SamplerWithoutReplacement())]
    assert sizes == [4, 4, 2] * 3


def test_drop_last_leaves_the_short_batch_out() -> None:
    batches = epochs(world_of(10), 6, 4, SamplerWithoutReplacement(drop_last=True))
    assert [len(b.seqs) for b in batches] == [4] * 6
    for first, second in zip(batches[::2], batches[1::2]):
        assert len(set(first.seqs.tolist()) | set(second.seqs.tolist())) == 8


def test_rows_left_out_by_drop_last_are_uniform() -> None:
    left_out = []
    batches = epochs(world_of(10), 6000, 3, SamplerWithoutReplacement(drop_last=True))
    for at in range(0, 6000, 3):
        seen = {s for b in batches[at : at + 3] for s in b.seqs.tolist()}
        left_out += list(set(range(10)) - seen)
    uniform(left_out, range(10))


def test_drop_last_needs_one_whole_batch() -> None:
    world = world_of(10)
    sampler = SamplerWithoutReplacement(drop_last=True)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=11)
    with pytest.raises(NothingEligibleError, match="drop_last"):
        buffer.sample()


def test_epoch_is_what_was_there_when_it_began() -> None:
    world = world_of(10)
    buffer = ReplayBuffer(world.storage, SamplerWithoutReplacement(), batch_size=5, seed=0)
    first = buffer.sample()["index"].tolist()
    world.extend(10)
    assert sorted(first + buffer.sample()["index"].tolist()) == list(range(10))
    later = [s for _ in range(4) for s in buffer.sample()["index"].tolist()]
    assert sorted(later) == list(range(20))


def test_rows_evicted_within_an_epoch_are_left_out_of_it() -> None:
    world = world_of(20, capacity=20)
    buffer = ReplayBuffer(world.storage, SamplerWithoutReplacement(), batch_size=5, seed=0)
    first = buffer.sample()["index"].tolist()
    world.extend(6)  # evicts rows 0 to 5
    rest: list[int] = []
    while True:
        seqs = buffer.sample()["index"].tolist()
        if max(seqs) >= 20 or set(seqs) & set(first + rest):
            break
        rest += seqs
    assert sorted(rest) == sorted(set(range(6, 20)) - set(first))


@pytest.mark.parametrize("evict", [1, 6, 12, 19])
def test_drop_last_gives_whole_batches_also_over_evictions(evict: int) -> None:
    world = world_of(20, capacity=20)
    sampler = SamplerWithoutReplacement(drop_last=True)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=5, seed=0)
    buffer.sample()
    world.extend(evict)
    assert [len(buffer.sample()) for _ in range(8)] == [5] * 8
