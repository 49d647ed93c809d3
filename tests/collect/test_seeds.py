"""The snippets of the documents that collectors follow, with only the import lines changed.

Names that the snippets leave to the reader (make_env, policy, N, loss_fn ...) are set here, and
endless loops are left after a few turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import contig
from contig import (
    Collector,
    GymEnv,
    LazyTensorStorage,
    MultiCollector,
    MultiSyncCollector,
    ParallelEnv,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
    TensorDictReplayBuffer,
)
from tests.collect.policies import lean as policy
from tests.collect.policies import make_cartpole as make_env

N = 80


def loss_fn(batch: Any) -> Any:
    return batch["next", "reward"].mean()


def few(collector: Any) -> Any:
    """Some turns of an endless collector, which is shut down after them."""
    for turn, data in enumerate(collector):
        yield data
        if turn == 2:
            break
    collector.shutdown()


def check_slices(batch: Any) -> None:
    """Within a slice, each row's next observation is the observation of the row after it."""
    obs, after = np.asarray(batch["observation"]), np.asarray(batch["next", "observation"])
    ids = np.asarray(batch["collector", "traj_ids"])
    init = np.asarray(batch["is_init"]).reshape(-1)
    inside = ~init[1:]
    assert (ids[1:] == ids[:-1])[inside].all()
    np.testing.assert_array_equal(after[:-1][inside], obs[1:][inside])


# -- seed 001 -----------------------------------------------------------------------------------


def test_one_buffer_per_worker_glued_by_an_ensemble() -> None:
    num_workers = 2
    buffers = [
        TensorDictReplayBuffer(
            storage=LazyTensorStorage(N * 100, ndim=2),  # one row = one rollout
            sampler=SliceSampler(num_slices=4),
        )
        for _ in range(num_workers)
    ]
    rb = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=256)
    collector = MultiCollector(
        [make_env] * num_workers,
        policy,
        replay_buffer=rb,
        frames_per_batch=200,
        total_frames=-1,
    )
    assert list(few(collector)) == [None] * 3
    assert all(len(b) == 300 for b in buffers)
    check_slices(rb.sample())


def test_complete_trajectories_in_the_background() -> None:
    train_steps = 5
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100_000),
        sampler=SliceSampler(slice_len=32),
        batch_size=256,
    )
    collector = MultiCollector(
        [make_env] * 4,
        policy,
        replay_buffer=rb,
        frames_per_batch=200,
        total_frames=-1,
        trajs_per_batch=8,
        sync=False,
    )
    collector.start()
    for _ in range(train_steps):
        batch = rb.sample()
        check_slices(batch)
        collector.update_policy_weights_()
    collector.async_shutdown()
    episodes = rb.storage.episodes()
    assert (episodes["terminated"] | episodes["truncated"]).all()


def test_a_recurrent_policy_finds_what_it_needs() -> None:
    pytest.importorskip("torch")
    gru = contig.GRUModule(
        input_size=4,
        hidden_size=8,
        num_layers=1,
        in_keys=["observation", "recurrent_state", "is_init"],
        out_keys=["features", ("next", "recurrent_state")],
    )
    env = GymEnv("CartPole-v1", policy=gru)  # InitTracker + primer attached
    assert "is_init" in env.full_observation_spec
    assert env.full_state_spec["recurrent_state"].shape == (1, 8)

    class Acting:
        def __init__(self) -> None:
            self.gru = gru

        def __call__(self, inputs: Any) -> Any:
            out = self.gru(inputs)
            return {**out, "action": (out["features"].sum(-1) > 0).long()}

    sampler = SliceSampler(num_slices=4, slice_len=32, strict_length=False)
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(100_000), sampler=sampler, batch_size=128)
    for auto in (False, True):
        env = GymEnv("CartPole-v1") if auto else GymEnv("CartPole-v1", policy=gru)
        collector = Collector(
            env,
            Acting(),
            frames_per_batch=200,
            total_frames=400,
            replay_buffer=rb,
            auto_register_policy_transforms=auto,
            seed=0,
        )
        list(collector)
    sample = rb.sample()  # shape [<= 128]
    assert len(sample) <= 128
    with contig.set_recurrent_mode("recurrent"):
        out = gru(sample)
    assert out["features"].shape == (len(sample), 8)


# -- seed 003 -----------------------------------------------------------------------------------


def test_single_transitions() -> None:
    memory = ReplayBuffer(
        storage=LazyTensorStorage(N * 10),
        transform=lambda data: data.reshape(-1),
        batch_size=8,
    )
    collector = Collector(ParallelEnv(2, make_env), policy, frames_per_batch=N, total_frames=-1)
    for data in few(collector):
        memory.extend(data)
    assert len(memory) == 3 * N and memory.sample().shape == (8,)


SLICES = {"num_slices": 4, "trajectory_key": ("collector", "traj_ids")}


def test_single_environment() -> None:
    memory = ReplayBuffer(storage=LazyTensorStorage(N * 10), sampler=SliceSampler(**SLICES))
    env = make_env()
    collector = Collector(env, policy, frames_per_batch=N, total_frames=-1)
    for data in few(collector):
        memory.extend(data)
    check_slices(memory.sample(32))


def test_batched_environments() -> None:
    memory = ReplayBuffer(storage=LazyTensorStorage(N * 10, ndim=2), sampler=SliceSampler(**SLICES))
    env = ParallelEnv(4, make_env)
    collector = Collector(env, policy, frames_per_batch=N, total_frames=-1)
    for data in few(collector):
        assert data.shape == (4, N // 4)
        memory.extend(data)
    check_slices(memory.sample(32))


def test_several_workers() -> None:
    memory = ReplayBuffer(storage=LazyTensorStorage(N * 10, ndim=2), sampler=SliceSampler(**SLICES))
    collector = MultiSyncCollector(
        [make_env] * 4, policy, frames_per_batch=N, total_frames=-1, cat_results="stack"
    )
    for data in few(collector):
        assert data.shape == (4, N // 4)
        memory.extend(data)
    check_slices(memory.sample(32))


def test_several_workers_with_batched_environments() -> None:
    memory = ReplayBuffer(storage=LazyTensorStorage(N * 10, ndim=3), sampler=SliceSampler(**SLICES))
    collector = MultiSyncCollector(
        [ParallelEnv(2, make_env)] * 4,
        policy,
        frames_per_batch=N,
        total_frames=-1,
        cat_results="stack",
    )
    for data in few(collector):
        assert data.shape == (4, 2, N // 8)
        memory.extend(data)
    check_slices(memory.sample(32))


def test_synchronous_iteration_over_complete_trajectories() -> None:
    rb = ReplayBuffer(
        storage=LazyTensorStorage(100_000),
        sampler=SliceSampler(slice_len=32, end_key=("next", "done")),
        batch_size=256,
    )
    collector = MultiCollector(
        [make_env] * 2,
        policy,
        replay_buffer=rb,
        frames_per_batch=200,
        total_frames=1000,
        trajs_per_batch=8,
        sync=True,
    )
    for data in collector:
        assert data is None
        batch = rb.sample()
        check_slices(batch)
        loss_fn(batch)
    collector.shutdown()


def test_single_process_collectors_start_too() -> None:
    rb = ReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=16)
    collector = Collector(
        make_env(),
        policy,
        replay_buffer=rb,
        frames_per_batch=200,
        total_frames=-1,
        trajs_per_batch=8,
    )
    collector.start()
    assert rb.sample().shape == (16,)
    collector.async_shutdown()
