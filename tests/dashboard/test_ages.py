"""What is looked at of draws, within its budget, and what is made of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import LazyTensorStorage, ReplayBuffer
from contig.dashboard.ages import Budget, RowTimes, SeenRows, ages_of, histogram

ROW = {"obs": np.float32(0), "next": {"reward": 0.0, "done": False}}


@given(st.lists(st.integers(-50, 5000), min_size=1, max_size=200), st.booleans())
def test_a_histogram_has_every_value(values, whole):
    values = np.array(values, np.float64)
    told = histogram(values, whole=whole)
    edges, counts = np.array(told["edges"]), np.array(told["counts"])
    assert len(edges) == len(counts) + 1 <= 25
    assert counts.sum() == told["count"] == len(values)
    assert edges[0] <= values.min() and edges[-1] >= values.max()
    expected = [np.count_nonzero((values >= a) & (values < b)) for a, b in pairwise(edges)]
    expected[-1] += np.count_nonzero(values == edges[-1])
    if whole:
        assert (edges == edges.round()).all()
        assert counts.tolist() == expected


def test_no_values_are_no_histogram():
    assert histogram(np.empty(0)) is None


def test_a_budget_is_kept(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("contig.dashboard.ages.time.monotonic", lambda: now[0])
    budget, spent = Budget(50), 0
    for _ in range(1000):  # ten seconds
        if budget.is_open:
            budget.spend(20)
            spent += 20
        now[0] += 0.01
    assert 460 <= spent <= 520
    assert not Budget(0).is_open
    with pytest.raises(ValueError, match="samples_per_s"):
        Budget(-1)


def buffer_of(rows=100, **options):
    buffer = ReplayBuffer(LazyTensorStorage(1000, example=ROW), batch_size=16, **options)
    data = {"obs": np.arange(rows), "next": {"reward": np.ones(rows)}}
    buffer.extend_trajectory(data, terminated=True, policy_version=3)
    return buffer


def test_rows_that_were_drawn_are_those_that_are_seen():
    buffer = buffer_of(seed=1)
    seen = SeenRows(buffer.storage, 1e9)
    buffer.seen = (seen,)
    drawn = np.concatenate([buffer.sample()["index"] for _ in range(5)])
    pairs = seen.take()
    assert pairs[:, 1].tolist() == drawn.tolist()
    assert set(pairs[:, 0].tolist()) == {100}
    assert not len(seen.take())


def test_looking_changes_no_draw():
    plain, watched = buffer_of(seed=7), buffer_of(seed=7)
    watched.seen = (SeenRows(watched.storage, 1000),)
    for _ in range(20):
        assert plain.sample()["index"].tolist() == watched.sample()["index"].tolist()
    assert plain.stats() == watched.stats()


def test_a_large_batch_is_looked_at_in_part():
    buffer = buffer_of()
    seen = SeenRows(buffer.storage, 100)
    buffer.seen = (seen,)
    buffer.sample(900)
    buffer.sample(900)
    assert 50 <= len(seen.take()) <= 100


def test_ages_and_versions_of_rows():
    buffer = buffer_of()
    rows = {"obs": np.arange(10), "next": {"reward": np.ones(10)}}
    buffer.extend_trajectory(rows, terminated=True, policy_version=5)
    pairs = np.array([[110, 0], [110, 99], [110, 105]], np.int64)
    told = ages_of(pairs, RowTimes(buffer.storage), None)
    assert told["newest_version"] == 5
    assert told["rows"]["mean"] == pytest.approx((110 + 11 + 5) / 3)
    assert (told["staleness"]["mean"], told["staleness"]["p50"]) == (pytest.approx(4 / 3), 2)
    assert told["seconds"]["count"] == 3
    published = ages_of(pairs, RowTimes(buffer.storage), 9)
    assert published["staleness"]["mean"] == pytest.approx(4 / 3 + 4)


def test_no_versions_are_no_staleness():
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    for t in range(10):
        buffer.add({"obs": t, "next": {"reward": 1.0, "done": False}})
    told = ages_of(np.array([[10, 3]], np.int64), RowTimes(buffer.storage), None)
    assert told["staleness"] is None and told["rows"]["mean"] == 7
