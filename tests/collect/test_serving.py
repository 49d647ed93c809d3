"""Collectors that feed a server's table: from the server's process, or over TCP."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from contig import (
    Collector,
    LayoutError,
    LazyTensorStorage,
    MultiCollector,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    SliceSampler,
    TcpClient,
    TcpTransport,
    WorkerError,
)
from tests.collect.envs import Steps, check_storage, make_steps
from tests.collect.policies import Holds, Weighted, straight
from tests.waiting import until


def example(more: Any = None) -> Any:
    """One row, from the collector that makes them."""
    (batch,) = Collector(Steps(), frames_per_batch=1, total_frames=1, seed=0)
    return {**batch[0].tree(), **(more or {})}


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


def test_a_server_is_a_buffer_and_passes_weights_on() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(5000), batch_size=8)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        policy = Weighted(size=4)
        for kind, env, last in ((MultiCollector, [make_steps], 2), (Collector, Steps(), 5)):
            with kind(
                env, policy, frames_per_batch=20, total_frames=40, replay_buffer=server, seed=last
            ) as collector:
                for _ in collector:
                    policy.fill(collector.policy_version + 1)
                    collector.update_policy_weights_()
            with TcpClient("127.0.0.1", server.port) as client:
                weights = client.weights(timeout_s=60)
            assert weights is not None and weights.version == last == collector.policy_version
            np.testing.assert_array_equal(weights.tree["a"], np.full(4, float(last)))
    assert sum(len(x) for x in check_storage(buffer.storage)) == 80


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collector_elsewhere_gets_its_weights_from_the_server(workers: int) -> None:
    """The learner has the server; the collector knows it by host and port only."""
    buffer = ReplayBuffer(LazyTensorStorage(50_000), batch_size=8)
    learner = Weighted(size=1000)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        sample = example({"weight": np.zeros((), np.float64)})
        with RemoteReplayBuffer("127.0.0.1", server.port, data_sample=sample) as remote:
            policy = Weighted(-1.0, size=1000)  # its own, until the learner's arrive
            options: Any = {"frames_per_batch": 20, "replay_buffer": remote, "seed": 0}
            collector: Any = (
                MultiCollector([make_steps] * workers, policy, sync=False, **options)
                if workers
                else Collector(Steps(), policy, **options)
            )
            with collector:
                collector.start()
                until(lambda: len(buffer))
                for version in range(6):
                    learner.fill(version)
                    server.publish(version, learner.get_weights())
                    time.sleep(0.02)

                def arrived() -> bool:
                    rows = buffer[-300:]
                    newest = rows["collector", "policy_version"] == 5
                    return len(set(rows["observation"][newest][:, 0].tolist())) == max(workers, 1)

                until(arrived)
                assert collector.policy_version == 5
        rows = buffer[:]
        np.testing.assert_array_equal(rows["weight"], rows["collector", "policy_version"])
        assert rows["weight"].min() == -1
        # One that comes later has them from its first step on.
        with RemoteReplayBuffer("127.0.0.1", server.port) as remote:
            late = Weighted(-1.0, size=1000)
            options = {**options, "replay_buffer": remote, "total_frames": 20, "seed": 50}
            with Collector(Steps(), late, **options) as collector:
                list(collector)
        rows = buffer[-20:]
        assert (rows["observation"][:, 0] == 50).all() and (rows["weight"] == 5).all()


def test_weights_of_another_shape_are_refused_by_the_next_call() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(5000), batch_size=8)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        sample = example({"weight": np.zeros((), np.float64)})
        with RemoteReplayBuffer("127.0.0.1", server.port, data_sample=sample) as remote:
            with MultiCollector(
                [make_steps],
                Weighted(size=5),
                frames_per_batch=20,
                replay_buffer=remote,
                seed=0,
            ) as collector:
                turns = iter(collector)
                next(turns)
                server.publish(0, Weighted(size=6).get_weights())
                with pytest.raises(WorkerError, match="weights(.|\n)*shape"):
                    for _ in turns:
                        pass


class Remembers:
    """A policy that takes weights, and has none to give."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def set_weights(self, tree: Any) -> None:
        self.seen.append(tree)

    def __call__(self, inputs: Any) -> Any:
        return straight(inputs)


