"""What breaks a kernel's contract raises: it does not crash, hang, or write elsewhere."""

from __future__ import annotations

import pytest

from tests.attempts import expect_raised, outcomes
from tests.kernels import misuse


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return outcomes("tests.kernels.misuse")


@pytest.mark.parametrize("case", misuse.CASES)
def test_raises(case: str, found: dict[str, str]) -> None:
    expect_raised(found[case])
