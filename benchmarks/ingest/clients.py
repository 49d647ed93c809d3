"""The client processes of one measurement, seen from the process that started them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
STOP_TIMEOUT_S = 15


@dataclass(frozen=True)
class Sent:
    """What all clients together sent, and the longest time one of them took."""

    items: int
    seconds: float


class Clients:
    """Starts `count` processes of `benchmarks.ingest.client`; a context manager.

    Entering waits until each is connected; leaving kills what is still running. `go` and `stop` may
    be called from different threads, one after the other.
    """

    def __init__(
        self,
        method: str,
        message: str,
        address: str,
        count: int,
        *,
        mb_per_s: float | None = None,
    ) -> None:
        self._command = [sys.executable, "-m", "benchmarks.ingest.client", method, message, address]
        if mb_per_s is not None:
            self._command += ["--mb-per-s", str(mb_per_s)]
        self._count = count
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Clients:
        try:
            for _ in range(self._count):
                process = subprocess.Popen(
                    self._command,
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                self._processes.append(process)
            for process in self._processes:
                answer = _answer(process)
                if answer != "ready":
                    raise RuntimeError(f"a client said {answer!r} instead of 'ready'")
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()

    def go(self) -> None:
        """All begin."""
        for process in self._processes:
            _order(process, "go")

    def check(self) -> None:
        """`RuntimeError` if one has ended, which none does before `stop`."""
        for process in self._processes:
            if process.poll() is not None:
                raise RuntimeError(f"a client ended early, exit code {process.returncode}")

    def stop(self) -> Sent:
        """All stop sending, hand over what is in flight, and report.

        Somebody must go on receiving meanwhile.
        """
        for process in self._processes:
            _order(process, "stop")
        reports: list[dict[str, Any]] = []
        for process in self._processes:
            try:
                output, _ = process.communicate(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"a client did not stop within {STOP_TIMEOUT_S} s") from None
            if process.returncode or not output:
                raise RuntimeError(f"a client failed, exit code {process.returncode}")
            reports.append(json.loads(output.splitlines()[-1]))
        return Sent(
            items=sum(report["items"] for report in reports),
            seconds=max(report["seconds"] for report in reports),
        )

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _order(process: subprocess.Popen[str], order: str) -> None:
    assert process.stdin is not None
    process.stdin.write(order + "\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
