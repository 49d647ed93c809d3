"""What a server sends: weights to whoever asked for newer ones, answers of the learner's process.

    GET    -> one frame per version, shared by all who get it, in pieces as their sockets drain
    SAMPLE -> waits here until there is room for the answer -> learner -> BATCH

Memory is bounded, whatever clients ask for and do not read. Belongs to the core's thread.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import wire
from ..weights.board import WeightsBoard
from ..wire import Refused, Type

if TYPE_CHECKING:
    from .connection import Connection
    from .core import ServerCore

__all__ = ["Answers", "WeightsLine"]

_CHECK_S = 0.25
_AT_A_TIME = 4  # samples of one table that the learner is asked for
_ROW_EXTRAS = 64  # bytes of what samplers add to a row
_LOADED = 2  # versions of weights in memory: those on their way, and the newest

Service = Callable[[int, str, int, int, bytes], None]


class Asked(NamedTuple):
    """A request of a client.

    Attributes:
        nbytes: of the answer, as far as can be told.
    """

    connection: Connection
    kind: int
    number: int
    payload: bytes
    nbytes: int


class Answers:
    """Requests to the learner, and its answers.

    A sample is not asked for while what its connection, or all together, have not read is over a
    bound: an eighth, and half, of `max_bytes`. One at a time always may be.

    Args:
        core: whose connections ask.
        service: hands a request to the learner: token, table, type, number, payload. None: there
            is nobody to ask.
    """

    def __init__(self, core: ServerCore, service: Service | None) -> None:
        self._core = core
        self._service = service
        self._waiting: dict[int, deque[Asked]] = {}  # by connection, in turn
        self._asked: dict[int, Asked] = {}  # by token
        self._tokens = 0
        self._at_work: Counter[str] = Counter()  # samples, by table
        self._usual: dict[str, int] = {}  # bytes of a table's last batch
        self._unread: dict[int, Connection] = {}  # with answers that it has not read
        self._request_bytes = 0
        self._check: asyncio.TimerHandle | None = None

    def ask(self, connection: Connection, kind: int, number: int, payload: bytes) -> None:
        """A request came. Raises Refused."""
        if self._service is None or connection.table is None or connection.table.kind != "tape":
            raise Refused("type", "this table can be written to, not sampled from")
        most = self._core.limits.max_bytes // 4
        if self._request_bytes and self._request_bytes + len(payload) > most:
            raise Refused("busy", f"requests of all clients of more than {most} bytes at a time")
        asked = Asked(connection, kind, number, payload, self._expected(connection, kind, payload))
        self._request_bytes += len(payload)
        if kind == Type.SAMPLE:
            self._waiting.setdefault(connection.number, deque()).append(asked)
            self.go_on()
        else:
            self._hand_over(asked)

    def _expected(self, connection: Connection, kind: int, payload: bytes) -> int:
        """Bytes of an answer."""
        if kind != Type.SAMPLE or len(payload) != 8:
            return 0
        most = self._core.limits.max_frame
        (rows,) = struct.unpack("<Q", payload)
        assert connection.table is not None
        if rows == 0 or connection.table.record_size == 0:
            return self._usual.get(connection.table_name, most)
        return min(int(rows) * (connection.table.record_size + _ROW_EXTRAS), most)

    def _hand_over(self, asked: Asked) -> None:
        assert self._service is not None
        self._tokens += 1
        self._asked[self._tokens] = asked
        table = asked.connection.table_name
        if asked.kind == Type.SAMPLE:
            self._at_work[table] += 1
        self._service(self._tokens, table, asked.kind, asked.number, asked.payload)

    def go_on(self) -> None:
        """Hands over what has waited and finds room now, connection by connection."""
        while any([self._next_of(number) for number in list(self._waiting)]):
            pass
        if self._waiting and self._unread and self._check is None:
            self._check = self._core.loop.call_later(_CHECK_S, self._drop_stalled)

    def _next_of(self, number: int) -> bool:
        line = self._waiting[number]
        connection = line[0].connection
        if self._at_work[connection.table_name] >= _AT_A_TIME or not self._room(line[0]):
            return False
        self._hand_over(line.popleft())
        if not line:
            del self._waiting[number]
        return True

    def _room(self, asked: Asked) -> bool:
        connection, most = asked.connection, self._core.limits.max_bytes
        coming = [a for a in self._asked.values() if a.kind == Type.SAMPLE]
        own = connection.unread + sum(a.nbytes for a in coming if a.connection is connection)
        if own and own + asked.nbytes > most // 8:
            return False
        held = self.bytes_unread + sum(a.nbytes for a in coming)
        return not held or held + asked.nbytes <= most // 2

    @property
    def bytes_unread(self) -> int:
        """Bytes of answers that their clients have not read."""
        return sum(c.unread for c in self._unread.values())

    def answer(self, token: int, *parts: Any) -> None:
        """What the learner answered."""
        asked = self._asked.pop(token)
        connection, nbytes = asked.connection, sum(len(p) for p in parts)
        self._request_bytes -= len(asked.payload)
        if asked.kind == Type.SAMPLE:
            self._at_work[connection.table_name] -= 1
            self._usual[connection.table_name] = nbytes
        if connection.number in self._core.connections:
            self._core.stats.batches_out += 1
            self._core.stats.bytes_out += nbytes
            connection.answered(len(asked.payload), *parts)
            if connection.unread:
                self._unread[connection.number] = connection
        self.go_on()

    def read(self, connection: Connection) -> None:
        """A connection has read what it was sent."""
        if self._unread.pop(connection.number, None) is not None:
            self.go_on()

    def left(self, connection: Connection) -> None:
        """A connection is gone, and with it what it wanted."""
        for asked in self._waiting.pop(connection.number, ()):
            self._request_bytes -= len(asked.payload)
        self.read(connection)

    def _drop_stalled(self) -> None:
        """Others wait: whoever has not read anything for long gives its memory back."""
        self._check = None
        for connection in list(self._unread.values()):
            connection.drop_if_stalled()
        self.go_on()


class Frame:
    """A version of the weights as it is sent, and how many connections send it."""

    def __init__(self, version: int, parts: list[Any]) -> None:
        self.version = version
        self.parts = [memoryview(p) for p in parts]
        self.nbytes = sum(p.nbytes for p in self.parts)
        self.users = 0


class Want(NamedTuple):
    """A connection that waits for newer weights."""

    connection: Connection
    newer_than: int
    timer: asyncio.TimerHandle


class WeightsLine:
    """Who waits for weights, and the frames that are being sent."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self.board: WeightsBoard | None = None
        self._wanting: dict[int, Want] = {}
        self._sending: dict[int, tuple[Connection, Frame]] = {}
        self._frames: dict[int, Frame] = {}  # by version, oldest first
        self._check: asyncio.TimerHandle | None = None

    def want(self, connection: Connection, newer_than: int, timeout_s: float) -> None:
        """A GET came. Raises Refused."""
        if connection.number in self._wanting or connection.number in self._sending:
            raise Refused("busy", "one GET at a time")
        if self._send(connection, newer_than):
            return
        wait = min(max(timeout_s, 0.0), 3600.0) if timeout_s == timeout_s else 0.0
        timer = self._core.loop.call_later(wait, self._none, connection)
        self._wanting[connection.number] = Want(connection, newer_than, timer)

    def _send(self, connection: Connection, newer_than: int) -> bool:
        frame = self._newest()
        if frame is None or frame.version <= newer_than:
            return False
        frame.users += 1
        self._sending[connection.number] = (connection, frame)
        self._core.stats.weights_out += 1
        self._core.stats.bytes_out += frame.nbytes
        connection.send_large(frame.parts)
        return True

    def _newest(self) -> Frame | None:
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
                self._frames[version] = Frame(version, parts)
            elif self._check is None:  # slow readers have both
                self._check = self._core.loop.call_later(_CHECK_S, self._drop_stalled)
        return max(self._frames.values(), key=lambda frame: frame.version)

    def _none(self, connection: Connection) -> None:
        self._wanting.pop(connection.number, None)
        connection.write(wire.frame(Type.WEIGHTS, -1))

    def published(self) -> None:
        """There are new weights, or room to load them."""
        for number, want in list(self._wanting.items()):
            if self._send(want.connection, want.newer_than):
                want.timer.cancel()
                self._wanting.pop(number, None)

    def sent(self, connection: Connection) -> None:
        """A connection has nothing more of its frame to send, or is gone."""
        _, frame = self._sending.pop(connection.number, (None, None))
        if frame is not None:
            frame.users -= 1
            if not frame.users and self._wanting:
                self._core.loop.call_soon(self.published)

    def left(self, connection: Connection) -> None:
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
