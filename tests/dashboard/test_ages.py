"""What is looked at of draws, within its budget, and what is made of it."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import LazyTensorStorage, ReplayBuffer
from contig.dashboard.ages import SEEN, Budget, RowTimes, SeenRows, ages_of, histogram

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


def seen_rows(heads, seqs):
    """Rows that were drawn now, before anything was published."""
    rows = np.zeros(len(seqs), SEEN)
    rows["head"], rows["seq"], rows["version"] = heads, seqs, -1
    rows["time_ns"] = time.time_ns()
    return rows


def test_rows_that_were_drawn_are_those_that_are_seen():
    buffer = buffer_of(seed=1)
    seen = SeenRows(buffer.storage, 1e9)
    buffer.seen = (seen,)
    drawn = np.concatenate([buffer.sample()["index"] for _ in range(5)])
    rows = seen.take()
    assert rows["seq"].tolist() == drawn.tolist()
    assert set(rows["head"].tolist()) == {100} and set(rows["version"].tolist()) == {-1}
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
    drawn = seen_rows([110, 110, 110], [0, 99, 105])
    told = ages_of(drawn, RowTimes(buffer.storage), None)
    assert told["newest_version"] == 5
    assert told["rows"]["mean"] == pytest.approx((110 + 11 + 5) / 3)
    assert (told["staleness"]["mean"], told["staleness"]["p50"]) == (pytest.approx(4 / 3), 2)
    assert told["seconds"]["count"] == 3
    drawn["version"] = 9  # published by then
    published = ages_of(drawn, RowTimes(buffer.storage), 9)
    assert published["staleness"]["mean"] == pytest.approx(4 / 3 + 4)


def test_ages_are_those_of_the_draw(monkeypatch):
    """What was drawn does not grow old by being looked at later, nor by what comes after it."""
    buffer, published = buffer_of(seed=1), [4]
    seen = SeenRows(buffer.storage, 1e9, lambda: published[0])
    buffer.seen = (seen,)
    written = RowTimes(buffer.storage).of(np.zeros(1, np.int64))[1][0]
    monkeypatch.setattr("contig.dashboard.ages.time.time_ns", lambda: int((written + 2) * 1e9))
    buffer.sample()
    rows = {"obs": np.arange(10), "next": {"reward": np.ones(10)}}
    buffer.extend_trajectory(rows, terminated=True, policy_version=50)
    published[0] = 60
    monkeypatch.setattr("contig.dashboard.ages.time.time_ns", lambda: int((written + 900) * 1e9))
    told = ages_of(seen.take(), RowTimes(buffer.storage), 60)
    assert told["seconds"]["p90"] == pytest.approx(2.0)
    assert (told["staleness"]["p10"], told["staleness"]["p90"]) == (1, 1)  # version 3, of 4
    assert told["newest_version"] == 60
    buffer.sample()
    again = ages_of(seen.take(), RowTimes(buffer.storage), 60)
    assert again["staleness"]["p90"] == 57


def test_no_versions_are_no_staleness():
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    for t in range(10):
        buffer.add({"obs": t, "next": {"reward": 1.0, "done": False}})
    told = ages_of(seen_rows([10], [3]), RowTimes(buffer.storage), None)
    assert told["staleness"] is None and told["rows"]["mean"] == 7
    assert told["stored_version"] is None


def test_sampled_rows_without_versions_beside_others_that_have_some():
    """The page must not say that the table has none."""
    buffer = buffer_of()
    plain = {"obs": np.arange(5), "next": {"reward": np.ones(5)}}
    first = int(buffer.extend_trajectory(plain, terminated=True, policy_version=-1)[0])
    told = ages_of(seen_rows([first + 5], [first]), RowTimes(buffer.storage), 60)
    assert told["staleness"] is None
    assert (told["stored_version"], told["newest_version"]) == (3, 60)
