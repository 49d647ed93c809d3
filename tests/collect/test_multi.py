"""Collectors with worker processes: shapes of batches, storages, weights, hidden states."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from contig import (
    Batch,
    DiskStorage,
    LazyTensorStorage,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
    ParallelEnv,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SerialEnv,
)
from contig.collect.column_blocks import join_batches
from tests.collect.envs import Steps, check_storage, make_steps, steps_of
from tests.collect.policies import Counts, Weighted, lean, make_cartpole
from tests.waiting import until


def test_batches_of_workers_are_joined() -> None:
    with MultiSyncCollector(
        [SerialEnv(2, make_steps)] * 2, frames_per_batch=20, total_frames=33, seed=0
    ) as collector:
        batches = list(collector)
    assert [b.shape for b in batches] == [(2, 2, 5), (2, 2, 3)]
    every = [s for b in batches for s in steps_of(b)]
    assert len(set(every)) == len(every) == 32 and {s[0] for s in every} == {0, 1, 2, 3}


@pytest.mark.parametrize(("cat", "shape"), [("stack", (2, 3, 4)), (0, (6, 4)), (-1, (3, 8))])
def test_how_batches_are_joined(cat: Any, shape: Any) -> None:
    parts = [Batch.from_tree({"x": np.arange(12).reshape(3, 4) + 100 * i}, 2) for i in range(2)]
    joined = join_batches(parts, cat)
    assert joined.shape == shape
    plain = [p["x"] for p in parts]
    expected = np.stack(plain) if cat == "stack" else np.concatenate(plain, cat)
    np.testing.assert_array_equal(joined["x"], expected)


def test_async_batches_come_from_one_worker_each() -> None:
    with MultiAsyncCollector(
        [make_steps] * 2, frames_per_batch=10, total_frames=55, seed=0
    ) as collector:
        batches = list(collector)
    assert sorted(b.shape for b in batches) == [(5,), *[(10,)] * 5]
    every = [s for b in batches for s in steps_of(b)]
    assert len(set(every)) == len(every) == 55
    for batch in batches:
        assert len({s[0] for s in steps_of(batch)}) == 1


def test_async_trajectories_do_not_pile_up() -> None:
    """A stretch has many: all are given out before the next one is taken in."""
    with MultiAsyncCollector(
        [make_steps] * 2, frames_per_batch=100, trajs_per_batch=1, seed=0
    ) as collector:
        for _, batch in zip(range(200), collector):
            assert len(collector._relay._whole) <= 100  # as many as one stretch can have
            assert batch["next", "done"][-1]


def test_workers_with_processes_of_their_own() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(1000, ndim=3), batch_size=8)
    with MultiSyncCollector(
        [ParallelEnv(1, Steps)] * 2,
        frames_per_batch=40,
        total_frames=80,
        replay_buffer=buffer,
        seed=0,
    ) as collector:
        list(collector)
    assert sum(len(x) for x in check_storage(buffer.storage)) == 80


def test_what_a_storage_held_before_stays(tmp_path: Any) -> None:
    storage = LazyTensorStorage(1000)
    buffer = ReplayBuffer(storage, batch_size=8)
    for seed in (0, 100):
        with MultiSyncCollector(
            [make_steps], frames_per_batch=20, total_frames=40, replay_buffer=buffer, seed=seed
        ) as collector:
            list(collector)
    assert sum(len(x) for x in check_storage(storage)) == 80


def test_a_storage_that_only_this_process_writes(tmp_path: Any) -> None:
    with DiskStorage(tmp_path / "rows", 1000) as storage:
        buffer = ReplayBuffer(storage, batch_size=8)
        with MultiCollector(
            [make_steps] * 2,
            frames_per_batch=20,
            total_frames=100,
            replay_buffer=buffer,
            trajs_per_batch=2,
            sync=False,
            seed=0,
        ) as collector:
            assert set(collector) == {None}
        found = check_storage(storage)
        assert sum(len(x) for x in found) + collector.dropped_frames == 100
        assert all(x["next", "done"][-1] for x in found)


def test_each_worker_writes_to_its_member_of_an_ensemble() -> None:
    members = [ReplayBuffer(LazyTensorStorage(500, ndim=2)) for _ in range(2)]
    ensemble = ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=8)
    with MultiCollector(
        [make_steps] * 2, frames_per_batch=20, total_frames=60, replay_buffer=ensemble, seed=0
    ) as collector:
        list(collector)
    for number, member in enumerate(members):
        found = check_storage(member.storage)
        assert {s[0] for x in found for s in steps_of(x)} == {number}
    assert len(ensemble) == 60


def test_weights_reach_every_worker_whole_while_they_run() -> None:
    policy = Weighted()
    buffer = ReplayBuffer(LazyTensorStorage(20_000), batch_size=8)
    collector = MultiCollector(
        [make_steps] * 2, policy, frames_per_batch=20, replay_buffer=buffer, sync=False, seed=0
    )
    collector.start()
    for version in range(1, 40):
        policy.fill(version)
        collector.update_policy_weights_()
        time.sleep(0.005)
    assert collector.policy_version == 39

    def arrived() -> bool:
        rows = buffer[-400:]
        newest = rows["observation"][rows["collector", "policy_version"] == 39]
        return set(newest[:, 0].tolist()) == {0, 1}

    until(lambda: len(buffer) > 500 and arrived())
    collector.async_shutdown()
    rows = buffer[:]
    np.testing.assert_array_equal(rows["weight"], rows["collector", "policy_version"])


def test_torch_weights_by_module_and_by_state() -> None:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.zeros(1))

        def forward(self, inputs: Any) -> Any:
            obs = inputs["observation"]
            return {"action": obs[:, 2] % 5, "scale": self.scale.expand(len(obs))}

    policy = Net()
    seen = []
    with MultiSyncCollector(
        [make_steps], policy, frames_per_batch=20, total_frames=80, seed=0
    ) as collector:
        for step, batch in enumerate(collector):
            seen.append(np.unique(batch["scale"]).tolist())
            if step == 0:
                with torch.no_grad():
                    policy.scale.fill_(1.0)
                collector.update_policy_weights_()
            elif step == 1:
                other = Net()
                with torch.no_grad():
                    other.scale.fill_(2.0)
                collector.update_policy_weights_(other)
            else:
                collector.update_policy_weights_({"scale": torch.full((1,), 3.0)})
    assert seen == [[0.0], [1.0], [2.0], [3.0]]
    assert policy.scale.item() == 3.0


def test_hidden_states_in_workers() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(1000), batch_size=8)
    with MultiCollector(
        [SerialEnv(2, make_steps)],
        Counts(),
        frames_per_batch=20,
        total_frames=80,
        replay_buffer=buffer,
        auto_register_policy_transforms=True,
        seed=0,
    ) as collector:
        list(collector)
    for rows in check_storage(buffer.storage):
        np.testing.assert_array_equal(rows["state"][:, 0], rows["observation"][:, 2])
        np.testing.assert_array_equal(rows["next", "state"], rows["state"] + 1)


def test_a_limiter_holds_workers_back() -> None:
    from contig import RateLimiter

    buffer = ReplayBuffer(
        LazyTensorStorage(1000),
        batch_size=10,
        limiter=RateLimiter(1.0, min_size=20, error_buffer=20),
    )
    collector = MultiCollector(
        [make_steps] * 2, frames_per_batch=20, replay_buffer=buffer, sync=False, seed=0
    )
    collector.start()
    for _ in range(10):
        buffer.sample()
    stats = buffer.stats()
    assert stats.rows_written <= 100 + 20 + 20 + 2 * 20
    collector.async_shutdown()


def test_a_worker_imports_only_what_its_job_needs(tmp_path: Any) -> None:
    """The learner has torch; a worker whose policy has no use for it does not load it."""
    import torch  # noqa: F401

    said = tmp_path / "modules"

    def hook(batch: Any) -> None:
        import sys

        said.write_text("\n".join(sys.modules))

    buffer = ReplayBuffer(LazyTensorStorage(100), batch_size=8)
    with MultiCollector(
        [make_cartpole],
        lean,
        frames_per_batch=10,
        total_frames=10,
        replay_buffer=buffer,
        post_collect_hook=hook,
    ) as collector:
        list(collector)
    loaded = {name.partition(".")[0] for name in said.read_text().split()}
    assert {"contig", "numpy", "gymnasium"} <= loaded
    heavy = {"torch", "tensordict", "jax", "scipy", "matplotlib", "pytest", "asyncio", "sqlite3"}
    assert not heavy & loaded


def test_random_frames_and_frames_in_all_are_shared_out_exactly() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(1000), batch_size=8)
    with MultiSyncCollector(
        [SerialEnv(2, make_steps)] * 3,
        lambda inputs: np.full(len(inputs["is_init"]), 9),
        frames_per_batch=30,
        total_frames=101,
        init_random_frames=17,
        replay_buffer=buffer,
        seed=0,
    ) as collector:
        list(collector)
    actions = buffer[:]["action"]
    assert len(actions) == 101 and np.count_nonzero(actions != 9) == 17


def test_refused_arguments() -> None:
    with pytest.raises(ValueError, match="per worker"):
        MultiCollector([], frames_per_batch=10)
    with pytest.raises(ValueError, match="cat_results"):
        MultiCollector([make_steps], frames_per_batch=10, cat_results=2)
    with pytest.raises(ValueError, match="not a multiple of the 2"):
        MultiCollector([make_steps] * 2, frames_per_batch=11)
