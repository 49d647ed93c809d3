"""RolloutBuffer and DictRolloutBuffer beside stable-baselines3's."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common import buffers as sb3

from contig.adapters.sb3 import DictRolloutBuffer, RolloutBuffer
from tests.adapters.beside import BOX, MOVE, draw_from, equal

DICT = spaces.Dict({"image": spaces.Box(0, 255, (2, 3), np.uint8), "mode": spaces.Discrete(4)})
PAIRS = {
    "plain": (RolloutBuffer, sb3.RolloutBuffer, BOX),
    "dict": (DictRolloutBuffer, sb3.DictRolloutBuffer, DICT),
}
pairs = pytest.mark.parametrize("pair", PAIRS)
ACTIONS = {"box": MOVE, "discrete": spaces.Discrete(3), "binary": spaces.MultiBinary(3)}


def fill(rng: np.random.Generator, space: Any, action: Any, *buffers: Any) -> None:
    """One rollout, the same for all."""
    first = buffers[0]
    envs = first.n_envs
    for _ in range(first.buffer_size):
        step = (
            draw_from(space, rng, envs),
            draw_from(action, rng, envs),
            rng.normal(size=envs),
            rng.random(envs) < 0.2,
            torch.as_tensor(rng.normal(size=(envs, 1)), dtype=torch.float32),
            torch.as_tensor(rng.normal(size=envs), dtype=torch.float32),
        )
        for buffer in buffers:
            buffer.add(*copy.deepcopy(step))
    last = torch.as_tensor(rng.normal(size=(envs, 1)), dtype=torch.float32)
    ends = rng.random(envs) < 0.5
    for buffer in buffers:
        buffer.compute_returns_and_advantage(last, ends)


@pairs
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_beside_sb3(pair: str, action: str, n_envs: int) -> None:
    ours, theirs, space = PAIRS[pair]
    options = {"device": "cpu", "n_envs": n_envs, "gae_lambda": 0.9, "gamma": 0.95}
    moves = ACTIONS[action]
    mine, other = (cls(20, space, moves, **options) for cls in (ours, theirs))
    assert isinstance(mine, theirs)
    rng = np.random.default_rng(0)
    for _ in range(3):  # rollout after rollout
        mine.reset()
        other.reset()
        assert (mine.size(), mine.full) == (0, False)
        fill(rng, space, moves, mine, other)
        for name in ("values", "log_probs", "rewards", "episode_starts", "actions"):
            equal(getattr(mine, name), getattr(other, name))
        for name in ("advantages", "returns"):
            equal(getattr(mine, name), getattr(other, name), 1e-5)
        for size in (7, 60, None, 7):
            drawn = []
            for buffer in (mine, other):
                np.random.seed(1)
                drawn.append(list(buffer.get(size)))
            assert len(drawn[0]) == len(drawn[1])
            for a, b in zip(*drawn):
                assert type(a) is type(b)
                for name in b._fields:
                    tolerance = 1e-5 if name in ("advantages", "returns") else 0.0
                    equal(getattr(a, name), getattr(b, name), tolerance)


def test_what_callbacks_write_counts() -> None:
    mine = RolloutBuffer(10, BOX, MOVE, device="cpu", n_envs=2)
    rng = np.random.default_rng(0)
    fill(rng, BOX, MOVE, mine)
    before = next(mine.get(None)).returns.sum()
    mine.rewards += 1
    mine.compute_returns_and_advantage(torch.zeros(2), np.zeros(2))
    assert next(mine.get(None)).returns.sum() > before + 10


@pairs
def test_what_is_written_after_a_get_counts_in_the_next(pair: str) -> None:
    """SB3's arrays are flat then, env by env; these are still [steps, envs]."""
    ours, theirs, space = PAIRS[pair]
    mine, other = (cls(10, space, MOVE, device="cpu", n_envs=2) for cls in (ours, theirs))
    fill(np.random.default_rng(0), space, MOVE, mine, other)
    for buffer in (mine, other):
        list(buffer.get(4))
    mine.advantages[3, 1] = other.advantages[10 + 3] = 77.0
    mine.values = mine.values + 5.0
    other.values = other.values + 5.0
    drawn = []
    for buffer in (mine, other):
        np.random.seed(1)
        drawn.append(next(buffer.get(None)))
    assert (drawn[0].advantages == 77).sum() == 1
    for name in drawn[1]._fields:
        equal(getattr(drawn[0], name), getattr(drawn[1], name), 1e-5)


@pairs
def test_a_reset_buffer_is_empty(pair: str) -> None:
    ours, theirs, space = PAIRS[pair]
    mine, other = (cls(10, space, MOVE, device="cpu", n_envs=2) for cls in (ours, theirs))
    fill(np.random.default_rng(0), space, MOVE, mine, other)
    kept = mine.rewards
    before = kept.copy()
    for buffer in (mine, other):
        buffer.reset()
    for name in ("observations", "actions", "rewards", "returns", "advantages", "values"):
        equal(getattr(mine, name), getattr(other, name))
    np.testing.assert_array_equal(kept, before)  # who has an array of the last rollout keeps it


def test_a_copy_goes_on_by_itself() -> None:
    mine = DictRolloutBuffer(10, DICT, MOVE, device="cpu", n_envs=2)
    fill(np.random.default_rng(0), DICT, MOVE, mine)
    list(mine.get(4))
    other = copy.deepcopy(mine)
    np.random.seed(0)
    a = next(mine.get(None))
    np.random.seed(0)
    b = next(other.get(None))
    for name in a._fields:
        equal(getattr(a, name), getattr(b, name))
    other.reset()
    fill(np.random.default_rng(1), DICT, MOVE, other)
    np.random.seed(0)
    equal(next(mine.get(None)).returns, a.returns)


def test_what_is_refused() -> None:
    with pytest.raises(AssertionError, match="Dict obs space"):
        DictRolloutBuffer(10, BOX, MOVE)
    with pytest.raises(TypeError, match="wrong"):
        RolloutBuffer(10, BOX, MOVE, wrong=1)
    mine = RolloutBuffer(10, BOX, MOVE)
    with pytest.raises(AssertionError):
        next(mine.get(4))


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_a_model_trains_on_it(algorithm: Any) -> None:
    """To the same weights, but for the order in which floats are summed."""

    def weights(buffer_class: Any) -> Any:
        learner = algorithm(
            "MlpPolicy",
            "Pendulum-v1",
            rollout_buffer_class=buffer_class,
            n_steps=32,
            policy_kwargs={"net_arch": [8]},
            seed=0,
            device="cpu",
            **({"batch_size": 16, "n_epochs": 2} if algorithm is PPO else {}),
        )
        learner.learn(96)
        return torch.cat([p.detach().flatten() for p in learner.policy.parameters()])

    torch.testing.assert_close(
        weights(RolloutBuffer), weights(sb3.RolloutBuffer), rtol=0, atol=1e-3
    )
