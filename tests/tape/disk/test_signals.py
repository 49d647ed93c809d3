"""A mapped file that is cut is an answer, not a signal, whoever handles signals in the process."""

from __future__ import annotations

import signal
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


# Then a signal that is none of ours, from a mapping of somebody else's.
FOREIGN = """
import faulthandler, mmap, os, resource, signal, sys
from pathlib import Path
import numpy as np
from contig import DiskStorage, ReplayBuffer

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
signal.alarm(60)  # it might go round for ever
folder, steps, how = Path(sys.argv[1]), sys.argv[2].split(), sys.argv[3]
storage = DiskStorage(folder / "store", 1000)
buffer = ReplayBuffer(storage, batch_size=50, seed=0)
buffer.extend({"x": np.arange(100.0)})
do = {"read": buffer.sample, "enable": faulthandler.enable, "disable": faulthandler.disable}
for step in steps:
    do[step]()
print("ready", flush=True)
if how == "sent":
    os.kill(os.getpid(), signal.SIGBUS)
with open(folder / "cut", "w+b") as file:
    file.truncate(mmap.PAGESIZE)
    mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    file.truncate(0)
print(mapped[0], "was read")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="signals differ")
@pytest.mark.parametrize("how", ["fault", "sent"])
@pytest.mark.parametrize(
    "steps",
    [
        "read",
        "enable read",
        "read enable",
        "read enable read",
        "enable read disable",
        "read enable disable",
        "read enable read disable",
        "read enable read disable read",
        "read enable read disable enable",
        "read enable read disable enable read",
        "enable read disable read enable read",
    ],
)
def test_a_signal_of_others_ends_the_process_as_it_should(
    steps: str, how: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", FOREIGN, str(tmp_path), steps, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["ready"], done.stderr
    assert done.returncode == -signal.SIGBUS, done.stderr
    enabled = steps.rfind("enable") > steps.rfind("disable")
    # Twice where faulthandler came before our handler, and behind it again.
    reports = done.stderr.count("Fatal Python error: Bus error")
    assert reports in ((1, 2) if enabled else (0,)), done.stderr
