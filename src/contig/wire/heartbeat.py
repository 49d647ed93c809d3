"""The heartbeat: each side of a connection says something from time to time, or is lost.

    said nothing for a third of heartbeat_s   -> BEAT
    heard nothing for heartbeat_s             -> the other side is gone: the connection is closed

A client's beats come from native code (`native/wire/pulse.h`), or from `Pulse` where it sends
through `ssl`; a server's from `Heartbeat`, one for each connection.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from .. import wire
from . import Type

if sys.platform == "linux":
    import array
    import fcntl
    import termios

if TYPE_CHECKING:
    from ..server.connection import Connection

__all__ = ["Heartbeat", "Pulse"]


class Pulse:
    """When to say something, and since when nothing was heard; 0 seconds: never mind.

    Belongs to one thread. The same as `native/wire/pulse.h`.
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


class Heartbeat:
    """Of one connection of a server. Belongs to the core's thread.

    A peer that the server does not read from is not judged: what it says waits in the socket. Nor
    is one while the server itself was away, stopped or busy.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._pulse = Pulse(seconds)
        self._third = seconds / 3
        self._queued = 0
        self._wait(self._third)

    def stop(self) -> None:
        self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds
        self._timer = self._connection.core.loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        connection, pulse, now = self._connection, self._pulse, time.monotonic()
        pulse.spoke = connection.spoke
        pulse.heard = max(pulse.heard, connection.heard)
        away = now - self._due > self._third
        if away or not connection.listens or self._more_came():
            pulse.heard = now
        if pulse.silent(now):
            connection.give_up(pulse.verdict("it"))
            return
        # Whatever is still on its way out says as much as a beat.
        if pulse.due(now) and connection.transport.get_write_buffer_size() == 0:
            connection.write(wire.frame(Type.BEAT))
        self._wait(max(connection.spoke + self._third - now, self._third / 4))

    def _more_came(self) -> bool:
        """Whether bytes wait in the socket that were not there before.

        Of a large frame the system does not report every piece (`SO_RCVLOWAT`).
        """
        if sys.platform != "linux" or self._connection.socket < 0:
            return False
        queued = array.array("i", [0])
        try:
            fcntl.ioctl(self._connection.socket, termios.FIONREAD, queued)
        except OSError:
            return False
        before, self._queued = self._queued, queued[0]
        return self._queued != before
