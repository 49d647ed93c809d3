"""Trajectories are written behind the caller: staged, bounded, seen by whoever asks next."""

from __future__ import annotations

import errno
import gc
import os
import threading
import traceback
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contig import LayoutError, StorageFull, TrajectoryReplayBuffer
from contig.trajectory import staging
from contig.trajectory.rows import TrajectoryRows
from tests.trajectory.made import check, filled, made


@pytest.fixture(params=["memory", "disk"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    disk = {"auto_save": True, "auto_save_path": tmp_path / "rows"}
    return {"sample_window_size": 0, **(disk if request.param == "disk" else {})}


class Gate:
    """Keeps whoever writes from it until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        real = TrajectoryRows._append

        def append(rows: TrajectoryRows, *arguments: Any) -> Any:
            self.reached.set()
            assert self.open.wait(100)
            return real(rows, *arguments)

        patch.setattr(TrajectoryRows, "_append", append)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def numbers(buffer: TrajectoryReplayBuffer) -> set[int]:
    return {int(n) for n in check(buffer.sample(300))[:, 0]}


def test_the_caller_does_not_wait(options: dict[str, Any], gate: Gate) -> None:
    with TrajectoryReplayBuffer(**options) as buffer:
        for number in range(3):
            assert buffer.add_trajectories([made(number)]) == [number]
        assert gate.reached.wait(100) and buffer.trajectory_counter == 3
        gate.open.set()
        assert numbers(buffer) == {0, 1, 2}


def test_the_caller_may_change_its_tensors(options: dict[str, Any], gate: Gate) -> None:
    with TrajectoryReplayBuffer(**options) as buffer:
        for number in range(3):
            mine = made(number)
            buffer.add_trajectories([mine])
            for field in (mine.actions, mine.rewards, mine.dones, mine.prev_values):
                field.fill_(-7)
            for leaf in (mine.curr_obs["states"], mine.curr_obs["deep"]["t"]):
                leaf.fill_(-7)
        gate.open.set()
        assert numbers(buffer) == {0, 1, 2}


ASKS = {
    "len": lambda b, _: len(b) == 2,
    "size": lambda b, _: b.size == 2,
    "total_samples": lambda b, _: b.total_samples == 16,
    "index": lambda b, _: [e["trajectory_id"] for e in b.trajectory_index] == [0, 1],
    "ready": lambda b, _: b.is_ready(2),
    "stats": lambda b, _: b.get_stats()["num_trajectories"] == 2,
    "read": lambda b, _: b.read_trajectory(1)["actions"].shape == (4, 2, 3),
    "sample": lambda b, _: numbers(b) == {0, 1},
    "flush": lambda b, _: b.flush() is None and b._rows.size == 2,
    "checkpoint": lambda b, p: b.save_checkpoint(p / "s") is None and (p / "s").is_dir(),
    "export": lambda b, p: b.export_rlinf(p / "e") is None and (p / "e").is_dir(),
    "clear": lambda b, _: b.clear() is None and len(b) == b.trajectory_counter == 0,
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_who_asks_sees_what_was_added(
    options: dict[str, Any], gate: Gate, tmp_path: Path, ask: Any
) -> None:
    with TrajectoryReplayBuffer(**options) as buffer:
        buffer.add_trajectories([made(0), made(1)])
        assert gate.reached.wait(100)
        threading.Timer(0.05, gate.open.set).start()
        assert ask(buffer, tmp_path)


def test_closing_writes_what_is_staged(tmp_path: Path, gate: Gate) -> None:
    options = {"auto_save": True, "auto_save_path": tmp_path}
    buffer = TrajectoryReplayBuffer(**options)
    buffer.add_trajectories([made(n) for n in range(4)])
    gate.open.set()
    buffer.close()
    with TrajectoryReplayBuffer(**options) as buffer:
        assert numbers(buffer) == {0, 1, 2, 3}


def test_a_sample_mixed_with_demos_waits_for_both(gate: Gate) -> None:
    demos = TrajectoryReplayBuffer()
    with TrajectoryReplayBuffer(demo_buffer=demos) as buffer:
        demos.add_trajectories([made(7)])
        buffer.add_trajectories([made(1)])
        threading.Timer(0.05, gate.open.set).start()
        assert numbers(buffer) == {1, 7}


def test_what_is_staged_is_bounded(
    options: dict[str, Any], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TrajectoryReplayBuffer(**options) as buffer:
        buffer.add_trajectories([made(0)])
        size = buffer._rows._staging.nbytes
        assert gate.reached.wait(100) and size > 0
        monkeypatch.setattr(staging, "MAX_BYTES", 2 * size)
        buffer.add_trajectories([made(1)])
        added = threading.Event()

        def more() -> None:
            buffer.add_trajectories([made(2)])
            added.set()

        thread = threading.Thread(target=more)
        thread.start()
        assert not added.wait(0.1) and buffer._rows._staging.nbytes <= 2 * size
        gate.open.set()
        thread.join(100)
        assert added.is_set() and numbers(buffer) == {0, 1, 2}
        monkeypatch.setattr(staging, "MAX_BYTES", 1)  # one that is larger goes alone
        buffer.add_trajectories([made(3)])
        assert numbers(buffer) == {0, 1, 2, 3}


def test_what_does_not_fit_is_refused_at_once(options: dict[str, Any], gate: Gate) -> None:
    with TrajectoryReplayBuffer(**options) as buffer:
        buffer.add_trajectories([made(0)])
        bad = made(1)
        bad.rewards = None
        with pytest.raises(LayoutError, match="rewards"):
            buffer.add_trajectories([made(1), bad])
        assert buffer.add_trajectories([made(1)]) == [1]
        gate.open.set()
        assert numbers(buffer) == {0, 1}


@pytest.mark.parametrize("ask", ["add", "sample", "flush", "close"])
def test_an_error_comes_with_the_next_call(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    real, failing = TrajectoryRows._append, threading.Event()
    failing.set()
    entered = threading.Event()

    def the_disk_is_full(
        rows: TrajectoryRows, record: Any, tree: Any, entry: Any, *more: Any
    ) -> Any:
        if entry.trajectory_id and failing.is_set():
            entered.set()
            raise StorageFull(errno.ENOSPC, "no room")
        return real(rows, record, tree, entry, *more)

    monkeypatch.setattr(TrajectoryRows, "_append", the_disk_is_full)
    buffer = TrajectoryReplayBuffer(**options)
    buffer.add_trajectories([made(0), made(1), made(2)])
    assert entered.wait(100)
    buffer._rows._staging.wait_idle()
    calls = {
        "add": lambda: buffer.add_trajectories([made(3)]),
        "sample": lambda: buffer.sample(4),
        "flush": buffer.flush,
        "close": buffer.close,
    }
    with pytest.raises(StorageFull, match="no room") as caught:
        calls[ask]()
    assert "the_disk_is_full" in "".join(traceback.format_exception(caught.value))
    failing.clear()
    if ask != "close":  # it goes on
        assert numbers(buffer) == {0}
        number = buffer.trajectory_counter
        assert buffer.add_trajectories([made(number)]) == [number]
        assert numbers(buffer) == {0, number}
    buffer.close()


def test_many_threads(options: dict[str, Any]) -> None:
    with TrajectoryReplayBuffer(**options) as buffer:
        ids: list[int] = []

        def add(first: int) -> None:
            for number in range(first, first + 20):
                ids.extend(buffer.add_trajectories([made(number)]))
                assert number in {
                    int(e["max_episode_length"]) - 10 for e in buffer.trajectory_index
                }

        threads = [threading.Thread(target=add, args=(100 * k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            if len(buffer):
                check(buffer.sample(32))
        for thread in threads:
            thread.join(100)
        assert sorted(ids) == list(range(80)) and len(buffer) == 80


def test_a_buffer_that_nobody_closes_is_collected() -> None:
    buffer = filled(3)
    assert len(buffer) == 3
    buffer._rows._staging.wait_idle()
    gone = weakref.ref(buffer)
    del buffer
    for _ in range(1000):
        gc.collect()
        if gone() is None:
            break
        threading.Event().wait(0.01)
    assert gone() is None


def test_a_fork_writes_nothing_that_its_parent_staged(gate: Gate) -> None:
    with TrajectoryReplayBuffer() as buffer:
        buffer.add_trajectories([made(0)])
        assert gate.reached.wait(100)
        pid = os.fork()
        if pid == 0:
            os._exit(int(buffer._rows._staging.nbytes != 0 or len(buffer) != 0))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        gate.open.set()
        assert numbers(buffer) == {0}


def test_other_dtypes_are_converted_once(options: dict[str, Any], gate: Gate) -> None:
    with TrajectoryReplayBuffer(output="numpy", **options) as buffer:
        buffer.add_trajectories([{"a": np.arange(6, dtype=np.float32).reshape(3, 2)}])
        other = torch.arange(6, dtype=torch.float64).reshape(3, 2)
        buffer.add_trajectories([{"a": other}])
        other.zero_()
        gate.open.set()
        assert np.array_equal(buffer.read_trajectory(1)["a"], np.arange(6.0).reshape(3, 2))
