"""Hypothesis profiles, and what the processes of all tests have in common. No torch or jax here:
tests/kernels runs under the address sanitizer.

The default draws the same examples every time, so that a red run can be repeated as it was.
`HYPOTHESIS_PROFILE=wide` draws other ones each time, and many more of them.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.zygote import Zygote

# Sanitizer builds on busy machines are slow to draw examples: that says nothing about the test.
_ANY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("contig", max_examples=60, derandomize=True, **_ANY)
settings.register_profile("wide", max_examples=2000, **_ANY)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "contig"))


def pytest_configure() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would all processes of tests."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def compiled_modules() -> Iterator[None]:
    """Processes that tests start may keep what they compile, also where that is switched off:
    there are many of them, and each would compile the package again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    made = Zygote(tmp_path)
    yield made
    made.close()


@pytest.fixture
def name() -> Iterator[str]:
    """A segment name of this test's own; its files are removed whatever happens."""
    unique = f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    yield unique
    for left in Path("/dev/shm").glob(f"contig-{unique}*"):
        left.unlink(missing_ok=True)
