"""Fields of trajectories, from the infos of episodes' ends."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from contig import (
    Collector,
    LayoutError,
    LazyTensorStorage,
    MultiCollector,
    ParallelEnv,
    RemoteReplayBuffer,
    ReplayBuffer,
    SerialEnv,
    Server,
    StepCounter,
    TcpTransport,
)
from tests.collect.envs import SilentSteps, Steps, ToldSteps

EXAMPLE = {"told": np.zeros(2, np.int64), "nested": {"t": np.int32(0)}}


def from_info(info: Any) -> dict[str, Any]:
    told = info.get("told", np.zeros(2))
    return {"told": told, "nested": {"t": info.get("nested", {}).get("t", 0)}}


def vector(mode: str) -> Any:
    return gym.vector.SyncVectorEnv(
        [ToldSteps, ToldSteps], autoreset_mode=gym.vector.AutoresetMode(mode)
    )


ENVS: dict[str, Any] = {
    "single": ToldSteps,
    "serial": partial(SerialEnv, 3, ToldSteps),
    "parallel": partial(ParallelEnv, 2, ToldSteps),
    "counted": lambda: StepCounter(ToldSteps()),
    "next-step": partial(vector, "NextStep"),
    "same-step": partial(vector, "SameStep"),
    "disabled": partial(vector, "Disabled"),
}


def check(storage: Any) -> int:
    """Every ended trajectory has the fields of its own end; how many there are."""
    episodes = storage.episodes()
    ended = episodes[episodes["terminated"] | episodes["truncated"]]
    for episode in ended:
        rows = storage.read_episode(episode["id"])
        step = rows["step"] if "step" in rows else rows["observation"]
        assert episode["told"].tolist() == step[0, :2].tolist()
        assert episode["nested.t"] == rows["next", "observation"][-1, 2]
    for episode in episodes[~(episodes["terminated"] | episodes["truncated"])]:
        assert not episode["told"].any()
    return len(ended)


@pytest.mark.parametrize("kind", ENVS)
@pytest.mark.parametrize("form", ["example", "function"])
def test_every_kind_of_environment(kind: str, form: str) -> None:
    storage = LazyTensorStorage(1000, ndim=2)
    fields = EXAMPLE if form == "example" else from_info
    collector = Collector(
        ENVS[kind](),
        frames_per_batch=30,
        total_frames=180,
        replay_buffer=ReplayBuffer(storage, batch_size=4),
        fields=fields,
        seed=3,
    )
    for _ in collector:
        check(storage)
    assert check(storage) > 10
    collector.async_shutdown()


@pytest.mark.parametrize("trajs", [None, 2])
@pytest.mark.parametrize("sync", [False, True])
def test_workers(sync: bool, trajs: int | None) -> None:
    storage = LazyTensorStorage(1000)
    collector = MultiCollector(
        [ToldSteps] * 2,
        frames_per_batch=20,
        total_frames=120,
        sync=sync,
        trajs_per_batch=trajs,
        replay_buffer=ReplayBuffer(storage, batch_size=4),
        fields=EXAMPLE,
        seed=3,
    )
    for _ in collector:
        pass
    assert check(storage) > 10
    collector.async_shutdown()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_carry_them(workers: int) -> None:
    collector: Any
    if workers:
        collector = MultiCollector(
            [partial(SerialEnv, 2, ToldSteps)] * workers,
            frames_per_batch=80,
            fields=EXAMPLE,
            seed=1,
        )
    else:
        collector = Collector(SerialEnv(2, ToldSteps), frames_per_batch=80, fields=EXAMPLE, seed=1)
    batch = next(iter(collector))
    done = batch["next", "done"]
    assert done.any() and not done.all()
    assert (batch["fields", "told"][done] == batch["observation"][done][:, :2]).all()
    assert (batch["fields", "nested", "t"][done] == batch["next", "observation"][done][:, 2]).all()
    assert not batch["fields", "told"][~done].any()
    assert ("fields", "told") in batch.extras
    storage = LazyTensorStorage(100, ndim=2)
    ReplayBuffer(storage, batch_size=4).extend(batch)  # rows are stored without
    assert storage.layout is not None and ("fields", "told") not in storage.layout.by_path
    collector.async_shutdown()


def test_over_the_wire() -> None:
    row = {
        "observation": np.zeros(3, np.int64),
        "action": np.int64(0),
        "is_init": False,
        "next": {
            "observation": np.zeros(3, np.int64),
            "reward": np.float32(0),
            "done": False,
            "terminated": False,
            "truncated": False,
        },
        "collector": {"traj_ids": np.int64(0), "policy_version": np.int64(0)},
    }
    storage = LazyTensorStorage(1000, example=row, fields=EXAMPLE)
    with Server(buffer=ReplayBuffer(storage, batch_size=4), transport=TcpTransport()) as server:
        with RemoteReplayBuffer("127.0.0.1", server.port) as far:
            collector = Collector(
                SerialEnv(2, ToldSteps),
                frames_per_batch=30,
                total_frames=120,
                replay_buffer=far,
                fields=EXAMPLE,
                seed=3,
            )
            for _ in collector:
                pass
            collector.async_shutdown()
        assert len(storage) == 120
        assert check(storage) > 10


def test_cuts_of_the_collector_have_none() -> None:
    storage = LazyTensorStorage(1000)
    collector = Collector(
        partial(Steps, longest=50),
        frames_per_batch=40,
        total_frames=40,
        max_frames_per_traj=4,
        replay_buffer=ReplayBuffer(storage, batch_size=4),
        fields=lambda info: {"told": info.get("told", 5) if info else 0},
        seed=3,
    )
    for _ in collector:
        pass
    episodes = storage.episodes()
    cut = episodes["steps"] == 4
    assert cut.any() and not episodes["told"][cut].any()
    collector.async_shutdown()


def run(env: Any, **options: Any) -> None:
    options.setdefault("replay_buffer", ReplayBuffer(LazyTensorStorage(100), batch_size=4))
    for _ in Collector(env, frames_per_batch=20, total_frames=60, seed=0, **options):
        pass


def test_what_does_not_fit() -> None:
    with pytest.raises(LayoutError, match="told.*no 'told', only nothing.*function"):
        run(SilentSteps, fields={"told": 0})
    with pytest.raises(LayoutError, match=r"told.*shape \[2\], expected \[\]"):
        run(ToldSteps, fields={"told": 0})
    with pytest.raises(LayoutError, match="empty info at first.*defaults"):
        run(ToldSteps, fields=lambda info: {"told": info["told"]})
    with pytest.raises(LayoutError, match="other.*did not for an empty info"):
        run(ToldSteps, fields=lambda info: {"other": 1} if info else {"told": 0})
    with pytest.raises(LayoutError, match="other fields of trajectories|unknown field"):
        storage = LazyTensorStorage(100, fields={"task": 0})
        run(ToldSteps, fields=EXAMPLE, replay_buffer=ReplayBuffer(storage, batch_size=4))
    with pytest.raises(LayoutError, match="no fields of trajectories"):
        storage = LazyTensorStorage(100)
        run(ToldSteps, replay_buffer=ReplayBuffer(storage, batch_size=4))
        run(ToldSteps, fields=EXAMPLE, replay_buffer=ReplayBuffer(storage, batch_size=4))


def test_infos_of_some_episodes_only() -> None:
    storage = LazyTensorStorage(1000)
    run(
        SilentSteps,
        fields=lambda info: {"told": info.get("told", 3)},
        replay_buffer=ReplayBuffer(storage, batch_size=4),
    )
    told = storage.episodes()["told"].tolist()
    ended = storage.episodes()["complete"]
    assert told[0] == 7 and set(np.array(told[1:])[ended[1:]]) == {3}
