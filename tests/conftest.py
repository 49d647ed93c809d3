"""Hypothesis profiles, and what the processes of all tests have in common. No torch or jax here:
tests/kernels runs under the address sanitizer.

The default draws the same examples every time, so that a red run can be repeated as it was.
`HYPOTHESIS_PROFILE=wide` draws other ones each time, and many more of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Sanitizer builds on busy machines are slow to draw examples: that says nothing about the test.
_ANY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("contig", max_examples=60, derandomize=True, **_ANY)
settings.register_profile("wide", max_examples=2000, **_ANY)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "contig"))


@pytest.fixture(autouse=True, scope="session")
def compiled_modules() -> Iterator[None]:
    """Processes that tests start may keep what they compile, also where that is switched off:
    there are many of them, and each would compile the package again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield
