"""What workers import: what the main process would, and nothing of the directory it happens to run
in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import contig

HOSTILE = """
import pathlib
pathlib.Path("executed").touch()
raise SystemExit("a module of the working directory was executed")
"""

# The user's own module, beside the script: workers need it.
MINE = """
import numpy as np
from gymnasium.spaces import Discrete


class Count:
    action_space = Discrete(2)

    def reset(self, seed=None):
        self.n = 0
        return np.float32(0)

    def step(self, action):
        self.n += 1
        return np.float32(self.n), float(self.n), False, False, {}


def policy(data):
    return {"action": np.ones(len(data["observation"]), np.int64)}
"""

SCRIPT = """
import sys
import numpy as np
from contig import MultiSyncCollector, ParallelEnv
import mine

if __name__ == "__main__":
    if sys.argv[1] == "collector":
        envs, frames = [mine.Count] * 2, {"frames_per_batch": 8, "total_frames": 8}
        with MultiSyncCollector(envs, mine.policy, **frames) as c:
            rows = [row for batch in c for row in batch["next", "observation"].ravel().tolist()]
    else:
        with ParallelEnv(2, mine.Count) as env:
            env.reset()
            rows = []
            for _ in range(4):
                rows += env.step(np.ones(2, np.int64)).next["observation"].tolist()
    print(sorted(rows))
"""


@pytest.mark.parametrize("how", ["collector", "envs"])
def test_workers_have_the_path_of_the_main_process(tmp_path: Path, how: str) -> None:
    script, folder = tmp_path / "code", tmp_path / "work"
    script.mkdir()
    folder.mkdir()
    (script / "mine.py").write_text(MINE)
    (script / "train.py").write_text(SCRIPT)
    for name in ("mine", "numpy", "json", "cloudpickle", "optree", "contig", "random"):
        (folder / f"{name}.py").write_text(HOSTILE)
    done = subprocess.run(
        [sys.executable, str(script / "train.py"), how],
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(contig.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert not (folder / "executed").exists(), done.stderr
    assert done.stdout.strip() == str(sorted([1.0, 2.0, 3.0, 4.0] * 2)), done.stderr
