"""How segments come and go: names, crashes, and passing storages between processes."""

from __future__ import annotations

import fcntl
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import LazyTensorStorage, ReplayBuffer, SharedStorage, SliceSampler
from contig.tape import segment
from tests.processes import files_of
from tests.tape.processes import workers
from tests.waiting import WAIT_S, until
from tests.zygote import Zygote

ROOT = Path(__file__).resolve().parents[3]
HEADER = """
import os, signal, sys, time
import numpy as np
import contig
from contig import LazyTensorStorage, ReplayBuffer, SharedStorage
name = sys.argv[1]
"""


def run(code: str, *arguments: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """A program of its own, to its end."""
    done = subprocess.run(
        [sys.executable, "-c", HEADER + textwrap.dedent(code), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    if ok:
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@contextmanager
def leftover(code: str, name: str) -> Iterator[None]:
    """What a program that stops itself leaves when it is killed there.

    Every contig process of this machine reaps, and one of them may be quicker than the test: so the
    test has the files locked, and they are there, until the end of the block.
    """
    program = [sys.executable, "-c", HEADER + textwrap.dedent(code), name]
    process = subprocess.Popen(program, cwd=ROOT)
    kept: list[int] = []
    try:
        ended = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        until(lambda: os.waitid(os.P_PID, process.pid, ended) is not None)
        assert process.poll() is None, "it ended by itself"
        for path in Path("/dev/shm").glob(f"contig-{name}*"):
            kept.append(os.open(path, os.O_RDWR))
            fcntl.flock(kept[-1], fcntl.LOCK_SH)
        assert kept, "the test is void: nothing was left over"
        process.kill()
        process.wait(WAIT_S)
        yield
    finally:
        process.kill()
        process.wait(WAIT_S)
        for fd in kept:
            os.close(fd)


def reap(zygote: Zygote) -> None:
    """The next contig process comes and goes."""
    zygote.start(workers.next_process).result(WAIT_S)


def exists(name: str) -> bool:
    return Path(f"/dev/shm/contig-{name}").exists()


def row(value: float, done: bool = False) -> dict[str, Any]:
    return {"x": np.float32(value), "next": {"done": done}}


def values(storage: Any) -> list[float]:
    head, tail, _, _ = storage.tape.snapshot()
    batch, lost = storage.gather(np.arange(tail, head, dtype=np.int64))
    assert not lost
    return np.asarray(batch["x"]).tolist()


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        "storage.close()",
        "",
        "del storage",
        "sys.exit(3)",
        "raise KeyError('an error nobody catches')",
        "kept = storage.gather(np.arange(1)); storage.close()",
    ],
    ids=["close", "exit", "del", "sys.exit", "error", "views kept"],
)
def test_the_last_one_out_removes_the_name(how: str, name: str) -> None:
    code = f"""
    storage = SharedStorage(16, name=name)
    storage.default_writer.add({{"x": 1.0}})
    assert os.path.exists("/dev/shm/contig-" + name)
    {how}
    """
    run(code, name, ok=False)
    assert not exists(name)


def test_close_removes_the_name_at_once(name: str) -> None:
    storage = SharedStorage(16, name=name, example=row(0))
    storage.default_writer.add(row(1))
    batch, _ = storage.gather(np.arange(1))
    assert exists(name)
    storage.close()
    assert not exists(name)
    assert np.asarray(batch["x"]).tolist() == [1.0]
    with pytest.raises(contig.ClosedError):
        storage.episodes()


def test_the_name_stays_while_anybody_has_it_open(
    zygote: Zygote, name: str, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    storage = SharedStorage(16, name=name, example=row(0))
    storage.default_writer.add(row(1))
    other = zygote.start(workers.hold_open, name=name, stop=str(stop))
    until(lambda: _has_open(other.pid, name))
    storage.close()
    assert exists(name), "removed under a living process"
    again = SharedStorage.attach(name)
    assert values(again) == [1.0]
    again.default_writer.add(row(2))
    again.close()
    assert exists(name)
    stop.touch()
    assert other.result(WAIT_S) == {"rows": 2}
    # The child left by os._exit: what it had open, nobody has open now.
    reap(zygote)
    assert not exists(name)


def _has_open(pid: int, name: str) -> bool:
    path = Path(f"/proc/{pid}/maps")
    return f"contig-{name}" in path.read_text()


def test_attach_needs_the_name(name: str) -> None:
    with pytest.raises(FileNotFoundError):
        SharedStorage.attach(name)
    for bad in ("a/b", "", "../x", ".hidden"):
        with pytest.raises(ValueError):
            SharedStorage.attach(bad)


def test_killed_creators_are_reaped(zygote: Zygote, name: str) -> None:
    code = """
    storage = SharedStorage(16, name=name)
    storage.default_writer.add({"x": 1.0})
    os.kill(os.getpid(), signal.SIGSTOP)
    """
    with leftover(code, name):
        assert exists(name)
    reap(zygote)
    assert not exists(name)


def test_killed_while_creating_leaves_nothing_for_ever(zygote: Zygote, name: str) -> None:
    """The file under its temporary name, too."""
    code = """
    from contig.tape import segment
    segment.os.link = lambda *a, **k: os.kill(os.getpid(), signal.SIGSTOP)
    SharedStorage(16, name=name)
    """
    with leftover(code, name):
        assert not exists(name), "the test is void: it has its name"
    reap(zygote)
    assert not list(Path("/dev/shm").glob(f"contig-{name}*"))


def test_a_leftover_is_nobodys_storage(name: str) -> None:
    """A process that reaped once, long ago, must not adopt what a killed one left since."""
    SharedStorage(4).close()  # this process has reaped
    code = """
    storage = SharedStorage(16, name=name)
    storage.default_writer.add({"x": 1.0})
    os.kill(os.getpid(), signal.SIGSTOP)
    """
    with leftover(code, name):
        assert exists(name)
    with SharedStorage(32, name=name, example=row(0)) as storage:
        assert len(storage) == 0
        storage.default_writer.add(row(2))
        assert values(storage) == [2.0]


def test_living_segments_are_not_reaped(zygote: Zygote, name: str, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with SharedStorage(16, name=name, example=row(0)) as storage:
        reap(zygote)
        assert exists(name)
        storage.default_writer.add(row(1))
        other = zygote.start(workers.hold_open, name=name, stop=str(stop))
        until(lambda: _has_open(other.pid, name))
    # Only the other process has it now, and it is stopped.
    other.signal(signal.SIGSTOP)
    other.expect_stopped(30)
    reap(zygote)
    assert exists(name)
    other.signal(signal.SIGCONT)
    with SharedStorage.attach(name) as again:
        assert values(again) == [1.0]
    other.kill()
    reap(zygote)
    assert not exists(name)


def test_a_forked_child_keeps_the_segment(zygote: Zygote, name: str, tmp_path: Path) -> None:
    """The parent is killed; the child it forked goes on, and is not reaped."""
    go, pid_file = tmp_path / "go", tmp_path / "pid"
    code = """
    storage = SharedStorage(16, name=name)
    storage.default_writer.add({"x": 1.0})
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    go, pid_file = sys.argv[2:4]
    with open(pid_file + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(pid_file + ".part", pid_file)
    while not os.path.exists(go):
        time.sleep(0.005)
    storage.default_writer.add({"x": 2.0})
    while os.path.exists(go):
        time.sleep(0.005)
    """
    with open(tmp_path / "err", "w") as err:
        parent = subprocess.Popen(
            [sys.executable, "-c", HEADER + textwrap.dedent(code), name, str(go), str(pid_file)],
            cwd=ROOT,
            stdout=err,
            stderr=err,
        )
        assert parent.wait(WAIT_S) == -signal.SIGKILL
    until(pid_file.exists)
    reap(zygote)
    assert exists(name), "reaped under a forked child"
    with SharedStorage.attach(name) as storage:
        assert values(storage) == [1.0]
        go.touch()
        until(lambda: len(storage) == 2)
        assert values(storage) == [1.0, 2.0]
    assert exists(name)
    go.unlink()
    until(lambda: not Path(f"/proc/{pid_file.read_text()}").exists())
    reap(zygote)
    assert not exists(name)


def test_a_forked_child_that_ends_does_not_take_the_segment_with_it(name: str) -> None:
    code = """
    storage = SharedStorage(16, name=name)
    storage.default_writer.add({"x": 1.0})
    for how in ("exit", "close", "_exit"):
        pid = os.fork()
        if pid == 0:
            storage.default_writer.add({"x": 2.0})
            if how == "close":
                storage.close()
            if how == "_exit":
                os._exit(0)
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert os.path.exists("/dev/shm/contig-" + name), how
        # What others see: nobody may lock it exclusively.
        from contig.tape.segment import reap
        assert name not in reap(), how
    storage.default_writer.add({"x": 3.0})
    assert len(SharedStorage.attach(name)) == 5
    """
    run(code, name)
    assert not exists(name)


def test_capacity_must_match(name: str) -> None:
    with SharedStorage(16, name=name, example=row(0)) as storage:
        storage.default_writer.add(row(1))
        files = files_of(name)
        assert files
        with pytest.raises(ValueError, match="16.*17"):
            SharedStorage(17, name=name)
        gc.collect()
        assert files_of(name) == files, "a refused attach keeps files open"
        assert exists(name)
        with SharedStorage(16, name=name) as same:
            same.default_writer.add(row(2))
        assert values(storage) == [1.0, 2.0]


def test_closing_gives_the_descriptors_back(name: str) -> None:
    """Of the file and of its lock; memory keeps one while somebody can still look at it."""

    def use() -> None:
        with SharedStorage(16, name=name, example=row(0)) as storage:
            storage.default_writer.add(row(1))
        LazyTensorStorage(16, example=row(0)).close()

    gc.collect()
    files = files_of("memfd:")
    for _ in range(5):
        use()
    gc.collect()
    assert files_of(name) == 0 and files_of("memfd:") <= files


# -- passing ---------------------------------------------------------------------------------------


def make(kind: str, name: str, **options: Any) -> Any:
    if kind == "lazy":
        return LazyTensorStorage(64, **options)
    return SharedStorage(64, name=name, **options)


@pytest.mark.parametrize("kind", ["lazy", "shared"])
@pytest.mark.parametrize("first", ["parent", "child"])
def test_storages_pass_through_spawn(kind: str, first: str, name: str) -> None:
    context = multiprocessing.get_context("spawn")
    storage = make(kind, name)
    buffer = ReplayBuffer(storage, SliceSampler(slice_len=4, traj_key="episode"), batch_size=4)
    old = None
    if first == "parent":
        buffer.extend({"episode": np.zeros(4, np.int64), "x": np.arange(4, dtype=np.float32)})
        old, _ = storage.gather(np.arange(4))
    ours, theirs = context.Pipe()
    child = context.Process(target=workers.passed, args=(storage, theirs))
    child.start()
    theirs.close()
    assert ours.poll(WAIT_S)
    seen, layout, ends, key = ours.recv()
    assert seen == ([0.0, 1.0, 2.0, 3.0] if first == "parent" else [])
    assert key == "episode"
    # The reference from before sees the child's rows, and the layout the child fixed.
    assert values(storage) == [*seen, *range(10, 16)]
    assert storage.layout is not None and storage.layout.leaves[0].path == ("episode",)
    assert layout == str(storage.layout)
    if old is not None:
        assert np.asarray(old["x"]).tolist() == [0.0, 1.0, 2.0, 3.0]
    table = storage.episodes()
    assert table["steps"].tolist() == ([4, 6] if first == "parent" else [6])
    drawn = {int(e) for _ in range(50) for e in np.unique(buffer.sample()["episode"])}
    assert drawn == ({0, 7} if first == "parent" else {7})
    # And the child sees ours, written after it started.
    storage.default_writer.extend(
        {"episode": np.full(2, 9, np.int64), "x": np.array([20, 21], np.float32)}
    )
    ours.send("go on")
    assert ours.poll(WAIT_S)
    assert ours.recv() == [*seen, *range(10, 16), 20.0, 21.0]
    child.join(WAIT_S)
    assert child.exitcode == 0
    assert ends
    storage.close()
    assert not exists(name)


@pytest.mark.parametrize("kind", ["lazy", "shared"])
def test_storages_pass_through_fork(kind: str, name: str) -> None:
    """A writer that was forked is a new one: it goes on with nothing."""
    code = """
    import multiprocessing
    storage = LazyTensorStorage(64) if sys.argv[2] == "lazy" else SharedStorage(64, name=name)
    buffer = ReplayBuffer(storage, batch_size=8)
    row = lambda x, done=False: {"x": np.float32(x), "next": {"done": done}}
    for i in range(3):
        buffer.add(row(i))

    def child(storage, pipe):
        from_here = storage.default_writer
        from_here.add(row(10))
        from_here.add(row(11, True))
        pipe.send(len(storage))
        assert pipe.recv() == "go on"
        pipe.send(len(storage))

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(storage, theirs))
    process.start()
    assert ours.poll(60) and ours.recv() == 5
    assert len(storage) == 5
    buffer.add(row(3))
    buffer.add(row(4, True))
    ours.send("go on")
    assert ours.poll(60) and ours.recv() == 7
    process.join(60)
    assert process.exitcode == 0
    table = storage.episodes()
    found = {tuple(np.asarray(storage.read_episode(e)["x"]).tolist()): e for e in table["id"]}
    assert set(found) == {(0.0, 1.0, 2.0, 3.0, 4.0), (10.0, 11.0)}, found
    complete = dict(zip(table["id"].tolist(), table["complete"].tolist()))
    assert complete[int(found[0.0, 1.0, 2.0, 3.0, 4.0])]
    assert not complete[int(found[10.0, 11.0])], "told to go on with what it does not hold"
    assert len(np.unique(table["writer"])) == 2
    """
    run(code, name, kind)
    assert not exists(name)


def test_forks_while_another_thread_appends(name: str) -> None:
    """The lock may be held by a thread that the child does not have."""
    code = """
    import threading
    storage = SharedStorage(256, name=name, example={"x": np.zeros(4096)})
    stop = threading.Event()
    def work():
        writer = storage.writer()
        while not stop.is_set():
            writer.extend({"x": np.zeros((64, 4096))})
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(30):
        pid = os.fork()
        if pid == 0:
            storage.default_writer.add({"x": np.ones(4096)})
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    thread.join()
    """
    run(code, name)


# -- the first row ---------------------------------------------------------------------------------


def test_two_layouts_race(zygote: Zygote, name: str, tmp_path: Path) -> None:
    for turn in range(25):
        mine = f"{name}-{turn}"
        go = tmp_path / f"go-{turn}"
        with SharedStorage(32, name=mine) as storage:
            children = [
                zygote.start(workers.first_row, name=mine, go=str(go), leaf=leaf, width=width)
                for leaf, width in (("a", 3), ("b", 5))
            ]
            until(lambda: all(_has_open(c.pid, mine) for c in children))  # noqa: B023
            go.touch()
            results = [c.result(WAIT_S) for c in children]
            won = [r for r in results if r["won"]]
            (lost,) = [r for r in results if not r["won"]]
            assert len(won) == 1
            (winner,) = won
            assert winner["leaf"] in lost["error"] and lost["leaf"] in lost["error"]
            assert len(storage) == 1
            assert [x.path for x in storage.layout.leaves] == [(winner["leaf"],)]
            batch, _ = storage.gather(np.arange(1))
            assert np.asarray(batch[winner["leaf"]]).tolist() == [[7.0] * winner["width"]]
            with pytest.raises(contig.LayoutError):
                storage.default_writer.add({"c": 1.0})
            storage.default_writer.add({winner["leaf"]: np.zeros(winner["width"], np.float32)})
            assert len(storage) == 2


def test_killed_while_defining_the_layout(zygote: Zygote, name: str, tmp_path: Path) -> None:
    """Whatever instant the first writer dies at, the next one can define and write."""
    for turn in range(60):
        mine = f"{name}-{turn}"
        go = tmp_path / f"go-{turn}"
        with SharedStorage(32, name=mine) as storage:
            victim = zygote.start(workers.first_row, name=mine, go=str(go), leaf="a", width=3)
            until(lambda: _has_open(victim.pid, mine))  # noqa: B023
            go.touch()
            # From before it sees `go` to after its first row.
            end = time.perf_counter() + turn * 25e-6
            while time.perf_counter() < end:
                pass
            victim.kill()
            try:
                storage.default_writer.add({"b": np.ones(5, np.float32)})
            except contig.LayoutError as error:
                assert "a" in str(error)
                assert [x.path for x in storage.layout.leaves] == [("a",)]
                storage.default_writer.add({"a": np.ones(3, np.float32)})
            head = storage.tape.snapshot()[0]
            leaf = storage.layout.leaves[0].path[0]
            assert head == 1 or (head == 2 and leaf == "a"), (head, leaf)
            batch, lost = storage.gather(np.arange(head))
            assert not lost
            assert np.asarray(batch[leaf])[-1].tolist() == [1.0] * (3 if leaf == "a" else 5)


# -- checkpoints -----------------------------------------------------------------------------------


def test_nobody_goes_on_with_a_loaded_checkpoint(zygote: Zygote, name: str, tmp_path: Path) -> None:
    """A writer of another process has a trajectory open when a checkpoint takes its place. Its next
    rows belong to nothing that is there, whatever the numbers of the entries say."""
    saved = ReplayBuffer(LazyTensorStorage(64), SliceSampler(slice_len=8), batch_size=8)
    for i in range(5):
        saved.add(row(100 + i))
    saved.save(tmp_path / "checkpoint")
    go = tmp_path / "go"
    with SharedStorage(64, name=name, example=row(0)) as storage:
        writer = zygote.start(workers.add_rows, name=name, first=3, then=2, go=str(go))
        until(go.with_suffix(".ready").exists)
        buffer = ReplayBuffer(storage, SliceSampler(slice_len=8), batch_size=8, seed=0)
        buffer.load(tmp_path / "checkpoint")
        go.touch()
        writer.result(WAIT_S)
        assert values(storage) == [100.0, 101.0, 102.0, 103.0, 104.0, 3.0, 4.0]
        table = storage.episodes()
        parts = [np.asarray(storage.read_episode(e)["x"]).tolist() for e in table["id"]]
        assert parts == [[100.0, 101.0, 102.0, 103.0, 104.0], [3.0, 4.0]]
        for _ in range(20):
            x = np.asarray(buffer.sample()["x"])
            assert np.all(x >= 100) or np.all(x < 100), f"a slice across trajectories: {x}"


def test_what_is_no_segment_is_left_alone(name: str) -> None:
    """Somebody else's directory, or link to nowhere, with a name like ours."""
    folder, link = (Path(f"/dev/shm/contig-{name}-{kind}") for kind in ("folder", "link"))
    folder.mkdir()
    link.symlink_to("/nowhere")
    try:
        assert not {f"{name}-folder", f"{name}-link"} & set(segment.reap())
        assert folder.is_dir() and link.is_symlink()
    finally:
        folder.rmdir()
        link.unlink()
