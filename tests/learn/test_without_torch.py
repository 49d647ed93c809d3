"""Estimators and views on numpy need no torch; recurrent modules say that they do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
import sys
for name in ("torch", "tensordict"):
    sys.modules[name] = None  # importing it raises
import numpy as np
import contig
from tests.learn.rows import join, trajectory, worth

rows = contig.Batch.from_tree(join(trajectory(1, 3, "truncated"), trajectory(2, 4, "terminated")))
for once in (False, True):
    options = {"gamma": 0.9, "value_net": lambda x: worth(x["state"]), "single_call": once}
    for run in (contig.GAE(lmbda=0.8, **options), contig.NStep(n=2, **options)):
        out = run(rows)
        assert type(out["advantage"]) is np.ndarray
advantage, _ = contig.learn.gae(
    reward=[1.0], value=[1.0], next_value=[1.0], done=[0], gamma=0.5, lmbda=1
)
assert advantage.tolist() == [0.5]
assert contig.per_trajectory(rows)["length"].tolist() == [3, 4]
assert contig.unpad_slices(contig.pad_slices(rows))["state"].tolist() == rows["state"].tolist()
assert len(contig.split_trajectories(rows, as_nested=True)) == 2
with contig.set_recurrent_mode("recurrent"):
    assert contig.recurrent_mode_state() == "recurrent"
try:
    contig.GRUModule
except ImportError as error:
    print(error)
"""


def test_numpy_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pip install '.[torch]'" in done.stdout
