"""The memory budget: who may hold how many bytes, and who waits for some.

    strangers (handshake not done)   16 MB of buffers, 256 with TLS: beyond it the oldest gives way
    everybody together               max_bytes: beyond it a larger buffer has to be waited for
    slots of last frames             a quarter of that: beyond it a connection is told that none are
                                     kept

Belongs to the core's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple

from .. import _native, wire
from ..wire import Refused
from .flow import Wait
from .peer import Peer

__all__ = ["Limits", "MemoryBudget"]

_STALL_CHECK_S = 0.25
_IDLE_BUFFER = 4096  # what a connection begins with: kept when memory is short
_ROOM = 128 << 10  # for frames received together
# Anybody can connect: buffers of all who have not shown yet that they may.
_UNPROVEN_BYTES = 16 << 20
_UNPROVEN_TLS = 256  # connections
_TLS_BYTES = 300 << 10  # of one connection: buffers of asyncio's, and what the TLS library has
# Bytes of slots that are kept of a connection's last frame, up to which part of `max_bytes`: the
# first ones may have steps of many envs, and there may be many that have one each.
_CARRIES = ((1 << 20, 6), (64 << 10, 4))


class Limits(NamedTuple):
    """Bounds of a server.

    Attributes:
        max_frame: bytes of the largest frame.
        max_bytes: bytes that all connections together may hold.
        max_connections: at a time; more are refused.
        handshake_s: for a handshake; and for who holds what others wait for, and does nothing.
        heartbeat_s: without a word, after which a connection is lost.
    """

    max_frame: int = 64 << 20
    max_bytes: int = 256 << 20
    max_connections: int = _native.MAX_CONNECTIONS
    handshake_s: float = wire.HANDSHAKE_S
    heartbeat_s: float = wire.HEARTBEAT_S


class MemoryBudget:
    """The receive buffers of all connections, and what they keep of their last frames.

    Args:
        loop: whose thread this belongs to.
        limits: `max_bytes` and `max_frame` are kept.
        connections: all there are, by number; somebody else adds and removes them.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: Limits, connections: Mapping[int, Peer]
    ) -> None:
        self.bytes_held = 0
        self._loop = loop
        self._limits = limits
        self._connections = connections
        self._unproven: dict[int, Peer] = {}  # handshake not done, oldest first
        self._unproven_bytes = self._unproven_tls = 0
        self._carried = 0  # for slots that are kept
        self._hungry: dict[int, Peer] = {}
        self._stall_check: asyncio.TimerHandle | None = None
        self._closed = False

    def enter(self, connection: Peer) -> bool:
        """Counts a new connection; False: there is no room for it."""
        self.bytes_held += connection.receiver.size + _TLS_BYTES * connection.encrypted
        self._unproven[connection.number] = connection
        self._unproven_bytes += connection.receiver.size
        self._unproven_tls += connection.encrypted
        room = self._has_room(0)
        if not room:
            self._memory_is_short()
        return room

    def _has_room(self, more: int) -> bool:
        """Always for one frame of the largest size, or nobody could send one."""
        held: int = self.bytes_held + more
        return held + self._limits.max_frame <= self._limits.max_bytes

    def carry(self, connection: Peer, step_bytes: int) -> None:
        """Has a connection keep slots of its last frame, if there is memory for them: those of a
        single step, which have so many bytes, at least; 0: there are none."""
        for least, part in _CARRIES if step_bytes else ():
            carry = max(least, step_bytes)
            taken = _set_aside(carry)
            if self._carried + taken <= self._limits.max_bytes // part and self._has_room(taken):
                connection.receiver.carry = carry
                self._carried += taken
                self.bytes_held += taken
                return

    def bound_unproven(self) -> None:
        """Refuses the oldest of those in their handshake, if they are too many."""
        while self._unproven_bytes > _UNPROVEN_BYTES or self._unproven_tls > _UNPROVEN_TLS:
            oldest = next(iter(self._unproven.values()))
            self.proven(oldest)  # or on its way out
            oldest.refuse(Refused("busy", "too many connections are in their handshake"))
            if oldest.encrypted:
                oldest.transport.abort()  # which else waits for the peer's goodbye

    def proven(self, connection: Peer) -> None:
        """A connection's memory is one of those let in, or is given back."""
        if self._unproven.pop(connection.number, None) is not None:
            self._unproven_bytes -= connection.receiver.size
            self._unproven_tls -= connection.encrypted

    def left(self, connection: Peer) -> None:
        """A connection is gone: it waits for nothing, but may still hold something."""
        self._hungry.pop(connection.number, None)
        self.proven(connection)

    def give_back(self, connection: Peer) -> None:
        """A connection's buffer is needed no more."""
        carried = _set_aside(connection.receiver.carry)
        self.bytes_held -= connection.receiver.size + carried + _TLS_BYTES * connection.encrypted
        self._carried -= carried
        self.feed_hungry()

    def grow(self, connection: Peer, needed: int) -> bool:
        """A larger buffer for a connection, or, if there is no memory, a place in the queue."""
        if connection.transport.is_closing():
            return False  # no more comes of its frame, and nobody would give the memory back
        # Small frames come several at a time; a large one ends where the next one begins.
        more = max(needed, min(2 * needed, _ROOM))
        for size in (needed,) if connection.number in self._unproven else (more, needed):
            if self._fits(connection, size):
                self._resize(connection, size)
                return True
        self._shrink_idle()
        if self._fits(connection, needed):
            self._resize(connection, needed)
            return True
        if connection.number not in self._hungry:
            self._hungry[connection.number] = connection
            connection.gate.shut(Wait.MEMORY)
            self._memory_is_short()
        return False

    def feed_hungry(self) -> None:
        """Gives those who wait what they need, in turn, as far as it goes."""
        for number, connection in list(self._hungry.items()):
            needed = connection.receiver.needed
            if not self._fits(connection, needed):
                self._shrink_idle()
                if not self._fits(connection, needed):
                    return
            del self._hungry[number]
            self._resize(connection, needed)
            connection.gate.open(Wait.MEMORY)
            self._loop.call_soon(connection.handle_frames)

    def close(self) -> None:
        """Nobody is dropped any more for being slow: all are about to go."""
        self._closed = True

    def _fits(self, connection: Peer, size: int) -> bool:
        held: int = self.bytes_held - connection.receiver.size
        return held + size <= self._limits.max_bytes

    def _resize(self, connection: Peer, size: int) -> None:
        before = connection.receiver.size
        connection.receiver.resize(size)
        more = connection.receiver.size - before
        self.bytes_held += more
        if connection.number in self._unproven:
            self._unproven_bytes += more
            self.bound_unproven()

    def _shrink_idle(self) -> None:
        for connection in self._connections.values():
            receiver = connection.receiver
            if receiver.held == 0 and receiver.size > _IDLE_BUFFER:
                self._resize(connection, _IDLE_BUFFER)

    def _memory_is_short(self) -> None:
        """Somebody is waiting for memory, or was turned away for the lack of it."""
        if self._stall_check is None:
            self._stall_check = self._loop.call_later(_STALL_CHECK_S, self._drop_stalled)

    def _drop_stalled(self) -> None:
        """Connections that stopped in the middle of a frame give their memory back."""
        self._stall_check = None
        if self._closed:
            return
        since = time.monotonic() - self._limits.handshake_s
        for connection in list(self._connections.values()):
            receiver = connection.receiver
            partial = receiver.held > 0 and not connection.waiting
            mine = connection.number in self._hungry
            if partial and not mine and receiver.size > _IDLE_BUFFER and connection.heard < since:
                connection.refuse(Refused("stalled", "it stopped in the middle of a frame"))
        self.feed_hungry()
        if self._hungry:
            self._memory_is_short()


def _set_aside(carry: int) -> int:
    """Bytes of slots; of what a frame says of them: 8 for each, which has 16 or more; and of those
    that are put into a frame, which has all the memory it waited for: if those who hold whole
    frames had to wait once more, it could be for each other, and for ever."""
    return 2 * carry + carry // 2
