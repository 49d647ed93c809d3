"""Requests of clients to the learner's process, and its answers.

    SAMPLE, WATCH -> wait here until there is room for the answer -> learner -> BATCH, REPLY

Memory is bounded, whatever clients ask for and do not read. Belongs to the core's thread.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .. import wire
from ..wire import Refused, Type
from .budget import Limits
from .item_stream import ItemStream
from .peer import Peer
from .receipts import Receipts, Verdict
from .statistics import Counters

__all__ = ["ANSWER", "MOST_WATCHED", "REQUEST", "Answers", "Forward"]

# Between the ingest process and the learner's, before each forwarded frame's parts.
REQUEST = struct.Struct("<QHHQQ")  # token, bytes of table's name, type, number, payload
ANSWER = struct.Struct("<QQQ")  # token, bytes, rows that can be given back

_CHECK_S = 0.25
_SIZE_BYTES = 8  # of a batch's size, which SAMPLE begins with
_AT_A_TIME = 4  # samples (or looks) of one table that the learner is asked for
_ROW_EXTRAS = 64  # bytes of what samplers add to a row
MOST_WATCHED = 4 << 20  # bytes of an answer to WATCH
_LARGE = (Type.SAMPLE, Type.WATCH)  # what may have large answers
_ANY_TABLE = (Type.PUBLISH, Type.WATCH)  # what concerns the server, or any of its tables

Forward = Callable[[int, str, int, int, bytes], None]


class Asked(NamedTuple):
    """A request of a client.

    Attributes:
        nbytes: of the answer, as far as can be told.
        wanted: whether who asked is there.
    """

    connection: Peer
    table: str
    kind: int
    number: int
    payload: bytes
    nbytes: int
    wanted: bool = True


class Answers:
    """Requests to the learner, and its answers.

    A sample, or a look, is not asked for while what its connection, or all together, have not read
    is over a bound: an eighth, and half, of `max_bytes`. One at a time always may be.

    Args:
        loop: whose thread this belongs to.
        limits, stats: of the server.
        connections: those that are there.
        forward: hands a request to the learner: token, table, type, number, payload. None: there
            is nobody to ask.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        stats: Counters,
        connections: Mapping[int, Peer],
        forward: Forward | None,
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._stats = stats
        self._connections = connections
        self._forward = forward
        self._waiting: dict[int, deque[Asked]] = {}  # by connection, in turn
        self._asked: dict[int, Asked] = {}  # by token
        self._tokens = 0
        self._at_work: Counter[tuple[str, int]] = Counter()  # by table and kind
        self._usual: dict[str, int] = {}  # bytes of a table's last batch
        self._unread: dict[int, Peer] = {}  # with answers that it has not read
        self._request_bytes = 0
        self._unanswered: dict[int, tuple[int, int]] = {}  # requests and bytes, by connection
        self._check: asyncio.TimerHandle | None = None
        self.receipts = Receipts(self._tell)

    @property
    def has_learner(self) -> bool:
        """Whether there is anybody to ask."""
        return self._forward is not None

    def ask(self, connection: Peer, kind: int, number: int, payload: bytes) -> None:
        """A request came. Raises Refused."""
        stream = connection.stream
        if self._forward is None or stream is None:
            raise Refused("type", "there is nobody to ask")
        if kind not in _ANY_TABLE and stream.table.kind != "tape":
            raise Refused("type", "this table can be written to, not sampled from")
        if stream.version < wire.RICH_VERSION:  # the table may have got its layout only now
            wire.check_carried(stream.version, stream.table.schema)
        if connection.transport.is_closing():
            return  # what came before it was gone: its client asks again, or has
        untaken = None
        if kind == Type.SAMPLE and len(payload) > _SIZE_BYTES and len(payload) % 8 == 0:
            payload, untaken = payload[:_SIZE_BYTES], _numbers(payload[_SIZE_BYTES:])
        count, nbytes = self._unanswered.get(connection.number, (0, 0))
        count, nbytes = count + 1, nbytes + len(payload)
        if count > wire.MAX_REQUESTS:
            raise Refused("busy", f"more than {wire.MAX_REQUESTS} requests at a time")
        if count > 1 and nbytes > wire.MAX_REQUEST_BYTES:
            most = wire.MAX_REQUEST_BYTES
            raise Refused("busy", f"requests of more than {most} bytes at a time")
        most = self._limits.max_bytes // 4
        if self._request_bytes and self._request_bytes + len(payload) > most:
            raise Refused("busy", f"requests of all clients of more than {most} bytes at a time")
        expected = self._expected(stream, kind, payload)
        asked = Asked(connection, stream.table_name, kind, number, payload, expected)
        if kind == Type.SAMPLE:
            self.receipts.asked(stream.key, number, untaken)
        self._request_bytes += len(payload)
        self._unanswered[connection.number] = (count, nbytes)
        if kind in _LARGE:
            self._waiting.setdefault(connection.number, deque()).append(asked)
            self.go_on()
        else:
            self._hand_over(asked)

    def _expected(self, stream: ItemStream, kind: int, payload: bytes) -> int:
        """Bytes of an answer."""
        most = self._limits.max_frame
        if kind == Type.WATCH:
            return min(MOST_WATCHED, most)
        if kind != Type.SAMPLE or len(payload) != 8:
            return 0
        (rows,) = struct.unpack("<Q", payload)
        record_size = stream.table.record_size
        usual = self._usual.get(stream.table_name, most)
        if rows == 0 or record_size == 0:
            return usual
        fixed = min(int(rows) * (record_size + _ROW_EXTRAS), most)
        # How many bytes leaves of any size will have, nobody knows: as many as they had before.
        return max(fixed, usual) if stream.table.max_row else fixed

    def _hand_over(self, asked: Asked) -> None:
        assert self._forward is not None
        self._tokens += 1
        self._asked[self._tokens] = asked
        if asked.kind in _LARGE:
            self._at_work[asked.table, asked.kind] += 1
        self._forward(self._tokens, asked.table, asked.kind, asked.number, asked.payload)

    def _tell(self, token: int, table: str, verdict: Verdict) -> None:
        assert self._forward is not None
        self._forward(token, table, verdict, 0, b"")

    def go_on(self) -> None:
        """Hands over what has waited and finds room now, connection by connection."""
        while any([self._next_of(number) for number in list(self._waiting)]):
            pass
        if self._waiting and self._unread and self._check is None:
            self._check = self._loop.call_later(_CHECK_S, self._drop_stalled)

    def _next_of(self, number: int) -> bool:
        line = self._waiting[number]
        if self._at_work[line[0].table, line[0].kind] >= _AT_A_TIME or not self._room(line[0]):
            return False
        self._hand_over(line.popleft())
        if not line:
            del self._waiting[number]
        return True

    def _room(self, asked: Asked) -> bool:
        connection, most = asked.connection, self._limits.max_bytes
        coming = [a for a in self._asked.values() if a.kind in _LARGE]
        own = connection.out.unread + sum(a.nbytes for a in coming if a.connection is connection)
        if own and own + asked.nbytes > most // 8:
            return False
        held = self.bytes_unread + sum(a.nbytes for a in coming)
        return not held or held + asked.nbytes <= most // 2

    @property
    def bytes_unread(self) -> int:
        """Bytes of answers that their clients have not read."""
        return sum(c.out.unread for c in self._unread.values())

    def answer(self, token: int, rows: int, *parts: Any) -> None:
        """What the learner answered; `rows` that come again if nobody gets them, 0 if they may
        come again anyway."""
        asked = self._asked.pop(token)
        connection, nbytes = asked.connection, sum(len(p) for p in parts)
        self._request_bytes -= len(asked.payload)
        if asked.kind in _LARGE:
            self._at_work[asked.table, asked.kind] -= 1
        if asked.kind == Type.SAMPLE:
            self._usual[asked.table] = nbytes
        there = asked.wanted and not connection.transport.is_closing()
        if rows and not there:
            self._tell(token, asked.table, Verdict.BACK)
        elif rows and connection.stream is not None:
            self.receipts.sent(connection.stream.key, asked.number, token, rows)
        if there and connection.number in self._connections:
            self._stats.requests_answered += 1
            self._stats.bytes_out += nbytes
            count, asked_bytes = self._unanswered[connection.number]
            self._unanswered[connection.number] = (count - 1, asked_bytes - len(asked.payload))
            connection.out.write(*parts)
            if connection.out.unread:
                self._unread[connection.number] = connection
        self.go_on()

    def read(self, connection: Peer) -> None:
        """A connection has read what it was sent."""
        if self._unread.pop(connection.number, None) is not None:
            self.go_on()

    def goodbye(self, connection: Peer, payload: bytes) -> None:
        """A client ends: `payload` has the numbers of the batches that it did not take."""
        if connection.stream is not None:
            self.receipts.goodbye(connection.stream.key, _numbers(payload))
        self.left(connection)

    def left(self, connection: Peer) -> None:
        """A connection is gone, and with it what it wanted."""
        for token, asked in self._asked.items():
            if asked.connection is connection and asked.wanted:
                self._asked[token] = asked._replace(wanted=False)
                self._tell(token, asked.table, Verdict.UNWANTED)
        self._unanswered.pop(connection.number, None)
        for asked in self._waiting.pop(connection.number, ()):
            self._request_bytes -= len(asked.payload)
        self.read(connection)

    def _drop_stalled(self) -> None:
        """Others wait: whoever has not read anything for long gives its memory back."""
        self._check = None
        for connection in list(self._unread.values()):
            connection.drop_if_stalled()
        self.go_on()


def _numbers(payload: bytes) -> tuple[int, ...]:
    """Numbers of requests. Nothing was said there once, and whatever came was read over: half a
    number is, too."""
    return struct.unpack_from(f"<{len(payload) // 8}Q", payload)
