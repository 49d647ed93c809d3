"""Servers, clients, collectors, rollout storages say in a line what they are, also once closed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import contig
from contig import (
    Collector,
    LazyTensorStorage,
    QueueRolloutStorage,
    RemoteReplayBuffer,
    ReplayBuffer,
    RolloutStorage,
    SarsaRolloutStorage,
    Server,
    SharedClient,
    StateReplayBuffer,
    TcpClient,
    TcpTransport,
    Trajectory,
    TrajectoryReplayBuffer,
)
from contig.collect import BaseCollector

ROW = {"obs": np.zeros(3, np.float32), "next": {"done": False}}


@pytest.fixture
def buffer() -> ReplayBuffer:
    return ReplayBuffer(LazyTensorStorage(10, example=ROW), batch_size=2)


def test_a_server_of_tables(buffer: ReplayBuffer) -> None:
    server = Server(tables={"a": buffer}, transport=TcpTransport(), name="one")
    assert repr(server) == "<Server 'one': table 'a', not started>"
    with server:
        assert repr(server) == f"<Server 'one': table 'a', on 127.0.0.1:{server.port}>"
    assert repr(server) == "<Server 'one' closed: table 'a'>"


def test_a_server_of_a_queue() -> None:
    server = Server(ROW, 4, name="two")
    assert repr(server) == "<Server 'two': a queue of batches of 4, for this machine>"
    server.close()
    assert repr(server) == "<Server 'two' closed: a queue of batches of 4>"


def test_clients(buffer: ReplayBuffer) -> None:
    """Without asking the server, which may be gone."""
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        where = f"table 'default' of 127.0.0.1:{server.port}"
        client = TcpClient("127.0.0.1", server.port)
        remote = RemoteReplayBuffer("127.0.0.1", server.port, batch_size=2, output="torch")
        assert repr(client) == f"<TcpClient: {where}>"
        assert repr(remote) == f"<RemoteReplayBuffer: {where}, batches of 2, output='torch'>"
        client.close()
        remote.close()
        assert repr(client) == f"<TcpClient closed: {where}>"
        assert repr(remote) == f"<RemoteReplayBuffer closed: {where}, batches of 2, output='torch'>"


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory between processes")
def test_a_shared_client() -> None:
    with Server(ROW, 4, name="reprs") as server, SharedClient(server.name) as client:
        assert repr(client) == "<SharedClient: table 'default' of server 'reprs'>"
    assert repr(client) == "<SharedClient closed: table 'default' of server 'reprs'>"


def test_collectors(buffer: ReplayBuffer) -> None:
    with Collector("CartPole-v1", frames_per_batch=8) as collector:
        assert repr(collector) == "<Collector: 1 env, batches of 8 frames>"
    assert repr(collector) == "<Collector closed: 1 env, batches of 8 frames>"
    with Collector("CartPole-v1", frames_per_batch=8, replay_buffer=buffer) as collector:
        assert repr(collector) == "<Collector: 1 env, batches of 8 frames, into a ReplayBuffer>"


def test_a_collector_with_workers() -> None:
    with contig.MultiSyncCollector(["CartPole-v1"] * 2, frames_per_batch=8) as collector:
        assert repr(collector) == "<MultiSyncCollector: 2 workers, batches of 8 frames>"
    assert repr(collector) == "<MultiSyncCollector closed: 2 workers, batches of 8 frames>"


def test_a_collector_of_ones_own(buffer: ReplayBuffer) -> None:
    class Source(BaseCollector):
        def _collect(self) -> Any:
            return self.END

    assert repr(Source()) == "<Source: a source of batches>"
    assert repr(Source(buffer)) == "<Source: a source of batches, into a ReplayBuffer>"


def test_rollout_storages() -> None:
    for kind in (RolloutStorage, QueueRolloutStorage, SarsaRolloutStorage):
        storage: Any = kind(2, 3, (4,), actions_shape=(1,))
        assert repr(storage) == f"<{kind.__name__}: 0 of 3 steps of 2 envs, on cpu>"
    storage = RolloutStorage(2, 3, (4,), actions_shape=(1,))
    step = storage.Transition()
    step.observations, step.actions = torch.zeros(2, 4), torch.zeros(2, 1)
    step.rewards, step.dones = torch.zeros(2), torch.zeros(2)
    storage.add_transitions(step)
    assert repr(storage) == "<RolloutStorage: 1 of 3 steps of 2 envs, on cpu>"


def test_states() -> None:
    states = StateReplayBuffer(4, 10)
    states.insert(torch.zeros(3, 4), torch.zeros(3, 4))
    assert repr(states) == "<StateReplayBuffer: 3 of 10 pairs of 4 numbers, on cpu>"


def test_trajectories(tmp_path: Path) -> None:
    with TrajectoryReplayBuffer(sample_window_size=5) as buffer:
        buffer.add_trajectories([Trajectory(rewards=torch.zeros(3, 2, 1))])
        expected = "<TrajectoryReplayBuffer: 1 trajectories, sampled from the newest 5, 'torch'>"
        assert repr(buffer) == expected.replace("'torch'", "output='torch'")
    assert repr(buffer) == "<TrajectoryReplayBuffer: closed>"
    with TrajectoryReplayBuffer(
        sample_window_size=0, auto_save=True, auto_save_path=tmp_path / "kept", output="numpy"
    ) as kept:
        assert repr(kept) == (
            f"<TrajectoryReplayBuffer '{tmp_path}/kept': 0 trajectories, output='numpy'>"
        )
    assert repr(kept) == f"<TrajectoryReplayBuffer '{tmp_path}/kept': closed>"


def test_no_public_class_is_left_out() -> None:
    """Whatever is made once and looked at often: an address says nothing."""
    ends = ("Buffer", "Storage", "Sampler", "Server", "Client", "Collector", "Ensemble")
    classes = [getattr(contig, n) for n in contig.__all__ if n.endswith(ends)]
    plain = [c.__name__ for c in classes if isinstance(c, type) and c.__repr__ is object.__repr__]
    assert len(classes) > 20 and not plain
