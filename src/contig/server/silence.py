"""The heartbeat of a server's connections; docs/design/wire.md."""

from __future__ import annotations

import asyncio
import sys
import time

from ..wire import Type, frame
from ..wire.pulse import Pulse
from .peer import Peer

if sys.platform == "linux":
    import array
    import fcntl
    import termios

__all__ = ["SilenceWatch"]


class SilenceWatch:
    """The heartbeat of one connection: says something in time, and gives up on a silent peer.

    A peer that the server does not read from is not judged: what it says waits in the socket. Nor
    is one while the server itself was away, stopped or busy. Belongs to the loop's thread.
    """

    def __init__(self, connection: Peer, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._connection, self._loop = connection, loop
        self._pulse = Pulse(seconds)
        self._third = seconds / 3
        self._queued = 0
        self._wait(self._third)

    def stop(self) -> None:
        self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds
        self._timer = self._loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        connection, pulse, now = self._connection, self._pulse, time.monotonic()
        pulse.spoke = connection.out.spoke
        pulse.heard = max(pulse.heard, connection.heard)
        away = now - self._due > self._third
        if away or not connection.listens or self._more_came():
            pulse.heard = now
        if pulse.silent(now):
            connection.give_up(pulse.verdict("it"))
            return
        # Whatever is still on its way out says as much as a beat.
        if pulse.due(now) and connection.transport.get_write_buffer_size() == 0:
            connection.out.write(frame(Type.BEAT))
        self._wait(max(connection.out.spoke + self._third - now, self._third / 4))

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
