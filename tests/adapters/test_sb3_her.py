"""HerReplayBuffer beside stable-baselines3's, and beside the exact probabilities."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3 import HerReplayBuffer as SB3Her
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy

from contig.adapters.sb3 import HerReplayBuffer
from tests.adapters.beside import MOVE, same_arrays
from tests.adapters.test_sb3_replay import Point
from tests.sample.drawing import agrees

Array = np.ndarray[Any, Any]
SPACE = spaces.Dict(
    {
        key: spaces.Box(-1, 1e6, (2,), np.float32)
        for key in ("observation", "achieved_goal", "desired_goal")
    }
)
STRATEGIES = ("future", "final", "episode")


class Env:
    """What a VecEnv is to a HER buffer. Rewards say how far away the goal is."""

    def __init__(self) -> None:
        self.infos: Any = None

    def env_method(self, name: str, achieved: Array, goal: Array, infos: Any, indices: Any) -> Any:
        assert name == "compute_reward" and list(indices) == [0]
        assert (achieved[:, 0] == goal[:, 0]).all(), "a goal of another episode"
        assert len(infos) == len(goal)
        self.infos = infos
        return [goal[:, 1] - achieved[:, 1]]


class Episodes:
    """Steps of envs whose achieved goals say which episode and step they are of."""

    def __init__(self, n_envs: int, seed: int = 0) -> None:
        self.n_envs, self.rng = n_envs, np.random.default_rng(seed)
        self.number = np.arange(n_envs)
        self.step = np.zeros(n_envs, np.int64)
        self._next = n_envs

    def write(self, steps: int, *buffers: Any, ends: float = 0.25) -> None:
        for _ in range(steps):
            done = self.rng.random(self.n_envs) < ends
            late = done & (self.rng.random(self.n_envs) < 0.5)
            infos = [
                {"TimeLimit.truncated": bool(x), "at": (int(n), int(s))}
                for x, n, s in zip(late, self.number, self.step)
            ]
            action = self.rng.normal(size=(self.n_envs, 2))
            for buffer in buffers:
                step = (self.obs(), self.obs(1), action, np.full(self.n_envs, -7.0), done, infos)
                buffer.add(*step)
            self.step = np.where(done, 0, self.step + 1)
            for env in np.flatnonzero(done):
                self.number[env], self._next = self._next, self._next + 1

    def obs(self, ahead: int = 0) -> dict[str, Array]:
        at = np.stack([self.number, self.step + ahead], 1).astype(np.float32)
        return {"observation": at, "achieved_goal": at, "desired_goal": np.full_like(at, -1)}


def made(n_envs: int = 1, size: int = 60, **options: Any) -> tuple[Any, Any, Episodes]:
    given = {"env": Env(), "device": "cpu", "n_envs": n_envs, **options}
    ours = HerReplayBuffer(size, SPACE, MOVE, **given)
    return ours, SB3Her(size, SPACE, MOVE, **given), Episodes(n_envs)


envs = pytest.mark.parametrize("n_envs", [1, 3])
strategies = pytest.mark.parametrize("strategy", STRATEGIES)


def pairs_of(samples: Any) -> tuple[list[Any], int]:
    """Of relabelled rows: (episode, step) and (episode, step) of the goal; how many are not."""
    at = samples.observations["achieved_goal"].numpy()
    goal = samples.observations["desired_goal"].numpy()
    relabelled = goal[:, 0] >= 0
    as_steps = (tuple(map(tuple, x[relabelled].astype(int))) for x in (at, goal))
    return list(zip(*as_steps)), int((~relabelled).sum())


def probabilities(buffer: Any, strategy: str) -> dict[Any, float]:
    """Of rows and goals, from SB3's own bookkeeping."""
    out = {}
    at = np.asarray(buffer.observations["achieved_goal"]).astype(int)
    for place, env in np.argwhere(buffer.ep_length > 0):
        length, start = buffer.ep_length[place, env], buffer.ep_start[place, env]
        now = (place - start) % buffer.buffer_size
        among = {"future": range(now, length), "final": [length - 1], "episode": range(length)}
        number, step = at[place, env]
        for goal in among[strategy]:
            out[(number, step), (number, step - now + goal + 1)] = 1 / len(among[strategy])
    return out


