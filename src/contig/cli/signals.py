"""Signals that a command handles while it runs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

__all__ = ["ToldToEnd", "end", "handling"]


class ToldToEnd(KeyboardInterrupt):
    """What `end` raises.

    A plain KeyboardInterrupt that comes while source is evaluated, as when a module with a
    dataclass is imported, is remembered by the interpreter: it ends by a signal in spite of all
    that was done about it.
    """


def end(number: int, frame: Any) -> NoReturn:
    """A handler that ends what the main thread does, as Ctrl-C would."""
    raise ToldToEnd


@contextmanager
def handling(handler: Callable[[int, Any], Any] | int, *numbers: int) -> Iterator[None]:
    """Has some signals handled like this, and as before afterwards. For the main thread."""
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, handled in before:
            signal.signal(number, handled)
