"""Agreement with rsl_rl 5.5, where rsl_rl is right; it runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from contig import RolloutStorage
from tests.rollout.steps import random_dones

STEPS, ENVS = 9, 6
RATES = (0.0, 0.25, 1.0)  # how often an episode ends


def made(case: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(case)
    dones = random_dones(STEPS, ENVS, case, RATES[case])
    return {
        "obs": torch.randn(STEPS, ENVS, 3, generator=draw),
        "actions": torch.randn(STEPS, ENVS, 2, generator=draw),
        "rewards": torch.randn(STEPS, ENVS, generator=draw),
        "values": torch.randn(STEPS, ENVS, generator=draw),
        "last": torch.randn(ENVS, generator=draw),
        "hidden": torch.randn(STEPS, 2, ENVS, 4, generator=draw),
        "dones": dones,
        "time_outs": dones & random_dones(STEPS, ENVS, 2, 0.5),
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> list[dict[str, torch.Tensor]]:
    """rsl_rl's, of every case."""
    folder = tmp_path_factory.mktemp("rsl_rl")
    paths = []
    for case in range(len(RATES)):
        given = {k: v.numpy() for k, v in made(case).items()}
        np.savez(folder / f"in{case}.npz", **given)
        paths += [str(folder / f"in{case}.npz"), str(folder / f"out{case}.npz")]
    command = [sys.executable, str(Path(__file__).with_name("rsl_side.py")), *paths]
    done = subprocess.run(command, check=False, timeout=100, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [{k: torch.from_numpy(v) for k, v in np.load(path).items()} for path in paths[1::2]]


@pytest.mark.parametrize("case", range(len(RATES)))
def test_returns_and_recurrent_minibatches_agree(answers, case):
    given, theirs = made(case), answers[case]
    ends, late = given["dones"], given["time_outs"]
    assert RATES[case] == 0 or (late.any() and not torch.equal(ends, late))

    storage = RolloutStorage(ENVS, STEPS, (3,), None, (2,))
    for t in range(STEPS):
        step = RolloutStorage.Transition()
        step.observations, step.actions = given["obs"][t], given["actions"][t]
        step.rewards, step.dones = given["rewards"][t], given["dones"][t]
        step.values, step.time_outs = given["values"][t], given["time_outs"][t]
        step.actions_log_prob = given["rewards"][t]
        step.hidden_states = (given["hidden"][t], (given["hidden"][t], given["hidden"][t] + 1))
        storage.add_transitions(step)
    storage.compute_returns(given["last"], 0.97, 0.9)
    assert torch.allclose(storage.returns, theirs["returns"], atol=1e-6)
    assert torch.allclose(storage.advantages, theirs["advantages"], atol=1e-5)
    for i, batch in enumerate(storage.recurrent_mini_batch_generator(2, 1)):
        assert torch.equal(batch.obs, theirs[f"obs{i}"])
        assert torch.equal(batch.masks, theirs[f"masks{i}"])
        assert torch.equal(batch.hidden_states[0], theirs[f"actor{i}"])
        assert torch.equal(batch.hidden_states[1][0], theirs[f"critic{i}"])
        assert torch.equal(batch.hidden_states[1][1], theirs[f"cell{i}"])
        assert torch.equal(batch.actions, theirs[f"actions{i}"])


@pytest.mark.parametrize("case", range(len(RATES)))
def test_its_ppo_computes_returns_on_our_storage(answers, case):
    for name in ("returns", "advantages"):
        assert torch.equal(answers[case][f"ours_{name}"], answers[case][name])
