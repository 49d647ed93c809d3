"""When one side of a connection has to say something, and when it takes the other for lost.

    said nothing for a third of heartbeat_s   -> BEAT
    heard nothing for heartbeat_s             -> the other side is gone: the connection is closed

For a server's connections, and for clients that send through `ssl`; others have the same natively
(`native/wire/pulse.h`).
"""

from __future__ import annotations

import time

__all__ = ["HEARTBEAT_S", "LEAST_HEARTBEAT_S", "MOST_HEARTBEAT_S", "Pulse"]

HEARTBEAT_S = 10.0  # of silence, after which a peer is lost
LEAST_HEARTBEAT_S, MOST_HEARTBEAT_S = 0.05, 86400.0


class Pulse:
    """When to say something, and since when nothing was heard; 0 seconds: never mind.

    Belongs to one thread.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.heard = self.spoke = time.monotonic()

    def due(self, now: float) -> bool:
        """Whether it is time to say something."""
        return self._seconds > 0 and now - self.spoke >= self._seconds / 3

    def silent(self, now: float) -> bool:
        """Whether the other side is lost. Only for who has just looked for something to read."""
        return self._seconds > 0 and now - self.heard >= self._seconds

    def patience(self, now: float, speaks: bool) -> float | None:
        """How long nothing of this has to be looked at; `speaks`: whether there is room to."""
        if self._seconds <= 0:
            return None
        next_word = self.spoke + self._seconds / 3 if speaks else self.heard + self._seconds
        return max(min(next_word, self.heard + self._seconds) - now, 0.0)

    def verdict(self, who: str) -> str:
        return f"{who} said nothing for {self._seconds:g} s"
