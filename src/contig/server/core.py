"""The core: all connections of a server, and who waits for what.

    listening socket -> Connection -> Table (queue or tape)
                            |
                            +-> weights, and the sampling service of the learner's process

Runs in one thread with its event loop: of the ingest process, or, for debugging, of the learner's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TypeGuard

from ..errors import TapeBusy
from ..wire import Opening, Refused, log
from .answers import Answers, Forward
from .budget import Limits, MemoryBudget
from .item_stream import ItemStream
from .peer import Peer
from .statistics import Counters
from .tables import QueueTable, Table
from .weights_line import WeightsLine

__all__ = ["ServerCore"]

_WAIT_S = 0.05
_OPEN_SHARE = 4  # a part of max_bytes, beside the rest: for the trajectories that clients have open


class ServerCore:
    """Everything the sockets' thread knows.

    Args:
        loop: the event loop, whose thread all methods belong to.
        tables: by name.
        token: what clients must know, or None.
        limits: bounds.
        forward: hands a request to the learner's sampling service; None: there is none.
        counters: to count on from.
        takes_weights: whether clients may publish some.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tables: dict[str, Table],
        token: str | None,
        limits: Limits,
        forward: Forward | None = None,
        counters: Counters | None = None,
        takes_weights: bool = False,
    ) -> None:
        self.loop = loop
        self.takes_weights = takes_weights
        self.tables = tables
        self.token = token
        self.limits = limits
        self.stats = Counters() if counters is None else counters
        self.started = time.time()
        self.connections: dict[int, Peer] = {}
        self.memory = MemoryBudget(loop, limits, self.connections)
        self.weights = WeightsLine(loop, self.stats)
        self.answers = Answers(loop, limits, self.stats, self.connections, forward)
        self._numbers = 0
        self._blocked: dict[int, Peer] = {}
        self._orphans: dict[int, list[Peer]] = {}  # by producer: gone, but not all taken in
        self._current: dict[tuple[str, int], Peer] = {}  # by table and producer
        self._waker: threading.Thread | None = None
        self._closing = False
        self._queues = [t.queue for t in tables.values() if isinstance(t, QueueTable)]
        self.unsettled: dict[int, Peer] = {}  # with items whose commit is under way
        for table in tables.values():
            table.max_open_bytes = limits.max_bytes // _OPEN_SHARE // len(tables)
            _vacate(table)
            table.on_settled(self._settled)

    # -- connections --------------------------------------------------------------------------

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def joined(self, connection: Peer) -> None:
        self.stats.connections_total += 1
        self.connections[connection.number] = connection
        room = self.memory.enter(connection)
        self._tell()
        # Who left items behind keeps its place in the table of producers, as if it were here.
        here = len(self.connections) + len(self._orphans)
        if self._closing or here > self.limits.max_connections or not room:
            connection.refuse(
                Refused(
                    "busy",
                    f"the server has no room for another connection: it has {here}, which hold "
                    f"{self.memory.bytes_held} bytes with max_bytes={self.limits.max_bytes}",
                )
            )
        self.memory.bound_unproven()

    def opened(self, connection: Peer, opening: Opening[Table]) -> int:
        """A handshake is done: how many of its producer's items are in or on their way in."""
        table, producer, following = opening.table, opening.producer, opening.following
        seen = table.seen(producer, following)
        if opening.ack == "received" and following - seen > self.limits.max_bytes:
            # More than a process that died can have held: each of them has a byte at least.
            raise Refused("producer", f"next is {following}, but the server has seen {seen} items")
        self.memory.proven(connection)
        before = self._current.get((opening.name, producer))
        if before is not None and before is not connection:
            if before.waiting and _acks_received(before.stream):  # before anything of the new one
                self._orphans.setdefault(producer, []).append(before)
            before.abandon()  # the client came back before we noticed that it had gone
        waiting = [o.stream for o in self._orphans.get(producer, []) if o.stream is not None]
        seen = max([seen, *(s.received for s in waiting if s.table is table)])
        if opening.ack == "received" and following > seen:
            # Acked as received by a process that died: they are gone, and it goes on behind them.
            table.skip(producer, following)
            log.warning("%d items of %s were lost", following - seen, connection.address)
            self.stats.lost_items += following - seen
            seen = following
        if opening.ack == "received" and seen:
            table.may_miss(producer)
        self._current[opening.name, producer] = connection
        self.answers.receipts.came((opening.name, producer))
        return seen

    def left(self, connection: Peer) -> None:
        self.connections.pop(connection.number, None)
        self.unsettled.pop(connection.number, None)
        self.memory.left(connection)
        self.weights.left(connection)
        self.answers.left(connection)
        stream = connection.stream
        if stream is not None and self._current.get(stream.key) is connection:
            del self._current[stream.key]
            self.answers.receipts.lost(stream.key)
        if connection.waiting and _acks_received(stream) and not self._closing:
            # What was acked as received is taken in, whether or not its sender is there. What was
            # not acked comes again.
            orphans = self._orphans.setdefault(stream.producer, [])
            if connection not in orphans:
                orphans.append(connection)
        else:
            self._forget(connection)
        self._tell()

    def _forget(self, connection: Peer) -> None:
        self._blocked.pop(connection.number, None)
        if connection.forgotten:  # an orphan may be done before its socket is closed
            return
        connection.forgotten = True
        if connection.stream is not None:
            self._leave(connection.stream)
        self.memory.give_back(connection)

    def _leave(self, stream: ItemStream) -> None:
        """Its producer may be forgotten, unless it comes back before its table can be told."""
        try:
            if not self._comes_again(stream):
                stream.table.leave(stream.producer)
        except TapeBusy:  # whoever holds the lock is stopped
            self.loop.call_later(_WAIT_S, self._leave, stream)

    def _comes_again(self, stream: ItemStream) -> bool:
        """Whether another connection has items of the same producer for the same table."""
        others = [o.stream for o in self._orphans.get(stream.producer, [])]
        if stream.key in self._current:
            others.append(self._current[stream.key].stream)
        return any(o is not None and o is not stream and o.table is stream.table for o in others)

    @property
    def any_blocked(self) -> bool:
        """Whether somebody waits for room in a table."""
        return bool(self._blocked)

    def must_wait(self, connection: Peer, producer: int) -> bool:
        """Whether earlier items of its producer have to go in before a connection's."""
        waiting = self._orphans.get(producer)
        return bool(waiting) and waiting[0] is not connection  # type: ignore[index]

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

    # -- waiting for room ---------------------------------------------------------------------

    def block(self, connection: Peer) -> None:
        if connection.number not in self._blocked:
            self.stats.blocked += 1
            self._blocked[connection.number] = connection
            self._tell()
        if self._waker is None:
            self._waker = threading.Thread(target=self._watch, name="contig-waker", daemon=True)
            self._waker.start()

    def unblock(self, connection: Peer) -> None:
        self._blocked.pop(connection.number, None)
        self._tell()

    def _watch(self) -> None:
        """The waker's thread: wakes the loop when a table may have room again."""
        try:
            while self._blocked and not self._closing:
                streams = [c.stream for c in list(self._blocked.values()) if c.stream is not None]
                # Taken before the attempt: room made after it ends the wait at once.
                words = [(table, table.word()) for table in {s.table for s in streams}]
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
        self._retry_blocked()
        self.memory.feed_hungry()
        done.set()

    def _retry_blocked(self) -> None:
        for connection in list(self._blocked.values()):
            connection.handle_frames()
            producer = connection.stream.producer if connection.stream is not None else 0
            waiting = self._orphans.get(producer)
            if waiting and connection in waiting and not connection.waiting:
                waiting.remove(connection)
                if not waiting:
                    del self._orphans[producer]
                self._forget(connection)

    def _tell(self) -> None:
        depths = [int(c.receiver.rows) for c in self._blocked.values()]
        for queue in self._queues:
            queue.native.tell(len(self.connections), sum(depths), max(depths, default=0))

    # -- the end ------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether it takes clients in."""
        return not self._closing

    async def close(self, final: bool = True) -> None:
        """Closes all connections, after a last attempt to take in what waits.

        Says goodbye only if it is `final`: who hears that does not come back. Others are told to.
        """
        self._closing = True
        self.memory.close()
        self._retry_blocked()
        orphans = [o for several in self._orphans.values() for o in several]
        streams = {c.stream for c in (*orphans, *self.connections.values())}
        lost = sum(s.unsaved for s in streams if s is not None)
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


def _acks_received(stream: ItemStream | None) -> TypeGuard[ItemStream]:
    """Whether its items are acked before they are in the table."""
    return stream is not None and stream.ack == "received"


def _vacate(table: Table) -> None:
    """Nobody is connected to a table yet. If it cannot be told, some keep their slots longer."""
    for _ in range(100):
        try:
            table.leave_all()
        except TapeBusy:  # whoever holds the lock is stopped
            continue
        return
    log.warning("a table's lock is held by a process that does not go on")
