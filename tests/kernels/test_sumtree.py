"""SumTree: update, fill, draw and prioritize, against weights without a tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native
from tests.reference.rng import Xoshiro
from tests.reference.sumtree import Weights

# Around every width at which a level of sums (8, 64, 512) or of minima (4096) is added.
WIDTHS = [511, 512, 513, 520, 4095, 4096, 4097, 5000, 40_000]
SIZES = st.one_of(st.integers(1, 80), st.sampled_from(WIDTHS))
# Multiples of 1/8: their sums are exact, so both must agree to the bit.
EXACT = st.integers(0, 4000).map(lambda k: k / 8)


def tree(n: int) -> Any:
    return _native.SumTree(n, np.zeros(_native.SumTree.size(n)))


def spread(n: int) -> Any:
    """Positions of all parts of a ring of n, more often its ends."""
    return st.one_of(st.integers(0, n - 1), st.sampled_from([0, n - 1, n // 2]))


@st.composite
def operations(draw: Any, n: int) -> list[tuple[Any, ...]]:
    ops: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            pairs = draw(st.lists(st.tuples(spread(n), EXACT), max_size=30))
            ops.append(("update", [k for k, _ in pairs], [v for _, v in pairs]))
        else:
            start = draw(st.integers(0, 3 * n))
            ops.append(("fill", start, start + draw(st.integers(0, 2 * n + 2)), draw(EXACT)))
    return ops


def apply(t: Any, w: Weights, op: tuple[Any, ...]) -> None:
    if op[0] == "update":
        t.update(np.array(op[1], np.int64), np.array(op[2], float))
        w.update(op[1], op[2])
    else:
        t.fill(*op[1:])
        w.fill(*op[1:])


@given(st.data())
def test_total_least_and_draws(data: Any) -> None:
    n = data.draw(SIZES)
    t, w = tree(n), Weights(n)
    for op in data.draw(operations(n)):
        apply(t, w, op)
        assert t.total == w.total
        assert t.least == w.least
        if w.total:
            # Shares that fall exactly on an edge between two leaves, and any others.
            ends = np.cumsum(w.w)
            edges = np.unique(ends[:-1][:: max(1, n // 20)]) / w.total
            shares = [*edges[edges < 1], 0.0, 0.25, 0.5, 1 - 2.0**-53]
            shares += data.draw(st.lists(st.floats(0, 1, exclude_max=True), max_size=8))
            for u, leaf in zip(shares, t.at(np.array(shares))):
                assert w.w[leaf] > 0
                # u * total may be rounded to an edge: then either side of it is right.
                assert leaf == w.at(u) or np.isclose(ends[leaf], u * w.total, rtol=1e-15)


@given(st.integers(1, 600), st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_a_draw_at_the_middle_of_a_leaf_is_that_leaf(n: int, picks: list[int]) -> None:
    weights = (np.arange(n) * 7919 % 13).astype(float)  # whole numbers, some of them 0
    weights[n // 2] = 3
    t = tree(n)
    t.update(np.arange(n), weights)
    ends = np.cumsum(weights)
    leaves = np.flatnonzero(weights)[np.array(picks) % np.count_nonzero(weights)]
    shares = (ends[leaves] - weights[leaves] / 2) / ends[-1]
    assert t.at(shares).tolist() == leaves.tolist()


@given(
    st.lists(st.floats(0, 1e6, allow_subnormal=False) | st.just(0.0), min_size=1, max_size=40),
    st.integers(1, 300),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_any_weights(weights: list[float], n: int, shares: list[float]) -> None:
    w = np.resize(np.array(weights), n)
    t = tree(n)
    t.update(np.arange(n), w)
    assert np.isclose(t.total, w.sum(), rtol=1e-12)
    if w.sum() > 1e-200:
        ends = np.cumsum(w)
        slack = 1e-12 * ends[-1]
        for u, leaf in zip(shares, t.at(np.array(shares))):
            assert w[leaf] > 0
            assert ends[leaf] - w[leaf] - slack <= u * ends[-1] <= ends[leaf] + slack


def test_a_leaf_of_weight_zero_is_never_drawn_whatever_the_rounding() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 9, 70, 700):
        w = np.where(rng.random(n) < 0.7, 0, rng.random(n) * 10.0 ** rng.integers(-12, 12, n))
        w[n // 2] = 1e-9
        t = tree(n)
        t.update(np.arange(n), w)
        near_one = 1 - np.arange(1, 200) * 2.0**-53
        drawn = t.at(np.concatenate([rng.random(2000), near_one, 1 - near_one]))
        assert (w[drawn] > 0).all()


@given(
    st.integers(1, 200),
    st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4).filter(any),
    st.integers(0, 1000),
)
def test_draw_takes_its_shares_from_the_stream(n: int, state: list[int], more: int) -> None:
    head = n + more
    t = tree(n)
    t.update(np.arange(n), np.arange(1.0, n + 1))
    words = np.array(state, np.uint64)
    reference = Xoshiro(state)
    shares = [reference.unit() for _ in range(20)]
    # Of all rows below head, the newest one that each leaf can stand for, in their order.
    seqs = np.arange(head - n, head)
    upto = np.cumsum(1.0 + seqs % n)
    want = seqs[np.searchsorted(upto, np.array(shares) * upto[-1], side="right")]
    assert t.draw(words, 20, head).tolist() == want.tolist()
    assert words.tolist() == reference.s


@given(
    weights=st.lists(st.floats(0, 8), min_size=1, max_size=200).filter(lambda w: sum(w) > 1e-3),
    before=st.integers(0, 1000),
    spare=st.lists(st.integers(0, 3000), min_size=1, max_size=3),
)
def test_the_same_rows_in_rings_of_any_size(
    weights: list[float], before: int, spare: list[int]
) -> None:
    head = before + len(weights)
    seqs = np.arange(before, head)
    drawn = []
    for more in (0, *spare):
        n = len(weights) + more
        t = tree(n)
        t.update(seqs % n, np.round(np.array(weights) * 1024) / 1024)  # sums without rounding
        if t.total == 0:
            return
        drawn.append(t.draw(np.array([1, 2, 3, 4], np.uint64), 50, head).tolist())
    assert all(d == drawn[0] for d in drawn)


def test_draws_come_in_proportion() -> None:
    weights = np.array([0, 1, 5, 0, 2, 8, 0.5, 3.5, 0, 4])
    t = tree(len(weights))
    t.update(np.arange(len(weights)), weights)
    n = 50_000
    drawn = t.draw(np.array([1, 2, 3, 4], np.uint64), n, len(weights))
    counts = np.bincount(drawn, minlength=len(weights))
    want = weights / weights.sum() * n
    assert counts[want == 0].sum() == 0
    chi2 = ((counts - want)[want > 0] ** 2 / want[want > 0]).sum()
    assert chi2 < 24.3  # 6 degrees of freedom: p = 0.0005


PRIORITIES = st.floats(0, 100, allow_subnormal=False) | st.just(0.0)


@given(st.data())
def test_prioritize(data: Any) -> None:
    n = data.draw(st.integers(1, 100))
    tail = data.draw(st.integers(0, 300))
    head = tail + data.draw(st.integers(0, n))
    seqs = data.draw(st.lists(st.integers(max(tail - 5, 0), head + 5), max_size=30))
    p = [data.draw(PRIORITIES) for _ in seqs]
    bad = data.draw(st.sampled_from([None, None, -1.0, np.nan, np.inf]))
    if bad is not None and p:
        p[data.draw(st.integers(0, len(p) - 1))] = bad
    alpha, eps = data.draw(st.sampled_from([(0.6, 1e-8), (1.0, 0.0), (0.0, 1e-8), (2.0, 0.5)]))
    t, w = tree(n), Weights(n)
    for x in (t, w):
        x.fill(tail, head, 1.5)
    got = t.prioritize(np.array(seqs, np.int64), np.array(p, float), tail, head, alpha, eps)
    assert got == w.prioritize(seqs, p, tail, head, alpha, eps)
    assert np.isclose(t.total, w.total, rtol=1e-6)  # to a float's precision
    assert np.isclose(t.least, w.least, rtol=1e-6)


@given(
    st.lists(st.floats(1e-3, 1e3) | st.just(0.0), min_size=1, max_size=100).filter(any),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.data(),
)
def test_importance_weights(q: list[float], beta: float, data: Any) -> None:
    t, w = tree(len(q)), Weights(len(q))
    for x in (t, w):
        x.update(np.arange(len(q)), np.array(q))
    head = data.draw(st.integers(len(q), 4 * len(q)))
    seqs = data.draw(st.lists(st.integers(head - len(q), head - 1), max_size=20))
    rows = np.array([s for s in seqs if q[s % len(q)] > 0], np.int64)
    got = t.weights(rows, head, beta)
    assert got.dtype == np.float32
    assert np.allclose(got, w.weights(rows, beta), rtol=1e-6)
    seqs, weights = t.draw_weighted(np.array([1, 2, 3, 4], np.uint64), 20, head, beta)
    assert seqs.tolist() == t.draw(np.array([1, 2, 3, 4], np.uint64), 20, head).tolist()
    assert weights.tolist() == t.weights(seqs, head, beta).tolist()
    outside = np.array([head - len(q) - 1, head, -1, -(2**63), 2**63 - 1])
    assert not t.weights(outside, head, beta).any()


def test_the_last_of_several_values_for_one_leaf_counts() -> None:
    t = tree(100)
    leaves = np.array([7, 7, 93, 7] * 30, np.int64)
    t.update(leaves, np.arange(120.0))
    assert t.total == 119 + 118


def test_the_array_is_the_callers_and_stays_alive() -> None:
    nodes = np.zeros(_native.SumTree.size(9))
    t = _native.SumTree(9, nodes)
    t.fill(2, 4, 1.5)
    assert nodes[:9].tolist() == [0, 0, 1.5, 1.5, 0, 0, 0, 0, 0]
    del nodes
    t.fill(8, 9, 2.0)
    assert (t.total, t.least) == (5.0, 1.5)


@pytest.mark.parametrize("leaf", [-1, 5, 2**62, -(2**63)])
def test_a_leaf_out_of_range_raises_and_changes_nothing(leaf: int) -> None:
    t = tree(5)
    t.fill(0, 5, 1.0)
    with pytest.raises(IndexError, match="out of range"):
        t.update(np.array([0, leaf], np.int64), np.array([9.0, 9.0]))
    assert t.total == 5


def test_arrays_that_do_not_go_together_raise() -> None:
    size = _native.SumTree.size(20)
    for wrong in (size - 1, size + 1):
        with pytest.raises(ValueError, match="wrong size"):
            _native.SumTree(20, np.zeros(wrong))
    with pytest.raises(ValueError, match="as many"):
        tree(5).update(np.zeros(2, np.int64), np.zeros(3))
    with pytest.raises(ValueError, match="as many"):
        tree(5).prioritize(np.zeros(2, np.int64), np.zeros(3), 0, 5, 1.0, 0.0)
