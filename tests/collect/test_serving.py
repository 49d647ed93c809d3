"""Collectors that feed a server's table: from the server's process, or over TCP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import (
    Collector,
    LazyTensorStorage,
    MultiCollector,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    SliceSampler,
    TcpClient,
    TcpTransport,
)
from tests.collect.envs import Steps, check_storage, make_steps


def example() -> Any:
    """One row, from the collector that makes them."""
    (batch,) = Collector(Steps(), frames_per_batch=1, total_frames=1, seed=0)
    return batch[0].tree()


def test_workers_send_to_a_remote_table() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(5000), SliceSampler(slice_len=2), batch_size=8)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with RemoteReplayBuffer("127.0.0.1", server.port, data_sample=example()) as remote:
            with MultiCollector(
                [make_steps] * 2,
                frames_per_batch=20,
                total_frames=100,
                replay_buffer=remote,
                trajs_per_batch=2,
                seed=0,
            ) as collector:
                assert set(collector) == {None}
            assert len(remote.sample()) <= 8
            with Collector(
                Steps(), frames_per_batch=20, total_frames=40, replay_buffer=remote, seed=50
            ) as single:
                list(single)
        found = check_storage(buffer.storage)
        assert sum(len(x) for x in found) == 100 - collector.dropped_frames + 40


class Weighted:
    def __init__(self) -> None:
        self.weights = {"w": np.zeros(4)}

    def get_weights(self) -> Any:
        return self.weights

    def set_weights(self, tree: Any) -> None:
        self.weights = {"w": np.array(tree["w"])}

    def __call__(self, inputs: Any) -> Any:
        return np.zeros(len(inputs["is_init"]), np.int64)


def test_a_server_is_a_buffer_and_passes_weights_on() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(5000), batch_size=8)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        policy = Weighted()
        with MultiCollector(
            [make_steps], policy, frames_per_batch=20, total_frames=40, replay_buffer=server, seed=0
        ) as collector:
            for _ in collector:
                policy.weights = {"w": policy.weights["w"] + 1}
                collector.update_policy_weights_()
        with TcpClient("127.0.0.1", server.port) as client:
            weights = client.weights(timeout_s=10)
        assert weights is not None and weights.version == 2
        np.testing.assert_array_equal(weights.tree["w"], np.full(4, 2.0))
    assert sum(len(x) for x in check_storage(buffer.storage)) == 40


def test_a_server_with_several_tables_must_be_told_which() -> None:
    tables = {"a": ReplayBuffer(LazyTensorStorage(10)), "b": ReplayBuffer(LazyTensorStorage(10))}
    with Server(tables=tables) as server:
        with pytest.raises(TypeError, match="server.buffers"):
            Collector(Steps(), frames_per_batch=2, replay_buffer=server)
