"""Weights to whoever asked for newer ones.

    GET -> one frame per version, shared by all who get it, in pieces as their sockets drain

Memory is bounded, whatever clients ask for and do not read. Belongs to the core's thread.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, NamedTuple

from .. import wire
from ..weights.board import WeightsBoard
from ..wire import Refused, Type
from .peer import Peer
from .statistics import Counters

__all__ = ["WeightsLine"]

_CHECK_S = 0.25
_LOADED = 2  # versions of weights in memory: those on their way, and the newest


class WeightsFrame:
    """A version of the weights as it is sent, and how many connections send it."""

    def __init__(self, version: int, parts: list[Any]) -> None:
        self.version = version
        self.parts = [memoryview(p) for p in parts]
        self.nbytes = sum(p.nbytes for p in self.parts)
        self.users = 0


class Want(NamedTuple):
    """A connection that waits for newer weights."""

    connection: Peer
    newer_than: int
    timer: asyncio.TimerHandle


class WeightsLine:
    """Who waits for weights, and the frames that are being sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stats: Counters) -> None:
        self._loop = loop
        self._stats = stats
        self.board: WeightsBoard | None = None
        self._wanting: dict[int, Want] = {}
        self._sending: dict[int, tuple[Peer, WeightsFrame]] = {}
        self._frames: dict[int, WeightsFrame] = {}  # by version, oldest first
        self._check: asyncio.TimerHandle | None = None

    def want(self, connection: Peer, number: int, payload: bytes) -> None:
        """A GET came: for weights newer than `number`, in so many seconds. Raises Refused."""
        if len(payload) != 8:
            raise Refused("frame", "GET: expected 8 bytes")
        newer_than = number - 2**64 if number >= 2**63 else number
        (timeout_s,) = struct.unpack("<d", payload)
        if connection.number in self._wanting or connection.number in self._sending:
            raise Refused("busy", "one GET at a time")
        if self._send(connection, newer_than):
            return
        wait = min(max(timeout_s, 0.0), 3600.0) if timeout_s == timeout_s else 0.0
        timer = self._loop.call_later(wait, self._none, connection)
        self._wanting[connection.number] = Want(connection, newer_than, timer)

    def _send(self, connection: Peer, newer_than: int) -> bool:
        frame = self._newest()
        if frame is None or frame.version <= newer_than:
            return False
        frame.users += 1
        self._sending[connection.number] = (connection, frame)
        self._stats.weights_sent += 1
        self._stats.bytes_out += frame.nbytes
        connection.out.write_large(frame.parts)
        return True

    def _newest(self) -> WeightsFrame | None:
        """The newest version that is in memory, or that there is room for."""
        newest = None if self.board is None else self.board.newest
        if self.board is None or newest is None:
            return None
        if newest not in self._frames:
            for version in [v for v, frame in self._frames.items() if not frame.users]:
                del self._frames[version]
            if len(self._frames) < _LOADED:
                version, record = self.board.read_record()
                head = {"layout": self.board.layout.to_json()}
                parts = wire.described(head, record, Type.WEIGHTS, version)
                self._frames[version] = WeightsFrame(version, parts)
            elif self._check is None:  # slow readers have both
                self._check = self._loop.call_later(_CHECK_S, self._drop_stalled)
        return max(self._frames.values(), key=lambda frame: frame.version)

    def _none(self, connection: Peer) -> None:
        self._wanting.pop(connection.number, None)
        connection.out.write(wire.frame(Type.WEIGHTS, -1))

    def published(self, board: WeightsBoard | None = None) -> None:
        """There are new weights, on another board if it is given, or there is room to load them."""
        if board is not None:
            self.board = board
        for number, want in list(self._wanting.items()):
            if self._send(want.connection, want.newer_than):
                want.timer.cancel()
                self._wanting.pop(number, None)

    def sent(self, connection: Peer) -> None:
        """A connection has nothing more of its frame to send, or is gone."""
        _, frame = self._sending.pop(connection.number, (None, None))
        if frame is not None:
            frame.users -= 1
            if not frame.users and self._wanting:
                self._loop.call_soon(self.published)

    def left(self, connection: Peer) -> None:
        want = self._wanting.pop(connection.number, None)
        if want is not None:
            want.timer.cancel()
        self.sent(connection)

    def _drop_stalled(self) -> None:
        """Newer weights find no room: whoever has not read anything for long makes some."""
        self._check = None
        newest = None if self.board is None else self.board.newest
        for connection, frame in list(self._sending.values()):
            if frame.version != newest:
                connection.drop_if_stalled()
        self.published()
