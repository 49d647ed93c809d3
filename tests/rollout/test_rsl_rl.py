"""Agreement with rsl_rl 5.5, where the peers' environment has it; skipped where it has not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from contig import RolloutStorage
from tests.rollout.steps import random_dones

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("CONTIG_PEERS_PYTHON", ROOT / ".venv-peers" / "bin" / "python"))
STEPS, ENVS = 9, 6


def installed() -> bool:
    return any(PYTHON.parents[1].glob("lib/python*/site-packages/rsl_rl"))


@pytest.mark.skipif(not installed(), reason="rsl_rl is not in the peers' environment")
def test_returns_and_recurrent_minibatches_agree(tmp_path):
    draw = torch.Generator().manual_seed(5)
    dones = random_dones(STEPS, ENVS, 1, 0.25)
    given = {
        "obs": torch.randn(STEPS, ENVS, 3, generator=draw),
        "actions": torch.randn(STEPS, ENVS, 2, generator=draw),
        "rewards": torch.randn(STEPS, ENVS, generator=draw),
        "values": torch.randn(STEPS, ENVS, generator=draw),
        "last": torch.randn(ENVS, generator=draw),
        "hidden": torch.randn(STEPS, 2, ENVS, 4, generator=draw),
        "dones": dones,
        "time_outs": dones & random_dones(STEPS, ENVS, 2, 0.5),
    }
    assert given["time_outs"].any() and not torch.equal(dones, given["time_outs"])
    np.savez(tmp_path / "in.npz", **{k: v.numpy() for k, v in given.items()})
    side = Path(__file__).with_name("rsl_side.py")
    command = [str(PYTHON), str(side), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
    subprocess.run(command, check=True, timeout=100, capture_output=True)
    theirs = {k: torch.from_numpy(v) for k, v in np.load(tmp_path / "out.npz").items()}

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
