"""uniform_below: xoshiro256** and an unbiased range."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native
from tests.reference.rng import Xoshiro

states = st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4).filter(any)


def test_the_reference_is_xoshiro256starstar() -> None:
    # The first numbers of rand_xoshiro's test vector for the state 1, 2, 3, 4.
    reference = Xoshiro([1, 2, 3, 4])
    assert [reference.next() for _ in range(4)] == [
        11520,
        0,
        1509978240,
        1215971899390074240,
    ]


@given(states, st.integers(0, 2**63 - 2), st.data())
def test_draws_are_the_references(state: list[int], low: int, data: st.DataObject) -> None:
    high = data.draw(st.integers(low + 1, 2**63 - 1))
    words = np.array(state, np.uint64)
    reference = Xoshiro(state)
    drawn = _native.uniform_below(words, low, high, 25)
    assert drawn.tolist() == [low + reference.below(high - low) for _ in range(25)]
    assert words.tolist() == reference.s  # the caller's state moves on, by as many words


def test_a_range_that_rejects_half_of_all_words() -> None:
    # With a range just above 2**62 the low word falls into the surplus part of every fourth draw.
    n = 2**62 + 1
    words, reference = np.array([5, 6, 7, 8], np.uint64), Xoshiro([5, 6, 7, 8])
    plain = Xoshiro([5, 6, 7, 8])
    drawn = _native.uniform_below(words, 0, n, 400).tolist()
    assert drawn == [reference.below(n) for _ in range(400)]
    for _ in range(400):
        plain.next()
    assert reference.s != plain.s, "nothing was rejected: this test shows nothing"


@pytest.mark.parametrize("n", [2, 3, 10, 97])
def test_every_number_is_as_likely(n: int) -> None:
    draws = 40_000
    drawn = _native.uniform_below(np.array([9, 8, 7, n], np.uint64), 100, 100 + n, draws)
    counts = np.bincount(drawn - 100, minlength=n)
    assert len(counts) == n
    want = draws / n
    chi2 = ((counts - want) ** 2 / want).sum()
    freedom = n - 1
    assert chi2 < freedom + 4 * np.sqrt(2 * freedom) + 8


@given(states)
def test_a_range_of_one(state: list[int]) -> None:
    assert set(_native.uniform_below(np.array(state, np.uint64), 41, 42, 10)) == {41}


def test_two_calls_are_one_stream() -> None:
    one, two = np.array([1, 2, 3, 4], np.uint64), np.array([1, 2, 3, 4], np.uint64)
    whole = _native.uniform_below(one, 0, 1000, 30).tolist()
    parts = [_native.uniform_below(two, 0, 1000, k) for k in (0, 1, 12, 17)]
    assert np.concatenate(parts).tolist() == whole


@pytest.mark.parametrize(("low", "high"), [(5, 5), (6, 5)])
def test_an_empty_range_raises(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="empty"):
        _native.uniform_below(np.ones(4, np.uint64), low, high, 1)
