"""What breaks a kernel's contract raises: it does not crash, hang, or write elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernels import misuse

ROOT = Path(__file__).parents[2]
RAISED = {"ValueError", "TypeError", "IndexError", "RuntimeError", "OverflowError", "MemoryError"}


@pytest.fixture(scope="module")
def outcome() -> Callable[[str], str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.misuse"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return lambda case: found[case]


@pytest.mark.parametrize("case", misuse.CASES)
def test_raises(case: str, outcome: Callable[[str], str]) -> None:
    how = outcome(case)
    assert how.partition(":")[0] in RAISED, how
