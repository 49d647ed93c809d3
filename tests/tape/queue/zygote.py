"""The process that forks workers, as in tests/tape/processes, for the workers of this directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.tape.processes import zygote

from . import workers


class Zygote(zygote.Zygote):
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tape.queue.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[3],
        )
        self.children = []


if __name__ == "__main__":
    zygote.workers = workers
    zygote.main()
