"""One connection of a server: a state machine over what it has received.

    HELLO --48 bytes--> OPENING --OPEN--> STREAM --BYE--> gone

Each frame is received into the connection's own bounded buffer, checked, and taken in by one native
call; a half-received one never holds anybody up. A connection whose table is full stops reading,
and goes on when the core says that there is room. Belongs to the core's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import _native, wire
from .._native import Received
from ..errors import TapeBusy
from ..wire import Refused, ServerHandshake, Type, log
from .core import ServerCore
from .flow import FrameWriter, ReadGate, Wait
from .item_stream import ItemStream
from .silence import SilenceWatch
from .tables import Table

__all__ = ["Connection"]

_MORE, _READY, _GROW, _BAD = Received
_FIRST_BUFFER = 4096
_AGAIN_S = 0.05
_REQUESTS = frozenset(
    (Type.SAMPLE, Type.PRIORITY, Type.STATS, Type.SET_FIELDS, Type.PUBLISH, Type.WATCH)
)
_COMES_BACK = Refused("busy", "the server ends, and may be started again: come back")
_PATIENCE_S = 0.001  # for room in a table: stopping to read, and starting again, takes longer


class Connection(asyncio.BufferedProtocol):
    """A peer, from its first byte to its last acked item; see `Peer` for what others know of it."""

    def __init__(self, core: ServerCore) -> None:
        self.core = core
        self.number = core.next_number()
        self.receiver = _native.Receiver(_FIRST_BUFFER, wire.HANDSHAKE_BYTES)
        self.transport: Any = None
        self.address = "?"
        self.encrypted = False
        self.socket = -1  # to read from directly; not with TLS
        self.stream: ItemStream | None = None
        self.gate = ReadGate()
        self.out = FrameWriter(
            core.loop, lambda: core.weights.sent(self), lambda: self.gate.shut(Wait.CHOKED)
        )
        self.heard = self._since = time.monotonic()
        self.forgotten = self.watches = False
        self._bytes = 0
        self._blocked_at = self._blocked_s = 0.0
        self._handshake = ServerHandshake(core.token, core.limits.max_frame)
        self._deadline: asyncio.TimerHandle | None = None
        self._leaving = False
        self._deferred: Callable[[], bool] | None = None  # what comes before the next frame
        self._silence: SilenceWatch | None = None

    # -- what asyncio calls -------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        name = transport.get_extra_info("peername")
        self.address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")
        self.encrypted = transport.get_extra_info("sslcontext") is not None
        sock = None if self.encrypted else transport.get_extra_info("socket")
        self.socket = -1 if sock is None else sock.fileno()
        own = transport.get_extra_info("sockname")
        self.gate.attach(transport)
        self.out.attach(transport)
        self.receiver.set_near(isinstance(name, tuple) and name[0] == own[0])
        self.core.joined(self)
        self._deadline = self.core.loop.call_later(self.core.limits.handshake_s, self._too_late)

    def get_buffer(self, sizehint: int) -> Any:
        return self.receiver.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.receiver.received(nbytes)
        began = time.perf_counter_ns()
        if self.stream is None or self.socket < 0:
            self.handle_frames()
        else:
            nbytes += self._read_more(self.stream)
        self.core.drained(time.perf_counter_ns() - began)
        self.heard = time.monotonic()
        self._bytes += nbytes
        self.core.stats.bytes_in += nbytes

    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._silence is not None:
            self._silence.stop()
        self.gate.open(Wait.CHOKED)  # nobody is left to read: what was received still goes in
        self.core.left(self)
        if self.stream is not None:
            told = {"event": "disconnect", "peer": self.address, "table": self.stream.table_name}
            log.info("disconnected %s", self.address, extra=told)

    def pause_writing(self) -> None:
        self.out.pause()

    def resume_writing(self) -> None:
        self.out.resume()
        self.core.answers.read(self)
        if Wait.CHOKED in self.gate and not self.out.held_up:
            self.gate.open(Wait.CHOKED)
            self.handle_frames()

    @property
    def listens(self) -> bool:
        return self._leaving or not self.gate.is_shut

    # -- reading ------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        return Wait.FULL in self.gate

    def handle_frames(self) -> None:
        if self._leaving or Wait.CHOKED in self.gate:
            return
        try:
            while self._step():
                pass
            self._send_ack()
        except Refused as refused:
            self.refuse(refused)
        except Exception:
            log.exception("connection %s failed", self.address)
            self.refuse(Refused("internal", "the server failed to handle a frame"))

    def _read_more(self, stream: ItemStream) -> int:
        """What is ordinary natively, all else step by step; how many bytes came meanwhile."""
        nbytes = 0
        if self.gate.reads and not self.core.must_wait(self, stream.producer):
            patience_s = 0.0 if self.core.any_blocked else _PATIENCE_S
            nbytes = stream.take_frames(self.socket, patience_s)
        self.handle_frames()
        return nbytes

    def _step(self) -> bool:
        """One step forward; False: nothing more can be done now."""
        if not self._handshake.greeted:
            return self._greet()
        if self._deferred is not None:
            return self._go_on()
        state = self.receiver.next()
        if state is _MORE:
            return False
        if state is _GROW:
            return self.core.memory.grow(self, self.receiver.needed)
        if state is not _READY:
            raise Refused(self.receiver.refusal, f"a frame was refused: {self.receiver.refusal}")
        kind = self.receiver.type
        if self.stream is None:
            if kind != Type.OPEN:
                raise Refused("frame", "the first frame must be OPEN")
            self._open()
        elif kind == Type.ITEMS:
            return self._items(self.stream)
        else:
            self._other(kind)
        return not self._leaving and Wait.CHOKED not in self.gate

    def _greet(self) -> bool:
        first = self.receiver.peek(min(self.receiver.held, wire.HELLO_BYTES)) or b""
        greeting = self._handshake.greet(first)
        if greeting is None:
            return False
        self.receiver.skip(wire.HELLO_BYTES)
        self.out.write(greeting)
        self._handshake.check_version()
        return True

    def _open(self) -> None:
        opening = self._handshake.read_open(self.receiver.payload(), self.core.tables)
        self.receiver.pop()
        self._deferred = partial(self._enter, opening)

    def _enter(self, opening: wire.Opening[Table]) -> bool:
        """Lets a client in whose OPEN is right; False: its table has to be waited for."""
        if not opening.table.ready_for(opening.layout, opening.fields, opening.stacks):
            return False
        wire.check_carried(opening.version, opening.table.schema)
        try:
            seen = self.core.opened(self, opening)
        except TapeBusy:  # whoever holds the lock is stopped
            return False
        table, limits = opening.table, self.core.limits
        self.stream = ItemStream(opening, self.receiver, seen, self.core.stats)
        if opening.version >= wire.CARRYING_VERSION:
            self.core.memory.carry(self, self.stream.slot_bytes)
        beat_s, most = limits.heartbeat_s if opening.heartbeat else 0.0, limits.max_bytes // 4
        said = (table.ndim, seen, most, beat_s, table.max_row, self.core.takes_weights)
        schema = wire.told_schema(opening.version, table.schema, self.receiver.carry)
        asked = self.core.answers.has_learner
        accepted = wire.Accepted(
            table.kind, schema, *said, watched=asked, receipts=asked, table=opening.name
        )
        if opening.heartbeat:
            self._silence = SilenceWatch(self, self.core.loop, beat_s)
        self.out.write(self._handshake.accept(accepted))
        self.receiver.max_frame = self.core.limits.max_frame
        self._in_time()
        told = {"event": "connect", "peer": self.address, "table": opening.name}
        log.info("connected %s to table %s", self.address, opening.name, extra=told)
        return True

    def _in_time(self) -> None:
        """Its handshake is done, or waits for nothing of its own."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _go_on(self) -> bool:
        """What was asked for and had to wait; False: it still has to."""
        assert self._deferred is not None
        if self._deferred():
            self._deferred = None
            self.gate.open(Wait.TABLE)
            return not self._leaving
        if Wait.TABLE not in self.gate:
            self.gate.shut(Wait.TABLE)
            self.core.memory.proven(self)
            self._in_time()
        if not self.transport.is_closing():
            self.core.loop.call_later(_AGAIN_S, self.handle_frames)
        return False

    def _say_bye(self) -> bool:
        """Goodbye after the last ack; False: it is not time for that yet."""
        assert self.stream is not None
        if not self.stream.table.settle():
            return False
        self.settle()
        self.leave()
        return True

    def _items(self, stream: ItemStream) -> bool:
        whole = stream.take_front(self.core.must_wait(self, stream.producer))
        if stream.unsettled:
            self.core.unsettled[self.number] = self
        if not whole and Wait.FULL not in self.gate:
            self._blocked_at = time.monotonic()
            self.gate.shut(Wait.FULL)
        if not whole:
            self.core.block(self)
        elif Wait.FULL in self.gate:
            waited = time.monotonic() - self._blocked_at
            self._blocked_s += waited
            self.core.stats.blocked_s += waited
            self.core.unblock(self)
            self.gate.open(Wait.FULL)
        return whole

    def settle(self) -> None:
        assert self.stream is not None
        self.stream.settle()
        if not self.stream.unsettled:
            self.core.unsettled.pop(self.number, None)
        if not self._leaving:
            self._send_ack()

    def _other(self, kind: int) -> None:
        payload, number = self.receiver.payload(), self.receiver.number
        self.receiver.pop()
        if kind == Type.BEAT:
            return  # it is there: that was noted when it came
        if kind == Type.BYE:
            self.core.answers.goodbye(self, payload)
            self._deferred = self._say_bye
        elif kind == Type.GET:
            self.core.weights.want(self, number, payload)
        elif kind == Type.PUBLISH and not self.core.takes_weights:
            raise Refused("type", "this server takes no weights: TcpTransport(takes_weights=True)")
        elif kind in _REQUESTS:
            self.watches = self.watches or kind == Type.WATCH
            self.core.answers.ask(self, kind, number, payload)
        else:
            raise Refused("type", f"frames of type {kind} do not come from clients")

    # -- writing ------------------------------------------------------------------------------

    def _send_ack(self) -> None:
        safe = None if self.stream is None else self.stream.to_ack()
        if safe is not None:
            self.out.write(wire.frame(Type.ACK, safe))

    def drop_if_stalled(self) -> None:
        if self.out.stalled(self.core.limits.handshake_s):
            self.refuse(Refused("stalled", "it does not read what it asked for"))
            self.transport.abort()

    def refuse(self, refused: Refused) -> None:
        self.core.stats.rejected[refused.reason] += 1
        told = {"event": "refuse", "peer": self.address, "reason": refused.reason}
        log.info("refused %s (%s): %s", self.address, refused.reason, refused, extra=told)
        if not self._leaving:
            self._leaving = True
            # Whom it says no to before its hello expects a greeting first.
            first = [] if self._handshake.greeted else [self._handshake.greeting()]
            self.out.write(*first, wire.refusal(refused))
            self.out.close()

    def leave(self, final: bool = True) -> None:
        if not self._leaving:
            self._leaving = True
            if final:
                self.out.write(wire.frame(Type.BYE))
            elif self.stream is not None:  # who waits for an answer need not find out by silence
                self.out.write(wire.refusal(_COMES_BACK))
            self.out.close()

    def give_up(self, why: str) -> None:
        self.core.stats.rejected["silent"] += 1
        told = {"event": "lost", "peer": self.address, "reason": "silent"}
        log.info("gave up on %s: %s", self.address, why, extra=told)
        self.transport.abort()

    def abandon(self) -> None:
        self._leaving = not self.waiting
        self.transport.abort()

    def _too_late(self) -> None:
        self._deadline = None
        self.refuse(Refused("deadline", f"no handshake within {self.core.limits.handshake_s} s"))

    def stats(self) -> dict[str, Any]:
        assert self.stream is not None
        now, blocked = time.monotonic(), Wait.FULL in self.gate
        return {
            "peer": self.address,
            **self.stream.stats(),
            "bytes": self._bytes,
            "seconds": now - self._since,
            "blocked": blocked,
            "blocked_s": self._blocked_s + (now - self._blocked_at if blocked else 0.0),
        }
