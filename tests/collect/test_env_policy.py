"""`policy=` of any environment: recurrent parts of it get `is_init` and hidden states."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from contig import Collector, EnvBase, GRUModule, SerialEnv
from contig.collect import InitTracker

BOX, MOVES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)


class Counting(EnvBase):
    """Observations that count the steps; says nothing of a policy."""

    def __init__(self, length: int = 3) -> None:
        super().__init__(BOX, MOVES)
        self.length, self.at = length, 0

    def _reset(self, lanes: Any, seed: int | None) -> Any:
        self.at = 0
        return np.zeros((1, 3), np.float32)

    def _step(self, action: Any) -> Any:
        self.at += 1
        obs = np.full((1, 3), self.at, np.float32)
        return obs, np.ones(1), np.array([self.at == self.length]), np.zeros(1, bool)


class Inherited(Counting):
    """Without a constructor of its own."""


class Longer(Counting):
    """With one that passes on what it is given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(length=9, **options)


class Named(Counting):
    """With a `policy` of its own, which is no policy of ours."""

    def __init__(self, policy: Any = None) -> None:
        super().__init__()
        self.policy = policy


def gru() -> Any:
    keys = (["observation", "state", "is_init"], ["features", ("next", "state")])
    return GRUModule(3, 4, 1, in_keys=keys[0], out_keys=keys[1])


@pytest.mark.parametrize("kind", [Counting, Inherited, Longer])
def test_every_environment_takes_a_policy(kind: Any) -> None:
    net = gru()
    env = kind(policy=net)
    assert env.marks_init and env.primers["state",].shape == (1, 4)
    assert isinstance(env, kind) and env.length in (3, 9)

    def act(rows: Any) -> Any:
        return {**net(rows), "action": np.zeros(1, np.int64)}

    batch = next(iter(Collector(env, act, frames_per_batch=6, total_frames=6)))
    assert batch["is_init"].tolist()[:3] == [True, False, False]
    assert batch["state"].shape == (6, 1, 4) and not batch["state"][0].any()


def test_without_one_nothing_is_added() -> None:
    for env in (Counting(), Inherited(length=2), Longer(), SerialEnv(2, Counting)):
        assert not env.marks_init and not env.primers
    assert Inherited(2).length == 2
    assert "policy" not in inspect.signature(Counting).parameters


def test_a_policy_argument_of_its_own_is_left_alone() -> None:
    assert Named(policy="mine").policy == "mine"


def test_wrappers_take_one_too() -> None:
    env = InitTracker(Counting(), policy=gru())
    assert env.marks_init and ("state",) in env.primers
