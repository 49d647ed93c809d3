"""A process that may not map more memory (`ulimit -v`) hears what to do, and goes on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("limits of address space are Linux's", allow_module_level=True)

START = """
    import resource, sys
    import numpy as np
    from contig import DiskStorage, LazyTensorStorage, ReplayBuffer, SharedStorage, StorageFull

    def limit(more):
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + more if more else hard, hard))

    def refused(call):
        try:
            call()
        except StorageFull as error:
            assert isinstance(error, OSError), error
            assert "ulimit -v" in str(error), error
            return
        raise AssertionError("it was mapped")

    step = {"x": np.zeros(1 << 16, np.uint8), "at": np.int64(7)}
    buffer = ReplayBuffer(LazyTensorStorage(10))
    buffer.add(step)  # everything that is imported at first use is
"""

CASES = {
    "the first row": """
        storage = LazyTensorStorage(100_000)
        rows = ReplayBuffer(storage)
        limit(1 << 30)
        refused(lambda: rows.add(step))
        refused(lambda: rows.add(step))
        limit(None)
        rows.add(step)
        assert rows[:]["at"].tolist() == [7]
    """,
    "an example": "limit(1 << 30); refused(lambda: LazyTensorStorage(100_000, example=step))",
    "a large index": "limit(1 << 30); refused(lambda: LazyTensorStorage(100_000_000))",
    "shared memory": """
        limit(1 << 30)
        refused(lambda: SharedStorage(100_000, example=step))
    """,
    "a disk": """
        limit(1 << 30)
        refused(lambda: ReplayBuffer(DiskStorage(sys.argv[1], 100_000)).add(step))
    """,
}


@pytest.mark.parametrize("case", CASES)
def test_memory_that_cannot_be_mapped(case: str, tmp_path: Path) -> None:
    code = textwrap.dedent(START) + textwrap.dedent(CASES[case])
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
