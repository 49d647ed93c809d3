"""fit_32_bits: whether 64-bit numbers can become 32-bit ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native

BOUNDS = (-(2**31), 2**31 - 1), (0, 2**32 - 1)
EDGES = [0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63)]
numbers = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1), st.integers(-9, 9))


def fits(values: list[int], with_sign: bool) -> bool:
    """The reference."""
    least, most = BOUNDS[0 if with_sign else 1]
    return all(least <= value <= most for value in values)


@given(st.lists(numbers, max_size=40), st.booleans())
def test_as_the_reference(values: list[int], with_sign: bool) -> None:
    given = np.array(values, np.int64)
    # Without a sign, words from 2^63 on are negative here, and do not fit either way.
    assert _native.fit_32_bits(given, with_sign) == fits(values, with_sign)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("with_sign", [True, False])
def test_one_number_anywhere(edge: int, with_sign: bool) -> None:
    for n in range(1, 20):
        for at in range(n):
            values = [0] * n
            values[at] = edge
            given = np.array(values, np.int64)
            assert _native.fit_32_bits(given, with_sign) == fits(values, with_sign)
