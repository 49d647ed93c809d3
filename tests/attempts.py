"""Native calls that break a contract, each in a process of its own: a failure may be its end.

A module's `CASES` are run by ``python -m <module>``, which prints how they ended; tests ask for
that with `outcomes`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RAISED = {"ValueError", "TypeError", "IndexError", "RuntimeError", "OverflowError", "MemoryError"}
TOO_LONG_S = 10


def outcomes(module: str) -> dict[str, str]:
    """How each of a module's cases ended."""
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def expect_raised(how: str) -> None:
    assert how.partition(":")[0] in RAISED, how


def attempt_all(cases: Mapping[str, Callable[[], Any]]) -> None:
    json.dump({name: _attempt(case) for name, case in cases.items()}, sys.stdout)


def _attempt(case: Callable[[], Any]) -> str:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(TOO_LONG_S)
        try:
            case()
            how = "returned"
        except BaseException as error:
            how = f"{type(error).__name__}: {error}"
        os.write(write, how.encode()[:2000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return said if status == 0 else f"exit {os.WEXITSTATUS(status)} after {said}"
