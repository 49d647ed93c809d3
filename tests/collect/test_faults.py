"""Workers that die, raise, hang or emit nonsense: the learner is told, and told why."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import (
    Collector,
    LazyTensorStorage,
    MultiCollector,
    ParallelEnv,
    ReplayBuffer,
    SerialEnv,
    SliceSampler,
    WorkerError,
    Writer,
)
from contig.process import heartbeat
from tests.collect.envs import Faulty, check_storage, make_steps, steps_of
from tests.collect.policies import Sleepy, Weighted
from tests.processes import alive, state
from tests.waiting import WAIT_S, until

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
        step_timeout_s=float(workers) if fault == "hang" else 60.0,
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
    until(lambda: not collector._thread.is_alive())
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


@pytest.mark.parametrize("call", ["iterate", "sample", "shutdown", "resume", "replaced"])
def test_a_stopped_worker_that_was_idle_is_told_by_any_call(call: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(heartbeat, "_SILENT_S", 2.0)
    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    collector = MultiCollector(
        [make_steps] * 2,
        frames_per_batch=20,
        replay_buffer=buffer,
        sync=call != "resume",
        max_restarts=int(call == "replaced"),
        step_timeout_s=1.0,
        seed=0,
    )
    if call == "resume":
        collector.start()
        buffer.sample()
        collector.pause()
    iterator = iter(collector) if call != "resume" else None
    if iterator is not None:
        next(iterator)
        buffer.sample()
    pid = collector.pids[1]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")
    said = rf"worker 1 \(pid {pid}\) (.|\n)*sign of life"
    if call == "replaced":
        assert iterator is not None and next(iterator) is None
        assert collector.restarts == 1 and buffer.stats().rows_written == 40
        until(lambda: not alive(pid))
        collector.shutdown()
        return
    if call == "shutdown":
        until(lambda: collector._workers.handles[1].watch.silence_s > 2.0)

    def told() -> bool:
        try:
            if call == "iterate":
                next(iter(collector))
            elif call == "sample":
                buffer.sample()
            elif call == "resume":  # the thread looks after workers while it is paused, too
                collector.check()
            else:
                collector.shutdown()
        except WorkerError as error:
            assert re.search(said, str(error))
            return True
        assert call != "shutdown"
        return False

    until(told)
    collector.shutdown()
    assert not any(alive(pid) for pid in collector.pids)


class Compiles(Faulty):
    """Its first step and its first reset take long in every process, as if it compiled."""

    def __init__(self, seconds: float) -> None:
        super().__init__("none")
        self.left = {"reset": seconds, "step": seconds}

    def reset(self, **options: Any) -> Any:
        time.sleep(self.left.pop("reset", 0))
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        time.sleep(self.left.pop("step", 0))
        return super().step(action)


def test_the_first_step_may_take_long() -> None:
    here = os.getpid()

    def make() -> Any:
        return Compiles(0.0 if os.getpid() == here else 2.0)

    buffer = ReplayBuffer(LazyTensorStorage(1000), batch_size=8)
    with MultiCollector(
        [make],
        frames_per_batch=20,
        total_frames=60,
        replay_buffer=buffer,
        step_timeout_s=0.5,
        seed=0,
    ) as collector:
        list(collector)
    assert buffer.stats().rows_written == 60 and collector.restarts == 0


def test_a_first_step_that_never_ends_is_a_fault() -> None:
    here = os.getpid()

    def make() -> Any:
        return Compiles(0.0 if os.getpid() == here else 3600.0)

    def stuck() -> Any:
        env = make()
        env.left.pop("reset")
        return env

    for env, what in ((make, r"env\.reset"), (stuck, r"the first env\.step")):
        with MultiCollector(
            [env], frames_per_batch=20, step_timeout_s=60.0, start_timeout_s=1.0, seed=0
        ) as collector:
            with pytest.raises(
                WorkerError, match=rf"worker 0 (.|\n)*hangs in {what}(.|\n)*in (step|reset)"
            ):
                list(collector)


def test_the_first_step_of_a_parallel_environment_may_take_long() -> None:
    with ParallelEnv(1, lambda: Compiles(1.5), step_timeout_s=0.5) as env:
        assert env.rollout(1, seed=0).shape == (1, 1)
    with ParallelEnv(1, lambda: Compiles(3600), step_timeout_s=60.0, start_timeout_s=0.5) as env:
        with pytest.raises(WorkerError, match=r"environment 0 \(pid \d+\)(.|\n)*hangs"):
            env.rollout(1, seed=0)


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
    # Worker 0 came back with another seed, two environments later: it repeats nothing.
    assert {s[0] for x in found for s in steps_of(x)} == {0, 1, 2}
    assert sum(len(x) for x in found) + collector.dropped_frames == 200


def test_frames_are_exact_across_a_restart(tmp_path: Path) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    with collector_of(
        "kill", buffer, mark=str(tmp_path / "mark"), max_restarts=1, total_frames=200
    ) as collector:
        list(collector)
    assert collector.restarts == 1 and buffer.stats().rows_written == 200


class Once:
    """A postproc or hook that fails at its third call, in one process only, and keeps some rows.

    Args:
        mark: a file that is made first; if it exists it behaves.
        how: "raise", or "kill" for the end of the process.
        keep: every `keep`-th row is handed on.
    """

    def __init__(self, mark: str, how: str = "raise", keep: int = 1) -> None:
        self.mark, self.how, self.keep, self.calls = mark, how, keep, 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls == 3 and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("the logger broke")
        return batch if self.keep == 1 else batch[:: self.keep]


@pytest.mark.parametrize(
    ("where", "how", "keep", "trajs"),
    [
        ("post_collect_hook", "raise", 1, None),
        ("post_collect_hook", "kill", 1, None),
        ("post_collect_hook", "raise", 1, 2),
        ("postproc", "raise", 1, None),
        ("postproc", "raise", 2, None),
    ],
)
def test_frames_are_exact_if_a_function_of_the_users_fails(
    where: str, how: str, keep: int, trajs: int | None, tmp_path: Path
) -> None:
    """What it was given had been written, or not: that much is collected again, and no more."""
    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    functions = {where: Once(str(tmp_path / "mark"), how, keep)}
    if keep > 1 and where == "postproc":
        functions["post_collect_hook"] = Once(str(tmp_path / "other"), how)
    with collector_of(
        "none",
        buffer,
        max_restarts=2,
        total_frames=200,
        trajs_per_batch=trajs,
        init_random_frames=130,
        **functions,
    ) as collector:
        list(collector)
    assert collector.restarts == len(functions)
    rows = buffer.stats().rows_written
    if trajs is None:
        assert rows == 200 // keep
    else:
        assert rows + collector.dropped_frames == 200


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("lanes", [0, 2])
def test_frames_are_exact_if_a_worker_dies_in_a_write(
    when: str, lanes: int, tmp_path: Path
) -> None:
    """Whether the append it died in was committed is looked up."""
    here, mark = os.getpid(), tmp_path / "mark"

    def make() -> Any:
        if os.getpid() != here and not mark.exists():
            extend, calls = Writer.extend, []

            def dying(self: Any, *given: Any, **options: Any) -> Any:
                calls.append(1)
                if len(calls) == 3 and when == "before":
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                out = extend(self, *given, **options)
                if len(calls) == 3:
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return out

            Writer.extend = dying  # type: ignore[method-assign]
        return make_steps()

    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    with MultiCollector(
        [SerialEnv(lanes, make) if lanes else make] * 2,
        frames_per_batch=40,
        total_frames=400,
        replay_buffer=buffer,
        max_restarts=2,
        seed=0,
    ) as collector:
        list(collector)
    assert collector.restarts >= 1 and mark.exists()
    assert buffer.stats().rows_written == 400
    check_storage(buffer.storage)


def test_random_frames_are_counted_across_restarts(tmp_path: Path) -> None:
    def policy(inputs: Any) -> Any:
        return np.full(len(inputs["is_init"]), 4, np.int64)

    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    with MultiCollector(
        [lambda: Faulty("none")],
        policy,
        frames_per_batch=20,
        total_frames=400,
        replay_buffer=buffer,
        init_random_frames=90,
        post_collect_hook=Once(str(tmp_path / "a")),
        postproc=Once(str(tmp_path / "b")),
        max_restarts=2,
        seed=0,
    ) as collector:
        list(collector)
    assert collector.restarts == 2
    actions = buffer[:]["action"]
    assert (actions[90:] == 4).all() and (actions[80:90] != 4).any() and len(actions) == 400


def test_one_restart_too_many() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    collector = collector_of("raise", buffer, max_restarts=1)
    with pytest.raises(WorkerError, match="the simulator broke"):
        list(collector)
    assert collector.restarts == 1
    collector.async_shutdown()


def test_a_policy_that_hangs_is_a_fault_too() -> None:
    with MultiCollector(
        [make_steps], Sleepy(episode=2), frames_per_batch=50, step_timeout_s=1.0, seed=0
    ) as collector:
        with pytest.raises(
            WorkerError, match=r"worker 0 (.|\n)*hangs in the policy(.|\n)*__call__"
        ):
            list(collector)


def test_an_environment_that_is_never_made_is_a_fault_too() -> None:
    here = os.getpid()

    def make() -> Any:
        if os.getpid() != here:
            time.sleep(3600)
        return Faulty("none")

    with pytest.raises(WorkerError, match=r"worker 0 (.|\n)*hangs in make_env(.|\n)*in make"):
        MultiCollector([make], frames_per_batch=20, start_timeout_s=1.0)


@pytest.mark.parametrize("lanes", [0, 2])
def test_nan_is_noticed_long_before_the_batch_is_full(lanes: int) -> None:
    def make() -> Any:
        return Faulty("nan", at=0, step_s=0.1)

    env = SerialEnv(lanes, make) if lanes else make
    # The batch would take an hour.
    with MultiCollector([env], frames_per_batch=36_000, seed=0) as collector:
        with pytest.raises(WorkerError, match=r"worker 0 \(pid \d+\)(.|\n)*NaN"):
            list(collector)


@pytest.mark.parametrize("call", ["sample", "shutdown"])
def test_a_worker_that_died_between_iterations_is_told_by_any_call(call: str) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    collector = collector_of("none", buffer)
    next(iter(collector))
    buffer.sample()
    os.kill(collector.pids[0], signal.SIGKILL)
    said = r"worker 0 \(pid \d+\) died: killed by signal 9"
    if call == "sample":

        def told() -> bool:
            try:
                buffer.sample()
            except WorkerError as error:
                assert re.search(said, str(error))
                return True
            return False

        until(told)
    else:
        until(lambda: not alive(collector.pids[0]))
        until(lambda: collector._workers.handles[0].ended)
        with pytest.raises(WorkerError, match=said):
            collector.shutdown()
    collector.shutdown()


def test_a_replaced_worker_goes_on_with_the_newest_weights(tmp_path: Path) -> None:
    policy = Weighted(size=10)
    buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
    mark = str(tmp_path / "mark")
    with MultiCollector(
        [lambda: Faulty("kill", at=6, mark=mark)],
        policy,
        frames_per_batch=10,
        total_frames=100,
        replay_buffer=buffer,
        init_random_frames=15,
        max_restarts=1,
        seed=0,
    ) as collector:
        for _ in collector:
            policy.fill(collector.policy_version + 1)
            collector.update_policy_weights_()
    assert collector.restarts == 1
    rows = buffer[:]
    np.testing.assert_array_equal(rows["weight"], rows["collector", "policy_version"])
    assert rows["weight"].tolist() == np.repeat(np.arange(10.0), 10).tolist()
    assert not rows["action"][15:].any()  # and it draws no random actions again


def test_a_hanging_environment_of_a_parallel_one_says_where() -> None:
    env = ParallelEnv(2, [lambda: Faulty("none"), lambda: Faulty("hang", at=1)], step_timeout_s=1.0)
    with Collector(env, frames_per_batch=20, seed=0) as collector:
        said = r"environment 1 \(pid \d+\)(.|\n)*hangs(.|\n)*in step"
        with pytest.raises(WorkerError, match=said):
            list(collector)


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
    until(lambda: not any(alive(pid) for pid in [*pids, *below]))
    left = Path("/dev/shm") / f"contig-{name}"
    if end == signal.SIGKILL:  # nobody was left to remove it; the next contig process does
        from contig.tape.segment import reap

        reap()
    assert not left.exists()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(x) for x in text.split()]
