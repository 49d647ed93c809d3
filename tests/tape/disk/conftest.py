"""Where storages are that are opened hundreds of times."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: nobody waits for its disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="contig-disk-", dir=MEMORY))
    yield folder
    shutil.rmtree(folder)
