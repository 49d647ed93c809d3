"""A client's session with a server: one connection at a time, and a new one when it was lost.

    CONNECTED --cut, silence, REFUSE busy|deadline|stalled|internal--> LOST --ACCEPT--> CONNECTED
        |                                                               |
        +--BYE, any other REFUSE--> FAILED <--refused for good----------+

One thread does all input and output, and needs the interpreter only for what is neither items, acks
nor beats (`native/wire/inflight.h`). Nothing that was not acked is forgotten: after a reconnect it
is sent again, from where the server says.

The thread knows the session, not the link that callers hold: a link that nobody holds any more has
its session sent off (`leave`), and the thread ends by itself.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import time
from typing import Any, NamedTuple

from .. import _native, wire
from ..arguments import seconds, seconds_or_none
from ..errors import ClosedError, ConnectionClosedError
from ..process import lifetime
from .handshake import Accepted, Address, NoGreeting, connect
from .pump import Pump
from .requests import Requests

__all__ = ["LinkOptions", "Session"]

log = logging.getLogger("contig.transport")

_COALESCE_BYTES = 512 << 10
_BACKOFF_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_PATIENCE_S = 2.0  # for an answer to a handshake, at least
_PROVEN_S = 1.0  # a connection that holds for so long is one, even if nothing was acked
_STRANGE_S = 2.0  # for a peer that hangs up before it says what it is
_WORD_S = 1.0  # without a server, before that is said


class LinkOptions(NamedTuple):
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


class Session:
    """The connection of a link, its thread, and what the two sides of it know.

    What callers and the thread both change is guarded by `lock`, which nobody holds while waiting.

    Args:
        address: the server.
        opening: what OPEN says, without `next`.
        options: see there.
        before: a session to the same server; this one is for as long as that one.
    """

    def __init__(
        self,
        address: Address,
        opening: dict[str, Any],
        options: LinkOptions,
        before: Session | None = None,
    ) -> None:
        options.check()
        self.address, self.options = address, options
        self._opening = {**opening, "ack": options.ack}
        self.lock = threading.Lock()
        self.ready = False  # connected, and nothing went wrong
        self.flight: Any = None
        self.requests = Requests()
        self.resends = 0
        self.failure: Exception | None = None
        self.lost_at: float | None = None
        self.cause: Exception | None = None  # of the last loss
        self.closing = self.stopped = self.told = False
        self.bye = threading.Event()
        self._attempt = 0  # to reconnect, since the server was last proven
        self._acked_then = 0  # when the connection was last lost
        self._up_at = 0.0
        self._proven = True  # since the last loss the server has done something
        self._leave_at: float | None = None
        self.first = self._first_connection(before)
        self._sock = self.first.sock
        if self.first.schema is not None:  # a server that comes back must be the same
            self._opening["layout"] = self.first.schema["layout"]
        self._wake_in, self.wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self.wake_out.setblocking(False)
        self.thread = threading.Thread(target=self._run, name="contig-link", daemon=True)

    def abandon(self) -> None:
        """Before `begin`: nothing will be sent after all."""
        self.closing, self.ready = True, False
        for sock in (self._sock, self._wake_in, self.wake_out):
            sock.close()

    def begin(self, record_size: int, padded: bool) -> None:
        """Makes room for records of this size, and starts the I/O thread."""
        first = self.first
        most = min(first.max_frame, max(first.max_inflight, 256)) - wire.HEADER_BYTES
        self.frame_bytes = min(_COALESCE_BYTES, most)
        self.flight = _native.Inflight(
            record_size, padded, first.seen, self.frame_bytes, self.options.max_inflight_msgs
        )
        self.flight.limit(first.max_inflight, first.near)
        self.flight.heartbeat(first.heartbeat_s)
        self.ready = True
        lifetime.watch(self)
        self.thread.start()

    def _first_connection(self, before: Session | None) -> Accepted:
        """Waits for a server that is not there yet as calls do for one that is lost.

        A peer that is there and hangs up, again and again, is more likely none of ours.
        """
        where = f"{self.address.host}:{self.address.port}"
        began = strange_since = time.monotonic()
        said = False
        for attempt in range(1 << 30):
            if before is not None:
                before.check()
            try:
                patience = max(self.options.reconnect_s, _PATIENCE_S)
                return connect(self.address, {**self._opening, "next": 0}, patience)
            except ssl.SSLCertVerificationError:
                raise
            except OSError as error:
                if isinstance(error.__cause__, ssl.SSLError):
                    raise  # no TLS there: that will not change
                now = time.monotonic()
                waited = now - began
                if not isinstance(error, NoGreeting):
                    strange_since = now
                pause = _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]
                late = waited + pause > self.options.reconnect_s
                if late or now - strange_since > _STRANGE_S:
                    if isinstance(error, ConnectionClosedError):
                        raise
                    raise ConnectionClosedError(f"no contig server at {where}: {error}") from error
                if waited > _WORD_S and not said:
                    said, most = True, self.options.reconnect_s
                    log.warning("no contig server at %s yet (%s): waiting %g s", where, error, most)
                time.sleep(pause)
        raise AssertionError

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
        if self.flight is None or self.forked:
            return 0
        return int(self.flight.outbox.next) - int(self.flight.acked)

    def troubled(self, now: float) -> bool:
        """Whether the server is gone, or was, and has done nothing since. With the lock.

        A server that is there again and again for a moment, and never takes anything, is gone.
        """
        if self.lost_at is not None:
            return True
        if not self._proven:
            acked = int(self.flight.acked) > self._acked_then
            self._proven = acked or now - self._up_at >= _PROVEN_S
        return not self._proven

    def kick(self) -> None:
        """Tells the I/O thread that there is something to send."""
        if self.flight.rouse():
            self.wake()

    def wake(self) -> None:
        try:
            self._wake_in.send(b"\0")
        except OSError:
            pass  # it is awake, or gone

    # -- the end ------------------------------------------------------------------------------

    def leave(self, seconds: float) -> None:
        """Nobody asks any more: sends what is left, for so long at most, and ends.

        Neither waits nor locks: the garbage collector may call it, anywhere.
        """
        if self.closing:
            return
        if not self.thread.is_alive():  # it failed, or never began
            self.abandon()
            self.tell("its client was dropped")
            return
        self.closing, self.ready = True, False
        self._leave_at = time.monotonic() + seconds
        self.flight.leave(seconds)
        self.wake()

    def hurry(self) -> None:
        """Sends what is there at once, rather than gather more."""
        self.flight.close()
        self.wake()

    def settle(self, deadline: float) -> None:
        """Waits until everything is acked, the thread has ended, or it is late."""
        while self.pending and self.thread.is_alive():
            seen, left = self.flight.changes, deadline - time.monotonic()
            if left <= 0:
                return
            self.kick()
            self.flight.wait(seen, int(self.flight.outbox.next), min(left, 0.1))

    @property
    def over(self) -> bool:
        """Whether the thread is to end."""
        if self.stopped or self._leave_at is None:
            return self.stopped
        return time.monotonic() >= self._leave_at or bool(self.flight.drained)

    def time_left(self, now: float) -> float | None:
        """For what is left to be sent; None: there is no end in sight."""
        return None if self._leave_at is None else max(self._leave_at - now, 0.0)

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
        self.flight.forked()
        # Closed here only, without a word: the parent's end of it goes on.
        for sock in (self._sock, self._wake_in, self.wake_out):
            sock.close()

    # -- the I/O thread -----------------------------------------------------------------------

    def _run(self) -> None:
        connection: Accepted | None = self.first
        try:
            while connection is not None:
                try:
                    Pump(self, connection).run()
                except OSError as error:
                    connection.sock.close()
                    if self.stopped or (self.closing and self.bye.is_set()):
                        return
                    connection = self._reconnect(error)
                else:
                    return
        except Exception as error:
            log.debug("session failed", exc_info=True)
            self._fail(error)
        finally:
            self._sock.close()
            self._wake_in.close()
            self.wake_out.close()
            if self._leave_at is not None:
                self.tell("its client was dropped")

    def _fail(self, error: Exception) -> None:
        with self.lock:
            self.failure, self.ready = error, False
            self.bye.set()
        self.flight.notify()

    def _reconnect(self, cause: Exception) -> Accepted | None:
        with self.lock:
            self.lost_at, self.ready, self.cause = time.monotonic(), False, cause
            acked = int(self.flight.acked)
            if acked > self._acked_then:
                self._attempt, self._acked_then = 0, acked
            self._proven = False
        self.flight.notify()
        if self.options.reconnect_s == 0:
            raise ConnectionClosedError(f"the connection to the server was lost: {cause}")
        while not self.over:
            # Also a server that accepts and then breaks the connection is not hurried.
            if self._attempt:
                time.sleep(_BACKOFF_S[min(self._attempt, len(_BACKOFF_S)) - 1])
            self._attempt += 1
            try:
                opening = {**self._opening, "next": int(self.flight.acked)}
                connection = connect(self.address, opening, max(self.options.reconnect_s, 0.2))
            except OSError as error:
                self.cause = error
                continue
            with self.lock:
                self._resume(connection)
            return connection
        return None

    def _resume(self, connection: Accepted) -> None:
        """The server is back: drops what it has, sends the rest again. With the lock."""
        self._sock = connection.sock
        self.flight.limit(connection.max_inflight, connection.near)
        self.flight.heartbeat(connection.heartbeat_s)
        self.resends += self.flight.resume(connection.seen, self.requests.again())
        self.lost_at, self._up_at = None, time.monotonic()
        self.ready = not self.closing
        self.flight.notify()

    def answered(self, kind: int, number: int, payload: bytes) -> None:
        with self.lock:
            self._proven = True
            self.requests.answered(kind, number, payload)
        self.flight.notify()
