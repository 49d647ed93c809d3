"""ReplayBuffer, DictReplayBuffer and NStepReplayBuffer beside stable-baselines3's."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from contig.adapters.sb3 import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from tests.adapters.beside import BOX, MOVE, Stream, equal, same_arrays, same_samples

DICT = spaces.Dict({"image": spaces.Box(0, 255, (2, 3), np.uint8), "mode": spaces.Discrete(4)})
PAIRS = {
    "plain": (ReplayBuffer, sb3.ReplayBuffer, BOX),
    "dict": (DictReplayBuffer, sb3.DictReplayBuffer, DICT),
    "n steps": (NStepReplayBuffer, sb3.NStepReplayBuffer, BOX),
}
pairs = pytest.mark.parametrize("pair", PAIRS)
envs = pytest.mark.parametrize("n_envs", [1, 3])


def made(pair: str, n_envs: int = 1, size: int = 60, **options: Any) -> tuple[Any, Any, Stream]:
    ours, theirs, space = PAIRS[pair]
    stream = Stream(space, MOVE, n_envs)
    shared = {"device": "cpu", "n_envs": n_envs, **options}
    return ours(size, space, MOVE, **shared), theirs(size, space, MOVE, **shared), stream


@pairs
@envs
@pytest.mark.parametrize("handle_timeouts", [True, False])
def test_beside_sb3(pair: str, n_envs: int, handle_timeouts: bool) -> None:
    ours, theirs, stream = made(pair, n_envs, handle_timeout_termination=handle_timeouts)
    assert isinstance(ours, type(theirs)) and isinstance(ours, sb3.ReplayBuffer)
    tolerance = 1e-6 if pair == "n steps" else 0.0  # sums of floats in another order
    for steps in (1, 7, 11, 1, 13, 40):  # the ring turns three times
        stream.write(steps, ours, theirs)
        same_arrays(ours, theirs)
        for size in (1, 33):
            same_samples(ours, theirs, size, tolerance=tolerance)


@pytest.mark.parametrize("n_steps", [1, 2, 5])
@envs
def test_n_steps(n_steps: int, n_envs: int) -> None:
    ours, theirs, stream = made("n steps", n_envs, n_steps=n_steps, gamma=0.9)
    stream.write(50, ours, theirs)
    same_samples(ours, theirs, 200, tolerance=1e-6)
    for buffer in (ours, theirs):  # they may be changed
        buffer.n_steps, buffer.gamma = 4, 0.7
    same_samples(ours, theirs, 200, tolerance=1e-6)


OBSERVATIONS = {
    "uint8": spaces.Box(0, 255, (4, 4), np.uint8),
    "int16": spaces.Box(-9, 99, (2,), np.int16),
    "uint64": spaces.Box(0, 99, (1,), np.uint64),
    "float16": spaces.Box(0, 99, (3,), np.float16),
    "float64": spaces.Box(0, 99, (3,), np.float64),
    "discrete": spaces.Discrete(5),
    "multi discrete": spaces.MultiDiscrete([3, 4]),
    "multi binary": spaces.MultiBinary(5),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "multi discrete": spaces.MultiDiscrete([2, 3]),
}


@pytest.mark.parametrize("obs", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_spaces(obs: str, action: str) -> None:
    space, moves = OBSERVATIONS[obs], ACTIONS[action]
    ours = ReplayBuffer(20, space, moves, n_envs=2)
    theirs = sb3.ReplayBuffer(20, space, moves, n_envs=2)
    Stream(space, moves, 2).write(25, ours, theirs)
    same_arrays(ours, theirs)
    same_samples(ours, theirs, 16)


class Point(gymnasium.Env[Any, Any]):
    """An env for VecNormalize to look at."""

    def __init__(self, space: Any) -> None:
        self.observation_space, self.action_space = space, MOVE

    def reset(self, **_: Any) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, False, False, {}


@pairs
@pytest.mark.parametrize("norm_reward", [True, False])
def test_vec_normalize(pair: str, norm_reward: bool) -> None:
    """Each reward of n steps is normalised, and clipped, before they are summed."""
    ours, theirs, stream = made(pair, 2)
    keys = ["image"] if pair == "dict" else None
    space = PAIRS[pair][2]
    env = VecNormalize(
        DummyVecEnv([lambda: Point(space)] * 2),
        norm_reward=norm_reward,
        clip_reward=0.8,
        norm_obs_keys=keys,
    )
    rng = np.random.default_rng(1)
    for part in env.obs_rms.values() if isinstance(env.obs_rms, dict) else [env.obs_rms]:
        part.mean, part.var = rng.normal(size=part.mean.shape), 1 + rng.random(part.var.shape)
    stream.write(40, ours, theirs)
    same_samples(ours, theirs, 100, env, tolerance=1e-6)


def test_training_is_the_same_bit_for_bit() -> None:
    """SAC on a ring that turns: with one seed, one result, whosever buffer it is."""

    def weights(buffer_class: Any) -> Any:
        model = SAC(
            "MlpPolicy",
            "Pendulum-v1",
            replay_buffer_class=buffer_class,
            buffer_size=100,
            learning_starts=30,
            train_freq=8,
            policy_kwargs={"net_arch": [8]},
            seed=1,
            device="cpu",
        )
        model.learn(240)
        return torch.cat([p.flatten() for p in model.policy.parameters()])

    assert torch.equal(weights(ReplayBuffer), weights(sb3.ReplayBuffer))


@pairs
def test_memory_option_is_exact(pair: str) -> None:
    """SB3's has the first observation of the next episode where one was cut, and goes neither
    with time limits nor with dictionaries nor with n steps."""
    _, theirs, stream = made(pair, 2)
    exact = PAIRS[pair][0](
        60, PAIRS[pair][2], MOVE, n_envs=2, optimize_memory_usage=True, device="cpu"
    )
    assert exact.optimize_memory_usage
    stream.write(45, exact, theirs)
    same_arrays(exact, theirs)
    same_samples(exact, theirs, 100, tolerance=1e-6)


@envs
def test_rows_are_trajectories(n_envs: int) -> None:
    ours, _, stream = made("plain", n_envs, 1000)
    done = []
    for _ in range(30):
        step = stream.step()
        ours.add(*step)
        done.append(step.done)
    ended = np.array(done)
    table = ours.storage.episodes()
    assert int(table["steps"].sum()) == 30 * n_envs
    assert int((table["terminated"] | table["truncated"]).sum()) == int(ended.sum())
    assert len(table) == int(ended.sum()) + int((~ended[-1]).sum())


@pairs
@envs
def test_pickles_go_on_where_they_were(pair: str, n_envs: int) -> None:
    ours, theirs, stream = made(pair, n_envs)
    for _ in range(4):
        stream.write(17, ours, theirs)
        file = io.BytesIO()
        pickle.dump(ours, file, pickle.HIGHEST_PROTOCOL)
        file.seek(0)
        ours = copy.deepcopy(pickle.load(file))
        same_arrays(ours, theirs)
        same_samples(ours, theirs, 50, tolerance=1e-6)
    # What was open when it was saved is one trajectory with what came after.
    table = ours.storage.episodes()
    ends = (table["terminated"] | table["truncated"]).sum()
    assert len(table) - ends <= n_envs


def test_a_pickle_that_was_changed(tmp_path: Any) -> None:
    ours, _, stream = made("plain")
    stream.write(5, ours)
    state = ours.__getstate__()
    files, tracks = state["_saved"]
    other = ReplayBuffer.__new__(ReplayBuffer)
    escaping = {**files, "../elsewhere": files["records.bin"]}
    with pytest.raises(ValueError, match="is no file of a checkpoint"):
        other.__setstate__({**state, "_saved": (escaping, tracks)})
    damaged = {**files, "records.bin": files["records.bin"] ^ 1}
    with pytest.raises(Exception, match="damaged"):
        other.__setstate__({**state, "_saved": (damaged, tracks)})


def test_a_model_saves_and_loads_it(tmp_path: Any) -> None:
    options = {"buffer_size": 80, "learning_starts": 20, "policy_kwargs": {"net_arch": [8]}}
    model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer, seed=0, **options)
    model.learn(100)
    before = copy.deepcopy(model.replay_buffer)
    model.save_replay_buffer(tmp_path / "replay.pkl")
    model.replay_buffer = None
    model.load_replay_buffer(tmp_path / "replay.pkl")
    same_arrays(model.replay_buffer, before)
    model.learn(50, reset_num_timesteps=False)
    model.save(tmp_path / "model.zip")
    loaded = DQN.load(tmp_path / "model.zip", env=model.get_env())
    assert type(loaded.replay_buffer) is ReplayBuffer


@pairs
@envs
def test_the_last_step_ends_if_its_flag_is_set(pair: str, n_envs: int) -> None:
    """As SB3 does it before it resets its envs. Then rows go on in another trajectory."""
    ours, theirs, stream = made(pair, n_envs, handle_timeout_termination=False)
    for steps in (9, 1, 30, 25):
        stream.write(steps, ours, theirs, ends=0.05)
        last = (ours.pos - 1) % ours.buffer_size
        ours.dones[last] = True
        theirs.dones[last] = True
        stream.write(3, ours, theirs, ends=0.0)
        same_arrays(ours, theirs)
        same_samples(ours, theirs, 100, tolerance=1e-6)
    lengths = ours.storage.episodes()["steps"]
    assert (lengths <= 31).all()


def test_a_flag_of_one_env_and_a_timeout() -> None:
    ours, theirs, stream = made("n steps", 3)
    stream.write(12, ours, theirs, ends=0.0)
    for buffer in (ours, theirs):
        buffer.timeouts[11, 1] = 1
        buffer.dones[11, 1] = 1
        buffer.dones[11, 2] = True
    stream.write(4, ours, theirs, ends=0.0)
    same_arrays(ours, theirs)
    same_samples(ours, theirs, 200, tolerance=1e-6)
    table = ours.storage.episodes()
    assert sorted(table["steps"].tolist()) == [4, 4, 12, 12, 16]
    assert table["truncated"].sum() == 1 and table["terminated"].sum() == 1


def test_an_episode_longer_than_the_buffer() -> None:
    """What is left of it does not begin anew when it is ended."""
    ours, _, stream = made("plain", 1, 10)
    stream.write(25, ours, ends=0.0)
    ours.dones[ours.pos - 1] = 1
    table = ours.storage.episodes()
    assert table["steps"].tolist() == [10] and not table["complete"].any()
    assert table["terminated"].tolist() == [True]


def test_what_cannot_be_changed() -> None:
    ours, _, stream = made("plain", 2)
    stream.write(10, ours, ends=0.0)
    for name in ("observations", "next_observations", "actions", "rewards"):
        with pytest.raises(TypeError, match="not changed once they are written"):
            getattr(ours, name)[3] = 0
    with pytest.raises(TypeError, match="only those of the last step, 9"):
        ours.dones[3] = 1
    ours.dones[9, 0] = 1
    with pytest.raises(TypeError, match="where an episode goes on"):
        ours.dones[9, 0] = 0
    with pytest.raises(AttributeError):
        ours.rewards = np.zeros(3)


def test_columns_read_as_arrays() -> None:
    ours, theirs, stream = made("plain", 2, 40)
    stream.write(9, ours, theirs)
    mine, other = ours.rewards, theirs.rewards
    assert (mine.shape, mine.ndim, len(mine), mine.nbytes) == ((20, 2), 2, 20, other.nbytes)
    mask = other > 0
    for key in (3, -1, slice(2, 7), (3, 1), (slice(None), 0), [1, 5], mask, (..., 0), (2, ..., 1)):
        equal(mine[key], other[key])
    equal(ours.observations[2:4, 1, :2], theirs.observations[2:4, 1, :2])
    equal(ours.observations[:, :, 0], theirs.observations[:, :, 0])
    equal(1 - ours.dones, 1 - theirs.dones)
    equal(np.stack(list(mine)), other)
    equal(mine.mean(), other.mean())
    equal(np.asarray(mine, np.float64), other.astype(np.float64))
    with pytest.raises(IndexError):
        mine[20]
    with pytest.raises(ValueError, match="always a copy"):
        np.asarray(mine, copy=False)


@pairs
def test_reset(pair: str) -> None:
    ours, theirs, stream = made(pair, 2)
    stream.write(40, ours, theirs)
    ours.reset()
    fresh = PAIRS[pair][1](60, PAIRS[pair][2], MOVE, n_envs=2, device="cpu")
    same_arrays(ours, fresh)
    stream.write(35, ours, fresh)
    same_arrays(ours, fresh)
    same_samples(ours, fresh, 60, tolerance=1e-6)


def test_nothing_to_sample() -> None:
    ours, theirs, _ = made("plain")
    for buffer in (ours, theirs):
        with pytest.raises(ValueError):
            buffer.sample(4)


def test_numpys_generator_goes_on_as_without_us() -> None:
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    made("plain")
    assert np.random.get_state()[1].tolist() == before


FORMS: dict[str, Any] = {
    "float64": lambda x: x.astype(np.float64),
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder()),
    "lists": lambda x: x.tolist(),
    "flat": lambda x: x.reshape(-1),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_values_that_do_not_come_as_they_are_stored(form: str, n_envs: int) -> None:
    ours, theirs, stream = made("plain", n_envs)
    for k in range(30):
        given = stream.step()
        theirs.add(*given)
        made_so = [FORMS[form](x) for x in given[:5]] if k % 3 else list(given[:5])
        ours.add(*made_so, given.infos)
    same_arrays(ours, theirs)
    same_samples(ours, theirs, 40)
    rows = ours.storage.episodes()["steps"]
    assert rows.sum() == min(30 * n_envs, 60) and len(rows) > n_envs


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("first", [True, False])
def test_what_does_not_fit_is_refused(n_envs: int, first: bool) -> None:
    ours, _, stream = made("plain", n_envs)
    stream.write(0 if first else 5, ours)
    other = Stream(BOX, MOVE, n_envs + 1)
    good, wrong = stream.step(), other.step()
    with pytest.raises(ValueError):
        ours.add(*wrong)
    for place in range(5):
        mixed = [*good]
        mixed[place] = wrong[place]
        with pytest.raises(ValueError):
            ours.add(*mixed)
    assert ours.size() == len(ours.storage) // n_envs == (0 if first else 5)
    ours.add(*good)
    assert ours.size() == (1 if first else 6)


def test_a_closed_storage_takes_no_steps() -> None:
    ours, _, stream = made("plain")
    stream.write(3, ours)
    ours.storage.close()
    with pytest.raises(Exception, match="closed"):
        stream.write(1, ours)
