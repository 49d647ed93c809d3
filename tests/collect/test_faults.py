"""Workers that die, raise, hang or emit nonsense: the learner is told, and told why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from contig import LazyTensorStorage, MultiCollector, ReplayBuffer, SliceSampler, WorkerError
from tests.collect.envs import Faulty, check_storage, steps_of

WAIT_S = 30.0


def wait_for(what: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


FAULTS = [
    ("raise", r"the simulator broke"),
    ("hang", r"hangs in env\.step(.|\n)*in step"),
    ("kill", r"killed by signal 9"),
    ("nan", r"NaN"),
    ("shape", r"shape \[1\], expected \[3\]"),
]


def collector_of(
    fault: str, buffer: Any, mark: str | None = None, workers: int = 1, **options: Any
) -> Any:
    """Worker 0 goes wrong, others do not."""
    return MultiCollector(
        [lambda: Faulty(fault, mark=mark), lambda: Faulty("none", at=-5)][:workers],
        frames_per_batch=20,
        replay_buffer=buffer,
        step_timeout_s=2.0,
        seed=0,
        **options,
    )


CASES = [(*f, "iterate") for f in FAULTS] + [(*FAULTS[1], "sample")]


@pytest.mark.parametrize(("fault", "text", "how"), CASES)
def test_a_fault_is_raised_with_number_pid_and_traceback(fault: str, text: str, how: str) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    # While another worker goes on, if the buffer is what is asked.
    collector = collector_of(fault, buffer, workers=1 + (how == "sample"), sync=how == "iterate")
    pids = collector.pids
    said = rf"worker 0 \(pid {pids[0]}\)(.|\n)*{text}"
    if how == "iterate":
        with pytest.raises(WorkerError, match=said):
            for _ in collector:
                pass
        with pytest.raises(WorkerError, match=said):  # and again
            next(iter(collector))
    else:
        collector.start()
        deadline = time.monotonic() + WAIT_S
        with pytest.raises(WorkerError, match=said):
            while time.monotonic() < deadline:
                buffer.sample()
        collector.async_shutdown()
    collector.async_shutdown()
    assert not any(alive(pid) for pid in pids)


def test_shutdown_raises_what_nobody_was_told() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    collector = collector_of("raise", buffer, sync=False)
    collector.start()
    wait_for(lambda: not collector._thread.is_alive())
    with pytest.raises(WorkerError, match="worker 0"):
        collector.async_shutdown()
    collector.async_shutdown()
    check_storage(buffer.storage)
    assert not any(alive(pid) for pid in collector.pids)


def test_a_killed_worker_that_was_idle_or_paused_is_noticed() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    collector = collector_of("none", buffer)
    iterator = iter(collector)
    next(iterator)
    os.kill(collector.pids[0], signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"worker 0 \(pid \d+\) died: killed by signal 9"):
        next(iterator)
    collector.async_shutdown()


@pytest.mark.parametrize("fault", ["hang", "kill"])
def test_a_failed_worker_is_replaced(fault: str, tmp_path: Path) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10_000), SliceSampler(slice_len=2), batch_size=8)
    with collector_of(
        fault,
        buffer,
        mark=str(tmp_path / "mark"),
        trajs_per_batch=1,
        workers=2,
        max_restarts=1,
        total_frames=200,
    ) as collector:
        list(collector)
    assert collector.restarts == 1
    episodes = buffer.storage.episodes()
    assert (episodes["terminated"] | episodes["truncated"]).all()  # nothing partial
    found = [buffer.storage.read_episode(int(e)) for e in episodes["id"]]
    ids = [int(x["collector", "traj_ids"][0]) for x in found]
    assert len(set(ids)) == len(ids)
    for rows in found:
        steps = steps_of(rows)
        assert [s[2] for s in steps] == list(range(len(steps)))
        assert len({s[:2] for s in steps}) == 1
    # Worker 0 came back: both workers' rows are there.
    assert {s[0] for x in found for s in steps_of(x)} == {0, 1}


def test_frames_are_exact_across_a_restart(tmp_path: Path) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    with collector_of(
        "kill", buffer, mark=str(tmp_path / "mark"), max_restarts=1, total_frames=200
    ) as collector:
        list(collector)
    assert collector.restarts == 1 and buffer.stats().rows_written == 200


def test_one_restart_too_many() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    collector = collector_of("raise", buffer, max_restarts=1)
    with pytest.raises(WorkerError, match="the simulator broke"):
        list(collector)
    assert collector.restarts == 1
    collector.async_shutdown()


def test_a_worker_that_cannot_start_says_why() -> None:
    here = os.getpid()

    def make() -> Any:
        if os.getpid() != here:
            raise RuntimeError("no such game")
        return Faulty("none")

    with pytest.raises(WorkerError, match=r"worker 0 \(pid \d+\)(.|\n)*no such game"):
        MultiCollector([make], frames_per_batch=20)


SCRIPT = """
    import sys, time
    import gymnasium as gym
    from contig import MultiCollector, ParallelEnv, ReplayBuffer, SharedStorage

    # A script without a guard: workers do not import it.
    buffer = ReplayBuffer(SharedStorage(10_000, name=sys.argv[1]), batch_size=8)
    collector = MultiCollector(
        [ParallelEnv(1, lambda: gym.make("CartPole-v1"))] * 2,
        frames_per_batch=20,
        replay_buffer=buffer,
        sync=False,
    )
    print(*collector.pids, flush=True)
    if sys.argv[2] == "start":
        collector.start()
        buffer.sample()
        print("going", flush=True)
        time.sleep(3600)
    for step, _ in enumerate(collector):
        if step == 3:
            print("going", flush=True)
"""


@pytest.mark.parametrize(
    ("how", "end"),
    [("iterate", signal.SIGINT), ("start", signal.SIGINT), ("start", signal.SIGKILL)],
)
def test_the_end_of_the_main_process_leaves_nothing(how: str, end: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    name = f"test-collect-{os.getpid()}-{how}-{int(end)}"
    process = subprocess.Popen(
        [sys.executable, str(script), name, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        pids = [int(x) for x in process.stdout.readline().split()]
        assert process.stdout.readline().strip() == "going"
        below = [child for pid in pids for child in children(pid)]
        assert len(pids) == 2 and len(below) == 2
        process.send_signal(end)
        process.wait(WAIT_S)
    finally:
        process.kill()
        process.stdout.close()
    wait_for(lambda: not any(alive(pid) for pid in [*pids, *below]))
    left = Path("/dev/shm") / f"contig-{name}"
    if end == signal.SIGKILL:  # nobody was left to remove it; the next contig process does
        from contig.tape.segment import reap

        reap()
    assert not left.exists()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(x) for x in text.split()]
