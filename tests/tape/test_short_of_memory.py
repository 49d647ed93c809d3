"""Rows that are decoded by several threads, in a process that runs out of memory meanwhile."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Observations of some megabytes, which every decoding thread keeps a few of.
SCRIPT = """
import os, re, resource, signal
import numpy as np
from contig import LazyTensorStorage

shape = (3, 1 << 20)
storage = LazyTensorStorage(64, codecs={"obs": "lz4"}, share_next=True, stack={})
obs = np.arange(9, dtype=np.uint8)[:, None, None] * np.ones(shape, np.uint8)
storage.default_writer.extend({"obs": obs[:-1], "next": {"obs": obs[1:]}})
assert storage.tape.slots_range[1]
seqs = np.arange(8)
storage.gather(seqs)
ends = set()
for megabytes in range(4, 200, 6):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
        resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20), -1))
        try:
            batch = storage.gather(seqs)[0]
            os._exit(10 + int((batch["obs"][:, 0, 0] != seqs).any()))
        except MemoryError:
            os._exit(20)
        except Exception as error:
            print(repr(error), flush=True)
            os._exit(30)
    status = os.waitpid(child, 0)[1]
    ends.add(os.waitstatus_to_exitcode(status))
print(sorted(ends))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits differ")
def test_decoding_threads_that_get_no_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in ("[10, 20]", "[20]"), done.stdout + done.stderr
