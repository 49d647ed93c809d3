"""A session's thread: keeps one connection at a time, and makes a new one when it was lost.

    CONNECTED --cut, silence, REFUSE busy|deadline|stalled|internal--> LOST --ACCEPT--> CONNECTED
        |                                                               |
        +--BYE, any other REFUSE--> FAILED <--refused for good----------+

It does all input and output, and needs the interpreter only for what is neither items, acks nor
beats (`socket_io.py`). Nothing that was not acked is forgotten: after a reconnect it is sent again,
from where the server says.

The thread knows nothing of the Session that callers hold: when nobody holds that any more, `leave`
is called, and the thread ends by itself.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from .. import _native, wire
from ..arguments import seconds, seconds_or_none
from ..errors import ClosedError, ConnectionClosedError
from ..layout import Layout
from ..process import lifetime
from ..tape.sharing import shared_form
from ..wire import Type, log
from .connecting import BACKOFF_S, Connected, ServerAddress, connect
from .requests import Requests
from .socket_io import received_frames

__all__ = ["SessionOptions", "SessionThread"]

_COALESCE_BYTES = 512 << 10
_PROVEN_S = 1.0  # a connection that holds for so long is one, even if nothing was acked


class SessionOptions(NamedTuple):
    """How a client behaves.

    Attributes:
        ack: what an ack means: "received", "committed" or "durable".
        max_inflight_msgs: frames that may be unacked; of their bytes, the server says how many.
        reconnect_s: how long a call waits for a lost server; 0: it never reconnects.
        on_full: "block" or "raise" when too much is in flight.
        send_timeout_s: how long a blocked call waits for room; None: for ever.
    """

    ack: str = "committed"
    max_inflight_msgs: int = 32
    reconnect_s: float = 30.0
    on_full: str = "block"
    send_timeout_s: float | None = None

    def check(self) -> None:
        if self.ack not in wire.ACK_LEVELS:
            raise ValueError(f"ack {self.ack!r}: one of {', '.join(wire.ACK_LEVELS)}")
        if self.on_full not in ("block", "raise"):
            raise ValueError(f'on_full {self.on_full!r}: "block" or "raise"')
        seconds("reconnect_s", self.reconnect_s)
        seconds_or_none("send_timeout_s", self.send_timeout_s)


class _Goodbye(Exception):
    """The server ended the connection in good order: there is nothing to come back to."""


class SessionThread:
    """The thread, and what it and callers both know.

    What both change is guarded by `lock`, which nobody holds while waiting.

    Args:
        first: the first connection.
        address, opening: how to come by another one; what OPEN says, `next` aside.
        options: see there.
        layout: of the records that will be sent; None: none will.
    """

    def __init__(
        self,
        first: Connected,
        address: ServerAddress,
        opening: dict[str, Any],
        options: SessionOptions,
        layout: Layout | None,
    ) -> None:
        self.address, self.options, self.first = address, options, first
        accepted = first.accepted
        self._opening = dict(opening)
        if accepted.schema is not None:  # a server that comes back must be the same
            self._opening["layout"] = accepted.schema["layout"]
            self._opening["fields"] = accepted.schema.get("fields")
        self.lock = threading.Lock()
        self.frame_bytes = min(_COALESCE_BYTES, _most_bytes(first))
        size, padded = (1, False) if layout is None else (layout.record_size, layout.padded)
        self.inflight = _native.Inflight(
            size, padded, accepted.seen, self.frame_bytes, options.max_inflight_msgs
        )
        if layout is not None and layout.variable:
            places = np.array([x.offset for x in layout.variable], np.int64)
            self.inflight.builder.set_variable(places)
        self._sends = layout is not None
        self._shared = self._shared_of(first)  # how observations are sent once; None: they are not
        if self._shared is not None:
            form = shared_form(first.accepted.schema or {})
            self.inflight.builder.set_shared(form, _most_bytes(first))
        self.ready = False  # connected, and nothing went wrong
        self.requests = Requests(self.inflight)
        self.resends = 0
        self.failure: Exception | None = None
        self.lost_at: float | None = None
        self.cause: Exception | None = None  # of the last loss
        self.closing = self.stopped = self.told = False
        self.goodbye = False  # it was said: what is left to say after a loss
        self.bye = threading.Event()
        self._attempt = 0  # to reconnect, since the server was last proven
        self._acked_then = 0  # when the connection was last lost
        self._up_at = 0.0
        self._proven = True  # since the last loss the server has done something
        self._dropped = False
        self._sock = first.sock
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="contig-session", daemon=True)

    def start(self) -> None:
        self._agree(self.first)
        self.ready = True
        lifetime.watch(self)
        self._thread.start()

    # -- for any thread -----------------------------------------------------------------------

    def check(self) -> None:
        """Raises if it is closed or failed."""
        if isinstance(self.failure, ClosedError):
            raise ClosedError(str(self.failure))
        if self.failure is not None:
            missing = f"; {self.pending} items are not acked" if self.pending else ""
            raise ConnectionClosedError(f"{self.failure}{missing}") from self.failure
        if self.closing:
            raise ClosedError("this client is closed")

    @property
    def pending(self) -> int:
        """Items not acked yet."""
        return 0 if self.forked else self.inflight.builder.next - self.inflight.acked

    def troubled(self, now: float) -> bool:
        """Whether the server is gone, or was, and has done nothing since. With the lock.

        A server that is there again and again for a moment, and never takes anything, is gone.
        """
        if self.lost_at is not None:
            return True
        if not self._proven:
            acked = self.inflight.acked > self._acked_then
            self._proven = acked or now - self._up_at >= _PROVEN_S
        return not self._proven

    def kick(self) -> None:
        """Tells the thread that there is something to send."""
        if self.inflight.rouse():
            self._wake()

    def move(self, host: str, port: int) -> None:
        """The server is elsewhere now: the connection there is, if any, is of no use any more."""
        self.address = self.address._replace(host=host, port=port)
        if self.lost_at is None:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is lost already

    def _wake(self) -> None:
        try:
            self._wake_in.send(b"\0")
        except OSError:
            pass  # it is awake, or gone

    # -- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends, whatever is left to be sent."""
        self.stopped = True
        self.inflight.stop()
        self.inflight.notify()
        self._wake()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def leave(self, seconds: float) -> None:
        """Nobody asks any more: sends what is left, for so long at most, and ends.

        Neither waits nor locks: the garbage collector may call it, anywhere.
        """
        if self.closing:
            return
        self.closing, self.ready = True, False
        if not self._thread.is_alive():  # it failed, or never began
            self._close_sockets()
            self.tell("its client was dropped")
            return
        self._dropped = True
        self.inflight.leave(seconds)
        self._wake()

    def hurry(self) -> None:
        """Sends what is there at once, rather than gather more."""
        self.inflight.close()
        self._wake()

    def settle(self, deadline: float) -> None:
        """Waits until everything is acked, the thread has ended, or it is late."""
        while self.pending and self._thread.is_alive():
            seen, left = self.inflight.changes, deadline - time.monotonic()
            if left <= 0:
                return
            self.kick()
            self.inflight.wait(seen, self.inflight.builder.next, min(left, 0.1))

    def tell(self, when: str) -> None:
        """Says, once, how much was not acked; for who cannot be told by an exception."""
        if self.pending and not self.told:
            self.told = True
            log.warning(
                "%d items for table %r at %s:%d were not acked when %s; call close() to wait",
                *(self.pending, self.address.table, self.address.host, self.address.port, when),
            )

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a forked child, which has no part in it."""
        return isinstance(self.failure, ClosedError)

    def fork(self, parent: int) -> None:
        """In a forked child: the thread is not there, and the connection is the parent's."""
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]  # its holder is not there either
        self.failure = ClosedError(
            f"this client belongs to process {parent}, and this is its forked child {os.getpid()}: "
            "make a client in each process"
        )
        self.closing, self.stopped, self.ready = True, True, False
        self.inflight.forked()
        self._close_sockets()  # here only, without a word: the parent's end of it goes on

    def _close_sockets(self) -> None:
        for sock in (self._sock, self._wake_in, self._wake_out):
            sock.close()

    # -- in the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        connection: Connected | None = self.first
        try:
            while connection is not None:
                try:
                    goodbye = self.requests.goodbye
                    wake = self._wake_out
                    for frame in received_frames(connection, self.inflight, wake, goodbye):
                        if not self._goes_on(*frame):
                            break
                    return
                except OSError as error:
                    connection.sock.close()
                    if self.stopped or (self.closing and self.bye.is_set()):
                        return
                    connection = self._reconnect(error)
        except Exception as error:
            log.debug("session failed", exc_info=True)
            self._fail(error)
        finally:
            self._close_sockets()
            if self._dropped:
                self.tell("its client was dropped")

    def _goes_on(self, kind: int, number: int, payload: bytes) -> bool:
        """Handles a frame that is neither ack nor beat; False: it was the last."""
        if kind == Type.BYE:
            if not self.closing or self.pending:
                raise _Goodbye("the server was closed")
            self.bye.set()
            return False
        if kind == Type.REFUSE:
            wire.raise_refusal(json.loads(payload))
        with self.lock:
            self._proven = True
            more = self.requests.answered(kind, number, payload)
        self.inflight.notify()
        if more:
            self.kick()
        return True

    def _fail(self, error: Exception) -> None:
        with self.lock:
            self.failure, self.ready = error, False
            self.bye.set()
        self.inflight.notify()

    def _reconnect(self, cause: Exception) -> Connected | None:
        with self.lock:
            self.lost_at, self.ready, self.cause = time.monotonic(), False, cause
            acked = self.inflight.acked
            if acked > self._acked_then:
                self._attempt, self._acked_then = 0, acked
            self._proven = False
        self.inflight.notify()
        if self.options.reconnect_s == 0:
            raise ConnectionClosedError(f"the connection to the server was lost: {cause}")
        where = f"{self.address.host}:{self.address.port}"
        log.info("lost %s (%s): coming back", where, cause, extra={"event": "lost", "peer": where})
        while self.inflight.ended() is None:
            # Also a server that accepts and then breaks the connection is not hurried.
            if self._attempt:
                time.sleep(BACKOFF_S[min(self._attempt, len(BACKOFF_S)) - 1])
            self._attempt += 1
            try:
                opening = {**self._opening, "next": self.inflight.acked}
                connection = connect(self.address, opening, max(self.options.reconnect_s, 0.2))
            except OSError as error:
                self.cause = error
                continue
            with self.lock:
                self._resume(connection)
            log.info("back at %s", where, extra={"event": "back", "peer": where})
            return connection
        return None

    def _resume(self, connection: Connected) -> None:
        """The server is back: drops what it has, sends the rest again. With the lock."""
        self._sock = connection.sock
        self._agree(connection)
        asked = self.requests.again(connection.accepted.takes_weights)
        if self.goodbye:  # it asks for nothing any more
            asked = [self.requests.goodbye()]
        self.resends += self.inflight.resume(connection.accepted.seen, asked)
        shared = self._shared_of(connection)
        if shared != self._shared:  # what waits was made for another one
            self._shared = shared
            form = shared_form(connection.accepted.schema or {})
            self.inflight.reshape(form, _most_bytes(connection))
        self.lost_at, self._up_at = None, time.monotonic()
        self.ready = not self.closing
        self.inflight.notify()

    @property
    def compact(self) -> bool:
        """Whether observations are sent once."""
        return self._shared is not None

    def _shared_of(self, connection: Connected) -> Any:
        """What the server says of how observations are stored once, as JSON."""
        schema = connection.accepted.schema
        if not self._sends or schema is None:
            return None
        return wire.without_carry(schema.get("shared"))

    def _agree(self, connection: Connected) -> None:
        """On what the server has said."""
        self.inflight.limit(connection.accepted.max_inflight, connection.near)
        self.inflight.heartbeat(connection.accepted.heartbeat_s)
        self.inflight.carry(wire.carry_of(connection.accepted.schema))
        self.requests.names = connection.accepted.receipts


def _most_bytes(connection: Connected) -> int:
    """That a frame may have behind its header."""
    accepted = connection.accepted
    return min(connection.max_frame, max(accepted.max_inflight, 256)) - wire.HEADER_BYTES
