"""A process that forks workers on request.

It imports what they need once and opens no storage, so that its children are as separate as spawned
ones, and cost milliseconds to start: tests that kill hundreds of writers need as many.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import workers


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave no zombies
    parent = os.getppid()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            result = workers.run_task(request["task"], request["arguments"])
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

    def state(self) -> str:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return stat.rpartition(")")[2].split()[0]

    def expect_stopped(self, timeout_s: float) -> None:
        """Returns once it has stopped itself."""
        deadline = time.monotonic() + timeout_s
        while self.state() not in ("T", "t"):
            assert self.alive(), f"process {self.pid} has ended"
            assert time.monotonic() < deadline, f"process {self.pid} did not stop"
            time.sleep(0.001)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait(30)
        self.close()  # a soak kills thousands of them

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > deadline:
                raise AssertionError(f"process {self.pid} is blocked: no end in {timeout_s} s")
            time.sleep(0.002)

    def result(self, timeout_s: float = 60) -> Any:
        """What the task returned; its traceback is an error here."""
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
        root = Path(__file__).resolve().parents[3]
        self._directory = directory
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tape.processes.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        self.children: list[Child] = []

    def start(self, task: str, **arguments: Any) -> Child:
        self._count += 1
        out = self._directory / f"result-{self._count}.json"
        request = {"task": task, "arguments": arguments, "out": str(out)}
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