def collector_of(workers: int, policy: Any, **options: Any) -> Any:
    options = {"frames_per_batch": 20, "seed": 0, **options}
    if workers:
        return MultiCollector([make_steps] * workers, policy, **options)
    return Collector(Steps(), policy, **options)


@pytest.mark.parametrize("workers", [0, 1])
def test_weights_that_a_policy_cannot_take_are_an_error(workers: int) -> None:
    """At the start if they are published by then, else at the next call: it says what is needed."""
    buffer = ReplayBuffer(LazyTensorStorage(5000), batch_size=8)
    needs = "straight has no way to take weights.*set_weights"
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with RemoteReplayBuffer("127.0.0.1", server.port, data_sample=example()) as remote:
            with collector_of(workers, straight, replay_buffer=remote) as collector:
                turns = iter(collector)
                next(turns)
                server.publish(3, {"w": np.zeros(2)})
                with pytest.raises(WorkerError, match=f"version 3.*{needs}"):
                    for _ in turns:
                        pass
            with pytest.raises(TypeError, match=f"version 3.*{needs}"):
                collector_of(workers, straight, replay_buffer=remote)
            with collector_of(workers, None, replay_buffer=remote, total_frames=20) as at_random:
                list(at_random)  # it needs none
    assert set(buffer[:]["collector", "policy_version"].tolist()) == {-1}


@pytest.mark.parametrize("workers", [0, 1])
def test_weights_that_are_given_to_a_policy_without_are_refused(workers: int) -> None:
    with collector_of(workers, straight) as collector:
        for given in ({"w": np.zeros(2)}, Weighted(size=2)):
            with pytest.raises(TypeError, match=r"straight has no way to take weights"):
                collector.update_policy_weights_(given)
        next(iter(collector))
        collector.update_policy_weights_()  # its own, of which workers get none
        version = 0 if workers else 1
        rows = next(iter(collector))["collector", "policy_version"]
        assert rows.ravel().tolist() == [version] * 20
    with collector_of(workers, None) as at_random:
        at_random.update_policy_weights_()
        with pytest.raises(TypeError, match="random actions take no weights"):
            at_random.update_policy_weights_({"w": np.zeros(2)})
    with collector_of(workers, Weighted(size=2)) as weighted:
        with pytest.raises(TypeError, match="straight has no weights to give"):
            weighted.update_policy_weights_(straight)


def test_a_policy_that_only_takes_weights_gets_them() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(5000), batch_size=8)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        server.publish(4, {"w": np.arange(2)})
        with RemoteReplayBuffer("127.0.0.1", server.port, data_sample=example()) as remote:
            policy = Remembers()
            with collector_of(0, policy, replay_buffer=remote, total_frames=20) as collector:
                list(collector)
            with pytest.raises(TypeError, match="get_weights"):  # workers need their layout
                collector_of(1, Remembers(), replay_buffer=remote)
    assert [x["w"].tolist() for x in policy.seen] == [[0, 1]]
    assert set(buffer[:]["collector", "policy_version"].tolist()) == {4}


@pytest.mark.parametrize("workers", [0, 1])
def test_weights_of_another_module_are_refused_at_the_start(workers: int) -> None:
    torch = pytest.importorskip("torch")
    buffer = ReplayBuffer(LazyTensorStorage(5000), batch_size=8)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        server.publish(0, torch.nn.Linear(3, 1).state_dict())
        with RemoteReplayBuffer("127.0.0.1", server.port, data_sample=example()) as remote:
            with pytest.raises(LayoutError, match="weight"):
                collector_of(workers, Holds(torch.nn.Linear(2, 1)), replay_buffer=remote)


def test_a_server_with_several_tables_must_be_told_which() -> None:
    tables = {"a": ReplayBuffer(LazyTensorStorage(10)), "b": ReplayBuffer(LazyTensorStorage(10))}
    with Server(tables=tables) as server:
        with pytest.raises(TypeError, match="server.buffers"):
            Collector(Steps(), frames_per_batch=2, replay_buffer=server)
