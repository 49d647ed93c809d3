"""Waiting for things to happen, with a deadline; threads whose errors are not lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest


def until(ready: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Returns once `ready()` is true."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.003)


def raises(kinds: Any, call: Callable[..., object], *args: Any) -> None:
    """`pytest.raises` for a call in a thread."""
    with pytest.raises(kinds):
        call(*args)


class Threads:
    """Runs calls in threads, daemons all; `join` raises what one of them raised."""

    def __init__(self, *calls: Callable[[], object]) -> None:
        self.errors: list[BaseException] = []
        self._failed = threading.Event()
        self._threads: list[threading.Thread] = []
        for call in calls:
            self.start(call)

    def start(self, call: Callable[[], object]) -> None:
        self._threads.append(threading.Thread(target=self._run, args=(call,), daemon=True))
        self._threads[-1].start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            self.errors.append(error)
            self._failed.set()

    def join(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            while thread.is_alive() and not self._failed.is_set():
                assert time.monotonic() < deadline, f"blocked for {timeout_s} s"
                thread.join(0.05)
        if self.errors:
            raise self.errors[0]

    @property
    def alive(self) -> bool:
        return any(t.is_alive() for t in self._threads)
