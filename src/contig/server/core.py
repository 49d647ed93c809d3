"""The core: all connections of a server, the memory they share, and who waits for what.

    listening socket -> Connection -> Table (queue or tape)
                            |
                            +-> weights board, and the sampling service of the learner's process

Runs in one thread with its event loop: of the ingest process, or, for debugging, of the learner's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import _native, wire
from ..errors import TapeBusy
from ..weights.board import WeightsBoard
from ..wire import Refused
from .connection import Connection
from .outgoing import Answers, Service, WeightsLine
from .tables import Outcome, QueueTable, Table

__all__ = ["ServerCore", "CoreStats", "Limits"]

log = logging.getLogger("contig.transport")

_WAIT_S = 0.05
_STALL_CHECK_S = 0.25
_IDLE_BUFFER = 4096  # what a connection begins with: kept when memory is short
_ROOM = 128 << 10  # for frames received together
# Anybody can connect: buffers of all who have not shown yet that they may.
_UNPROVEN_BYTES = 16 << 20
_UNPROVEN_TLS = 256  # connections
_TLS_BYTES = 300 << 10  # of one connection: buffers of asyncio's, and what the TLS library has
_OPEN_SHARE = 4  # a part of max_bytes, beside the rest: for the trajectories that clients have open


class Limits(NamedTuple):
    """Bounds of a server.

    Attributes:
        max_frame: bytes of the largest frame.
        max_bytes: bytes that all connections together may hold.
        max_connections: at a time; more are refused.
    """

    max_frame: int = 64 << 20
    max_bytes: int = 256 << 20
    max_connections: int = _native.MAX_CONNECTIONS


@dataclass
class CoreStats:
    """Counters since the server's start."""

    connections: int = 0
    frames_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    items_in: int = 0
    rows_in: int = 0
    duplicates: int = 0
    resent_frames: int = 0
    lost_items: int = 0
    blocked: int = 0
    blocked_s: float = 0.0
    batches_out: int = 0
    weights_out: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def going_on(before: dict[str, Any] | None) -> CoreStats:
        """Where a process that is no more left off, as JSON has it."""
        if before is None:
            return CoreStats()
        return CoreStats(**{**before, "rejected": Counter(before["rejected"])})


