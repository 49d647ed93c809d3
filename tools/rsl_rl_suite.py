"""Runs rsl_rl's own tests with contig's RolloutStorage in the place of its own.

    git clone https://github.com/leggedrobotics/rsl_rl      at the tag of the version installed here
    python tools/rsl_rl_suite.py rsl_rl/tests [pytest's arguments]

Without arguments for pytest, the tests of its storage, algorithms, runners and extensions are run.
Nothing of rsl_rl is kept here, and nothing is fetched: its source distribution has no tests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDERS = ("storage", "algorithms", "runners", "extensions")


def replace_storage() -> None:
    """Puts contig's class wherever rsl_rl looks its own up, also in the module that defines it."""
    import rsl_rl.storage
    import rsl_rl.storage.rollout_storage as theirs

    from contig.adapters import rsl_rl as ours

    ours.install()
    theirs.RolloutStorage = ours.RolloutStorage
    assert rsl_rl.storage.RolloutStorage is ours.RolloutStorage


def main(argv: list[str]) -> int:
    if not argv or not Path(argv[0], "storage", "test_rollout_storage.py").is_file():
        print(__doc__)
        return 2
    replace_storage()  # before pytest looks at any test: they import the name
    tests = Path(argv[0]).resolve()
    os.chdir(tests.parent)
    sys.path.insert(0, str(tests.parent))
    chosen = argv[1:] or [str(tests / name) for name in FOLDERS if (tests / name).is_dir()]
    options = ["-p", "no:cacheprovider", "--rootdir", str(tests.parent), "-c", os.devnull]
    return int(pytest.main([*options, *chosen]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
