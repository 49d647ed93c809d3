"""A mapped file that is cut is an answer, not a signal, whoever handles signals in the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A read puts our handler in place; then others put theirs there, as Ray does when it is started.
SCRIPT = """
import faulthandler, signal, sys
from pathlib import Path
import numpy as np
from contig import DiskStorage, ReplayBuffer

folder, who = Path(sys.argv[1]), sys.argv[2]
rows = {"x": np.arange(40_000.0).reshape(400, 100), "next": {"done": np.arange(400) % 10 == 9}}
with DiskStorage(folder, 1000, rows_per_extent=8) as storage:
    ReplayBuffer(storage).extend(rows)
with DiskStorage(folder, 1000, read_only=True) as storage:
    buffer = ReplayBuffer(storage, batch_size=50, seed=0)
    buffer.sample()
    if who == "faulthandler":
        faulthandler.enable()
    elif who == "nobody":
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
    for file in folder.rglob("*.rec"):
        file.open("r+b").truncate(0)
    try:
        buffer[:]
    except IndexError:  # none is left
        pass
    print(len(storage.quarantined))
"""


@pytest.mark.parametrize("who", ["ours", "faulthandler", "nobody"])
def test_files_cut_where_others_handle_signals(who: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), who]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["40"], done.stderr
