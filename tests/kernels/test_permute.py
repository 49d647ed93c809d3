"""permute: positions in an epoch to places, without a table."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native
from tests.reference.permute import permute

keys = st.integers(0, 2**64 - 1)


@given(keys, st.integers(1, 3000))
def test_every_place_comes_exactly_once(key: int, n: int) -> None:
    places = _native.permute(key, n, 0, n)
    assert places.dtype == np.int64
    assert np.array_equal(np.sort(places), np.arange(n))


@given(keys, st.one_of(st.integers(1, 1030), st.integers(1, 2**63 - 1)), st.data())
def test_is_the_documented_permutation(key: int, n: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n - 1))
    count = data.draw(st.integers(1, min(8, n - start)))
    want = [permute(key, n, start + i) for i in range(count)]
    assert _native.permute(key, n, start, count).tolist() == want


@given(keys, st.integers(1, 500), st.data())
def test_pieces_of_an_epoch_are_the_epoch(key: int, n: int, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    bounds = [0, *cuts, n]
    pieces = [_native.permute(key, n, a, b - a) for a, b in itertools.pairwise(bounds)]
    assert np.concatenate(pieces).tolist() == _native.permute(key, n, 0, n).tolist()


def test_keys_give_different_orders_in_which_every_place_is_as_likely() -> None:
    n, orders = 10, 4000
    drawn = np.array([_native.permute(key, n, 0, n) for key in range(orders)])
    assert len({tuple(order) for order in drawn}) > 0.99 * orders
    want = orders / n
    for position in range(n):
        counts = np.bincount(drawn[:, position], minlength=n)
        assert ((counts - want) ** 2 / want).sum() < 33.7  # 9 degrees of freedom: p = 0.0001


def test_every_order_of_a_few_is_as_likely() -> None:
    keys = 24_000
    drawn = Counter(tuple(_native.permute(key, 4, 0, 4).tolist()) for key in range(keys))
    assert len(drawn) == 24
    want = keys / 24
    chi2 = sum((count - want) ** 2 / want for count in drawn.values())
    assert chi2 < 56  # 23 degrees of freedom: p = 0.0001


def test_an_empty_range() -> None:
    assert _native.permute(1, 10, 10, 0).tolist() == []
    assert _native.permute(1, 0, 0, 0).tolist() == []


@pytest.mark.parametrize(("start", "count"), [(0, 11), (10, 1), (3, 8)])
def test_positions_beyond_n_raise(start: int, count: int) -> None:
    with pytest.raises(IndexError, match="beyond n"):
        _native.permute(1, 10, start, count)
