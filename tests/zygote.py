"""A process that forks workers on request.

It imports what they need once and opens no storage, so that its children are as separate as spawned
ones, and cost milliseconds to start: tests that kill hundreds of writers need as many. A worker is
a function of a module that can be imported; its arguments and its result are JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes import state
from tests.waiting import WAIT_S, until

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave no zombies
    parent = os.getppid()
    for line in sys.stdin:
        request = json.loads(line)
        worker = getattr(importlib.import_module(request["module"]), request["worker"])
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            try:
                result = {"ok": worker(**request["arguments"])}
            except BaseException:
                result = {"error": traceback.format_exc()}
            out = Path(request["out"])
            part = out.with_suffix(".part")
            part.write_text(json.dumps(result))
            part.rename(out)
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        if os.getppid() != parent:
            return


class Child:
    """A worker: known by a pidfd, so that no signal can reach another process of its number."""

    def __init__(self, pid: int, out: Path) -> None:
        self.pid, self.out = pid, out
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:  # it has already ended
            self._fd = -1

    def signal(self, number: int) -> None:
        try:
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            pass

    def alive(self) -> bool:
        if self._fd < 0:
            return False
        ended = select.poll()  # not select(): descriptors may be large
        ended.register(self._fd, select.POLLIN)
        return not ended.poll(0)

    def expect_stopped(self, timeout_s: float = WAIT_S) -> None:
        """Returns once it has stopped itself."""
        until(
            lambda: state(self.pid) in ("T", "t") or not self.alive(),
            f"process {self.pid} stops itself",
            timeout_s,
        )
        assert self.alive(), f"process {self.pid} has ended"

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()
        self.close()  # a soak kills thousands of them

    def wait(self, timeout_s: float = WAIT_S) -> None:
        until(lambda: not self.alive(), f"process {self.pid} ends", timeout_s)

    def result(self, timeout_s: float = WAIT_S) -> Any:
        """What the worker returned; its traceback is an error here."""
        self.wait(timeout_s)
        assert self.out.exists(), f"process {self.pid} died without a result"
        result = json.loads(self.out.read_text())
        assert "ok" in result, result["error"]
        return result["ok"]

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Zygote:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.children: list[Child] = []

    def start(self, worker: Callable[..., Any], **arguments: Any) -> Child:
        out = self._directory / f"result-{len(self.children)}.json"
        request = {
            "module": worker.__module__,
            "worker": worker.__name__,
            "arguments": arguments,
            "out": str(out),
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        child = Child(int(self._process.stdout.readline()), out)
        self.children.append(child)
        return child

    def close(self) -> None:
        for child in self.children:
            child.close()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)


if __name__ == "__main__":
    main()
