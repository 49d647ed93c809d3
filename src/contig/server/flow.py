"""The flow of one connection: when it is read from, and what it writes as its socket drains.

Belongs to the core's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["FrameWriter", "ReadGate", "Wait"]

_PIECE = 128 << 10  # of a large frame, written at a time
_UNREAD = 16 << 10  # what a peer may leave unread before it has to wait


class Wait:
    """Why a connection is not read from. Bits: an enum's members take longer than all the rest."""

    CHOKED = 1  # its peer does not read what it asked for
    TABLE = 2  # its table cannot yet do what was asked for
    FULL = 4  # its table has no room for the frame at the front
    MEMORY = 8  # there is none for the frame that comes


class ReadGate:
    """Whether a transport is read from: not while there is a reason to wait."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._reasons = 0

    def attach(self, transport: Any) -> None:
        self._transport = transport

    def __contains__(self, reason: int) -> bool:
        return self._reasons & reason != 0

    @property
    def is_shut(self) -> bool:
        return self._reasons != 0

    @property
    def reads(self) -> bool:
        """Whether more may come."""
        return not self._reasons and not self._transport.is_closing()

    def shut(self, reason: int) -> None:
        """Reads no more, until this reason and all others are gone."""
        if not self._reasons & reason:
            self._reasons |= reason
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def open(self, reason: int) -> None:
        """A reason is gone; reads again, if no other one is left."""
        if self._reasons & reason:
            self._reasons &= ~reason
            if self.reads:
                self._transport.resume_reading()


class FrameWriter:
    """The writing side of one transport.

    Args:
        loop: whose turns are shared.
        sent: called when a large frame has been written.
        held_up: called when its peer does not read what it asked for.

    Attributes:
        spoke: when something was written, by the monotonic clock.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sent: Callable[[], None],
        held_up: Callable[[], None],
    ) -> None:
        self.spoke = time.monotonic()
        self._loop = loop
        self._sent = sent
        self._tell_held_up = held_up
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
        self.spoke = time.monotonic()
        if self._large:
            self._behind.extend(parts)
            self._behind_bytes += sum(memoryview(part).nbytes for part in parts)
        elif not self._transport.is_closing():
            for part in parts:
                self._transport.write(part)
        if self._full or self._large:
            self._tell_if_held_up()

    def _tell_if_held_up(self) -> None:
        if self.held_up:
            self._tell_held_up()

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
        for part in behind:
            self._transport.write(part)
        self._sent()
        self._tell_if_held_up()
        if self._ends:
            self._transport.close()

    def pause(self) -> None:
        self._full = True
        self._tell_if_held_up()

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
