"""Who feeds a buffer, and the wait for what they bring."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..batch import Batch
from ..errors import EmptyBufferError, NothingEligibleError

__all__ = ["Feeding"]

_SLICE_S = 0.1  # waits are cut in pieces, so that Ctrl-C works

Check = Callable[[], None]


class Feeding:
    """The checks of those who feed a buffer: each raises if its feeder failed.

    Attributes:
        feeders: of those for whose rows it is worth waiting.
        watched: those that every draw calls.
    """

    def __init__(self) -> None:
        self.feeders: list[Check] = []
        self.watched: list[Check] = []

    def feed(self, check: Check, always: bool) -> Check:
        self.feeders.append(check)
        if not always:
            return lambda: self.feeders.remove(check)
        self.watched.append(check)

        def end() -> None:
            self.feeders.remove(check)
            self.watched.remove(check)

        return end

    def watch(self, check: Check) -> Check:
        self.watched.append(check)
        return lambda: self.watched.remove(check)

    def await_rows(
        self, tape: Any, read: Callable[[], Batch], go_on: Check, timeout_s: float
    ) -> Batch:
        """What `read` finds when somebody has written it.

        Raises:
            EmptyBufferError, NothingEligibleError: nobody has, in time, or nobody feeds any more.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            seen = tape.wake_word
            try:
                return read()
            except (EmptyBufferError, NothingEligibleError) as nothing:
                if not self.feeders:
                    raise
                left = deadline - time.monotonic()
                if left <= 0:
                    raise type(nothing)(f"after {timeout_s} s: {nothing}") from nothing
            go_on()
            for check in self.feeders:
                check()
            tape.wait(seen, min(left, _SLICE_S))
