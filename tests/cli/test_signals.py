"""Signals that come while a command waits for them."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

from contig.cli.signals import Stop, handling


def wait_interrupted(stop: Stop, step: int) -> bool:
    """Waits, with a signal at one of the steps that the interpreter takes there; whether it took so
    many."""
    left = step

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGUSR1)
        return trace

    sys.settrace(trace)
    try:
        stop.wait(0.001)
    finally:
        sys.settrace(None)
    return left <= 0


def test_a_signal_at_any_step_of_a_wait() -> None:
    """It is heard, and the wait ends: nothing waits for what the handler interrupted."""
    step = 1
    while True:
        stop = Stop()
        with handling(stop.handler, signal.SIGUSR1):
            if not wait_interrupted(stop, step):
                break
            assert stop.wait(60.0)
        step += 1
    assert step > 3


def test_a_signal_ends_a_wait_at_once() -> None:
    stop = Stop()
    with handling(stop.handler, signal.SIGALRM):
        assert not stop.wait(0.001)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert stop.wait(3600.0)  # far longer than a test may take
        assert stop.wait(0.0)  # for good
