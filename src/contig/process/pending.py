"""Connections that have not sent a whole request yet: few at a time, and none for long.

Anybody can connect and say nothing. A server that counts such connections among its readers is
taken away by some dozens of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

__all__ = ["PendingConnections"]


class PendingConnections:
    """Bounds the connections whose request has not arrived, in number and in time.

    A new one always finds a place: the one that has waited longest is closed for it. Whoever sends
    a request at once is therefore answered, however many others are silent. Belongs to one event
    loop's thread.

    Args:
        limit: how many may wait at a time.
        deadline_s: how long each may take to send a request.
    """

    def __init__(self, limit: int, deadline_s: float) -> None:
        self._limit = limit
        self._deadline_s = deadline_s
        # In the order in which they began to wait.
        self._waiting: dict[Hashable, tuple[Callable[[], None], asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: Hashable, close: Callable[[], None]) -> None:
        """Begins the wait for a request of `connection`; `close` ends it when its time is over."""
        self.remove(connection)
        if len(self._waiting) >= self._limit:
            self._expire(next(iter(self._waiting)))
        timer = asyncio.get_running_loop().call_later(self._deadline_s, self._expire, connection)
        self._waiting[connection] = (close, timer)

    def remove(self, connection: Hashable) -> None:
        """Ends the wait: the request is there, or the connection is gone."""
        _, timer = self._waiting.pop(connection, (None, None))
        if timer is not None:
            timer.cancel()

    def _expire(self, connection: Hashable) -> None:
        close, timer = self._waiting.pop(connection)
        timer.cancel()
        close()
