"""PrioritizedReplayBuffer, and the DQN that sets its priorities."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common import buffers as sb3

from contig.adapters.sb3 import (
    NStepReplayBuffer,
    PrioritizedDQN,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from tests.adapters.beside import BOX, MOVE, Stream, equal
from tests.sample.drawing import agrees


def made(n_envs: int = 2, size: int = 40, **options: Any) -> tuple[Any, Stream]:
    buffer = PrioritizedReplayBuffer(size, BOX, MOVE, device="cpu", n_envs=n_envs, **options)
    return buffer, Stream(BOX, MOVE, n_envs)


def test_rows_come_as_often_as_their_priorities_say() -> None:
    buffer, stream = made(alpha=0.7, beta=0.5, eps=0.01)
    stream.write(13, buffer)
    assert isinstance(buffer, sb3.ReplayBuffer)
    errors = np.linspace(-3, 2, 26)  # one of them is 0: that is drawn, too
    assert (np.abs(errors) < 1e-9).any()
    buffer.update_priorities(np.arange(26), torch.as_tensor(errors).reshape(-1, 1))
    q = (np.abs(errors) + 0.01) ** 0.7
    samples = buffer.sample(20_000)
    agrees(samples.indices.tolist(), dict(enumerate(q.tolist())))
    weights = q[samples.indices] ** -0.5
    weights /= weights.max()
    np.testing.assert_allclose(samples.weights[:, 0].numpy(), weights, rtol=1e-5)
    assert samples.weights.shape == samples.rewards.shape == (20_000, 1)
    rewards = np.asarray(buffer.rewards).reshape(-1)
    np.testing.assert_array_equal(samples.rewards[:, 0].numpy(), rewards[samples.indices])


def test_new_rows_have_the_largest_priority_and_evicted_ones_none() -> None:
    buffer, stream = made(1, 10, alpha=1.0)
    stream.write(10, buffer)
    seen = buffer.sample(50).indices
    buffer.update_priorities(np.arange(10), np.r_[np.full(9, 1e-3), 5.0])
    stream.write(6, buffer)
    drawn = buffer.sample(5000).indices
    share = np.bincount(drawn, minlength=16) / 5000
    assert share[:6].sum() == 0 and share[6:9].sum() < 0.01
    np.testing.assert_allclose(share[9:], 1 / 7, atol=0.03)
    buffer.update_priorities(seen, np.full(len(seen), 100.0))  # some are gone: no harm
    assert set(buffer.sample(1000).indices) <= set(range(6, 16))


@pytest.mark.parametrize("n_envs", [1, 3])
def test_n_steps(n_envs: int) -> None:
    options = {"n_steps": 3, "gamma": 0.9}
    buffer, stream = made(n_envs, **options)
    plain = NStepReplayBuffer(40, BOX, MOVE, device="cpu", n_envs=n_envs, **options)
    stream.write(30, buffer, plain)
    places = np.arange(plain.size())
    np.random.seed(0)
    mine = buffer._get_samples(places)
    np.random.seed(0)
    other = plain._get_samples(places)
    for name in other._fields:
        equal(getattr(mine, name), getattr(other, name))
    assert (mine.weights == 1).all()
    assert float(buffer.sample(100).discounts.min()) == pytest.approx(0.9**3)


def test_dictionaries() -> None:
    space = spaces.Dict({"a": BOX, "b": spaces.Discrete(4)})
    buffer = PrioritizedReplayBuffer(30, space, MOVE, device="cpu")
    Stream(space, MOVE).write(20, buffer)
    samples = buffer.sample(8)
    assert samples.observations["a"].shape == (8, 3)
    assert samples.next_observations["b"].shape == (8, 1)


def test_pickles_keep_priorities() -> None:
    buffer, stream = made(1, 50)
    stream.write(20, buffer)
    buffer.update_priorities(np.arange(20), np.r_[np.zeros(19), 3.0])
    buffer.beta = 0.9
    other = copy.deepcopy(pickle.loads(pickle.dumps(buffer)))
    assert other.beta == 0.9 and other.initial_beta == 0.4
    for _ in range(3):
        a, b = buffer.sample(30), other.sample(30)
        assert (a.indices == 19).mean() > 0.9
        for name in a._fields:
            equal(getattr(a, name), getattr(b, name))
    for wrong in (-1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="beta"):
            buffer.beta = wrong
    assert buffer.beta == 0.9
    with pytest.raises(ValueError, match="beta: expected a number from 0 to 1"):
        made(1, 50, beta=1.5)


def model(**options: Any) -> PrioritizedDQN:
    given = {"buffer_size": 200, "learning_starts": 30, "policy_kwargs": {"net_arch": [8]}}
    return PrioritizedDQN("MlpPolicy", "CartPole-v1", **{**given, "seed": 0, **options})


def test_dqn_sets_priorities() -> None:
    """What a row's priority is: the TD error of the net when it was drawn."""
    learner = model(replay_buffer_kwargs={"alpha": 1.0, "beta": 0.5, "eps": 0.0})
    learner.learn(60)
    buffer = learner.replay_buffer
    assert isinstance(buffer, PrioritizedReplayBuffer)
    drawn, sample = [], buffer.sample

    def noted(*args: Any, **kwargs: Any) -> Any:
        data = sample(*args, **kwargs)
        values, targets = learner._values(data)
        drawn.append((data.indices, (targets - values).abs().detach().numpy()[:, 0]))
        return data

    buffer.sample = noted  # type: ignore[method-assign]
    learner.train(gradient_steps=1, batch_size=16)
    rows, errors = drawn[0]
    tree = buffer._drawn.sampler.priorities._tree  # type: ignore[attr-defined]
    weights = tree.weights[rows % tree.capacity]
    np.testing.assert_allclose(weights, errors, rtol=1e-5)


