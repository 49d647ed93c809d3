"""One connection of a server: a state machine over what it has received.

    HELLO --48 bytes--> OPENING --OPEN--> STREAM --BYE--> gone

Each frame is received into the connection's own bounded buffer, checked, and taken in by one native
call; a half-received one never holds anybody up. A connection whose table is full stops reading,
and goes on when the hub says that there is room. Belongs to the hub's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from .. import _native
from ..errors import LayoutError, TapeBusy
from ..layout import Layout
from . import wire
from .heartbeat import Heartbeat
from .tables import Sender
from .wire import Refused, Type

if TYPE_CHECKING:
    from .hub import Hub
    from .tables import Table

__all__ = ["Connection"]

log = logging.getLogger("contig.transport")

_FIRST_BUFFER = 4096
_PATIENCE_S = 0.001  # for room in a table: stopping to read, and starting again, takes longer
_BUSY_S = 0.25  # between attempts to get a lock that is held: the loop waits for it each time
_MORE, _READY, _GROW = 0, 1, 2  # native/receiver.h


class Connection(asyncio.BufferedProtocol):
    """A peer, from its first byte to its last acked item."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.number = hub.next_number()
        self.receiver = _native.Receiver(_FIRST_BUFFER, wire.HANDSHAKE_BYTES)
        self.transport: Any = None
        self.peer = "?"
        self.table: Table | None = None
        self.table_name = ""
        self.producer = 0
        self.ack = "committed"
        self.rows = self.bytes = self.items = 0
        self.since = time.monotonic()
        self.blocked_at: float | None = None
        self.requests = self.request_bytes = 0  # not yet answered
        self._hello: wire.Hello | None = None
        self._nonce = os.urandom(32)
        self._acked = self._received = self._committed = 0
        self._added = 0  # items of the frame at the front that are in
        self._unsettled: deque[tuple[int, int]] = deque()  # tickets, and what they stand for
        self._deadline: asyncio.TimerHandle | None = None
        self._leaving = self._choked = False
        self.heard = self.spoke = time.monotonic()
        self._heartbeat: Heartbeat | None = None
        self.socket = -1  # to read from directly; not with TLS
        self.forgotten = False  # its memory does not count any more

    # -- what asyncio calls -------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")
        plain = transport.get_extra_info("sslcontext") is None
        sock = transport.get_extra_info("socket") if plain else None
        self.socket = -1 if sock is None else sock.fileno()
        own = transport.get_extra_info("sockname")
        self.receiver.set_near(isinstance(name, tuple) and name[0] == own[0])
        self.hub.joined(self)
        self._deadline = self.hub.loop.call_later(self.hub.handshake_s, self._too_late)

    def get_buffer(self, sizehint: int) -> Any:
        return self.receiver.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.receiver.received(nbytes)
        began = time.perf_counter_ns()
        if self.table is None or self.socket < 0:
            self.pump()
        else:
            nbytes += self._stream()
        self.hub.drained(time.perf_counter_ns() - began)
        self.heard = time.monotonic()
        self.bytes += nbytes
        self.hub.stats.bytes_in += nbytes

    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._choked = False  # nobody is left to read: what was received still goes in
        self.hub.left(self)

    def pause_writing(self) -> None:
        """The peer does not read what it asked for: nothing more is done for it."""
        self._choked = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._choked = False
        self._read_on()
        self.pump()

    @property
    def _held_up(self) -> bool:
        return self._choked or self.blocked_at is not None or self.hub.starves(self)

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
        if not self._reads_on or self.hub.must_wait(self):
            self.pump()
            return 0
        patience = 0.0 if self.hub.any_blocked else _PATIENCE_S
        sender = Sender(self.producer, self._received)
        taken = self.table.take_frames(self.receiver, self.socket, sender, patience)
        if taken.items:
            self.items += taken.items
            self.rows += taken.items
            self._added = taken.partial
            self._received = self._committed = taken.seen
            self.hub.took_whole(taken.frames, taken.items)
        self.pump()
        return taken.nbytes

    def _step(self) -> bool:
        """One step forward; False: nothing more can be done now."""
        if self._hello is None:
            return self._greet()
        state = self.receiver.next()
        if state == _MORE:
            return False
        if state == _GROW:
            return self.hub.grow(self, self.receiver.needed)
        if state != _READY:
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
        first = self.receiver.peek(wire.HELLO_BYTES)
        if first is None:
            # Not even the magic is right: say so before the rest comes, which it may never do.
            start = self.receiver.peek(min(self.receiver.held, len(wire.MAGIC))) or b""
            if not wire.MAGIC.startswith(start):
                raise Refused("magic", "these are not the first bytes of a contig client (magic)")
            return False
        self._hello = wire.Hello.parse(first)
        self.receiver.skip(wire.HELLO_BYTES)
        self.write(self._greeting())
        if self._hello.version != wire.VERSION:
            raise Refused("version", f"protocol {self._hello.version}, expected {wire.VERSION}")
        return True

    def _greeting(self) -> bytes:
        needs_token, most = self.hub.token is not None, self.hub.limits.max_frame
        return wire.Greeting(wire.VERSION, needs_token, self._nonce, most).pack()

    def _open(self) -> None:
        asked = wire.parse_json(self.receiver.payload())
        self.receiver.pop()
        assert self._hello is not None
        token, client, server = self.hub.token, self._hello.nonce, self._nonce
        if not wire.same_proof(asked.get("proof"), wire.proof(token, "client", server, client)):
            hint = "" if token is not None else "; this server has none, leave it out"
            raise Refused("token", f"the token is missing or wrong{hint}")
        name = asked.get("table")
        table = self.hub.tables.get(name) if isinstance(name, str) else None
        if table is None:
            known = ", ".join(sorted(self.hub.tables))
            raise Refused("table", f"no table {name!r}; this server has: {known}")
        producer, following = asked.get("producer"), asked.get("next")
        if not _is_count(producer) or not producer or not _is_count(following):
            raise Refused("producer", "producer: a number of 1 to 2^63 - 1; next: 0 or more")
        if asked.get("ack") not in table.ack_levels:
            levels = ", ".join(table.ack_levels)
            raise Refused("frame", f"ack {asked.get('ack')!r}: this table has {levels}")
        if asked.get("layout") is not None:
            layout = _layout_of(asked["layout"])
            if list(layout.structure.paths()) != [x.path for x in layout.leaves]:
                raise Refused("layout", "its leaves are not those of its structure")
            if layout.record_size + 128 > self.hub.limits.max_frame:
                raise Refused("layout", "a record is larger than a frame may be")
            table.fix(layout)
        self.table, self.table_name, self.producer = table, str(name), producer
        self.ack = str(asked["ack"])
        seen = self.hub.opened(self, int(following or 0))
        self._acked = self._received = self._committed = seen
        answer: dict[str, Any] = {
            "kind": table.kind,
            "schema": table.schema,
            "ndim": table.ndim,
            "seen": seen,
            "proof": wire.proof(token, "server", client, server),
            "max_inflight": self.hub.limits.max_bytes // 4,
        }
        if asked.get("heartbeat") is True:
            answer["heartbeat_s"] = self.hub.heartbeat_s
            self._heartbeat = Heartbeat(self, self.hub.heartbeat_s)
        self.write(wire.json_frame(Type.ACCEPT, answer))
        self.receiver.max_frame = self.hub.limits.max_frame
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _items(self) -> bool:
        table, receiver = self.table, self.receiver
        assert table is not None
        if not receiver.check_items(table.record_size, table.kind == "tape"):
            raise Refused("shape", "rows, runs and bytes of a frame do not fit together")
        items = receiver.runs if table.kind == "tape" else receiver.rows
        if receiver.number > self._received:
            raise Refused("gap", f"items from {receiver.number} on, expected {self._received}")
        self._received = max(self._received, receiver.number + items)
        if self.hub.must_wait(self) or time.monotonic() < table.busy_until:
            return self._block()
        try:
            outcome = table.accept(receiver, self.producer)
        except TapeBusy:  # whoever holds the lock is stopped: as if there were no room
            table.busy_until = time.monotonic() + _BUSY_S
            return self._block()
        self.items += outcome.items
        self.rows += outcome.rows
        self._added += outcome.items
        self.hub.took(outcome, items - self._added)
        self._note(table, outcome.seen)
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
            self.hub.unsettled[self.number] = self

    def settle(self) -> None:
        """Acks what its table has committed meanwhile."""
        assert self.table is not None
        settled = self.table.settled
        while self._unsettled and self._unsettled[0][0] <= settled:
            self._committed = self._unsettled.popleft()[1]
        if not self._unsettled:
            self.hub.unsettled.pop(self.number, None)
        if not self._leaving:
            self._send_ack()

    def _block(self) -> bool:
        if self.blocked_at is None:
            self.blocked_at = time.monotonic()
            if not self.transport.is_closing():
                self.transport.pause_reading()
        self.hub.block(self)
        return False

    def _unblock(self) -> None:
        assert self.blocked_at is not None
        self.hub.stats.blocked_s += time.monotonic() - self.blocked_at
        self.blocked_at = None
        self.hub.unblock(self)
        self._read_on()

    def grown(self) -> None:
        """The hub had room for a larger buffer after all."""
        self._read_on()
        self.pump()

    def _other(self, kind: int) -> None:
        payload, number = self.receiver.payload(), self.receiver.number
        self.receiver.pop()
        if kind == Type.BEAT:
            return  # it is there: that was noted when it came
        if kind == Type.BYE:
            assert self.table is not None
            self.table.settle()
            self.settle()
            self.leave()
        elif kind == Type.GET:
            if len(payload) != 8:
                raise Refused("frame", "GET: expected 8 bytes")
            newer = number - 2**64 if number >= 2**63 else number
            self.hub.want_weights(self, newer, struct.unpack("<d", payload)[0])
        elif kind in (Type.SAMPLE, Type.PRIORITY, Type.STATS):
            self.requests += 1
            self.request_bytes += len(payload)
            if self.requests > wire.MAX_REQUESTS:
                raise Refused("busy", f"more than {wire.MAX_REQUESTS} requests at a time")
            if self.requests > 1 and self.request_bytes > wire.MAX_REQUEST_BYTES:
                most = wire.MAX_REQUEST_BYTES
                raise Refused("busy", f"requests of more than {most} bytes at a time")
            self.hub.forward(self, kind, number, payload)
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
        if not self.transport.is_closing():
            self.spoke = time.monotonic()
            for part in parts:
                self.transport.write(part)

    def refuse(self, refused: Refused) -> None:
        """Says why, and closes."""
        self.hub.stats.rejected[refused.reason] += 1
        log.info("refused %s: %s", self.peer, refused)
        if not self._leaving:
            self._leaving = True
            content = {"reason": refused.reason, "message": str(refused)}
            # Whom it says no to before its hello expects a greeting first.
            first = [self._greeting()] if self._hello is None else []
            self.write(*first, wire.json_frame(Type.REFUSE, content))
            self.transport.close()

    def leave(self, final: bool = True) -> None:
        """Closes; says goodbye before, unless the server means to come back."""
        if not self._leaving:
            self._leaving = True
            if final:
                self.write(wire.frame(Type.BYE))
            self.transport.close()

    def give_up(self, why: str) -> None:
        """The peer is not there any more."""
        self.hub.stats.rejected["silent"] += 1
        log.info("gave up on %s: %s", self.peer, why)
        self.transport.abort()

    def abandon(self) -> None:
        """Its client has come back on another connection."""
        self._leaving = not self.waiting
        self.transport.abort()

    def _too_late(self) -> None:
        self._deadline = None
        self.refuse(Refused("deadline", f"no handshake within {self.hub.handshake_s} s"))

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


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _layout_of(content: Any) -> Layout:
    try:
        return Layout.from_json(content)
    except LayoutError as error:
        raise Refused("layout", str(error)) from None
