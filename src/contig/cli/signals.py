"""Signals that a command handles while it runs."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

__all__ = ["Stop", "ToldToEnd", "end", "handling"]


class ToldToEnd(KeyboardInterrupt):
    """What `end` raises.

    A plain KeyboardInterrupt that comes while source is evaluated, as when a module with a
    dataclass is imported, is remembered by the interpreter: it ends by a signal in spite of all
    that was done about it.
    """


def end(number: int, frame: Any) -> NoReturn:
    """A handler that ends what the main thread does, as Ctrl-C would."""
    raise ToldToEnd


class Stop:
    """Whether a signal has said to end; for the main thread.

    An Event would not do: a handler runs between any two steps of the main thread, also while that
    has the event's lock, and would wait for itself for ever.
    """

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[int] = queue.SimpleQueue()  # its `put` may come at any time
        self._ended = False

    def handler(self, number: int, frame: Any) -> None:
        """A handler that says so."""
        self._told.put(number)

    def wait(self, timeout_s: float) -> bool:
        """Waits for it."""
        try:
            self._ended = self._ended or self._told.get(timeout=timeout_s) > 0
        except queue.Empty:
            pass
        return self._ended


@contextmanager
def handling(handler: Callable[[int, Any], Any] | int, *numbers: int) -> Iterator[None]:
    """Has some signals handled like this, and as before afterwards. For the main thread."""
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, handled in before:
            signal.signal(number, handled)
