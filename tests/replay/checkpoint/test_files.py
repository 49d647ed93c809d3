"""The files of a checkpoint: no pickle, and whole or not there, whatever happens."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.replay.checkpoint.buffers import SAMPLERS, buffer_of, filled, fresh, images, read_meta


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_pickle(tmp_path: Path, name: str) -> None:
    world = filled()
    buffer = buffer_of(world.storage, name)
    images(buffer, 3)
    buffer.save(tmp_path / "a")
    assert world.storage.schema is not None
    form = world.storage.schema.shared_form
    assert form is not None
    for file in (tmp_path / "a").iterdir():
        data = file.read_bytes()
        if file.suffix == ".npy":
            array = np.load(file, allow_pickle=False)
            assert array.dtype.kind in "biuf"
        elif file.name == "checkpoint.json":
            assert isinstance(read_meta(tmp_path / "a"), dict)
        elif file.name == "records.bin":
            assert len(data) == len(buffer) * form.row_bytes
        elif file.name == "slots.bin":
            assert len(data) % form.slot_bytes == 0
        else:
            assert file.name == "index.bin" and len(data) % 128 == 0
        # Protocols 2 to 5 begin so.
        assert not (data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"))


def test_loading_never_unpickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    world = filled()
    buffer = buffer_of(world.storage, "prioritized")
    buffer.sample()
    buffer.save(tmp_path / "a")

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    loaded = fresh("prioritized")
    loaded.load(tmp_path / "a")
    assert images(loaded, 2) == images(buffer, 2)
    # An array of objects in an .npy is a pickle in disguise.
    monkeypatch.undo()
    np.save(tmp_path / "a" / "array-0.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError):
        fresh("prioritized").load(tmp_path / "a")


def test_directories_above_are_made(tmp_path: Path) -> None:
    world = filled()
    buffer = buffer_of(world.storage, "random")
    buffer.save(str(tmp_path / "x" / "y" / "a"))
    fresh("random").load(str(tmp_path / "x" / "y" / "a"))
    assert sorted(p.name for p in (tmp_path / "x" / "y").iterdir()) == ["a"]


def test_save_over_a_checkpoint(tmp_path: Path) -> None:
    world = filled()
    buffer = buffer_of(world.storage, "random")
    for _ in range(3):
        world.write(1)
        buffer.sample()
        buffer.save(tmp_path / "a")
        loaded = fresh("random")
        loaded.load(tmp_path / "a")
        assert images(loaded, 2) == images(buffer, 2)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize("failing", range(7))
def test_failed_save_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    world = filled()
    buffer = buffer_of(world.storage, "prioritized")
    buffer.sample()
    buffer.save(tmp_path / "a")
    before = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    world.write(2)
    calls = 0

    def full(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls > failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        buffer.save(tmp_path / "a")
    monkeypatch.undo()
    if failing < 5:  # the last ones come when the new one is in place
        assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()} == before
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a"], "leftovers"
    fresh("prioritized").load(tmp_path / "a")
    # And the buffer still works.
    buffer.sample()
    buffer.save(tmp_path / "a")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"], "leftovers"


# A process saves again and again and is killed at random instants: over one path, or each time
# under a new one. The script forks the saving process from one that has contig loaded, so that a
# round takes milliseconds.
_KILL = """
import os, random, signal, sys, time
import numpy as np
import contig

where, how = sys.argv[1:]
random.seed(1)
rows, present, absent = 4000, 0, 0

def make():
    storage, sampler = contig.LazyTensorStorage(rows), contig.PrioritizedSampler()
    return contig.ReplayBuffer(storage, sampler, batch_size=4)

buffer = make()
done = np.arange(rows) % 10 == 9
data = {"x": np.arange(rows), "y": np.zeros((rows, 30)), "next": {"done": done}}
buffer.extend(data)
for turn in range(15):
    path = where if how == "over" else where + str(turn)
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        for k in range(10**6):
            if how == "over" and k == 1:
                os.write(tell, b"!")
            buffer.extend({**data, "x": data["x"] + k})
            buffer.save(path)
            if how == "new":
                time.sleep(1000)
    if how == "over":
        os.read(ready, 1)
    time.sleep(random.random() * (0.05 if how == "over" else 0.02))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if os.path.exists(path):
        loaded = make()
        loaded.load(path)
        x = loaded[:]["x"]
        assert len(x) == rows, len(x)
        assert (np.diff(x) == 1).all(), "rows of two saves in one checkpoint"
        assert len(loaded.storage.episodes()) == rows // 10
        loaded.sample()
        present += 1
    else:
        absent += 1
print(present, absent)
"""


@pytest.mark.parametrize("how", ["over", "new"])
def test_killed_while_saving(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a"
    done = subprocess.run(
        [sys.executable, "-c", _KILL, str(path), how],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    present, absent = map(int, done.stdout.split())
    assert present + absent == 15
    assert how == "new" or present > 0
    # What the killed left behind is in nobody's way.
    world = filled()
    buffer = buffer_of(world.storage, "random")
    buffer.save(path)
    fresh("random").load(path)
