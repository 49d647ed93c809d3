"""A policy's hidden states reach environments by themselves: once, whichever way they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from contig import (
    Collector,
    GRUModule,
    GymEnv,
    InitTracker,
    LayoutError,
    LazyTensorStorage,
    LSTMModule,
    MultiCollector,
    ParallelEnv,
    ReplayBuffer,
    SerialEnv,
    TensorDictPrimer,
    set_recurrent_mode,
)
from contig.collect.env import EnvBase

LAYERS, HIDDEN = 2, 8


class Policy(torch.nn.Module):
    """Two recurrent parts, one of them inside another module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GRUModule(
            4,
            HIDDEN,
            LAYERS,
            in_keys=["observation", "g", "is_init"],
            out_keys=["between", ("next", "g")],
        )
        second = LSTMModule(
            HIDDEN,
            HIDDEN,
            in_keys=["between", "h", ("deep", "c"), "is_init"],
            out_keys=["features", ("next", "h"), ("next", "deep", "c")],
        )
        self.inner = torch.nn.ModuleDict({"memory": second})
        self.head = torch.nn.Linear(HIDDEN, 2)

    def forward(self, rows: Any) -> Any:
        out = self.inner["memory"](self.first(rows))
        out["action"] = self.head(out["features"]).argmax(-1)
        return out


STATES = {("g",): (LAYERS, HIDDEN), ("h",): (1, HIDDEN), ("deep", "c"): (1, HIDDEN)}


def single(policy: Any) -> EnvBase:
    return GymEnv("CartPole-v1", policy=policy)


def serial(policy: Any) -> EnvBase:
    return SerialEnv(2, lambda: GymEnv("CartPole-v1"), policy=policy)


def serial_of_wired(policy: Any) -> EnvBase:
    return SerialEnv(2, lambda: GymEnv("CartPole-v1", policy=policy))


def parallel(policy: Any) -> EnvBase:
    return ParallelEnv(2, lambda: GymEnv("CartPole-v1"), policy=policy)


def parallel_of_wired(policy: Any) -> EnvBase:
    return ParallelEnv(2, lambda: GymEnv("CartPole-v1", policy=policy))


MAKERS = [single, serial, serial_of_wired, parallel, parallel_of_wired]


def spec_shapes(env: EnvBase) -> Any:
    state = env.full_state_spec
    assert set(state) == {"g", "h", "deep"}
    return {
        ("g",): state["g"].shape,
        ("h",): state["h"].shape,
        ("deep", "c"): state["deep"]["c"].shape,
    }


@pytest.mark.parametrize(
    "make, register",
    [(single, False), (serial_of_wired, False), *((make, True) for make in MAKERS)],
)
def test_environments_made_for_a_policy(make: Callable[[Any], EnvBase], register: bool) -> None:
    torch.manual_seed(0)
    policy = Policy()
    env = make(policy)
    assert spec_shapes(env) == STATES
    assert env.full_observation_spec["is_init"].dtype == np.bool_
    collector = Collector(
        env,
        policy,
        frames_per_batch=60,
        total_frames=60,
        auto_register_policy_transforms=register,
        seed=0,
    )
    (batch,) = list(collector)
    assert spec_shapes(env) == STATES  # given twice, there once
    collector.shutdown()
    check(policy, batch.reshape(-1))


def test_without_a_policy_there_is_nothing() -> None:
    env = serial(None)
    assert env.full_state_spec == {} and "is_init" not in env.full_observation_spec


@pytest.mark.parametrize("make", [single, serial, parallel])
def test_the_collector_alone_does_it(make: Callable[[Any], EnvBase]) -> None:
    torch.manual_seed(0)
    policy = Policy()
    with Collector(
        make(None), policy, frames_per_batch=60, auto_register_policy_transforms=True, seed=0
    ) as collector:
        check(policy, next(iter(collector)).reshape(-1))


def test_workers_do_it_too() -> None:
    torch.manual_seed(0)
    policy = Policy()
    buffer = ReplayBuffer(LazyTensorStorage(200), batch_size=8)
    with MultiCollector(
        [serial(None)],
        policy,
        frames_per_batch=60,
        total_frames=60,
        replay_buffer=buffer,
        auto_register_policy_transforms=True,
        seed=0,
    ) as collector:
        assert list(collector) == [None]
    # Two lanes of 30 rows each, one after the other.
    check(policy, buffer[:60])


def check(policy: Policy, batch: Any) -> None:
    """States start from zeros, go on, and are what the learner computes."""
    first = batch["is_init"]
    assert first.sum() >= 2 and not first.all()
    for path, shape in STATES.items():
        stored = batch[path]
        assert stored.shape[1:] == shape and stored.dtype == np.float32
        assert not stored[first].any()
        inside = np.flatnonzero(~first)
        assert np.array_equal(stored[inside], batch[("next", *path)][inside - 1])
        assert np.abs(stored[inside]).reshape(len(inside), -1).sum(-1).all()
    with set_recurrent_mode("recurrent"):
        out = policy(batch)
    np.testing.assert_allclose(out["features"].detach(), batch["features"], atol=1e-6)


def test_a_given_start_is_kept() -> None:
    """What the environment already starts states from is not replaced."""
    policy = Policy()
    start = np.full((LAYERS, HIDDEN), 0.5, np.float32)
    env = TensorDictPrimer(InitTracker(GymEnv("CartPole-v1")), {"g": start})
    with Collector(
        env, policy, frames_per_batch=40, auto_register_policy_transforms=True, seed=0
    ) as collector:
        batch = next(iter(collector))
    first = batch["is_init"]
    assert np.array_equal(batch["g"][first], np.broadcast_to(start, batch["g"][first].shape))
    assert not batch["h"][first].any()


def test_without_it_the_error_says_what_to_do() -> None:
    with Collector(serial(None), Stepless(), frames_per_batch=20, seed=0) as collector:
        with pytest.raises(LayoutError, match="auto_register_policy_transforms=True"):
            next(iter(collector))


class Stepless(torch.nn.Module):
    """Returns a hidden state without ever reading one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 2)

    def forward(self, rows: Any) -> Any:
        action = self.head(rows["observation"]).argmax(-1)
        return {"action": action, ("next", "g"): torch.zeros(len(action), 3)}
