"""Holding: a thread that keeps writers out of a storage on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

__all__ = ["Holding"]


class Holding:
    """Which thread has a tape's lock, for longer than a call.

    Appends, and whoever follows another process, take `appending` first and the tape's lock then:
    so must everybody who wants both. Thread-safe.

    Args:
        appending: the lock of those who append, or follow.
    """

    def __init__(self, appending: threading.RLock) -> None:
        self._appending, self._thread = appending, 0

    @property
    def is_here(self) -> bool:
        """Whether this thread has it: then it can follow nobody."""
        return self._thread == threading.get_ident()

    @contextmanager
    def __call__(self, tape: AbstractContextManager[None], both: bool) -> Iterator[None]:
        """For the length of the block; with both locks, or the tape's only."""
        with self._appending if both else nullcontext(), tape:
            self._thread = threading.get_ident()
            try:
                yield
            finally:
                self._thread = 0
