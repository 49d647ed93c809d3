"""Priorities: P = q / sum q, weights, new rows, and updates that come too late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import contig
from contig import NothingEligibleError, PrioritizedSampler, PrioritizedSliceSampler, ReplayBuffer
from contig.sample import Index
from contig.testing import World
from tests.sample.drawing import SCENES, agrees, draw, plain, seam, slice_starts, starts_of

Array = np.ndarray[Any, Any]
scenes = pytest.mark.parametrize("scene", SCENES)


def q_of(p: float, alpha: float, eps: float = 1e-8) -> float:
    return (p + eps) ** alpha if p > 0 else 0.0


def some_priorities(world: World, seed: int = 0) -> dict[int, float]:
    """A priority for each stored row, some of them 0."""
    rng = np.random.default_rng(seed)
    return {s: float(rng.choice([0, 0.2, 1, 2.5, 6])) for s in sorted(world.stored())}


def give(world: World, sampler: Any, priorities: dict[int, float]) -> None:
    index = Index(world.storage)
    index.refresh()
    seqs = np.array(list(priorities))
    sampler.update_priority(index, seqs, np.array(list(priorities.values())))


# -- rows -----------------------------------------------------------------------------------------


@scenes
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_rows_in_proportion(scene: str, alpha: float) -> None:
    world = SCENES[scene]()
    sampler = PrioritizedSampler(alpha=alpha)
    priorities = some_priorities(world)
    give(world, sampler, priorities)
    found = draw(world, sampler, 20_000)
    agrees(found.seqs.tolist(), {s: q_of(p, alpha) for s, p in priorities.items()})


@scenes
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights(scene: str, beta: float) -> None:
    world = SCENES[scene]()
    sampler = PrioritizedSampler(alpha=0.7, beta=beta)
    priorities = some_priorities(world)
    give(world, sampler, priorities)
    q = {s: q_of(p, 0.7) for s, p in priorities.items()}
    least = min(v for v in q.values() if v > 0)
    found = draw(world, sampler, 500)
    weight = found.columns[("priority_weight",)]
    expected = [(q[s] / least) ** -beta for s in found.seqs.tolist()]
    np.testing.assert_allclose(weight, expected, rtol=1e-6)
    assert weight.max() <= 1 and weight.min() > 0


def test_least_priority_is_that_of_rows_still_there() -> None:
    world = World(contig.LazyTensorStorage(8))
    world.extend(8)
    sampler = PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
    give(world, sampler, {0: 0.001, **{s: 2.0 for s in range(1, 7)}, 7: 4.0})
    world.extend(1)  # row 0 is gone; row 8 has the largest priority, 4
    found = draw(world, sampler, 200)
    weight = dict(zip(found.seqs.tolist(), found.columns[("priority_weight",)].tolist()))
    assert weight == {**dict.fromkeys(range(1, 7), 1.0), 7: 0.5, 8: 0.5}


def test_beta_may_be_annealed() -> None:
    world = plain()
    sampler = PrioritizedSampler(alpha=1.0, beta=0.0, eps=0.0)
    give(world, sampler, {0: 2.0})
    sampler.beta = 1.0
    found = draw(world, sampler, 200)
    weight = dict(zip(found.seqs.tolist(), found.columns[("priority_weight",)].tolist()))
    assert weight[0] == 0.5 and weight[1] == 1.0


def test_extreme_ratios() -> None:
    world = World(contig.LazyTensorStorage(64))
    world.extend(64)
    sampler = PrioritizedSampler(alpha=1.0, eps=0.0)
    priorities = {s: 1e-9 for s in range(64)} | {3: 1e9, 40: 1e9, 63: 0.0}
    give(world, sampler, priorities)
    agrees(draw(world, sampler, 5000).seqs.tolist(), {3: 1.0, 40: 1.0})


@pytest.mark.parametrize("capacity", [1, 7, 8, 9, 63, 64, 65, 513])
def test_any_size_of_the_tree(capacity: int) -> None:
    world = World(contig.LazyTensorStorage(capacity))
    world.extend(capacity)
    world.extend(max(capacity // 3, 1))
    sampler = PrioritizedSampler(alpha=1.0, eps=0.0)
    rng = np.random.default_rng(capacity)
    priorities = {s: float(rng.integers(1, 4)) for s in sorted(world.stored())}
    give(world, sampler, priorities)
    agrees(draw(world, sampler, 40 * capacity + 100).seqs.tolist(), priorities)


def test_new_rows_get_the_largest_priority_ever_set() -> None:
    world = World(contig.LazyTensorStorage(10))
    world.extend(6)
    sampler = PrioritizedSampler(alpha=1.0, eps=0.0)
    # At first that is 1.
    agrees(draw(world, sampler, 3000).seqs.tolist(), dict.fromkeys(range(6), 1.0))
    give(world, sampler, {0: 5.0})
    give(world, sampler, {0: 0.5})
    world.extend(2)
    expected = {0: 0.5, **{s: 1.0 for s in range(1, 6)}, 6: 5.0, 7: 5.0}
    agrees(draw(world, sampler, 5000).seqs.tolist(), expected)
    world.extend(7)  # evicts rows 0 to 4
    expected = {5: 1.0, **{s: 5.0 for s in range(6, 15)}}
    agrees(draw(world, sampler, 5000).seqs.tolist(), expected)


def test_smaller_priorities_do_not_lower_what_new_rows_get() -> None:
    world = World(contig.LazyTensorStorage(10))
    world.extend(4)
    sampler = PrioritizedSampler(alpha=1.0, eps=0.0)
    give(world, sampler, dict.fromkeys(range(4), 0.25))
    world.extend(1)
    agrees(draw(world, sampler, 3000).seqs.tolist(), {**dict.fromkeys(range(4), 0.25), 4: 1.0})


def test_priority_zero_is_never_drawn() -> None:
    world = plain()
    buffer = ReplayBuffer(world.storage, PrioritizedSampler(), batch_size=50, seed=0)
    rows = np.array(sorted(world.stored()))
    buffer.update_priority(rows, np.where(rows == 7, 1e-12, 0.0))
    for _ in range(20):
        assert set(buffer.sample()["index"].tolist()) == {7}
    buffer.update_priority([7], [0.0])
    with pytest.raises(NothingEligibleError, match="priority is 0"):
        buffer.sample()


@pytest.mark.parametrize("bad", [-1.0, -1e-12, np.nan, np.inf, -np.inf])
def test_refused_priorities_set_nothing(bad: float) -> None:
    world = seam()
    sampler = PrioritizedSampler(alpha=1.0, eps=0.0)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=10, seed=0)
    buffer.update_priority([5, 6], [3.0, 3.0])
    with pytest.raises(ValueError, match=r"priority\[1\]"):
        buffer.update_priority([4, 5, 6], [9.0, bad, 9.0])
    with pytest.raises(ValueError, match="2 priorities for 3 rows"):
        buffer.update_priority([4, 5, 6], [9.0, 9.0])
    expected = dict.fromkeys(world.stored(), 1.0) | {5: 3.0, 6: 3.0}
    agrees(draw(world, sampler, 5000).seqs.tolist(), expected)
    world.extend(1)
    expected = dict.fromkeys(world.stored(), 1.0) | {5: 3.0, 6: 3.0, 14: 3.0}
    agrees(draw(world, sampler, 5000).seqs.tolist(), expected)


@pytest.mark.parametrize("arguments", [{"alpha": -1}, {"beta": np.nan}, {"eps": np.inf}])
def test_refused_parameters(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        PrioritizedSampler(**arguments)


def test_updates_of_evicted_rows_are_counted_and_ignored() -> None:
    world = World(contig.LazyTensorStorage(10))
    world.extend(10)
    sampler = PrioritizedSampler(alpha=1.0, eps=0.0)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=4, seed=0)
    buffer.sample()
    world.extend(4)  # rows 10 to 13 take the place of 0 to 3
    buffer.update_priority(np.arange(10), np.full(10, 1.0) * np.where(np.arange(10) < 4, 0.0, 2.0))
    assert buffer.stats().stale_priority_updates == 4
    # Rows 10 to 13 keep the priority of new rows (1 when they came).
    expected = {**dict.fromkeys(range(4, 10), 2.0), **dict.fromkeys(range(10, 14), 1.0)}
    found = draw(world, sampler, 6000)
    agrees(found.seqs.tolist(), expected)


def test_updates_are_late_however_often_the_ring_turned() -> None:
    world = World(contig.LazyTensorStorage(10))
    world.extend(10)
    sampler = PrioritizedSampler(alpha=1.0, eps=0.0)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=4, seed=0)
    old = np.arange(10)
    for _ in range(5):
        world.extend(7)
        buffer.update_priority(old, np.full(10, 0.0))
        stored = np.array(sorted(world.stored()))
        live = set(stored.tolist()) - set(old.tolist())
        assert set(draw(world, sampler, 2000).seqs.tolist()) == live
        buffer.update_priority(stored, np.ones(10))
        old = stored


def test_update_of_a_row_twice_in_one_call() -> None:
    world = seam()
    sampler = PrioritizedSampler(alpha=1.0, eps=0.0)
    give(world, sampler, dict.fromkeys(world.stored(), 0.0))
    index = Index(world.storage)
    index.refresh()
    sampler.update_priority(index, np.array([5, 6, 5]), np.array([7.0, 2.0, 1.0]))
    agrees(draw(world, sampler, 3000).seqs.tolist(), {5: 1.0, 6: 2.0})


def test_one_priority_for_each() -> None:
    world = seam()
    sampler = PrioritizedSampler(alpha=1.0, eps=0.0)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=10, seed=0)
    with pytest.raises(ValueError, match="1 priorities for 3 rows: give one for each"):
        buffer.update_priority([4, 5, 6], 4.0)
    buffer.update_priority([4, 5, 6], [4.0] * 3)
    expected = dict.fromkeys(world.stored(), 1.0) | {4: 4.0, 5: 4.0, 6: 4.0}
    agrees(draw(world, sampler, 5000).seqs.tolist(), expected)


def test_info_has_index_and_weight() -> None:
    world = plain()
    buffer = ReplayBuffer(world.storage, PrioritizedSampler(), batch_size=6, seed=0)
    batch, info = buffer.sample(return_info=True)
    assert set(info) == {"index", "priority_weight"}
    np.testing.assert_array_equal(info["index"], batch["index"])
    buffer.update_tensordict_priority({"index": info["index"], "td_error": -np.ones((6, 1))})


# -- slices ---------------------------------------------------------------------------------------


@scenes
@pytest.mark.parametrize("options", [{}, {"strict_length": True}, {"complete_only": True}])
def test_slice_starts_in_proportion_among_valid_ones(scene: str, options: dict[str, bool]) -> None:
    world = SCENES[scene]()
    sampler = PrioritizedSliceSampler(alpha=0.8, slice_len=3, **options)
    priorities = some_priorities(world, seed=3)
    give(world, sampler, priorities)
    valid = slice_starts(
        world,
        3,
        strict=options.get("strict_length", False),
        complete=options.get("complete_only", False),
    )
    expected = {s: q_of(priorities[s], 0.8) for seqs in valid.values() for s in seqs}
    found = draw(world, sampler, 8000, 3)
    agrees(starts_of(found).tolist(), expected)
    for group in world.groups(found):
        assert group == [(group[0][0], group[0][1] + i) for i in range(len(group))]


@scenes
def test_slice_weights_are_those_of_the_start(scene: str) -> None:
    world = SCENES[scene]()
    sampler = PrioritizedSliceSampler(alpha=0.8, beta=0.5, slice_len=3)
    priorities = some_priorities(world, seed=3)
    give(world, sampler, priorities)
    q = {s: q_of(p, 0.8) for s, p in priorities.items()}
    least = min(v for v in q.values() if v > 0)
    found = draw(world, sampler, 300, 3)
    assert found.lengths is not None
    expected = np.repeat([(q[s] / least) ** -0.5 for s in starts_of(found)], found.lengths)
    np.testing.assert_allclose(found.columns[("priority_weight",)], expected, rtol=1e-6)


def test_slice_starts_when_nearly_all_weight_is_on_invalid_ones() -> None:
    # Rejection gives up and one exact pass takes over.
    world = World(contig.LazyTensorStorage(1000))
    for _ in range(60):
        world.extend(2)
    world.extend(6)
    sampler = PrioritizedSliceSampler(alpha=1.0, eps=0.0, slice_len=4, strict_length=True)
    priorities = dict.fromkeys(range(126), 1000.0) | {120: 1.0, 121: 2.0, 122: 3.0}
    give(world, sampler, priorities)
    found = draw(world, sampler, 4000, 4)
    agrees(starts_of(found).tolist(), {120: 1.0, 121: 2.0, 122: 3.0})


def test_prioritized_slices_mark_their_start() -> None:
    world = plain()
    sampler = PrioritizedSliceSampler(slice_len=3)
    batch = ReplayBuffer(world.storage, sampler, batch_size=60, seed=0).sample()
    found = np.flatnonzero(batch["is_init"])
    assert found[0] == 0 and len(found) == 20


def test_prioritized_slices_with_only_invalid_starts_left() -> None:
    world = seam()
    sampler = PrioritizedSliceSampler(slice_len=4, strict_length=True)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=8, seed=0)
    buffer.update_priority([4, 8], [0.0, 0.0])
    with pytest.raises(NothingEligibleError):
        buffer.sample()


@pytest.mark.parametrize("option", [{"over": "steps"}, {"span": True}])
def test_prioritized_slices_have_no_over_and_no_span(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        PrioritizedSliceSampler(slice_len=3, **option)
