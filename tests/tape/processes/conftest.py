from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tape.processes.zygote import Zygote

SHM = Path("/dev/shm")


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    made = Zygote(tmp_path)
    yield made
    made.close()


@pytest.fixture
def name() -> Iterator[str]:
    """A segment name of this test's own; its file is removed whatever happens."""
    unique = f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    yield unique
    for left in SHM.glob(f"contig-{unique}*"):
        left.unlink(missing_ok=True)
