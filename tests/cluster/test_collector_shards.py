"""A RayCollector whose actors write to the shards of a RayReplayBuffer, each to the nearest."""

from __future__ import annotations

import itertools
import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest

from contig import SliceSampler
from contig.errors import WorkerError
from tests.cluster.test_collector import collect
from tests.collect.envs import Faulty, check_trajectory, make_steps, split
from tests.collect.policies import Weighted
from tests.waiting import until

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("cluster")


def make_buffer(**options: Any) -> Any:
    from contig import RayReplayBuffer

    return RayReplayBuffer(**{"shards": 3, "storage": 100_000, "seed": 0, **options})


def test_actors_fill_the_shards_and_the_learner_samples() -> None:
    with make_buffer(sampler=SliceSampler(slice_len=4), batch_size=32) as buffer:
        with collect(
            [make_steps] * 3,
            Weighted(0.0, 4),
            frames_per_batch=30,
            trajs_per_batch=1,
            replay_buffer=buffer,
            placement=buffer.nodes,
        ) as collector:
            assert collector.nodes == buffer.nodes
            collector.start()
            for number in range(1, 20):
                batch = buffer.sample()  # the first waits for rows
                starts = [*np.flatnonzero(batch["is_init"]).tolist(), len(batch)]
                for first, last in itertools.pairwise(starts):
                    _check_slice(batch[first:last])
                collector.policy.fill(float(number))
                collector.update_policy_weights_()
            until(lambda: len(buffer) > 2000)
            seen: set[int] = set()

            def has_seen_every_actor() -> bool:
                seen.update(map(int, buffer.sample()["observation"][:, 0]))
                return seen == {0, 1, 2}

            until(has_seen_every_actor)  # some actors begin long after the others
        rows = len(buffer)
        assert buffer.stats().rows_written == rows


def _check_slice(piece: Any) -> None:
    """Steps of one trajectory in order; its flags are the sampler's."""
    obs = piece["observation"]
    assert (obs[:, :2] == obs[0, :2]).all()
    np.testing.assert_array_equal(obs[:, 2], np.arange(obs[0, 2], obs[0, 2] + len(obs)))
    np.testing.assert_array_equal(piece["next", "observation"][:, 2], obs[:, 2] + 1)
    np.testing.assert_array_equal(piece["weight"], piece["collector", "policy_version"])


def test_frames_are_exact_and_each_is_there_once() -> None:
    from contig import SamplerWithoutReplacement

    sampler = SamplerWithoutReplacement(drop_last=False)
    with make_buffer(shards=2, sampler=sampler, batch_size=600) as buffer:
        with collect(
            [make_steps] * 3,
            frames_per_batch=60,
            total_frames=600,
            replay_buffer=buffer,
            placement="spread",
        ) as collector:
            assert set(collector) == {None}
        assert len(buffer) == 600
        every = buffer.sample()
        steps = {tuple(x) for x in every["observation"].tolist()}
    assert len(every) == len(steps) == 600


def test_killed_actors_leave_whole_trajectories_once() -> None:
    from contig import SamplerWithoutReplacement

    sampler = SamplerWithoutReplacement(drop_last=False)
    with make_buffer(shards=2, sampler=sampler, batch_size=300_000) as buffer:
        with collect(
            [make_steps] * 2,
            frames_per_batch=200,
            trajs_per_batch=1,
            replay_buffer=buffer,
            placement=buffer.nodes,
            max_restarts=1,
        ) as collector:
            collector.start()
            until(lambda: len(buffer) > 500)
            os.kill(collector.pids[0], signal.SIGKILL)
            until(lambda: collector.restarts == 1)
            rows = len(buffer)
            until(lambda: len(buffer) > rows + 500 and all(collector.pids))
        every = buffer.sample(len(buffer))
    ids = every["collector", "traj_ids"]
    steps = [tuple(x) for x in every["observation"].tolist()]
    assert len(set(steps)) == len(steps)
    order = np.lexsort((every["observation"][:, 2], ids))
    for trajectory in split(every[order]):
        check_trajectory(trajectory)
        assert trajectory["next", "done"][-1]


@pytest.mark.soak  # test_collector_faults.py has it for other buffers
def test_a_sample_raises_what_an_actor_failed_with() -> None:
    with make_buffer(shards=1, batch_size=8) as buffer:
        with pytest.raises(WorkerError, match="the simulator broke"):
            with collect(
                [partial(Faulty, "raise")], frames_per_batch=10, replay_buffer=buffer
            ) as collector:
                collector.start()
                until(lambda: buffer.sample() is None)


def test_a_node_that_is_lost_while_collecting_and_sampling(cluster: Any) -> None:
    """Its shard is replaced and its actor made again; what others hold is there, once and whole."""
    from contig import SamplerWithoutReplacement

    lost = cluster.add("doomed")
    (node,) = (n["NodeID"] for n in ray.nodes() if n["Alive"] and "doomed" in n["Resources"])
    here = ray.get_runtime_context().get_node_id()
    sampler = SamplerWithoutReplacement(drop_last=False)
    with make_buffer(shards=2, placement=[here, node], sampler=sampler, batch_size=64) as buffer:
        with collect(
            [make_steps] * 2,
            frames_per_batch=40,
            trajs_per_batch=1,
            replay_buffer=buffer,
            placement=[here, node],
            max_restarts=2,
        ) as collector:
            assert collector.nodes == buffer.nodes == [here, node]
            collector.start()
            until(lambda: len(buffer) > 2000)
            cluster.remove(lost)
            until(lambda: buffer.sample() is not None and buffer.stats().shards_lost == 1)
            until(lambda: buffer.sample() is not None and collector.restarts == 1)
            until(lambda: all(collector.pids) and None not in buffer.nodes)
            rows = buffer.stats().rows_written
            until(lambda: buffer.sample() is not None and buffer.stats().rows_written > rows + 500)
            assert node not in collector.nodes and node not in buffer.nodes
        every = buffer.sample(len(buffer))
    steps = [tuple(x) for x in every["observation"].tolist()]
    assert len(set(steps)) == len(steps)
