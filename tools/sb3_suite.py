"""Runs stable-baselines3's own tests with contig's buffers in the place of its own.

    python -m tools.sb3_suite [--tests stable_baselines3-2.9.2/tests] [pytest's arguments]

Without `--tests` they are those of the version that is installed here, from its source
distribution, which is fetched into `build/suites`. Unless pytest's arguments name tests, the files
that are about buffers are run, some 10 minutes. Nothing of SB3 is kept here.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tools.sdist import fetched

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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=Path, default=None, help="of a checkout")
    given, arguments = parser.parse_known_args(argv)
    tests = (given.tests or fetched("stable-baselines3") / "tests").resolve()
    if not (tests / "test_buffers.py").is_file():
        print(f"{tests}: no test_buffers.py there; expected the tests of stable-baselines3")
        return 2
    # Before pytest looks at any test: they import the names from SB3's modules.
    print(f"contig's buffers in {replace_buffers()} places of stable-baselines3")
    os.chdir(tests.parent)
    chosen = [] if any(names_tests(x) for x in arguments) else FILES
    options = ["-p", "no:cacheprovider", "--rootdir", str(tests.parent), "-c", os.devnull]
    return int(pytest.main([*options, *arguments, *(str(tests / f"test_{x}.py") for x in chosen)]))


def names_tests(argument: str) -> bool:
    """Whether an argument of pytest's says which tests to run."""
    return not argument.startswith("-") and Path(argument.split("::", maxsplit=1)[0]).exists()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
