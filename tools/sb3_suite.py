"""Runs stable-baselines3's own tests with contig's buffers in the place of its own.

    pip download --no-binary :all: --no-deps stable-baselines3==2.9.2 && tar xzf stable_baselines3-*
    python tools/sb3_suite.py stable_baselines3-2.9.2/tests [pytest's arguments]

Without arguments for pytest, the files that are about buffers are run. Nothing of SB3 is kept here:
its source distribution, which has the tests, is fetched by whoever runs this.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Those of buffers, hindsight, n steps, dictionaries, saving, and estimates that rest on them.
FILES = ("buffers", "her", "n_step_replay", "dict_env", "save_load", "gae", "deterministic")


def replace_buffers() -> int:
    """Puts contig's classes wherever a module of SB3 has its own; returns in how many places."""
    import stable_baselines3
    import stable_baselines3.common.buffers as theirs
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

    from contig.adapters import sb3 as ours

    assert stable_baselines3.HerReplayBuffer is HerReplayBuffer
    names = (
        "ReplayBuffer",
        "DictReplayBuffer",
        "NStepReplayBuffer",
        "RolloutBuffer",
        "DictRolloutBuffer",
    )
    swap: dict[Any, Any] = {getattr(theirs, name): getattr(ours, name) for name in names}
    swap[HerReplayBuffer] = ours.HerReplayBuffer
    places = 0
    for name, module in list(sys.modules.items()):
        if not name.startswith("stable_baselines3"):
            continue
        found = {k: swap[v] for k, v in vars(module).items() if isinstance(v, type) and v in swap}
        places += len(found)
        if name in {original.__module__ for original in swap}:
            # Their own methods look these names up there: importers get another module.
            other = ModuleType(name)
            vars(other).update({**vars(module), **found})
            sys.modules[name] = other
        else:
            vars(module).update(found)
    return places


def main(argv: list[str]) -> int:
    if not argv or not Path(argv[0], "test_buffers.py").is_file():
        print(__doc__)
        return 2
    # Before pytest looks at any test: they import the names from SB3's modules.
    print(f"contig's buffers in {replace_buffers()} places of stable-baselines3")
    tests = Path(argv[0]).resolve()
    os.chdir(tests.parent)
    chosen = argv[1:] or [str(tests / f"test_{name}.py") for name in FILES]
    options = ["-p", "no:cacheprovider", "--rootdir", str(tests.parent), "-c", os.devnull]
    return int(pytest.main([*options, *chosen]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
