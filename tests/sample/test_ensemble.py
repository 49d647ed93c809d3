"""ReplayBufferEnsemble: shares, probabilities, ids, priorities and slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats  # type: ignore[import-untyped]

import contig
from contig import (
    EmptyBufferError,
    LayoutError,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
)
from contig.testing import episode
from tests.sample.drawing import agrees


def member(number: int, sampler: Any = None, episodes: int = 5, **options: Any) -> ReplayBuffer:
    """A buffer with episodes 100 * number + 0 ... of 6 rows."""
    buffer = ReplayBuffer(
        contig.LazyTensorStorage(200), sampler or RandomSampler(), seed=number, **options
    )
    for k in range(episodes):
        buffer.extend(episode(100 * number + k, 6))
    return buffer


def owners(batch: Any) -> list[int]:
    """Whose rows these are, by their values."""
    return [int(n) // 100 for n in np.asarray(batch["observation"])[:, 0]]


def test_shares_of_all() -> None:
    ensemble = ReplayBufferEnsemble(*map(member, range(3)), sample_from_all=True, batch_size=12)
    batch = ensemble.sample()
    assert batch["buffer_ids"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert owners(batch) == batch["buffer_ids"].tolist()
    assert batch["buffer_ids"].dtype == np.int64
    assert batch.shape == (12,)


def test_shares_must_be_whole() -> None:
    members = [member(i) for i in range(3)]
    with pytest.raises(ValueError, match="not a multiple of 3"):
        ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=10)
    with pytest.raises(ValueError, match="not a multiple of 3"):
        ReplayBufferEnsemble(*members, sample_from_all=True).sample(10)


@pytest.mark.parametrize("p", [None, (1.0, 2.0, 7.0), (0.5, 0.0, 0.5)])
def test_members_by_probability(p: Any) -> None:
    ensemble = ReplayBufferEnsemble(*map(member, range(3)), p=p, batch_size=2000, seed=3)
    ids: list[int] = []
    for _ in range(4):
        batch = ensemble.sample()
        assert len(batch) == 2000
        assert owners(batch) == batch["buffer_ids"].tolist()
        assert sorted(owners(batch)) == owners(batch)
        ids += owners(batch)
    agrees(ids, dict(enumerate((1, 1, 1) if p is None else p)))


def test_rows_of_a_member_are_uniform() -> None:
    ensemble = ReplayBufferEnsemble(*map(member, range(2)), p=(1, 3), batch_size=9000, seed=1)
    batch = ensemble.sample()
    rows = list(zip(batch["buffer_ids"].tolist(), batch["index"].tolist()))
    agrees(rows, {(i, s): (1, 3)[i] for i in range(2) for s in range(30)})


def test_shares_vary_between_batches() -> None:
    ensemble = ReplayBufferEnsemble(*map(member, range(2)), batch_size=10, seed=0)
    counts = [int((ensemble.sample()["buffer_ids"] == 0).sum()) for _ in range(800)]
    binomial = scipy.stats.binom(10, 0.5).pmf
    expected = {k: float(binomial(k)) for k in range(2, 9)}
    agrees([c for c in counts if 2 <= c <= 8], expected)


def test_same_seeds_same_batches() -> None:
    def indices() -> list[Any]:
        ensemble = ReplayBufferEnsemble(*map(member, range(3)), batch_size=16, seed=5)
        batches = [ensemble.sample() for _ in range(5)]
        return [(b["buffer_ids"].tolist(), b["index"].tolist()) for b in batches]

    assert indices() == indices()


@pytest.mark.parametrize(
    "p", [(1.0,), (1.0, -1.0), (0.0, 0.0), (1.0, float("nan")), (1.0, float("inf"))]
)
def test_refused_probabilities(p: Any) -> None:
    with pytest.raises(ValueError, match="p: "):
        ReplayBufferEnsemble(member(0), member(1), p=p)


def test_refused_arguments() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ReplayBufferEnsemble()
    with pytest.raises(ValueError, match="sample_from_all"):
        ReplayBufferEnsemble(member(0), p=[1.0], sample_from_all=True)
    with pytest.raises(ValueError, match="batch size"):
        ReplayBufferEnsemble(member(0)).sample()


def test_members_of_different_layouts() -> None:
    other = ReplayBuffer(contig.LazyTensorStorage(10))
    other.extend({"x": np.arange(4.0)})
    ensemble = ReplayBufferEnsemble(member(0), other, sample_from_all=True, batch_size=4)
    with pytest.raises(LayoutError, match="different layouts"):
        ensemble.sample()


def test_empty_member() -> None:
    empty = member(1, episodes=0)
    both = ReplayBufferEnsemble(member(0), empty, sample_from_all=True, batch_size=4)
    with pytest.raises(EmptyBufferError):
        both.sample()
    # One that is never drawn from may be empty.
    one = ReplayBufferEnsemble(member(0), empty, p=(1.0, 0.0), batch_size=4)
    assert one.sample()["buffer_ids"].tolist() == [0] * 4


@pytest.mark.parametrize("from_all", [True, False])
def test_slices(from_all: bool) -> None:
    members = [member(i, SliceSampler(slice_len=3)) for i in range(2)]
    ensemble = ReplayBufferEnsemble(*members, sample_from_all=from_all, batch_size=24, seed=0)
    for _ in range(20):
        batch = ensemble.sample()
        assert len(batch) == 24
        assert owners(batch) == batch["buffer_ids"].tolist()
        steps = batch["observation"].reshape(8, 3, 2)
        assert (steps[:, 1:, 0] == steps[:, :-1, 0]).all()
        assert (steps[:, 1:, 1] == steps[:, :-1, 1] + 1).all()
        assert batch["is_init"].reshape(8, 3)[:, 0].all()
        assert batch["next", "done"].reshape(8, 3)[:, 2].all()


def test_slices_by_number() -> None:
    members = [member(i, SliceSampler(num_slices=4)) for i in range(2)]
    by_chance = ReplayBufferEnsemble(*members, batch_size=12, seed=0).sample()
    # 4 slices of 3 in the whole batch, whoever they come from.
    assert len(by_chance) == 12
    assert by_chance["is_init"].sum() == 4
    shares = ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=24, seed=0).sample()
    assert len(shares) == 24
    assert shares["is_init"].sum() == 8


def test_slices_of_different_lengths_need_all() -> None:
    members = [member(i, SliceSampler(slice_len=2 + i)) for i in range(2)]
    with pytest.raises(ValueError, match="sample_from_all"):
        ReplayBufferEnsemble(*members, batch_size=12).sample()
    batch = ReplayBufferEnsemble(*members, batch_size=12, sample_from_all=True).sample()
    assert batch["buffer_ids"].tolist() == [0] * 6 + [1] * 6


def test_priorities_go_to_their_member() -> None:
    members = [member(i, PrioritizedSampler(alpha=1.0, eps=0.0)) for i in range(3)]
    ensemble = ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=90, seed=0)
    ids = np.repeat([0, 1, 2], 30)
    index = np.tile(np.arange(30), 3)
    # Each member keeps one row, another one each.
    keep = (index == 10 * ids + 3).astype(float)
    order = np.random.default_rng(0).permutation(90)
    ensemble.update_priority(index[order], keep[order], ids[order])
    batch = ensemble.sample()
    assert set(zip(batch["buffer_ids"].tolist(), batch["index"].tolist())) == {
        (0, 3),
        (1, 13),
        (2, 23),
    }


def test_priorities_from_a_sample() -> None:
    members = [member(i, PrioritizedSampler(alpha=1.0, eps=0.0)) for i in range(2)]
    ensemble = ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=400, seed=0)
    batch = ensemble.sample()
    td_error = np.where(batch["index"] == 5, -2.0, 0.0)
    ensemble.update_tensordict_priority(batch.with_leaves({"td_error": td_error}))
    assert set(ensemble.sample()["index"].tolist()) == {5}


def test_priorities_that_do_not_fit_set_nothing() -> None:
    members = [member(i, PrioritizedSampler(alpha=1.0, eps=0.0)) for i in range(2)]
    ensemble = ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=600, seed=0)
    with pytest.raises(ValueError, match="2 priorities for 3 rows"):
        ensemble.update_priority([1, 2, 3], [0.0, 0.0], [0, 0, 0])
    with pytest.raises(ValueError, match="priority"):
        ensemble.update_priority([1, 1], [0.0, -1.0], [0, 1])
    assert 1 in ensemble.sample()["index"][:300].tolist()


@pytest.mark.parametrize("bad", [2, -1])
def test_ids_of_no_member(bad: int) -> None:
    members = [member(i, PrioritizedSampler(alpha=1.0, eps=0.0)) for i in range(2)]
    ensemble = ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=600, seed=0)
    with pytest.raises((ValueError, IndexError)):
        ensemble.update_priority([1], [0.0], [bad])
    assert ensemble.sample()["index"].tolist().count(1) > 0


def test_members_without_priorities() -> None:
    ensemble = ReplayBufferEnsemble(member(0), member(1), batch_size=4)
    with pytest.raises(TypeError, match="RandomSampler has no priorities"):
        ensemble.update_priority([1], [1.0], [0])


def test_the_rest() -> None:
    members = [member(i) for i in range(3)]
    ensemble = ReplayBufferEnsemble(*members, batch_size=6, seed=0)
    assert len(ensemble) == 90
    assert ensemble[1] is members[1]
    assert [ensemble.member_for(w) for w in range(5)] == [*members, *members[:2]]
    ensemble.extend(episode(7, 3), member=4)
    assert [len(m) for m in members] == [30, 33, 30]
    batch, info = ensemble.sample(return_info=True)
    assert info["index"].tolist() == batch["index"].tolist()
    assert info["buffer_ids"].tolist() == batch["buffer_ids"].tolist()
    assert len(next(iter(ensemble))) == 6
    assert [s.rows for s in ensemble.stats()] == [30, 33, 30]
    ensemble.empty()
    assert len(ensemble) == 0
    ensemble.close()
