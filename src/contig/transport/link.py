"""A client's link to a server: sends frames, reads acks and answers, comes back when it was cut.

    any thread: outbox <- items        I/O thread: outbox -> socket -> acks -> wake who waits

One thread does all input and output, and needs the interpreter only for what is neither items nor
acks (`native/flight.h`). Everything that callers do happens under one lock. Nothing that was not
acked is forgotten: after a reconnect it is sent again, from where the server says.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from typing import Any, NamedTuple

from .. import _native
from ..errors import ClosedError, ConnectionClosedError, OverloadError
from . import wire
from .handshake import Accepted, Address, connect
from .pump import Pump
from .wire import Type

__all__ = ["Link", "LinkOptions"]

log = logging.getLogger("contig.transport")

_COALESCE_BYTES = 512 << 10
_BACKOFF_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_SLICE_S = 0.1
_NOTHING = 2**63  # more items than there will be
_PATIENCE_S = 2.0  # for an answer to a handshake, at least


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
    reconnect_s: float = 1.0
    on_full: str = "block"
    send_timeout_s: float | None = None

    def check(self) -> None:
        if self.ack not in wire.ACK_LEVELS:
            raise ValueError(f"ack {self.ack!r}: one of {', '.join(wire.ACK_LEVELS)}")
        if self.on_full not in ("block", "raise"):
            raise ValueError(f'on_full {self.on_full!r}: "block" or "raise"')
        if self.max_inflight_msgs < 1:
            raise ValueError(f"max_inflight_msgs: at least 1, got {self.max_inflight_msgs}")
        if not self.reconnect_s >= 0:
            raise ValueError(f"reconnect_s: seconds, at least 0, got {self.reconnect_s}")


class Link:
    """One connection that lasts. Thread-safe.

    Args:
        address: the server.
        opening: what OPEN says, without `next`.
        options: see there.
    """

    def __init__(self, address: Address, opening: dict[str, Any], options: LinkOptions) -> None:
        options.check()
        self.address, self.options = address, options
        self._opening = {**opening, "ack": options.ack}
        self.lock = threading.Lock()
        self.ready = False  # connected, and nothing went wrong
        self.resends = self.blocked = 0
        self.flight: Any = None
        self._requests: dict[int, Any] = {}  # number -> its frame, or the answer
        self._numbers = 0
        self._failure: Exception | None = None
        self._lost_at: float | None = None
        self._attempt = 0  # to reconnect, since something was last acked
        self._acked_then = 0  # when the connection was last lost
        self._closing = self._stopped = False
        self._bye = threading.Event()
        first = self._first_connection()
        self.kind, self.schema, self.max_frame = first.kind, first.schema, first.max_frame
        self.ndim = first.ndim
        if self.schema is not None:  # a server that comes back must be the same
            self._opening["layout"] = self.schema["layout"]
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._first = first
        self._thread = threading.Thread(target=self._run, args=(first,), name="contig-link")
        self._thread.daemon = True

    def abandon(self) -> None:
        """Before `begin`: nothing will be sent after all."""
        self._closing, self.ready = True, False
        for sock in (self._first.sock, self._wake_in, self._wake_out):
            sock.close()

    def begin(self, record_size: int, padded: bool) -> None:
        """Makes room for records of this size, and starts the I/O thread."""
        first = self._first
        most = min(self.max_frame, max(first.max_inflight, 256)) - wire.HEADER_BYTES
        self.frame_bytes = min(_COALESCE_BYTES, most)
        self.flight = _native.Flight(
            record_size, padded, first.seen, self.frame_bytes, self.options.max_inflight_msgs
        )
        self.flight.limit(first.max_inflight, first.near)
        self.outbox = self.flight.outbox
        self.ready = True
        self._thread.start()

    def _first_connection(self) -> Accepted:
        deadline = time.monotonic() + self.options.reconnect_s
        for attempt in range(1 << 30):
            try:
                patience = max(self.options.reconnect_s, _PATIENCE_S)
                return connect(self.address, {**self._opening, "next": 0}, patience)
            except ssl.SSLCertVerificationError:
                raise
            except OSError as error:
                if isinstance(error.__cause__, ssl.SSLError):
                    raise  # no TLS there: that will not change
                pause = _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]
                if time.monotonic() + pause > deadline:
                    if isinstance(error, ConnectionClosedError):
                        raise
                    where = f"{self.address.host}:{self.address.port}"
                    raise ConnectionClosedError(f"no contig server at {where}: {error}") from error
                time.sleep(pause)
        raise AssertionError

    # -- for callers, with the lock held ------------------------------------------------------

    def reserve(self) -> None:
        """Waits until another item may be added. With the lock.

        Raises:
            ConnectionClosedError: the server is gone, and did not come back in time.
            OverloadError: too much is in flight, and the client was told to raise.
        """
        full = self.flight.room()
        if self.ready and not full:
            return
        self.blocked += bool(full)
        self._wait_for(self._has_room, self.options.send_timeout_s, "room to send")

    def _has_room(self) -> bool:
        full = self.flight.room()
        if not full:
            return self._lost_at is None
        if self._lost_at is None and self.options.on_full == "raise":
            raise OverloadError(f"{self._too_much(full)}: the server does not keep up")
        return False

    def _too_much(self, full: int) -> str:
        flight = self.flight
        if full == 1:
            most = self.options.max_inflight_msgs
            return f"{flight.frames} frames are in flight, with max_inflight_msgs={most}"
        return f"{flight.bytes} bytes are in flight, and at most {flight.most_bytes} may be"

    def check(self) -> None:
        """Raises if the link is closed or failed."""
        if self._failure is not None:
            raise ConnectionClosedError(str(self._failure)) from self._failure
        if self._closing:
            raise ClosedError("this client is closed")

    def kick(self) -> None:
        """Tells the I/O thread that there is something to send."""
        if self.flight.rouse():
            self._wake()

    def _wake(self) -> None:
        try:
            self._wake_in.send(b"\0")
        except (BlockingIOError, OSError):
            pass

    def _wait_for(self, ready: Any, timeout: float | None, what: str, upto: int = _NOTHING) -> None:
        """Waits with the lock, which is let go of meanwhile, also for acks of items below `upto`.

        Ends on failure, on a server that stays away, on the deadline.
        """
        began = time.monotonic()
        lost_since = began
        while True:
            seen = self.flight.changes
            if self._failure is not None:
                missing = f"; {self.pending} items are not acked" if self.pending else ""
                raise ConnectionClosedError(f"{self._failure}{missing}") from self._failure
            if self._stopped or (self._closing and what != "acks"):
                raise ClosedError("this client is closed")
            if ready():
                return
            now = time.monotonic()
            if self._lost_at is None:
                lost_since = now
            elif now - lost_since >= self.options.reconnect_s:
                raise ConnectionClosedError(
                    f"the connection to {self.address.host}:{self.address.port} was lost, and the "
                    f"server did not come back within {self.options.reconnect_s} s; "
                    f"{self.pending} items are not acked yet"
                )
            if timeout is not None and now - began >= timeout:
                raise TimeoutError(
                    f"no {what} within {timeout} s: {self.pending} items are not acked"
                )
            self.kick()
            left = _SLICE_S if timeout is None else min(_SLICE_S, began + timeout - now)
            self.lock.release()
            try:
                self.flight.wait(seen, upto, left)
            finally:
                self.lock.acquire()

    @property
    def pending(self) -> int:
        """Items not acked yet."""
        return int(self.outbox.next) - int(self.flight.acked) if self.flight is not None else 0

    # -- for callers, without it --------------------------------------------------------------

    def wait(self, timeout: float | None) -> None:
        """Waits until everything added so far is acked."""
        with self.lock:
            upto = int(self.outbox.next)
            self._wait_for(lambda: self.flight.acked >= upto, timeout, "acks", upto)

    def request(self, kind: int, payload: bytes, timeout: float | None) -> tuple[int, bytes]:
        """Asks, and waits for the answer: its type and payload."""
        return self.collect(self.ask(kind, payload, timeout=timeout), timeout)

    def ask(
        self, kind: int, payload: bytes, number: int | None = None, timeout: float | None = None
    ) -> int:
        """Sends a request and returns its number; waits while the server would refuse it."""
        with self.lock:
            self.check()
            self._wait_for(lambda: self._may_ask(len(payload)), timeout, "answers")
            self._numbers += 1
            mine = self._numbers
            sent = mine if number is None else number
            frame = wire.frame(kind, sent, payload)
            self._requests[mine if kind != Type.GET else 0] = frame
            self.flight.ask(frame)
            self.kick()
            return mine if kind != Type.GET else 0

    def _may_ask(self, nbytes: int) -> bool:
        """Whether the server takes another request of this size. With the lock."""
        awaited = [len(f) for f in self._requests.values() if isinstance(f, bytes)]
        fits = sum(awaited) + nbytes <= wire.MAX_REQUEST_BYTES
        return not awaited or (fits and len(awaited) < wire.MAX_REQUESTS)

    def collect(self, number: int, timeout: float | None) -> tuple[int, bytes]:
        """Waits for a request's answer."""
        with self.lock:
            try:
                ready = lambda: isinstance(self._requests[number], tuple)  # noqa: E731
                self._wait_for(ready, timeout, "answer")
                return self._requests[number]  # type: ignore[no-any-return]
            finally:
                self._requests.pop(number, None)

    def close(self, timeout: float | None) -> None:
        """Sends what is left, waits for its acks, says goodbye."""
        with self.lock:
            if self._closing:
                return
            self._closing, self.ready = True, False
        if self.flight is None:
            self._stopped = True
            return
        self.flight.close()
        try:
            if self.pending:
                self.wait(timeout)
            self.flight.ask(wire.frame(Type.BYE))
            self.kick()
            self._bye.wait(1.0)
        finally:
            self._stopped = True
            self.flight.stop()
            self.flight.notify()
            self._wake()
            self._thread.join(5.0)

    # -- the I/O thread -----------------------------------------------------------------------

    def _run(self, first: Accepted) -> None:
        connection: Accepted | None = first
        try:
            while connection is not None:
                try:
                    Pump(self, connection).run()
                except (OSError, ssl.SSLError, ConnectionError) as error:
                    connection.sock.close()
                    if self._stopped or (self._closing and self._bye.is_set()):
                        return
                    connection = self._reconnect(error)
                else:
                    connection.sock.close()
                    return
        except Exception as error:
            log.debug("link failed", exc_info=True)
            if connection is not None:
                connection.sock.close()
            self._fail(error)
        finally:
            self._wake_in.close()
            self._wake_out.close()

    def _fail(self, error: Exception) -> None:
        with self.lock:
            self._failure, self.ready = error, False
            self._bye.set()
        self.flight.notify()

    def _reconnect(self, cause: Exception) -> Accepted | None:
        with self.lock:
            self._lost_at, self.ready = time.monotonic(), False
            acked = int(self.flight.acked)
            if acked > self._acked_then:
                self._attempt, self._acked_then = 0, acked
        self.flight.notify()
        if self.options.reconnect_s == 0:
            raise ConnectionClosedError(f"the connection to the server was lost: {cause}")
        while not self._stopped:
            # Also a server that accepts and then breaks the connection is not hurried.
            if self._attempt:
                time.sleep(_BACKOFF_S[min(self._attempt, len(_BACKOFF_S)) - 1])
            self._attempt += 1
            try:
                opening = {**self._opening, "next": int(self.flight.acked)}
                connection = connect(self.address, opening, max(self.options.reconnect_s, 0.2))
            except (OSError, TimeoutError) as error:
                cause = error
                continue
            with self.lock:
                self._resume(connection)
            return connection
        return None

    def _resume(self, connection: Accepted) -> None:
        """The server is back: drops what it has, sends the rest again. With the lock."""
        requests = [f for f in self._requests.values() if isinstance(f, bytes)]
        self.flight.limit(connection.max_inflight, connection.near)
        self.resends += self.flight.resume(connection.seen, requests)
        self._lost_at = None
        self.ready = not self._closing
        self.flight.notify()

    def answered(self, kind: int, number: int, payload: bytes) -> None:
        with self.lock:
            key = 0 if kind == Type.WEIGHTS else number
            if key in self._requests:
                self._requests[key] = (kind, payload) if key else (kind, number, payload)
        self.flight.notify()
