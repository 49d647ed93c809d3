"""What a connection writes: small frames at once, large ones in pieces, as its socket drains."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Outflow"]

_PIECE = 128 << 10  # of a large frame, written at a time
_UNREAD = 16 << 10  # what a peer may leave unread before it has to wait


class Outflow:
    """The writing side of one transport.

    Args:
        loop: whose turns are shared.
        sent: called when a large frame has been written.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sent: Callable[[], None]) -> None:
        self._loop = loop
        self._sent = sent
        self._transport: Any = None
        self._large: deque[memoryview] = deque()
        self._behind: list[bytes] = []  # what is written after it
        self._behind_bytes = 0
        self._ends = False
        self._full = False  # the transport asked for a pause
        self._then = (0, time.monotonic())  # bytes unread, and since when they do not get fewer

    def attach(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=_UNREAD)

    def write(self, *parts: Any) -> None:
        if self._large:
            for part in parts:
                self._behind.append(part)
                self._behind_bytes += memoryview(part).nbytes
        elif not self._transport.is_closing():
            for part in parts:
                self._transport.write(part)

    def write_large(self, parts: list[memoryview]) -> None:
        """Writes a frame that others write too; nothing of it is copied before its turn."""
        self._large.extend(parts)
        self._then = (0, time.monotonic())
        self._write_on()

    def _write_on(self) -> None:
        """The next piece of a large frame, and after the last one what has to come behind it."""
        if not self._large or self._full or self._transport.is_closing():
            return
        piece, rest = self._large[0][:_PIECE], self._large[0][_PIECE:]
        self._large[0] = rest
        if not rest.nbytes:
            self._large.popleft()
        self._then = (0, time.monotonic())
        self._transport.write(piece)
        if self._large:
            self._loop.call_soon(self._write_on)  # others have their turn
            return
        behind, self._behind, self._behind_bytes = self._behind, [], 0
        self.write(*behind)
        self._sent()
        if self._ends:
            self._transport.close()

    def pause(self) -> None:
        self._full = True

    def resume(self) -> None:
        self._full = False
        self._write_on()

    def close(self) -> None:
        """Closes the transport when everything is written."""
        self._ends = True
        if not self._large:
            self._transport.close()

    @property
    def held_up(self) -> bool:
        """Whether its peer does not read what it asked for: nothing more is to be done for it."""
        return (self._full and not self._large) or self._behind_bytes > _UNREAD

    @property
    def unread(self) -> int:
        """Bytes of its own that wait for its peer to read."""
        return int(self._transport.get_write_buffer_size()) + self._behind_bytes

    def stalled(self, patience_s: float) -> bool:
        """Whether its peer has read nothing for long; asked again and again."""
        unread, (before, since) = self.unread, self._then
        if not before or unread < before:
            self._then = (unread, time.monotonic())
            return False
        return time.monotonic() - since > patience_s
