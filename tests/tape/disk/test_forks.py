"""What a storage without a capacity asks of the system: addresses, and no promise of memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from contig import ReplayBuffer
from contig.tape.disk import DiskStorage


def promised_bytes() -> int:
    """Of this process's mappings, those that count as memory which may be needed: a fork fails when
    the system has not as much of it."""
    total = size = 0
    with open("/proc/self/smaps") as file:
        for line in file:
            if line.startswith("Size:"):
                size = int(line.split()[1]) * 1024
            elif line.startswith("VmFlags:") and " ac" in line:
                total += size
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux's mappings")
def test_a_sampler_promises_no_memory_for_rows_that_are_not_there(tmp_path: Path) -> None:
    before = promised_bytes()
    with DiskStorage(tmp_path) as storage:
        buffer = ReplayBuffer(storage, batch_size=4)
        buffer.extend({"x": np.arange(10)})
        buffer.sample()
        assert promised_bytes() - before < 1 << 30
