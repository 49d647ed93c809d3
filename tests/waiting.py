"""Waiting for what threads and other processes do, always with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

WAIT_S = 60.0  # far more than anything takes: what is not there by then does not come


def until(condition: Callable[[], Any], what: str = "", timeout_s: float = WAIT_S) -> Any:
    """Returns the condition's value once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what or condition}"
        time.sleep(0.003)
    return value


def raises(kinds: Any, call: Callable[..., object], *args: Any) -> None:
    """`pytest.raises` for a call in a thread."""
    with pytest.raises(kinds):
        call(*args)


class Task(threading.Thread):
    """A call in a thread, a daemon; `result()` gives what it returned, or raises what it raised."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._call, self._args = call, args
        self._value: Any = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._call(*self._args)
        except BaseException as error:
            self.error = error

    def ends(self, timeout_s: float = WAIT_S) -> bool:
        """Whether the call comes back within this time."""
        self.join(timeout_s)
        return not self.is_alive()

    def result(self, timeout_s: float = WAIT_S) -> Any:
        assert self.ends(timeout_s), f"the call did not come back within {timeout_s} s"
        if self.error is not None:
            raise self.error
        return self._value


class Threads:
    """Several calls in threads; `join` raises what one of them raised, as soon as it has."""

    def __init__(self, *calls: Callable[[], object]) -> None:
        self._tasks = [Task(call) for call in calls]

    def start(self, call: Callable[[], object]) -> None:
        self._tasks.append(Task(call))

    def join(self, timeout_s: float = WAIT_S) -> None:
        until(lambda: self.errors or not self.alive, "threads are blocked", timeout_s)
        if self.errors:
            raise self.errors[0]

    @property
    def errors(self) -> list[BaseException]:
        return [task.error for task in self._tasks if task.error is not None]

    @property
    def alive(self) -> bool:
        return any(task.is_alive() for task in self._tasks)
