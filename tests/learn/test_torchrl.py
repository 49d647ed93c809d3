"""Agreement with torchrl."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig.learn import discounted_return, gae, td0_return, td_lambda_return, vtrace

ROOT = Path(__file__).parents[2]
GAMMA, LMBDA = 0.9, 0.8
TOLERANCE = 5e-6  # its gamma is a float32


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any]:
    """Steps ``[T, B]`` with ends of both kinds, and what torchrl makes of them."""
    folder = tmp_path_factory.mktemp("torchrl")
    rng = np.random.default_rng(0)
    shape = (20, 6)
    x: dict[str, Any] = {k: rng.normal(size=shape) for k in ("reward", "value", "log_rho")}
    x["done"] = rng.random(shape) < 0.2
    x["terminated"] = x["done"] & (rng.random(shape) < 0.5)
    # As it is within a trajectory: the next state is the next row's.
    x["next_value"] = np.concatenate([x["value"][1:], rng.normal(size=(1, 6))])
    x["next_value"][x["done"]] = rng.normal(size=int(x["done"].sum()))
    np.savez(folder / "in.npz", gamma=GAMMA, lmbda=LMBDA, **x)
    script = ROOT / "tests" / "learn" / "peer.py"
    done = subprocess.run(
        [sys.executable, script, folder / "in.npz", folder / "out.npz"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RL_WARNINGS": "0"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return x, np.load(folder / "out.npz")


def test_gae_and_returns(both: Any) -> None:
    x, theirs = both
    ends = {k: x[k] for k in ("reward", "next_value", "done", "terminated")} | {"gamma": GAMMA}
    advantage, target = gae(**ends, value=x["value"], lmbda=LMBDA)
    found = {
        "gae": advantage,
        "gae_target": target,
        "td0": td0_return(**ends),
        "td_lambda": td_lambda_return(**ends, lmbda=LMBDA),
        "td1": discounted_return(**ends),
    }
    for name, ours in found.items():
        np.testing.assert_allclose(ours, theirs[name], rtol=0, atol=TOLERANCE, err_msg=name)


def test_vtrace(both: Any) -> None:
    x, theirs = both
    names = ("reward", "value", "next_value", "done", "terminated", "log_rho")
    ours = vtrace(**{k: x[k] for k in names}, gamma=GAMMA, rho_clip=1.5, c_clip=0.9)
    np.testing.assert_allclose(ours[1], theirs["vtrace_target"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(ours[0], theirs["vtrace"], rtol=0, atol=TOLERANCE)