def test_dqn_anneals_beta_and_weighs_its_loss() -> None:
    learner = model(replay_buffer_kwargs={"beta": 0.25})
    learner.learn(100)
    buffer = learner.replay_buffer
    assert isinstance(buffer, PrioritizedReplayBuffer)
    learner._current_progress_remaining = 0.5
    learner.train(1, 8)
    assert buffer.beta == pytest.approx(0.625)
    # With weights of zero nothing is learnt.
    sample = buffer.sample

    def weightless(*args: Any, **kwargs: Any) -> Any:
        data = sample(*args, **kwargs)
        return data._replace(weights=torch.zeros_like(data.weights))

    buffer.sample = weightless  # type: ignore[method-assign]
    learner.policy.optimizer = torch.optim.SGD(learner.policy.parameters(), lr=1.0)
    before = copy.deepcopy(learner.policy.state_dict())
    learner.train(2, 8)
    after = learner.policy.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_dqn_with_n_steps_saves_and_loads(tmp_path: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # SB3 would say that n_steps is left out
        learner = model(n_steps=3, gamma=0.9)
    buffer = learner.replay_buffer
    assert isinstance(buffer, PrioritizedReplayBuffer)
    assert (buffer.n_steps, buffer.gamma, learner.n_steps) == (3, 0.9, 3)
    learner.learn(60)
    learner.save(tmp_path / "model.zip")
    learner.save_replay_buffer(tmp_path / "replay.pkl")
    loaded = PrioritizedDQN.load(tmp_path / "model.zip", env=learner.get_env())
    loaded.load_replay_buffer(tmp_path / "replay.pkl")
    assert isinstance(loaded.replay_buffer, PrioritizedReplayBuffer)
    assert loaded.replay_buffer.n_steps == 3 and loaded.replay_buffer.size() == buffer.size()
    loaded.learn(40, reset_num_timesteps=False)


def test_beta_stops_at_one() -> None:
    """SB3 collects whole rollouts, over the number of steps that `learn` was told."""
    learner = model(learning_starts=10, train_freq=64, replay_buffer_kwargs={"beta": 0.25})
    learner.learn(100)
    assert learner.num_timesteps == 128 and learner._current_progress_remaining < 0
    assert isinstance(learner.replay_buffer, PrioritizedReplayBuffer)
    assert learner.replay_buffer.beta == 1.0


class Renamed(PrioritizedReplayBuffer):
    """A subclass, as somebody may have one."""


@pytest.mark.parametrize("given", [None, PrioritizedReplayBuffer, Renamed])
def test_dqn_tells_the_buffer_its_steps(given: Any) -> None:
    """Whoever names the buffer."""
    learner = model(n_steps=3, gamma=0.9, replay_buffer_class=given)
    buffer = learner.replay_buffer
    assert type(buffer) is (given or PrioritizedReplayBuffer)
    assert (buffer.n_steps, buffer.gamma, learner.n_steps) == (3, 0.9, 3)
    own = model(n_steps=3, replay_buffer_class=given, replay_buffer_kwargs={"n_steps": 2})
    assert isinstance(own.replay_buffer, PrioritizedReplayBuffer)
    assert (own.replay_buffer.n_steps, own.replay_buffer.gamma) == (2, 0.99)


def test_the_same_seed_trains_the_same() -> None:
    def weights() -> Any:
        learner = model(seed=4, train_freq=8)
        learner.learn(120)
        return torch.cat([p.flatten() for p in learner.policy.parameters()])

    assert torch.equal(weights(), weights())


def test_other_buffers_and_other_algorithms() -> None:
    with pytest.raises(TypeError, match="ReplayBuffer has no priorities"):
        model(replay_buffer_class=ReplayBuffer)
    learner = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        replay_buffer_class=PrioritizedReplayBuffer,
        buffer_size=100,
        learning_starts=20,
        policy_kwargs={"net_arch": [8]},
        device="cpu",
    )
    learner.learn(24)  # draws uniformly, since nobody sets priorities


def test_plain_dqn_says_that_it_draws_uniformly(caplog: pytest.LogCaptureFixture) -> None:
    options: Any = {"buffer_size": 200, "learning_starts": 10, "policy_kwargs": {"net_arch": [8]}}
    options |= {"replay_buffer_class": PrioritizedReplayBuffer, "seed": 0}
    learner = DQN("MlpPolicy", "CartPole-v1", **options)
    learner.learn(100)
    said = [x.getMessage() for x in caplog.records if x.name == "contig.adapters"]
    assert len(said) == 1
    assert "drawn uniformly: use PrioritizedDQN, or call update_priorities(" in said[0]
    caplog.clear()
    model(learning_starts=10).learn(100)
    assert not caplog.records
