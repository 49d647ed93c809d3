"""RayCollector: the rows of a MultiCollector, weights, buffers and life, in actors of a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import (
    LazyTensorStorage,
    MultiCollector,
    RemoteReplayBuffer,
    ReplayBuffer,
    SerialEnv,
    Server,
    SliceSampler,
    TcpTransport,
)
from tests.collect.envs import Steps, check_storage, check_trajectory, make_steps, split
from tests.collect.policies import Weighted
from tests.waiting import until

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("cluster")


def collect(envs: Any, policy: Any = None, **options: Any) -> Any:
    from contig import RayCollector

    return RayCollector(envs, policy, **{"num_cpus": 0.2, "seed": 0, **options})


def test_policies_of_torchrl_explore() -> None:
    """In actors too, each with numbers of its own."""
    pytest.importorskip("torchrl")
    from tests.collect.test_exploring import actor, make_env

    options = {"frames_per_batch": 20, "total_frames": 20}
    with collect([make_env] * 2, actor(), **options) as collector:
        first, second = (a.ravel() for a in next(iter(collector))["action"])
    assert len(np.unique(first)) == len(np.unique(second)) == 10
    assert not np.isin(first, second).any()
    with collect([make_env], actor(), exploration_type="mode", **options) as collector:
        assert (next(iter(collector))["action"] == 0.25).all()


SAME: dict[str, dict[str, Any]] = {
    "blocks": {},
    "joined": {"cat_results": -1, "total_frames": 100},
    "trajectories": {"trajs_per_batch": 3},
    "cuts": {"set_truncated": True, "max_frames_per_traj": 3},
    "random": {"init_random_frames": 30, "reset_at_each_iter": True},
}


@pytest.mark.parametrize("options", SAME.values(), ids=SAME.keys())
def test_batches_are_those_of_a_multi_collector(options: dict[str, Any]) -> None:
    given = {"frames_per_batch": 24, "total_frames": 72, "seed": 0, **options}
    envs = [SerialEnv(2, make_steps)] * 2 if "cat_results" in options else [make_steps] * 2
    with MultiCollector(envs, Weighted(7.0, 9), **given) as local:
        expected = list(local)
    with collect(envs, Weighted(7.0, 9), **given) as collector:
        found = list(collector)
    assert [b.shape for b in found] == [b.shape for b in expected]
    if "trajs_per_batch" not in options:  # those come from the worker that is first
        for mine, theirs in zip(found, expected):
            _same(mine, theirs)
    for batch in found:
        for flat in [batch] if batch.shape == (len(batch),) else _flat(batch):
            for trajectory in split(flat):
                if "max_frames_per_traj" not in options and "reset_at_each_iter" not in options:
                    check_trajectory(trajectory, starts_anywhere=True)


def _flat(batch: Any) -> list[Any]:
    return [batch.reshape(-1)[i : i + 1] for i in range(int(np.prod(batch.shape)))]


def _same(mine: Any, theirs: Any) -> None:
    """Equal in everything but what trajectories are called, and there in how they are divided."""
    for path in (
        ("observation",),
        ("action",),
        ("weight",),
        ("is_init",),
        ("next", "observation"),
        ("next", "reward"),
        ("next", "done"),
        ("next", "truncated"),
        ("collector", "policy_version"),
    ):
        np.testing.assert_array_equal(mine[path], theirs[path], err_msg=str(path))
    ids, others = (
        np.unique(b["collector", "traj_ids"], return_inverse=True)[1] for b in (mine, theirs)
    )
    pairs = set(zip(ids.reshape(-1).tolist(), others.reshape(-1).tolist()))
    assert len(pairs) == len(set(ids.reshape(-1).tolist())) == len(set(others.reshape(-1).tolist()))


def test_actors_spread_over_nodes_and_ids_are_unique() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(5000), batch_size=8)
    nodes = [n["NodeID"] for n in ray.nodes() if n["Alive"]]
    with collect(
        [make_steps] * 3,
        frames_per_batch=60,
        total_frames=600,
        replay_buffer=buffer,
        placement=nodes,
    ) as collector:
        assert collector.nodes == nodes and len(set(collector.pids)) == 3
        assert set(collector) == {None}
    assert sum(len(x) for x in check_storage(buffer.storage)) == 600  # ids unique, rows once


def test_every_stretch_has_the_weights_published_before_it() -> None:
    with collect(
        [make_steps] * 2, Weighted(0.0), frames_per_batch=20, total_frames=100
    ) as collector:
        for number, batch in enumerate(collector):
            assert collector.policy_version == number
            np.testing.assert_array_equal(batch["weight"], np.full((2, 10), float(number)))
            np.testing.assert_array_equal(batch["collector", "policy_version"], number)
            other = Weighted(number + 1.0)
            collector.update_policy_weights_(other if number % 2 else other.get_weights())
            assert collector.policy.weights["b"][0] == number + 1.0
    with pytest.raises(Exception, match="shut down"):
        collector.update_policy_weights_()


def test_weights_reach_actors_in_the_middle_of_a_stretch() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(200_000), batch_size=8)
    with collect([make_steps] * 2, Weighted(0.0), frames_per_batch=2000, replay_buffer=buffer) as c:
        c.start()
        for number in range(1, 6):
            rows = len(buffer)
            until(lambda at=rows: len(buffer) > at + 2000)
            c.policy.fill(float(number))
            c.update_policy_weights_()
        until(lambda: buffer[len(buffer) - 1]["collector", "policy_version"] == 5)
    rows = buffer[np.arange(len(buffer))]
    np.testing.assert_array_equal(rows["weight"], rows["collector", "policy_version"])


def test_a_policy_made_in_the_actors() -> None:
    with collect(
        [make_steps], policy_factory=lambda: Weighted(3.0, 5), frames_per_batch=10, total_frames=20
    ) as collector:
        first = next(iter(collector))
        collector.policy.fill(4.0)
        collector.update_policy_weights_()
        second = next(iter(collector))
    assert (first["weight"] == 3.0).all() and (second["weight"] == 4.0).all()


def test_pause_and_resume() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(100_000), batch_size=8)
    with collect(
        [make_steps] * 2, frames_per_batch=40, trajs_per_batch=2, replay_buffer=buffer
    ) as collector:
        collector.start()
        assert len(buffer.sample()) == 8  # waits for the first rows
        for _ in range(3):
            collector.pause()
            rows = len(buffer)
            assert not ray.wait([ray.remote(_nap).remote()], timeout=60)[1]
            assert len(buffer) == rows
            collector.resume()
            until(lambda at=rows: len(buffer) > at)
        collector.async_shutdown()
    for trajectory in check_storage(buffer.storage):
        assert trajectory["next", "done"][-1]


def _nap() -> None:
    import time

    time.sleep(0.2)


def test_actors_send_to_a_remote_table() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(5000), SliceSampler(slice_len=2), batch_size=8)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with RemoteReplayBuffer("127.0.0.1", server.port, data_sample=_row()) as remote:
            with collect(
                [make_steps] * 2,
                frames_per_batch=20,
                total_frames=200,
                replay_buffer=remote,
                trajs_per_batch=2,
            ) as collector:
                assert set(collector) == {None}
        found = check_storage(buffer.storage)
    assert sum(len(x) for x in found) == 200 - collector.dropped_frames
    assert all(x["next", "done"][-1] for x in found)


def test_a_server_of_this_process_is_a_buffer_and_gets_the_weights() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(5000), batch_size=8)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with collect(
            [make_steps],
            Weighted(0.0, 4),
            sync=False,
            frames_per_batch=20,
            total_frames=60,
            replay_buffer=server,
        ) as collector:
            for _ in collector:
                collector.update_policy_weights_()
        assert server.weights_version == collector.policy_version
    assert sum(len(x) for x in check_storage(buffer.storage)) == 60


def _row() -> Any:
    from contig import Collector

    (batch,) = Collector(Steps(), frames_per_batch=1, total_frames=1, seed=0)
    return batch[0].tree()


def test_users_functions_run_here_if_this_process_writes() -> None:
    seen: list[int] = []
    buffer = ReplayBuffer(LazyTensorStorage(5000), batch_size=8)
    with collect(
        [make_steps] * 2,
        frames_per_batch=20,
        total_frames=60,
        replay_buffer=buffer,
        post_collect_hook=lambda data: seen.append(int(np.prod(data.shape))),
    ) as collector:
        list(collector)
    assert sum(seen) == 60


def test_names() -> None:
    import contig

    assert contig.DistributedCollector is contig.RayCollector
    assert issubclass(contig.DistributedSyncCollector, contig.RayCollector)


def test_a_distributed_sync_collector_waits_for_all_of_its_actors() -> None:
    from contig import DistributedSyncCollector

    options: dict[str, Any] = {"frames_per_batch": 20, "total_frames": 60, "seed": 0}
    with DistributedSyncCollector([make_steps] * 2, num_cpus=0.2, **options) as collector:
        found = list(collector)
    with MultiCollector([make_steps] * 2, sync=True, **options) as collector:
        for ours, theirs in zip(found, collector, strict=True):
            assert ours.shape == theirs.shape == (2, 10)
            assert (ours["observation"] == theirs["observation"]).all()
    buffer = ReplayBuffer(LazyTensorStorage(100), SliceSampler(slice_len=2), batch_size=8)
    with DistributedSyncCollector(
        [make_steps], sync=True, replay_buffer=buffer, num_cpus=0.2, **options
    ) as collector:
        list(collector)
    check_storage(buffer.storage)
    assert len(buffer) == 60
    with pytest.raises(ValueError, match=r"use RayCollector\(..., sync=False\)"):
        DistributedSyncCollector([make_steps], sync=False, **options)
    with pytest.raises(TypeError, match="no argument 'frames'"):
        DistributedSyncCollector([make_steps], frames=3, **options)


REFUSED: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no envs": ({"envs": []}, ValueError, "envs: expected a list"),
    "unknown": ({"frames": 3}, TypeError, "no argument 'frames'; what is collected: total_frames"),
    "both": ({"policy": len, "policy_factory": len}, ValueError, "either policy or policy_factory"),
    "cpus": ({"num_cpus": -1}, ValueError, "num_cpus: a number of at least 0"),
    "resources": ({"resources": 3}, TypeError, "resources: a dict"),
    "placement": ({"placement": "there"}, ValueError, "placement: None,"),
    "frames": ({"frames_per_batch": 3}, ValueError, "not a multiple"),
    "buffer": ({"replay_buffer": 3}, TypeError, "RayReplayBuffer, got int"),
}


@pytest.mark.parametrize(("options", "kind", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_arguments(options: dict[str, Any], kind: Any, text: str) -> None:
    given = {"envs": [make_steps] * 2, "frames_per_batch": 4, **options}
    with pytest.raises(kind, match=text):
        collect(given.pop("envs"), **given)
