"""What breaks a kernel's contract raises: it does not crash, hang, or write elsewhere."""

from __future__ import annotations

import pytest

from tests.attempts import expect_raised, outcomes
from tests.kernels import misuse, misuse_any_size


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return outcomes("tests.kernels.misuse")


@pytest.mark.parametrize("case", misuse.CASES)
def test_raises(case: str, found: dict[str, str]) -> None:
    expect_raised(found[case])


@pytest.fixture(scope="module")
def found_any_size() -> dict[str, str]:
    return outcomes("tests.kernels.misuse_any_size")


@pytest.mark.parametrize("case", misuse_any_size.CASES)
def test_raises_with_leaves_of_any_size(case: str, found_any_size: dict[str, str]) -> None:
    expect_raised(found_any_size[case])
