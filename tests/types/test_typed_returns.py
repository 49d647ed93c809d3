"""What people touch most has a type: checked by mypy (`make lint`), and true when it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
import torch

from contig import (
    Batch,
    Collector,
    DeviceStorage,
    LazyTensorStorage,
    MiniBatch,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RolloutStorage,
    Server,
    TensorDictReplayBuffer,
)
from contig.convert import types as others
from contig.tree import Nested

if TYPE_CHECKING:
    from contig import RayReplayBuffer, RemoteReplayBuffer
    from contig.collect import BaseCollector, MultiCollector
    from contig.rollout.transition import Hidden


def filled() -> LazyTensorStorage:
    storage = LazyTensorStorage(100)
    rows = {
        "obs": np.zeros((8, 3), np.float32),
        "next": {"reward": np.ones(8), "done": np.ones(8, bool)},
    }
    ReplayBuffer(storage, seed=0).extend(rows)
    return storage


def test_samples_of_a_buffer() -> None:
    storage = filled()
    plain = ReplayBuffer(storage, batch_size=4, seed=0)
    batch = plain.sample()
    assert_type(batch, Batch)
    assert isinstance(batch, Batch)
    pair = plain.sample(return_info=True)
    assert_type(pair, tuple[Batch, dict[str, Any]])
    assert isinstance(pair[0], Batch)
    assert "index" in pair[1]
    assert_type(iter(plain), Iterator[Batch])
    assert_type(plain[:2], Batch)
    tensors = ReplayBuffer(storage, batch_size=4, output="torch", seed=0).sample()
    assert_type(tensors, Nested)
    assert isinstance(tensors, Nested)
    arrays = ReplayBuffer(storage, batch_size=4, output="jax", seed=0).sample()
    assert_type(arrays, Nested)
    assert isinstance(arrays, Nested)
    assert isinstance(tensors["next", "reward"], torch.Tensor)
    device = DeviceStorage(100, "cpu")
    device.writer().extend({"obs": torch.zeros(8, 3), "done": torch.ones(8) > 0})
    there = ReplayBuffer(device, batch_size=4, seed=0).sample()
    assert_type(there, Nested)
    assert isinstance(there["obs"], torch.Tensor)
    on_device = ReplayBuffer(storage, batch_size=4, device="cpu", seed=0).sample()
    assert_type(on_device, Nested)
    assert isinstance(on_device, Nested)


def test_samples_of_other_buffers() -> None:
    storage = filled()
    members = [ReplayBuffer(storage, batch_size=4, seed=i) for i in range(2)]
    both = ReplayBufferEnsemble(*members, batch_size=4, seed=0)
    assert_type(both.sample(), Batch)
    assert isinstance(both.sample(), Batch)
    dicts = ReplayBufferEnsemble(*members, batch_size=4, output="torch", seed=0).sample()
    assert_type(dicts, Nested)
    assert isinstance(dicts, Nested)
    rows = TensorDictReplayBuffer(storage, batch_size=4, seed=0).sample()
    if TYPE_CHECKING:
        assert_type(rows, others.TensorDict)
    assert type(rows).__name__ == "TensorDict"


if TYPE_CHECKING:

    def samples_from_elsewhere(ray: RayReplayBuffer[Batch]) -> None:
        assert_type(RemoteReplayBuffer("localhost", 1).sample(), Batch)
        assert_type(RemoteReplayBuffer("localhost", 1, output="torch").sample(), Nested)
        assert_type(RemoteReplayBuffer("localhost", 1, output="jax").sample(), Nested)
        assert_type(RayReplayBuffer(2).sample(), Batch)
        assert_type(ray.sample(return_info=True), tuple[Batch, dict[str, Any]])


if TYPE_CHECKING:

    class Learner:
        """As people write it: annotated with the class alone."""

        buffer: ReplayBuffer
        remote: RemoteReplayBuffer

        def step(self) -> None:
            assert_type(self.buffer.sample(), Batch)
            assert_type(self.remote.sample(return_info=True), tuple[Batch, dict[str, Any]])
            for batch in self.buffer:
                assert_type(batch, Batch)

    def learns(
        local: ReplayBuffer,
        remote: RemoteReplayBuffer,
        several: ReplayBufferEnsemble,
        ray: RayReplayBuffer,
        rows: TensorDictReplayBuffer,
    ) -> None:
        assert_type(local.sample(), Batch)
        assert_type(local[:2], Batch)
        assert_type(remote.sample(4), Batch)
        assert_type(several.sample(return_info=True), tuple[Batch, dict[str, Any]])
        assert_type(ray.sample(), Batch)
        assert_type(rows.sample(), others.TensorDict)
        for batch in ray:
            assert_type(batch, Batch)

    def collects(one: Collector, many: MultiCollector, any_of_them: BaseCollector) -> None:
        for item in one:
            assert_type(item, Batch)
        for item in many:
            assert_type(item, Batch)
        for item in any_of_them:
            assert_type(item, Batch)

    def passes_on(tensors: ReplayBuffer[Nested]) -> None:
        """What takes any buffer takes one of tensors, too."""
        Server(buffer=tensors)
        Server(tables={"tensors": tensors})
        assert_type(ReplayBufferEnsemble(tensors, output="numpy").sample(), Batch)

    def updates(storage: RolloutStorage) -> None:
        for batch in storage.mini_batch_generator(1, 1):
            assert_type(batch.obs, torch.Tensor)
            assert_type(batch.critic_obs, torch.Tensor)
            assert_type(batch.hidden_states, tuple[Hidden, Hidden])
            assert_type(batch.masks, torch.Tensor | None)


def test_items_of_a_collector() -> None:
    with Collector("CartPole-v1", frames_per_batch=8, total_frames=8, seed=0) as collector:
        for item in collector:
            assert_type(item, Batch)
            assert isinstance(item, Batch)


def test_minibatches() -> None:
    storage = RolloutStorage(2, 3, (4,), actions_shape=(1,), seed=0)
    step = storage.Transition()
    for _ in range(3):
        step.observations, step.actions = torch.zeros(2, 4), torch.zeros(2, 1)
        step.rewards, step.dones = torch.zeros(2), torch.zeros(2)
        step.values, step.actions_log_prob = torch.zeros(2), torch.zeros(2)
        storage.add_transitions(step)
    storage.compute_returns(torch.zeros(2, 1), 0.9, 0.9)
    for batch in storage.mini_batch_generator(1, 1):
        assert_type(batch, MiniBatch)
        assert_type(batch.advantages, torch.Tensor)
        assert isinstance(batch.advantages, torch.Tensor)
