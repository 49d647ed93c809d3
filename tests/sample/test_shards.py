"""Batches over several tapes: as likely as from one, whatever the shards hold."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import (
    ChunkSampler,
    FifoSampler,
    LazyTensorStorage,
    LifoSampler,
    NothingEligibleError,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    WindowSampler,
)
from contig.replay.shards import ShardReader, read_shards
from contig.sample import Rng, Sampler
from contig.sample.shards import MOST_SHARDS, SEQ_BITS, base_of, decode, split
from tests.sample.elsewhere import Elsewhere


def rows(shard: int, trajectory: int, steps: int, version: int = 0) -> dict[str, Any]:
    at = shard * 100_000 + trajectory * 100 + np.arange(steps)
    done = np.zeros(steps, np.bool_)
    done[-1] = True
    return {"at": at, "next": {"reward": at.astype(np.float64), "done": done}}


class Shards:
    """Tapes of this process, and readers of them."""

    def __init__(self, sampler: Sampler, lengths: list[list[int]], seed: int = 1) -> None:
        self.sampler, self.rng = sampler, Rng(seed)
        self.storages = [LazyTensorStorage(10_000) for _ in lengths]
        self.lengths: list[list[int]] = [[] for _ in lengths]
        for shard, steps in enumerate(lengths):
            for n in steps:
                self.write(shard, n)
        self.readers = [
            ShardReader(s, copy.deepcopy(sampler), i) for i, s in enumerate(self.storages)
        ]

    def write(self, shard: int, steps: int, version: int = 0) -> None:
        data = rows(shard, len(self.lengths[shard]), steps)
        writer = self.storages[shard].default_writer
        writer.extend_trajectory(data, terminated=True, policy_version=version)
        self.lengths[shard].append(steps)

    def sample(self, size: int) -> Any:
        request = self.sampler.request(size)
        return read_shards(self.sampler, self.rng, self.readers, request, self.lost)

    def lost(self, source: Any) -> None:
        raise AssertionError("no shard is lost here")


def chi_square(counts: Counter[Any], expected: dict[Any, float]) -> float:
    """Compared with its mean and deviation: more than 5 of those is no chance."""
    assert set(counts) <= set(expected)
    total, mass = sum(counts.values()), sum(expected.values())
    chi = 0.0
    for key, weight in expected.items():
        want = weight / mass * total
        assert want > 5
        chi += (counts[key] - want) ** 2 / want
    freedom = len(expected) - 1
    return float((chi - freedom) / np.sqrt(2 * freedom))


UNEQUAL = [[3, 9, 20], [40], [1, 2], [7] * 10]


def test_uniform_over_unequal_shards() -> None:
    shards = Shards(RandomSampler(), UNEQUAL)
    counts = Counter[int]()
    for _ in range(400):
        batch = shards.sample(64)
        assert len(batch) == 64
        number, seq = decode(batch["index"])
        assert np.array_equal(number, batch["at"] // 100_000)
        counts.update(batch["at"].tolist())
        assert (seq < 100).all()
    every = {
        int(at): 1.0
        for shard, lengths in enumerate(UNEQUAL)
        for t, n in enumerate(lengths)
        for at in rows(shard, t, n)["at"]
    }
    assert chi_square(counts, every) < 5


def test_uniform_while_shards_grow() -> None:
    """Each draw is uniform over what there is at its moment: chances add up over the draws."""
    shards = Shards(RandomSampler(), [[10], [10], []])
    counts, expected = Counter[int](), Counter[int]()
    for turn in range(600):
        if turn % 20 == 0:
            shards.write((turn // 20) % 3, 1 + turn % 13)
        total = sum(map(sum, shards.lengths))
        for shard, lengths in enumerate(shards.lengths):
            expected[shard] += 32 * sum(lengths) / total  # type: ignore[assignment]
        counts.update((shards.sample(32)["at"] // 100_000).tolist())
    assert chi_square(counts, dict(expected)) < 5


@pytest.mark.parametrize("over", ["trajectories", "steps"])
@pytest.mark.parametrize("strict", [False, True])
def test_slices(over: str, strict: bool) -> None:
    """Whole slices, and starts as likely as the definition says."""
    shards = Shards(SliceSampler(slice_len=4, over=over, strict_length=strict), UNEQUAL)
    counts = Counter[int]()
    for _ in range(400):
        batch = shards.sample(64)
        starts = np.flatnonzero(batch["is_init"])
        counts.update(batch["at"][starts].tolist())
        for piece in np.split(batch["at"], starts[1:]):
            assert (np.diff(piece) == 1).all()
        assert batch["next", "done"][np.r_[starts[1:] - 1, len(batch) - 1]].all()
    expected: dict[int, float] = {}
    for shard, lengths in enumerate(UNEQUAL):
        for t, n in enumerate(lengths):
            if strict and n < 4:
                continue
            valid = rows(shard, t, n)["at"][: max(n - 4, 0) + 1]
            for at in valid:
                expected[int(at)] = 1.0 if over == "steps" else 1.0 / len(valid)
    assert chi_square(counts, expected) < 5


def prioritized(shards: Shards) -> dict[int, float]:
    """Gives every row its own priority; q of each."""
    q: dict[int, float] = {}
    for shard, (reader, lengths) in enumerate(zip(shards.readers, shards.lengths)):
        at = np.concatenate([rows(shard, t, n)["at"] for t, n in enumerate(lengths)])
        p = 1.0 + at % 100 % 7 + 2 * shard
        shards.sampler.note_priority(p)
        reader.update_priority(np.arange(len(at)), p)
        q.update(zip(at.tolist(), ((p + 1e-8) ** 0.6).tolist()))
    return q


def test_priorities() -> None:
    """In proportion over all, with weights for the smallest of all."""
    shards = Shards(PrioritizedSampler(), UNEQUAL)
    q = prioritized(shards)
    counts = Counter[int]()
    for _ in range(400):
        batch = shards.sample(64)
        counts.update(batch["at"].tolist())
        want = [(q[at] / min(q.values())) ** -0.4 for at in batch["at"]]
        assert np.allclose(batch["priority_weight"], want, rtol=1e-5)
    assert chi_square(counts, q) < 5
    assert isinstance(shards.sampler, PrioritizedSampler)
    shards.sampler.beta = 1.0  # the user's sampler; copies draw
    batch = shards.sample(64)
    want = [min(q.values()) / q[at] for at in batch["at"]]
    assert np.allclose(batch["priority_weight"], want, rtol=1e-5)
    shards.write(2, 5)  # new rows get the largest priority of any shard
    q.update(dict.fromkeys(rows(2, 2, 5)["at"].tolist(), (1.0 + 6 + 6 + 1e-8) ** 0.6))
    counts = Counter()
    for _ in range(400):
        counts.update(shards.sample(64)["at"].tolist())
    assert chi_square(counts, q) < 5


def test_prioritized_slices() -> None:
    shards = Shards(PrioritizedSliceSampler(slice_len=4, strict_length=True), UNEQUAL)
    q = prioritized(shards)
    counts = Counter[int]()
    for _ in range(400):
        batch = shards.sample(64).reshape(-1, 4)
        counts.update(batch["at"][:, 0].tolist())
        assert (np.diff(batch["at"], axis=1) == 1).all()
        want = [(q[at] / min(q.values())) ** -0.4 for at in batch["at"][:, 0]]
        assert np.allclose(batch["priority_weight"][:, 0], want, rtol=1e-5)
    expected = {
        int(at): q[int(at)]
        for shard, lengths in enumerate(UNEQUAL)
        for t, n in enumerate(lengths)
        for at in rows(shard, t, n)["at"][: max(n - 3, 0)]
    }
    assert chi_square(counts, expected) < 5


@pytest.mark.parametrize("drop_last", [False, True])
def test_without_replacement(drop_last: bool) -> None:
    """Each row once per epoch over all shards; an epoch's batches are uniform parts of it."""
    shards = Shards(SamplerWithoutReplacement(drop_last), UNEQUAL)
    total = sum(map(sum, UNEQUAL))
    first = Counter[int]()
    for _ in range(300):
        seen = Counter[int]()
        sizes = [64] * (total // 64) + ([] if drop_last else [total % 64])
        for i, size in enumerate(sizes):
            batch = shards.sample(64)
            assert len(batch) == size
            seen.update(batch["at"].tolist())
            if i == 0:
                first.update((batch["at"] // 100_000).tolist())
        assert set(seen.values()) == {1} and len(seen) == (total // 64 * 64 if drop_last else total)
    assert chi_square(first, {i: float(sum(n)) for i, n in enumerate(UNEQUAL)}) < 5


def test_evicted_within_an_epoch() -> None:
    """Rows that are evicted are left out; the others still come once."""
    shards = Shards(SamplerWithoutReplacement(), [[50], [60], [70]])
    seen = Counter[int](shards.sample(32)["at"].tolist())
    shards.storages[1].empty()
    shards.lengths[1].clear()
    while (batch := shards.sample(32)) is not None:
        new = Counter[int](batch["at"].tolist())
        if set(new) & set(seen):
            break
        seen.update(new)
    assert {at for at in seen if at // 100_000 != 1} == {
        int(at) for shard, n in ((0, 50), (2, 70)) for at in rows(shard, 0, n)["at"]
    }


def test_slices_without_replacement() -> None:
    shards = Shards(SliceSamplerWithoutReplacement(slice_len=4), UNEQUAL)
    number = sum(map(len, UNEQUAL))
    for _ in range(50):
        seen = Counter[int]()
        left = number
        while left > 0:
            batch = shards.sample(16)  # of four slices
            starts = batch["at"][batch["is_init"]]
            seen.update((starts // 100).tolist())
            left -= len(starts)
        assert set(seen.values()) == {1} and len(seen) == number


def test_retired_rows() -> None:
    shards = Shards(RandomSampler(max_times_sampled=2), UNEQUAL)
    counts = Counter[int]()
    with pytest.raises(NothingEligibleError, match="has been sampled 2 times"):
        for _ in range(100):
            counts.update(shards.sample(64)["at"].tolist())
    assert set(counts.values()) == {2} and len(counts) == sum(map(sum, UNEQUAL))


def test_windows() -> None:
    """The newest rows and trajectories are equally many of each shard; versions are of all."""
    shards = Shards(WindowSampler(last_rows=30), UNEQUAL)
    seen = {int(at) for _ in range(60) for at in shards.sample(64)["at"]}
    counts = Counter(at // 100_000 for at in seen)
    assert sum(counts.values()) == 30 and counts[2] == 3  # all it has
    assert max(counts[0], counts[1], counts[3]) == 9
    shards = Shards(WindowSampler(SliceSampler(slice_len=2), last_trajectories=6), UNEQUAL)
    seen = {int(at) // 100 for _ in range(60) for at in shards.sample(64)["at"]}
    there = Counter(t // 1000 for t in seen)
    assert sum(there.values()) == 6 and there[1] == 1 and max(there.values()) == 2
    shards = Shards(WindowSampler(max_staleness=1), [[5], [5]])
    shards.write(0, 5, version=7)
    shards.write(1, 5, version=6)
    shards.write(1, 5, version=5)
    seen = {int(at) // 100 for _ in range(60) for at in shards.sample(64)["at"]}
    assert seen == {1, 1001}


def test_n_steps() -> None:
    shards = Shards(NStepSampler(3, 0.5), UNEQUAL)
    for _ in range(50):
        batch = shards.sample(64)
        at, k = batch["at"], batch["steps_to_next_obs"]
        want = sum(np.where(i < k, 0.5**i * (at + i), 0) for i in range(3))
        assert np.allclose(batch["next", "reward"], want)


def test_chunks() -> None:
    shards = Shards(ChunkSampler(3, keys=("at",)), UNEQUAL)
    lasts: dict[int, int] = {}
    for _ in range(50):
        batch = shards.sample(64)
        at, real = batch["at"], batch["collector", "chunk_mask"]
        k = real.sum(1, keepdims=True)
        want = at[:, :1] + np.minimum(np.arange(3), k - 1)
        assert np.array_equal(at, want) and np.array_equal(real, np.arange(3) < k)
        lasts.update((int(a), int(n)) for a, n in zip(at[:, 0], k[:, 0]))
    ends = {a for a, n in lasts.items() if n == 1}
    assert ends == {a for a in lasts if a + 1 not in lasts}
    shards.sampler.chunk = 2  # type: ignore[attr-defined]
    assert shards.sample(8)["at"].shape == (8, 2)


@pytest.mark.parametrize("sampler", [FifoSampler(), LifoSampler()], ids=["fifo", "lifo"])
def test_no_order_between_shards(sampler: Sampler) -> None:
    with pytest.raises(TypeError, match="in the order of writing"):
        Shards(sampler, [[5], [5]]).sample(4)


SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "random": RandomSampler,
    "once": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=4),
    "slices-once": lambda: SliceSamplerWithoutReplacement(slice_len=4),
    "prioritized": PrioritizedSampler,
    "prioritized-slices": lambda: PrioritizedSliceSampler(slice_len=4),
    "window": lambda: WindowSampler(last_rows=40),
    "n-step": lambda: NStepSampler(3, 0.9),
    "chunks": lambda: ChunkSampler(3, keys=(("next", "reward"),)),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_here_or_elsewhere(kind: str) -> None:
    """The same seed gives the same rows, wherever shards are; and after going back."""
    here, there = (Shards(SAMPLERS[kind](), UNEQUAL, seed=9) for _ in range(2))
    there.readers = [Elsewhere(r) if i % 2 else r for i, r in enumerate(there.readers)]  # type: ignore[misc]
    for turn in range(1, 20):
        request = here.sampler.request(32)
        one = read_shards(here.sampler, here.rng, here.readers, request, here.lost, turn)
        two = read_shards(there.sampler, there.rng, there.readers, request, there.lost, turn)
        assert np.array_equal(np.sort(one["index"]), np.sort(two["index"]))
        if turn == 10:
            state, again = here.rng.state(), []
        if turn > 10:
            again.append(one["index"].copy())
    here.rng.load(state)
    for reader in here.readers:
        reader.rewind(11)
    for index in again:
        assert np.array_equal(here.sample(32)["index"], index)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_lost_shards(kind: str) -> None:
    """Batches are made of what is left."""
    shards = Shards(SAMPLERS[kind](), UNEQUAL, seed=9)
    far = [Elsewhere(r) for r in shards.readers]
    lost: list[Any] = []
    request = shards.sampler.request(16)

    def sample() -> Any:
        alive = [f for f in far if f not in lost]
        return read_shards(shards.sampler, shards.rng, alive, request, lost.append)

    assert len(sample()) > 0
    far[1].dead = True
    while not lost:
        assert not (sample()["index"] >> SEQ_BITS == 1).any()
    assert lost == [far[1]] and not (sample()["at"] // 100_000 == 1).any()


@given(number=st.integers(0, MOST_SHARDS - 1), seqs=st.lists(st.integers(0, 2**47 - 1), min_size=1))
def test_index_says_shard_and_row(number: int, seqs: list[int]) -> None:
    index = np.array(seqs, np.int64) + base_of(number)
    found, back = decode(index)
    assert (index >= 0).all() and (found == number).all() and back.tolist() == seqs


def test_no_number_left() -> None:
    with pytest.raises(OverflowError, match="65536"):
        base_of(MOST_SHARDS)


@settings(deadline=None)
@given(
    masses=st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any),
    share=st.floats(0, 1),
    once=st.booleans(),
    real=st.booleans(),
    seed=st.integers(0, 99),
)
def test_split(masses: list[int], share: float, once: bool, real: bool, seed: int) -> None:
    n = max(int(sum(masses) * share), 1) if once else 40
    weights = [m / 3 for m in masses] if real and not once else masses
    shares = split(Rng(seed), weights, n, once)
    assert sum(shares) == n and min(shares) >= 0
    assert all(s <= m if once else m or not s for s, m in zip(shares, masses))


def test_split_in_proportion() -> None:
    for masses, once in (([1, 2, 3], False), ([0.1, 0.2, 0.3], False), ([10, 20, 30], True)):
        rng, counts = Rng(3), np.zeros(3)
        for _ in range(2000):
            counts += split(rng, masses, 12, once)
        assert chi_square(Counter(dict(enumerate(counts))), {0: 1, 1: 2, 2: 3}) < 5


def test_many_ranks_and_a_window() -> None:
    """A rank's rows are found at once, however few they are."""
    sampler = WindowSampler(SamplerWithoutReplacement(), last_trajectories=8)
    sampler.divide(5, 32)
    shards = Shards(sampler, [[90] * 5, [80] * 6])
    seen = np.concatenate([shards.sample(8)["index"] for _ in range(2)])
    assert len(np.unique(seen)) == 16 and (decode(seen)[1] % 32 == 5).all()


def test_ranks_share_an_epoch() -> None:
    for make in (SamplerWithoutReplacement, lambda: SliceSamplerWithoutReplacement(slice_len=40)):
        seen: list[set[int]] = []
        for rank in range(3):
            sampler = make()
            sampler.divide(rank, 3)
            shards = Shards(sampler, UNEQUAL)
            found: set[int] = set()
            while True:
                batch = shards.sample(80)
                new = set((batch["at"]).tolist())
                if new & found:
                    break
                found |= new
            seen.append(found)
        assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
        assert len(set().union(*seen)) == sum(map(sum, UNEQUAL))