@strategies
@envs
def test_the_distribution_is_sb3s(strategy: str, n_envs: int) -> None:
    """Of both, against the exact one: the same rows and goals, with the same probabilities."""
    ours, theirs, episodes = made(n_envs, goal_selection_strategy=strategy)
    episodes.write(50, ours, theirs)
    expected = probabilities(theirs, strategy)
    np.random.seed(0)
    for buffer in (ours, theirs):
        found, left = pairs_of(buffer.sample(20_000))
        agrees(found, expected)
        assert left == 4000


@envs
def test_what_is_kept_of_episodes(n_envs: int) -> None:
    ours, theirs, episodes = made(n_envs)
    for steps in (3, 9, 20, 31, 1, 17):
        episodes.write(steps, ours, theirs)
        same_arrays(ours, theirs)
        np.testing.assert_array_equal(ours.ep_length, theirs.ep_length)
        np.testing.assert_array_equal(ours._current_ep_start, theirs._current_ep_start)
        there = theirs.ep_length > 0
        np.testing.assert_array_equal(ours.ep_start[there], theirs.ep_start[there])


@pytest.mark.parametrize("handle_timeouts", [True, False])
def test_a_relabelled_row(handle_timeouts: bool) -> None:
    ours, _, episodes = made(2, n_sampled_goal=1, handle_timeout_termination=handle_timeouts)
    episodes.write(30, ours)
    samples = ours.sample(400)
    goal = samples.observations["desired_goal"]
    chosen = goal[:, 0] >= 0
    assert int(chosen.sum()) == 200
    assert samples.next_observations["desired_goal"].equal(goal)
    achieved = samples.next_observations["achieved_goal"]
    assert samples.rewards[chosen, 0].equal((goal - achieved)[chosen, 1])
    assert (samples.rewards[~chosen] == -7).all() and (goal[~chosen] == -1).all()
    # Flags are the stored ones; observations are of the row itself.
    at = samples.observations["achieved_goal"]
    assert samples.observations["observation"].equal(at)
    assert (achieved - at).equal(samples.next_observations["observation"] - at)
    flags = np.asarray(ours.dones) * (1 - np.asarray(ours.timeouts))
    ended = {tuple(x) for x in np.asarray(ours.observations["achieved_goal"])[flags == 1].tolist()}
    assert [tuple(x) in ended for x in at.tolist()] == (samples.dones[:, 0] == 1).tolist()
    assert 0 < int(samples.dones.sum()) < 400


def test_infos_of_the_rows_are_given() -> None:
    ours, _, episodes = made(2, copy_info_dict=True)
    episodes.write(70, ours)
    samples = ours.sample(100)
    found, _ = pairs_of(samples)
    assert [info["at"] for info in ours.env.infos] == [at for at, _ in found]
    ours.env.infos[0]["at"] = None  # a copy
    ours.sample(500)
    assert None not in [info["at"] for info in ours.env.infos]
    without, _, _ = made(1)
    episodes.n_envs = 1
    Episodes(1).write(30, without)
    without.sample(10)
    assert list(without.env.infos) == [{}] * 8


