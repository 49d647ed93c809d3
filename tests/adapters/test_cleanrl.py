"""CleanRL's ReplayBuffer: beside stable-baselines3's, which its scripts' is a copy of, and in
scripts in CleanRL's manner. `tools/cleanrl_suite.py` runs CleanRL's own."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers as sb3

from contig.adapters.cleanrl import ReplayBuffer, ReplayBufferSamples
from tests.adapters.beside import BOX, MOVE, Stream, equal, same_arrays
from tools.cleanrl_suite import OURS, SCRIPTS, patched, run

FOLDER = Path(__file__).parent / "cleanrl_scripts"


def made(space: Any = BOX, action: Any = MOVE, n_envs: int = 1, **options: Any) -> tuple[Any, ...]:
    shared = {"device": "cpu", "n_envs": n_envs, **options}
    ours, theirs = (cls(60, space, action, **shared) for cls in (ReplayBuffer, sb3.ReplayBuffer))
    return ours, theirs, Stream(space, action, n_envs)


def same_samples(ours: Any, theirs: Any, size: int) -> None:
    drawn = []
    for buffer in (ours, theirs):
        np.random.seed(3)
        drawn.append(buffer.sample(size))
    assert isinstance(drawn[0], ReplayBufferSamples)
    for name in ReplayBufferSamples._fields:
        equal(getattr(drawn[0], name), getattr(drawn[1], name))


SPACES = {
    "box": (BOX, MOVE),
    "float64": (spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-1, 1, (2, 2), np.float64)),
    "image": (spaces.Box(0, 255, (4, 6, 6), np.uint8), spaces.Discrete(3)),
    "discrete": (spaces.Discrete(5), spaces.MultiDiscrete([2, 3])),
    "multi": (spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(4)),
    "binary": (spaces.MultiBinary(5), spaces.Discrete(2)),
}


@pytest.mark.parametrize("which", SPACES)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_infos_of_each_env(which: str, n_envs: int) -> None:
    ours, theirs, stream = made(*SPACES[which], n_envs)
    for steps in (1, 7, 40):
        stream.write(steps, ours, theirs)
        same_arrays(ours, theirs)
        same_samples(ours, theirs, 33)


def test_the_rows_drawn_with_the_memory_option() -> None:
    ours, theirs, stream = made(handle_timeout_termination=False, optimize_memory_usage=True)
    for _ in range(3):  # the third time around
        stream.write(50, ours, theirs)
        same_samples(ours, theirs, 100)


@pytest.mark.parametrize("key", ["_final_observation", "_final_obs", "_final_info", "_episode"])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_infos_of_a_vector_env(key: str, n_envs: int) -> None:
    """What is drawn is the same as without them; where episodes were cut, trajectories end."""
    ours, theirs, stream = made(n_envs=n_envs, handle_timeout_termination=False)
    ends = np.zeros(n_envs, np.int64)
    for _ in range(60 // n_envs):
        step = stream.step(ends=0.3)
        cut = step.done & (stream.rng.random(n_envs) < 0.5)
        infos = {key: step.done} if step.done.any() else {}
        theirs.add(*step[:4], step.done & ~cut, infos)
        ours.add(*step[:4], step.done & ~cut, infos)
        ends += step.done
    same_samples(ours, theirs, 50)
    assert torch.equal(
        torch.as_tensor(ours.dones * (1 - ours.timeouts)), torch.tensor(theirs.dones)
    )
    table = ours.storage.episodes()
    ended = table["terminated"] | table["truncated"]
    assert ended.sum() == ends.sum() and table["truncated"].any() and table["terminated"].any()


def test_a_real_vector_env() -> None:
    """The observation after a step is in the next row, unless a trajectory begins there."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    make = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=12)] * 2
    envs = gymnasium.vector.SyncVectorEnv(make, autoreset_mode=mode)
    rb = ReplayBuffer(
        200,
        envs.single_observation_space,
        envs.single_action_space,
        torch.device("cpu"),
        n_envs=2,
        handle_timeout_termination=False,
    )
    envs.single_action_space.seed(0)
    obs, _ = envs.reset(seed=0)
    for _ in range(80):
        actions = np.array([envs.single_action_space.sample() for _ in range(2)])
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        for i in np.flatnonzero(truncations | terminations):
            real_next_obs[i] = infos["final_obs"][i]
        rb.add(obs, real_next_obs, actions, rewards, terminations, infos)
        obs = next_obs
    table = rb.storage.episodes()
    assert table["truncated"].any() and table["terminated"].any()
    for episode in table:
        rows = rb.storage.read_episode(episode["id"])
        after = rows["next", "observation"]
        assert np.array_equal(after[:-1], rows["observation"][1:])
    envs.close()


def test_time_limits_are_not_looked_for_in_a_vector_envs_infos() -> None:
    ours, _, stream = made()
    with pytest.raises(TypeError, match="handle_timeout_termination=False"):
        ours.add(*stream.step()[:5], {})
    assert ours.size() == 0


def test_spaces_of_all_envs_are_refused_with_a_hint() -> None:
    both = spaces.Tuple((BOX, BOX))
    with pytest.raises(TypeError, match="single_observation_space"):
        ReplayBuffer(10, both, MOVE)
    with pytest.raises(TypeError, match="action_space: expected.*got Text"):
        ReplayBuffer(10, BOX, spaces.Text(3))


def test_devices_and_reset() -> None:
    ours, theirs, stream = made()
    assert ReplayBuffer(9, BOX, MOVE, "auto").device.type in ("cpu", "cuda")
    assert ReplayBuffer(9, BOX, MOVE, torch.device("cuda")).device.type in ("cpu", "cuda")
    stream.write(70, ours, theirs)
    ours.reset()
    assert (ours.size(), ours.pos, ours.full) == (0, 0, False)
    theirs.reset()
    stream.write(5, ours, theirs)
    same_samples(ours, theirs, 20)


def test_a_pickle_goes_on() -> None:
    ours, theirs, stream = made(n_envs=2)
    stream.write(13, ours, theirs)
    ours = pickle.loads(pickle.dumps(ours))
    stream.write(11, ours, theirs)
    same_arrays(ours, theirs)
    same_samples(ours, theirs, 40)


def test_it_needs_no_stable_baselines3() -> None:
    code = (
        "import sys; sys.modules['stable_baselines3'] = None\n"
        "import contig.adapters.cleanrl as c\n"
        "assert c.ReplayBuffer.__mro__[1].__name__ == 'StepBuffer'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_with_another_import_learns_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (FOLDER / f"{name}.py").read_text()
    mine, lines = patched(text)
    assert lines == 1 and OURS in mine
    steps = ["--total-timesteps", "400", "--learning-starts", "100"]
    monkeypatch.setattr(sys, "argv", [name, *steps])
    printed = []
    for script in (text, mine):
        exec(compile(script, f"{name}.py", "exec"), {"__name__": "__main__"})
        printed.append(capsys.readouterr().out.splitlines())
    assert len(printed[0]) > 3 and ", weights=" in printed[0][-1]
    assert printed[0] == printed[1]


def test_a_script_without_a_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="off-policy scripts"):
        patched("from somewhere import ReplayBuffer\n")
    with pytest.raises(RuntimeError, match="no such thing"):
        run("raise SystemExit('no such thing')", "dqn", FOLDER, [])
