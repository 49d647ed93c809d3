"""A stray write into shared memory is refused, or found at use: it ends no process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.attempts import ROOT
from tests.tape.processes.damage import KINDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is shared on Linux only")


@pytest.mark.parametrize("kind", KINDS)
def test_any_damaged_word(kind: str) -> None:
    wrong, first = [], 0
    while True:
        command = [sys.executable, "-m", "tests.tape.processes.damage", kind, str(first)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        *lines, last = done.stdout.splitlines()
        for said, then in zip(lines, [*lines[1:], last], strict=True):
            if then.startswith("!"):
                wrong.append(f"{said} {then}")
        if last == "all" or len(wrong) > 40:
            break
        assert last[0].isdigit(), done.stderr
        wrong.append(f"{last}: the process ended with {done.returncode}")
        first = int(last.split()[0]) + 1
    assert not wrong, "\n".join(wrong)
