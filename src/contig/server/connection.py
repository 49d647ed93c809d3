"""One connection of a server: a state machine over what it has received.

    HELLO --48 bytes--> OPENING --OPEN--> STREAM --BYE--> gone

Each frame is received into the connection's own bounded buffer, checked, and taken in by one native
call; a half-received one never holds anybody up. A connection whose table is full stops reading,
and goes on when the core says that there is room. Belongs to the core's thread.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import _native, wire
from .._native import Received
from ..errors import TapeBusy
from ..wire import Refused, ServerHandshake, Type, log
from .outflow import Outflow
from .silence import SilenceWatch
from .tables import Sender

if TYPE_CHECKING:
    from .core import ServerCore
    from .tables import Table

__all__ = ["Connection"]

_MORE, _READY, _GROW, _BAD = Received
_FIRST_BUFFER = 4096
_AGAIN_S = 0.05
_PATIENCE_S = 0.001  # for room in a table: stopping to read, and starting again, takes longer
_BUSY_S = 0.25  # between attempts to get a lock that is held: the loop waits for it each time


class Connection(asyncio.BufferedProtocol):
    """A peer, from its first byte to its last acked item."""

    def __init__(self, core: ServerCore) -> None:
        self.core = core
        self.number = core.next_number()
        self.receiver = _native.Receiver(_FIRST_BUFFER, wire.HANDSHAKE_BYTES)
        self.transport: Any = None
        self.peer = "?"
        self.encrypted = False
        self.table: Table | None = None
        self.table_name = ""
        self.producer = 0
        self.ack = "committed"
        self.rows = self.bytes = self.items = 0
        self.since = time.monotonic()
        self.blocked_at: float | None = None
        self.requests = self.request_bytes = 0  # not yet answered
        self._handshake = ServerHandshake(core.token, core.limits.max_frame)
        self._acked = self._received = self._committed = 0
        self._added = 0  # items of the frame at the front that it has put in
        self._next = 0  # items below it are in, as far as this connection knows
        self._unsettled: deque[tuple[int, int]] = deque()  # tickets, and what they stand for
        self._deadline: asyncio.TimerHandle | None = None
        self._leaving = self._choked = self._knows_bools = False
        self._out = Outflow(core.loop, self._sent_large)
        self._then: Callable[[], bool] | None = None  # what comes before the next frame
        self._waits = False  # for its table to do that
        self.heard = self.spoke = time.monotonic()
        self._silence: SilenceWatch | None = None
        self.socket = -1  # to read from directly; not with TLS
        self.forgotten = False  # its memory does not count any more

    # -- what asyncio calls -------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")
        self.encrypted = transport.get_extra_info("sslcontext") is not None
        sock = None if self.encrypted else transport.get_extra_info("socket")
        self.socket = -1 if sock is None else sock.fileno()
        own = transport.get_extra_info("sockname")
        self._out.attach(transport)
        self.receiver.set_near(isinstance(name, tuple) and name[0] == own[0])
        self.core.joined(self)
        self._deadline = self.core.loop.call_later(self.core.handshake_s, self._too_late)

    def get_buffer(self, sizehint: int) -> Any:
        return self.receiver.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.receiver.received(nbytes)
        began = time.perf_counter_ns()
        if self.table is None or self.socket < 0:
            self.pump()
        else:
            nbytes += self._stream()
        self.core.drained(time.perf_counter_ns() - began)
        self.heard = time.monotonic()
        self.bytes += nbytes
        self.core.stats.bytes_in += nbytes

    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._silence is not None:
            self._silence.stop()
        self._choked = False  # nobody is left to read: what was received still goes in
        self.core.left(self)

    def pause_writing(self) -> None:
        self._out.pause()
        self._choke()

    def _choke(self) -> None:
        """A peer that does not read what it asked for is not read from."""
        if self._out.held_up and not self._choked:
            self._choked = True
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._out.resume()
        self.core.answers.read(self)
        if self._choked and not self._out.held_up:
            self._choked = False
            self._read_on()
            self.pump()

    @property
    def _held_up(self) -> bool:
        held_up = self._choked or self._waits or self.blocked_at is not None
        return held_up or self.core.starves(self)

    @property
    def _reads_on(self) -> bool:
        """Whether nothing keeps it from reading."""
        return not self._held_up and not self.transport.is_closing()

    @property
    def listens(self) -> bool:
        """Whether a peer that lives would be heard, or, if it was told to go, be gone."""
        return self._leaving or not self._held_up

    def _read_on(self) -> None:
        """Reads again, if no other reason to wait is left."""
        if self._reads_on:
            self.transport.resume_reading()

    # -- reading ------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether a whole frame of items has not been taken in yet."""
        return self.table is not None and self.blocked_at is not None

    def pump(self) -> None:
        """Handles every whole frame that is there."""
        if self._leaving or self._choked:
            return
        try:
            while self._step():
                pass
            self._send_ack()
        except Refused as refused:
            self.refuse(refused)
        except Exception:
            log.exception("connection %s failed", self.peer)
            self.refuse(Refused("internal", "the server failed to handle a frame"))

    def _stream(self) -> int:
        """What is ordinary natively, all else step by step; how many bytes came meanwhile."""
        assert self.table is not None
        if not self._reads_on or self.core.must_wait(self):
            self.pump()
            return 0
        patience = 0.0 if self.core.any_blocked else _PATIENCE_S
        sender = Sender(self.producer, self._received)
        taken = self.table.take_frames(self.receiver, self.socket, sender, patience)
        if taken.items:
            self.items += taken.items
            self.rows += taken.items
            self._added = taken.partial
            self._received = self._committed = self._next = taken.seen
            self.core.took_whole(taken.frames, taken.items)
        self.pump()
        return taken.nbytes

    def _step(self) -> bool:
        """One step forward; False: nothing more can be done now."""
        if not self._handshake.greeted:
            return self._greet()
        if self._then is not None:
            return self._go_on()
        state = self.receiver.next()
        if state is _MORE:
            return False
        if state is _GROW:
            return self.core.grow(self, self.receiver.needed)
        if state is not _READY:
            raise Refused(self.receiver.refusal, f"a frame was refused: {self.receiver.refusal}")
        kind = self.receiver.type
        if self.table is None:
            if kind != Type.OPEN:
                raise Refused("frame", "the first frame must be OPEN")
            self._open()
        elif kind == Type.ITEMS:
            return self._items()
        else:
            self._other(kind)
        return not self._leaving and not self._choked

    def _greet(self) -> bool:
        first = self.receiver.peek(min(self.receiver.held, wire.HELLO_BYTES)) or b""
        greeting = self._handshake.greet(first)
        if greeting is None:
            return False
        self.receiver.skip(wire.HELLO_BYTES)
        self.write(greeting)
        self._handshake.check_version()
        return True

    def _open(self) -> None:
        opening = self._handshake.read_open(self.receiver.payload(), self.core.tables)
        self.receiver.pop()
        self._then = partial(self._enter, opening)

    def _enter(self, opening: wire.Opening[Table]) -> bool:
        """Lets a client in whose OPEN is right; False: its table has to be waited for."""
        if not opening.table.ready_for(opening.layout):
            return False
        table = self.table = opening.table
        self.table_name, self.producer, self.ack = opening.name, opening.producer, opening.ack
        try:
            seen = self.core.opened(self, opening.following)
        except TapeBusy:  # whoever holds the lock is stopped
            self.table = None
            return False
        self._acked = self._received = self._committed = self._next = seen
        beat_s = self.core.heartbeat_s if opening.heartbeat else 0.0
        most = self.core.limits.max_bytes // 4
        accepted = wire.Accepted(table.kind, table.schema, table.ndim, seen, most, beat_s)
        if opening.heartbeat:
            self._silence = SilenceWatch(self, self.core.loop, beat_s)
        self.write(self._handshake.accept(accepted))
        self._learn_bools()
        self.receiver.max_frame = self.core.limits.max_frame
        self._in_time()
        return True

    def _in_time(self) -> None:
        """Its handshake is done, or waits for nothing of its own."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _go_on(self) -> bool:
        """What was asked for and had to wait; False: it still has to."""
        assert self._then is not None
        if self._then():
            waited, self._waits = self._waits, False
            self._then = None
            if waited:
                self._read_on()
            return not self._leaving
        if not self._waits:
            self._waits = True
            self.core.proven(self)
            self._in_time()
            self.transport.pause_reading()
        if not self.transport.is_closing():
            self.core.loop.call_later(_AGAIN_S, self.pump)
        return False

    def _say_bye(self) -> bool:
        """Goodbye after the last ack; False: it is not time for that yet."""
        assert self.table is not None
        if not self.table.settle():
            return False
        self.settle()
        self.leave()
        return True

    def _learn_bools(self) -> None:
        """Tells its receiver which bytes of records are bools, once the table knows its layout."""
        assert self.table is not None
        places = self.table.bools()
        if places is not None:
            self.receiver.set_bools(places)
            self._knows_bools = True

    def _items(self) -> bool:
        table, receiver = self.table, self.receiver
        assert table is not None
        if not self._knows_bools:
            self._learn_bools()
        if not receiver.check_items(table.record_size, table.kind == "tape"):
            if receiver.refusal == "value":
                raise Refused("value", "a bool is one byte, 0 or 1: some have another value")
            raise Refused(
                "shape",
                "rows, runs and bytes of a frame do not fit together, or a run has more than "
                f"{wire.MAX_LANES} lanes",
            )
        items = receiver.runs if table.kind == "tape" else receiver.rows
        if receiver.number > self._received:
            raise Refused("gap", f"items from {receiver.number} on, expected {self._received}")
        self._received = max(self._received, receiver.number + items)
        if self.core.must_wait(self) or time.monotonic() < table.busy_until:
            return self._block()
        try:
            outcome = table.accept(receiver, Sender(self.producer, self._next))
        except TapeBusy:  # whoever holds the lock is stopped: as if there were no room
            table.busy_until = time.monotonic() + _BUSY_S
            return self._block()
        self.items += outcome.items
        self.rows += outcome.rows
        self._added += outcome.items
        self.core.took(outcome, items - self._added)
        if outcome.items or not outcome.full:
            self._note(table, outcome.seen)
        self._next = max(self._next, outcome.seen)
        if outcome.full:
            return self._block()
        self._added = 0
        receiver.pop()
        if self.blocked_at is not None:
            self._unblock()
        return True

    def _note(self, table: Table, seen: int) -> None:
        """Items up to here are in the table; they are committed when its ticket is settled."""
        ticket = table.ticket
        if ticket <= table.settled:
            self._committed = seen
        else:
            self._unsettled.append((ticket, seen))
            self.core.unsettled[self.number] = self

    def settle(self) -> None:
        """Acks what its table has committed meanwhile."""
        assert self.table is not None
        settled = self.table.settled
        while self._unsettled and self._unsettled[0][0] <= settled:
            self._committed = self._unsettled.popleft()[1]
        if not self._unsettled:
            self.core.unsettled.pop(self.number, None)
        if not self._leaving:
            self._send_ack()

    def _block(self) -> bool:
        if self.blocked_at is None:
            self.blocked_at = time.monotonic()
            if not self.transport.is_closing():
                self.transport.pause_reading()
        self.core.block(self)
        return False

    def _unblock(self) -> None:
        assert self.blocked_at is not None
        self.core.stats.blocked_s += time.monotonic() - self.blocked_at
        self.blocked_at = None
        self.core.unblock(self)
        self._read_on()

    def grown(self) -> None:
        """The core had room for a larger buffer after all."""
        self._read_on()
        self.pump()

    def _other(self, kind: int) -> None:
        payload, number = self.receiver.payload(), self.receiver.number
        self.receiver.pop()
        if kind == Type.BEAT:
            return  # it is there: that was noted when it came
        if kind == Type.BYE:
            self._then = self._say_bye
        elif kind == Type.GET:
            if len(payload) != 8:
                raise Refused("frame", "GET: expected 8 bytes")
            newer = number - 2**64 if number >= 2**63 else number
            self.core.weights.want(self, newer, struct.unpack("<d", payload)[0])
        elif kind in (Type.SAMPLE, Type.PRIORITY, Type.STATS):
            self.requests += 1
            self.request_bytes += len(payload)
            if self.requests > wire.MAX_REQUESTS:
                raise Refused("busy", f"more than {wire.MAX_REQUESTS} requests at a time")
            if self.requests > 1 and self.request_bytes > wire.MAX_REQUEST_BYTES:
                most = wire.MAX_REQUEST_BYTES
                raise Refused("busy", f"requests of more than {most} bytes at a time")
            self.core.answers.ask(self, kind, number, payload)
        else:
            raise Refused("type", f"frames of type {kind} do not come from clients")

    # -- writing ------------------------------------------------------------------------------

    def _send_ack(self) -> None:
        if self.table is None:
            return
        safe = self._received if self.ack == "received" else self._committed
        if safe > self._acked:
            self._acked = safe
            self.write(wire.frame(Type.ACK, safe))

    def write(self, *parts: Any) -> None:
        self.spoke = time.monotonic()
        self._out.write(*parts)
        self._choke()

    def send_large(self, parts: list[memoryview]) -> None:
        """Sends a frame that others send too, in turn with everything else."""
        self._out.write_large(parts)

    def _sent_large(self) -> None:
        self.core.weights.sent(self)
        self._choke()

    @property
    def unread(self) -> int:
        """Bytes that wait for its peer to read."""
        return self._out.unread

    def drop_if_stalled(self) -> None:
        """Others need the memory: ends it, if its peer has read nothing for long."""
        if self._out.stalled(self.core.handshake_s):
            self.refuse(Refused("stalled", "it does not read what it asked for"))
            self.transport.abort()

    def refuse(self, refused: Refused) -> None:
        """Says why, and closes."""
        self.core.stats.rejected[refused.reason] += 1
        log.info("refused %s: %s", self.peer, refused)
        if not self._leaving:
            self._leaving = True
            # Whom it says no to before its hello expects a greeting first.
            first = [] if self._handshake.greeted else [self._handshake.greeting()]
            self.write(*first, wire.refusal(refused))
            self._out.close()

    def leave(self, final: bool = True) -> None:
        """Closes; says goodbye before, unless the server means to come back."""
        if not self._leaving:
            self._leaving = True
            if final:
                self.write(wire.frame(Type.BYE))
            self._out.close()

    def give_up(self, why: str) -> None:
        """The peer is not there any more."""
        self.core.stats.rejected["silent"] += 1
        log.info("gave up on %s: %s", self.peer, why)
        self.transport.abort()

    def abandon(self) -> None:
        """Its client has come back on another connection."""
        self._leaving = not self.waiting
        self.transport.abort()

    def _too_late(self) -> None:
        self._deadline = None
        self.refuse(Refused("deadline", f"no handshake within {self.core.handshake_s} s"))

    def answered(self, nbytes: int, *parts: Any) -> None:
        """The answer to a request that had so many bytes."""
        self.requests -= 1
        self.request_bytes -= nbytes
        self.write(*parts)

    @property
    def received(self) -> int:
        """Items of its producer that are in whole frames here or in the table."""
        return self._received

    @property
    def unsaved(self) -> int:
        """Items that were acked as received and are not in the table."""
        return max(self._received - self._committed, 0) if self.ack == "received" else 0