def test_vec_normalize() -> None:
    """Goals are relabelled as they are stored, and normalised then."""
    ours, _, episodes = made(1)
    env = VecNormalize(DummyVecEnv([lambda: Point(SPACE)]), clip_obs=1e9, clip_reward=1e9)
    assert isinstance(env.obs_rms, dict)
    for part in env.obs_rms.values():
        part.mean, part.var = np.array([3.0, 5.0]), np.array([4.0, 4.0])
    env.ret_rms.var = np.array(9.0)
    episodes.write(40, ours)
    samples = ours.sample(100, env)
    goal = env.unnormalize_obs({k: v.numpy() for k, v in samples.observations.items()})
    achieved = env.unnormalize_obs({k: v.numpy() for k, v in samples.next_observations.items()})
    reward = env.unnormalize_reward(samples.rewards.numpy())[:, 0]
    chosen = goal["desired_goal"][:, 0] > -0.5
    expected = (goal["desired_goal"] - achieved["achieved_goal"])[:, 1]
    np.testing.assert_allclose(reward[chosen], expected[chosen], atol=1e-4)


@envs
@pytest.mark.parametrize("handle_timeouts", [True, False])
def test_ending_what_goes_on(n_envs: int, handle_timeouts: bool) -> None:
    ours, theirs, episodes = made(n_envs, handle_timeout_termination=handle_timeouts)
    for steps in (6, 2, 30, 19):
        episodes.write(steps, ours, theirs, ends=0.1)
        for buffer in (ours, theirs):
            going = buffer._current_ep_start != buffer.pos
            if going.any():
                with pytest.warns(UserWarning, match="will be truncated"):
                    buffer.truncate_last_trajectory()
            else:
                buffer.truncate_last_trajectory()
        same_arrays(ours, theirs)
        np.testing.assert_array_equal(ours.ep_length, theirs.ep_length)
        episodes.step[:] = 0
        episodes.number = episodes._next + np.arange(n_envs)
        episodes._next += n_envs
    expected = probabilities(theirs, "future")
    agrees(pairs_of(ours.sample(30_000))[0], expected)


@envs
def test_saved_in_the_middle_of_episodes(n_envs: int) -> None:
    """They go on, and are one episode each."""
    ours, theirs, episodes = made(n_envs, copy_info_dict=True)
    for _ in range(5):
        episodes.write(11, ours, theirs)
        env = ours.env
        ours = copy.deepcopy(pickle.loads(pickle.dumps(ours)))
        assert ours.env is None
        ours.set_env(env)
        with pytest.raises(ValueError, match="already initialized"):
            ours.set_env(env)
    same_arrays(ours, theirs)
    np.testing.assert_array_equal(ours.ep_length, theirs.ep_length)
    agrees(pairs_of(ours.sample(20_000))[0], probabilities(theirs, "future"))


def test_what_is_refused() -> None:
    ours, _, episodes = made(1)
    with pytest.raises(RuntimeError, match="Unable to sample before the end of the first episode"):
        ours.sample(4)
    episodes.write(5, ours, ends=0.0)
    with pytest.raises(RuntimeError, match="Unable to sample before the end of the first episode"):
        ours.sample(4)
    with pytest.raises(KeyError):
        made(1, goal_selection_strategy="past")
    with pytest.raises(AssertionError, match="Dict obs space"):
        HerReplayBuffer(10, MOVE, MOVE, env=None, device="cpu")
    episodes.write(9, ours, ends=0.9)
    ours.env = None
    with pytest.raises(AssertionError, match="must initialize HerReplayBuffer with a VecEnv"):
        ours.sample(4)


def test_a_model_trains_on_it(tmp_path: Any) -> None:
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=False), 2)
    model = DQN(
        "MultiInputPolicy",
        env,
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"goal_selection_strategy": GoalSelectionStrategy.FUTURE},
        policy_kwargs={"net_arch": [8]},
        learning_starts=16,
        buffer_size=60,
        train_freq=8,
        seed=0,
    )
    model.learn(100)
    model.save_replay_buffer(tmp_path / "replay.pkl")
    going = (model.replay_buffer.dones[model.replay_buffer.pos - 1] == 0).any()
    if going:
        with pytest.warns(UserWarning, match="will be truncated"):
            model.load_replay_buffer(tmp_path / "replay.pkl", truncate_last_traj=True)
    else:
        model.load_replay_buffer(tmp_path / "replay.pkl", truncate_last_traj=True)
    model.learn(40)