class ServerCore:
    """Everything the sockets' thread knows.

    Args:
        loop: the event loop, whose thread all methods but `stop` belong to.
        tables: by name.
        token: what clients must know, or None.
        limits: bounds.
        service: hands a request to the learner's sampling service; None: there is none.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tables: dict[str, Table],
        token: str | None,
        limits: Limits,
        service: Service | None = None,
    ) -> None:
        self.loop = loop
        self.tables = tables
        self.token = token
        self.limits = limits
        self.stats = CoreStats()
        self.started = time.time()
        self.handshake_s = wire.HANDSHAKE_S
        self.heartbeat_s = wire.HEARTBEAT_S
        self.weights = WeightsLine(self)
        self.answers = Answers(self, service)
        self.connections: dict[int, Connection] = {}
        self._numbers = 0
        self._bytes = 0  # of all receive buffers
        self._unproven: dict[int, Connection] = {}  # handshake not done, oldest first
        self._unproven_bytes = self._unproven_tls = 0
        self._hungry: dict[int, Connection] = {}
        self._stall_check: asyncio.TimerHandle | None = None
        self._blocked: dict[int, Connection] = {}
        self._orphans: dict[int, list[Connection]] = {}  # by producer: gone, but not all taken in
        self._current: dict[tuple[str, int], Connection] = {}  # by table and producer
        self._waker: threading.Thread | None = None
        self._closing = False
        self._queues = [t.queue for t in tables.values() if isinstance(t, QueueTable)]
        self.unsettled: dict[int, Connection] = {}  # with items whose commit is under way
        for table in tables.values():
            table.max_open_bytes = limits.max_bytes // _OPEN_SHARE // len(tables)
            _vacate(table)
            table.on_settled(self._settled)

    # -- connections --------------------------------------------------------------------------

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def joined(self, connection: Connection) -> None:
        self.stats.connections += 1
        self.connections[connection.number] = connection
        self._bytes += connection.receiver.size + _TLS_BYTES * connection.encrypted
        self._unproven[connection.number] = connection
        self._unproven_bytes += connection.receiver.size
        self._unproven_tls += connection.encrypted
        self._tell()
        # Always room for one frame of the largest size, or nobody could send one.
        room = self._bytes + self.limits.max_frame <= self.limits.max_bytes
        # Who left items behind keeps its place in the table of producers, as if it were here.
        here = len(self.connections) + len(self._orphans)
        crowded = here > self.limits.max_connections
        if not room:
            self._memory_is_short()
        if self._closing or crowded or not room:
            connection.refuse(
                Refused(
                    "busy",
                    f"the server has no room for another connection: it has {here}, which hold "
                    f"{self._bytes} bytes with max_bytes={self.limits.max_bytes}",
                )
            )
        self._bound_unproven()

    def _bound_unproven(self) -> None:
        while self._unproven_bytes > _UNPROVEN_BYTES or self._unproven_tls > _UNPROVEN_TLS:
            oldest = next(iter(self._unproven.values()))
            self.proven(oldest)  # or on its way out
            oldest.refuse(Refused("busy", "too many connections are in their handshake"))
            if oldest.encrypted:
                oldest.transport.abort()  # which else waits for the peer's goodbye

    def proven(self, connection: Connection) -> None:
        """A connection's memory is one of those let in, or is given back."""
        if self._unproven.pop(connection.number, None) is not None:
            self._unproven_bytes -= connection.receiver.size
            self._unproven_tls -= connection.encrypted

    def opened(self, connection: Connection, following: int) -> int:
        """A handshake is done: how many of its producer's items are in or on their way in."""
        assert connection.table is not None
        key = (connection.table_name, connection.producer)
        seen = connection.table.seen(connection.producer, following)
        if connection.ack == "received" and following - seen > self.limits.max_bytes:
            # More than a process that died can have held: each of them has a byte at least.
            raise Refused("producer", f"next is {following}, but the server has seen {seen} items")
        self.proven(connection)
        before = self._current.get(key)
        if before is not None and before is not connection:
            if before.waiting and before.ack == "received":  # before anything of the new one
                self._orphans.setdefault(before.producer, []).append(before)
            before.abandon()  # the client came back before we noticed that it had gone
        self._current[key] = connection
        waiting = self._orphans.get(connection.producer, [])
        seen = max([seen, *(o.received for o in waiting if o.table is connection.table)])
        if connection.ack == "received" and following > seen:
            # Acked as received by a process that died: they are gone, and it goes on behind them.
            log.warning("%d items of %s were lost", following - seen, connection.peer)
            self.stats.lost_items += following - seen
            connection.table.skip(connection.producer, following)
            seen = following
        return seen

    def left(self, connection: Connection) -> None:
        self.connections.pop(connection.number, None)
        self.unsettled.pop(connection.number, None)
        self._hungry.pop(connection.number, None)
        self.proven(connection)
        self.weights.left(connection)
        self.answers.left(connection)
        key = (connection.table_name, connection.producer)
        if self._current.get(key) is connection:
            del self._current[key]
        if connection.waiting and connection.ack == "received" and not self._closing:
            # What was acked as received is taken in, whether or not its sender is there. What was
            # not acked comes again.
            orphans = self._orphans.setdefault(connection.producer, [])
            if connection not in orphans:
                orphans.append(connection)
        else:
            self._forget(connection)
        self._tell()

    def _forget(self, connection: Connection) -> None:
        self._blocked.pop(connection.number, None)
        if connection.forgotten:  # an orphan may be done before its socket is closed
            return
        connection.forgotten = True
        if connection.table is not None:
            self._leave(connection)
        self._bytes -= connection.receiver.size + _TLS_BYTES * connection.encrypted
        self._feed_hungry()

    def _leave(self, connection: Connection) -> None:
        """Its producer may be forgotten, unless it comes back before its table can be told."""
        assert connection.table is not None
        try:
            if not self._comes_again(connection):
                connection.table.leave(connection.producer)
        except TapeBusy:  # whoever holds the lock is stopped
            self.loop.call_later(_WAIT_S, self._leave, connection)

    def _comes_again(self, connection: Connection) -> bool:
        """Whether another connection has items of the same producer for the same table."""
        key = (connection.table_name, connection.producer)
        others = [self._current.get(key), *self._orphans.get(connection.producer, [])]
        return any(o is not connection and o.table is connection.table for o in others if o)

    @property
    def any_blocked(self) -> bool:
        """Whether somebody waits for room in a table."""
        return bool(self._blocked)

    def must_wait(self, connection: Connection) -> bool:
        """Whether earlier items of the same producer have to go in first."""
        waiting = self._orphans.get(connection.producer)
        return bool(waiting) and waiting[0] is not connection  # type: ignore[index]

    def took(self, outcome: Outcome, missing: int) -> None:
        """What became of a frame, and how many of its items have not been added (yet)."""
        self.stats.items_in += outcome.items
        self.stats.rows_in += outcome.rows
        if not outcome.full:  # so what is missing had been seen before
            self.stats.frames_in += 1
            self.stats.duplicates += missing
            self.stats.resent_frames += missing > 0

    def took_whole(self, frames: int, items: int) -> None:
        """Frames were taken in of which nothing had been seen before."""
        self.stats.frames_in += frames
        self.stats.items_in += items
        self.stats.rows_in += items

    def _settled(self) -> None:
        """Some table has committed more; called in any thread."""
        try:
            self.loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            pass  # the loop is closed

    def _settle(self) -> None:
        for connection in list(self.unsettled.values()):
            connection.settle()

    def drained(self, ns: int) -> None:
        for queue in self._queues:
            queue.native.note("drain_round", ns)

    # -- memory -------------------------------------------------------------------------------

    def grow(self, connection: Connection, needed: int) -> bool:
        """A larger buffer for a connection, or, if there is no memory, a place in the queue."""
        receiver = connection.receiver
        # Small frames come several at a time; a large one ends where the next one begins.
        more = max(needed, min(2 * needed, _ROOM))
        for size in (needed,) if connection.number in self._unproven else (more, needed):
            if self._bytes - receiver.size + size <= self.limits.max_bytes:
                self._resize(connection, size)
                return True
        self._shrink_idle()
        if self._bytes - receiver.size + needed <= self.limits.max_bytes:
            self._resize(connection, needed)
            return True
        if connection.number not in self._hungry:
            self._hungry[connection.number] = connection
            connection.transport.pause_reading()
            self._memory_is_short()
        return False

    def starves(self, connection: Connection) -> bool:
        """Whether a connection waits for memory."""
        return connection.number in self._hungry

    def _memory_is_short(self) -> None:
        """Somebody is waiting for memory, or was turned away for the lack of it."""
        if self._stall_check is None:
            self._stall_check = self.loop.call_later(_STALL_CHECK_S, self._drop_stalled)

    def _drop_stalled(self) -> None:
        """Connections that stopped in the middle of a frame give their memory back."""
        self._stall_check = None
        if self._closing:
            return
        since = time.monotonic() - self.handshake_s
        for connection in list(self.connections.values()):
            receiver = connection.receiver
            partial = receiver.held > 0 and not connection.waiting
            mine = connection.number in self._hungry
            if partial and not mine and receiver.size > _IDLE_BUFFER and connection.heard < since:
                connection.refuse(Refused("stalled", "it stopped in the middle of a frame"))
        self._feed_hungry()
        if self._hungry:
            self._memory_is_short()

    def _resize(self, connection: Connection, size: int) -> None:
        before = connection.receiver.size
        connection.receiver.resize(size)
        self._bytes += connection.receiver.size - before
        if connection.number in self._unproven:
            self._unproven_bytes += connection.receiver.size - before
            self._bound_unproven()

    def _shrink_idle(self) -> None:
        for connection in self.connections.values():
            receiver = connection.receiver
            if receiver.held == 0 and receiver.size > _IDLE_BUFFER:
                self._resize(connection, _IDLE_BUFFER)

    def _feed_hungry(self) -> None:
        for number, connection in list(self._hungry.items()):
            needed = connection.receiver.needed
            if self._bytes - connection.receiver.size + needed > self.limits.max_bytes:
                self._shrink_idle()
                if self._bytes - connection.receiver.size + needed > self.limits.max_bytes:
                    return
            del self._hungry[number]
            self._resize(connection, needed)
            self.loop.call_soon(connection.grown)

    @property
    def bytes_held(self) -> int:
        return self._bytes

    # -- waiting for room ---------------------------------------------------------------------

    def block(self, connection: Connection) -> None:
        if connection.number not in self._blocked:
            self.stats.blocked += 1
            self._blocked[connection.number] = connection
            self._tell()
        if self._waker is None:
            self._waker = threading.Thread(target=self._watch, name="contig-waker", daemon=True)
            self._waker.start()

    def unblock(self, connection: Connection) -> None:
        self._blocked.pop(connection.number, None)
        self._tell()

    def _watch(self) -> None:
        """The waker's thread: wakes the loop when a table may have room again."""
        try:
            while self._blocked and not self._closing:
                tables = {id(c.table): c.table for c in list(self._blocked.values()) if c.table}
                # Taken before the attempt: room made after it ends the wait at once.
                words = [(table, table.word()) for table in tables.values()]
                done = threading.Event()
                self.loop.call_soon_threadsafe(self._retry, done)
                while not done.wait(1.0) and not self._closing:
                    pass
                for table, word in words:
                    if self._blocked:
                        table.wait(word, _WAIT_S / len(words))
            self.loop.call_soon_threadsafe(self._watch_again)
        except RuntimeError:  # the loop is closed
            return

    def _watch_again(self) -> None:
        self._waker = None
        if self._blocked:
            self.block(next(iter(self._blocked.values())))

    def _retry(self, done: threading.Event) -> None:
        self._pump_blocked()
        self._feed_hungry()
        done.set()

    def _pump_blocked(self) -> None:
        for connection in list(self._blocked.values()):
            connection.pump()
            waiting = self._orphans.get(connection.producer)
            if waiting and connection in waiting and not connection.waiting:
                waiting.remove(connection)
                if not waiting:
                    del self._orphans[connection.producer]
                self._forget(connection)

    def _tell(self) -> None:
        depths = [int(c.receiver.rows) for c in self._blocked.values()]
        for queue in self._queues:
            queue.native.tell(len(self.connections), sum(depths), max(depths, default=0))

    # -- what is sent -------------------------------------------------------------------------

    def published(self, board: WeightsBoard | None = None) -> None:
        """The learner published new weights, on another board if it is given."""
        if board is not None:
            self.weights.board = board
        self.weights.published()

    def answer(self, token: int, *parts: Any) -> None:
        """What the learner answered to the request with this token."""
        self.answers.answer(token, *parts)

    # -- the end ------------------------------------------------------------------------------

    async def close(self, final: bool = True) -> None:
        """Closes all connections, after a last attempt to take in what waits.

        Says goodbye only if it is `final`: who hears that does not come back.
        """
        self._closing = True
        self._pump_blocked()
        orphans = [o for several in self._orphans.values() for o in several]
        lost = sum({c.number: c.unsaved for c in (*orphans, *self.connections.values())}.values())
        if lost:
            log.warning("closed with %d items that were acked as received and found no room", lost)
            self.stats.lost_items += lost
        for connection in list(self.connections.values()):
            connection.leave(final)
        deadline = self.loop.time() + 1.0
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections.values()):
            connection.transport.abort()


def _vacate(table: Table) -> None:
    """Nobody is connected to a table yet. If it cannot be told, some keep their slots longer."""
    for _ in range(100):
        try:
            table.leave_all()
        except TapeBusy:  # whoever holds the lock is stopped
            continue
        return
    log.warning("a table's lock is held by a process that does not go on")
