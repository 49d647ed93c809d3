"""A save that is killed between any two of its steps leaves the earlier checkpoint or the new one.

A process that has contig loaded forks one for every step; that one kills itself there (SIGKILL).
The steps are those that Python reports to an audit hook: every open, mkdir, rename, link, unlink.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

_SCRIPT = """
import errno, os, shutil, signal, sys
import numpy as np
import contig
from contig import _native

kind, way, where = sys.argv[1:]
TOUCHING = ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "shutil.rmtree")

if way == "renames":  # a file system on which names cannot change places
    _native.exchange_paths = lambda one, other: errno.EINVAL

def rows(number):
    n = 64
    done = np.arange(n) % 8 == 7
    x = 1000 * number + np.arange(n)
    if kind != "once":
        return {"x": x, "next": {"done": done}}
    seen = np.repeat(x[:, None], 8, 1)
    return {"x": x, "seen": seen, "next": {"seen": seen + 1, "done": done}}

def trajectory(number):
    return {"actions": np.full((4, 2, 3), number, np.float32), "rewards": np.full((4, 2), number)}

def replay(number, storage=None):
    storage = contig.LazyTensorStorage(64) if storage is None else storage
    buffer = contig.ReplayBuffer(storage, contig.PrioritizedSampler(), batch_size=4)
    if not len(buffer):
        buffer.extend(rows(number))
    buffer.sample()
    return buffer

def on_disk():
    # A storage on disk has a thread, so it is only ever open in processes that are forked.
    return contig.DiskStorage(f"{where}/store", 64, rows_per_extent=16)

def made(number):
    buffer = contig.TrajectoryReplayBuffer()
    buffer.add_trajectories([trajectory(number)] * 3)
    return buffer

def save(buffer, path):
    (buffer.save if kind != "trajectories" else buffer.save_checkpoint)(path)

def found(path):
    # Which of the saves is there; 0 if none is.
    if kind == "trajectories":
        loaded = contig.TrajectoryReplayBuffer()
        try:
            loaded.load_checkpoint(path)
        except FileNotFoundError:
            return 0
        assert loaded.size == 3
        numbers = set(loaded.sample(50)["rewards"].reshape(-1).tolist())
    else:
        loaded = contig.ReplayBuffer(
            contig.LazyTensorStorage(64), contig.PrioritizedSampler(), batch_size=4
        )
        try:
            loaded.load(path)
        except FileNotFoundError:
            return 0
        x = loaded[:]["x"]
        numbers = {int(x[0]) // 1000}
        assert x.tolist() == rows(int(x[0]) // 1000)["x"].tolist(), x
        if kind == "once":
            assert (loaded[:]["seen"] == x[:, None]).all()
            assert (loaded[:]["next", "seen"] == x[:, None] + 1).all()
        loaded.sample()
    (number,) = numbers
    return int(number)

make = made if kind == "trajectories" else replay
first, second = make(1), make(2)
if kind == "disk":
    if os.fork() == 0:
        with on_disk() as storage:
            replay(2, storage)
        os._exit(0)
    assert os.wait()[1] == 0

def killed_at(step, path):
    # Forks a process that saves `second` and dies at that step; whether it got there.
    pid = os.fork()
    if pid == 0:
        mine = replay(2, on_disk()) if kind == "disk" else second
        seen = 0
        def hook(event, args):
            nonlocal seen
            if event in TOUCHING:
                seen += 1
                if seen == step:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        try:
            save(mine, path)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status != 0

os.mkdir(f"{where}/out")
outcomes, left = [], 0
for before in ("nothing", "earlier") if (kind, way) == ("memory", "exchange") else ("earlier",):
    path = f"{where}/out/{before}"
    for step in range(1, 1000):
        if before == "earlier":
            save(first, path)
            assert found(path) == 1
        more = killed_at(step, path)
        left += len(os.listdir(f"{where}/out")) > 1
        number = found(path)
        assert number in ((0, 2) if before == "nothing" else (1, 2)), (before, step, number)
        outcomes.append((before, number))
        # The next save cleans up, whatever is there now.
        save(first, path)
        assert os.path.exists(f"{path}/slots.bin") == (kind == "once")
        assert found(path) == 1
        assert os.listdir(f"{where}/out") == [before], os.listdir(f"{where}/out")
        if before == "nothing":
            shutil.rmtree(path)
        if not more:
            break
    if before == "earlier":
        shutil.rmtree(path)
print(len(outcomes), left, *sorted({number for before, number in outcomes if before == "earlier"}))
"""


@pytest.mark.parametrize("way", ["exchange", "renames"])
@pytest.mark.parametrize("kind", ["memory", "once", "disk", "trajectories"])
def test_killed_at_every_step(kind: str, way: str) -> None:
    # In memory: a disk would spend a minute on syncing.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as where:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, kind, way, where],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    steps, left, *outcomes = map(int, done.stdout.split())
    assert outcomes == [1, 2], "the earlier one, then the new one"
    assert steps > 20 and left > 10, "killed at many steps, and most of them leave something"
