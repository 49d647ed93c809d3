"""Shares in proportion to masses; rows gathered into a part of a block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import _native


@settings(deadline=None)
@given(
    masses=st.lists(st.integers(0, 1000), min_size=1, max_size=9).filter(any),
    n=st.integers(0, 300),
    seed=st.integers(1, 2**60),
)
def test_whole_masses_are_exact(masses: list[int], n: int, seed: int) -> None:
    """As draws below the sum, one by one, fall between the bounds."""
    words = np.array([seed, seed ^ 5, seed * 3 % 2**63, 9], np.uint64)
    drawn = _native.uniform_below(words.copy(), 0, sum(masses), n)
    want = np.bincount(np.searchsorted(np.cumsum(masses), drawn, "right"), minlength=len(masses))
    assert _native.multinomial(words, [float(m) for m in masses], n) == want.tolist()


@given(masses=st.lists(st.floats(0, 1e6), min_size=1, max_size=9), n=st.integers(0, 200))
def test_real_masses(masses: list[float], n: int) -> None:
    words = np.array([1, 2, 3, 4], np.uint64)
    shares = _native.multinomial(words, masses, n)
    assert sum(shares) == (n if sum(masses) > 0 else 0)
    assert all(m > 0 or not s for m, s in zip(masses, shares))


def test_refused() -> None:
    with pytest.raises(ValueError, match="no masses"):
        _native.multinomial(np.array([1, 2, 3, 4], np.uint64), [], 3)
