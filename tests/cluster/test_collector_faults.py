"""Actors and nodes that fail: the learner is told why, or Ray makes them again; nothing is torn."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, RemoteReplayBuffer, ReplayBuffer, Server, TcpTransport
from contig.errors import WorkerError
from tests.cluster.test_collector import _row, collect
from tests.collect.envs import Faulty, Steps, check_storage, make_steps
from tests.collect.policies import Weighted
from tests.processes import alive
from tests.waiting import until

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("cluster")

FAULTS = {
    "raise": "ArithmeticError: the simulator broke",
    "nan": "nan",
    "kill": "died",
    "hang": "hangs in env.step for more than 1.0 s(.|\n)*time.sleep",
}


@pytest.mark.parametrize(("fault", "text"), FAULTS.items(), ids=FAULTS.keys())
def test_a_fault_is_raised_with_number_pid_and_traceback(fault: str, text: str) -> None:
    with pytest.raises(WorkerError, match=rf"worker 1 \(pid \d+\)(.|\n)*{text}"):
        with collect(
            [partial(Faulty, "none"), partial(Faulty, fault)],
            frames_per_batch=60,
            step_timeout_s=1.0,
        ) as collector:
            list(collector)


def test_a_sample_raises_it_too() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(1000), batch_size=4)
    with pytest.raises(WorkerError, match="the simulator broke"):
        with collect(
            [partial(Faulty, "raise")], frames_per_batch=10, replay_buffer=buffer
        ) as collector:
            collector.start()
            until(lambda: buffer.sample() is None)


def test_an_actor_that_cannot_start_says_why() -> None:
    with pytest.raises(WorkerError, match="worker 1(.|\n)*no such simulator"):
        collect([make_steps, _broken], frames_per_batch=10)


def _broken() -> Any:
    raise FileNotFoundError("no such simulator")


def test_an_actor_that_no_node_has_room_for_says_so() -> None:
    with pytest.raises(WorkerError, match="did not start within 1.0 s: Ray has not placed it"):
        collect([make_steps], frames_per_batch=10, num_cpus=100, start_timeout_s=1.0)


@pytest.mark.parametrize("fault", ["raise", "kill", pytest.param("hang", marks=pytest.mark.soak)])
def test_a_failed_actor_is_made_again(fault: str, tmp_path: Path) -> None:
    """The stretch it was in is collected again, with the newest weights and other seeds."""
    mark = tmp_path / "failed"
    with collect(
        [partial(Faulty, "none"), partial(Faulty, fault, 12, str(mark))],
        Weighted(0.0, 4),
        frames_per_batch=60,
        total_frames=360,
        max_restarts=1,
        step_timeout_s=1.0,
    ) as collector:
        batches = []
        for number, batch in enumerate(collector):
            assert (batch["weight"] == number).all()
            batches.append(batch)
            collector.policy.fill(number + 1.0)
            collector.update_policy_weights_()
    assert mark.exists() and collector.restarts == 1
    assert [b.shape for b in batches] == [(2, 30)] * 6
    second = np.concatenate([b["observation"][1, :, 0] for b in batches])
    assert set(second.tolist()) == {1.0, 3.0}


def test_one_restart_too_many() -> None:
    with pytest.raises(WorkerError, match="the simulator broke"):
        with collect(
            [partial(Faulty, "raise", at=0)], frames_per_batch=10, max_restarts=1
        ) as collector:
            list(collector)
    assert collector.restarts == 1


@pytest.mark.parametrize("way", ["back", pytest.param("remote", marks=pytest.mark.soak)])
def test_killed_actors_leave_whole_trajectories_once(way: str) -> None:
    """SIGKILL at any moment: what a buffer has acked is there once, and nothing in part."""
    buffer = ReplayBuffer(LazyTensorStorage(500_000), batch_size=8)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        remote = RemoteReplayBuffer("127.0.0.1", server.port, data_sample=_row())
        with (
            remote,
            collect(
                [make_steps] * 2,
                frames_per_batch=200,
                trajs_per_batch=2,
                replay_buffer=remote if way == "remote" else buffer,
                max_restarts=2,
            ) as collector,
        ):
            collector.start()
            for number in range(2):
                rows, restarts = len(buffer), collector.restarts
                until(lambda at=rows: len(buffer) > at + 500 and all(collector.pids))
                os.kill(collector.pids[number % 2], signal.SIGKILL)
                until(lambda at=restarts: collector.restarts > at)
            # each actor has a seed of its own: rows of those that were made again are there, too
            seeds: set[float] = set()
            until(lambda: seeds.update(_seeds(buffer)) or len(seeds) >= 3)
            acked = len(buffer)
        assert len(buffer) >= acked
        found = check_storage(buffer.storage)  # no step twice, every trajectory as its env made it
    assert all(x["next", "done"][-1] for x in found)


def _seeds(buffer: ReplayBuffer) -> list[float]:
    return buffer.sample(64)["observation"][:, 0].tolist()


class Held(Steps):
    """Goes on after its first steps only once a file is there."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file, self.left = file, 400

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            until(self.file.exists)
        return super().step(action)


@pytest.mark.soak  # test_collector_shards.py has it for sharded buffers
def test_a_node_that_is_lost_while_its_actor_collects(cluster: Any, tmp_path: Path) -> None:
    """Its actor goes on elsewhere; the learner has every frame that it asked for, once."""
    lost = cluster.add("doomed")
    at = lost.unique_id if hasattr(lost, "unique_id") else ""
    (node,) = (n["NodeID"] for n in ray.nodes() if n["Alive"] and "doomed" in n["Resources"])
    here = ray.get_runtime_context().get_node_id()
    buffer = ReplayBuffer(LazyTensorStorage(100_000), batch_size=8)
    gone = tmp_path / "gone"
    with collect(
        [Steps, partial(Held, gone)],  # it may not be done before its node is lost
        frames_per_batch=100,
        total_frames=3000,
        trajs_per_batch=2,
        replay_buffer=buffer,
        placement=[here, node],
        max_restarts=2,
        step_timeout_s=60.0,
    ) as collector:
        assert collector.nodes == [here, node], at
        first = collector.pids[1]
        for number, _ in enumerate(collector):
            if number == 4:
                cluster.remove(lost)
                until(lambda: not alive(first))  # it outlives its node for a moment
                gone.touch()
        assert collector.restarts == 1 and collector.nodes[1] != node
    found = check_storage(buffer.storage)
    assert all(x["next", "done"][-1] for x in found)
    assert sum(len(x) for x in found) + collector.dropped_frames == 3000


@pytest.mark.soak
def test_a_stopped_actor_is_told() -> None:
    with pytest.raises(WorkerError, match="no sign of life"):
        with collect([make_steps] * 2, frames_per_batch=20, start_timeout_s=20.0) as collector:
            os.kill(collector.pids[1], signal.SIGSTOP)
            list(collector)
