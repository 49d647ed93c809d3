from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def swept() -> Iterator[None]:
    """Sockets that a test leaves open on purpose, or by a known defect, warn nobody else."""
    gc.collect()
    gc.disable()
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.enable()
