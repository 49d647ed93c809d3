"""A client's link to a server, as callers see it: adds items, waits for acks and answers.

    any thread: outbox <- items        the session's thread: outbox -> socket -> acks -> wake

Whatever callers do to the session they do with its lock, in one go. To wait, they let go of it;
each attempt takes it anew, so that no signal in between can leave it in the wrong hands.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from .. import wire
from ..errors import ConnectionClosedError, OverloadError
from ..process.lifetime import EXIT_S
from ..wire import Type
from .handshake import Address
from .requests import Request
from .session import LinkOptions, Session

__all__ = ["Link", "LinkOptions"]

_SLICE_S = 0.1
_NOTHING = 2**63  # more items than there will be


class Link:
    """One connection that lasts. Thread-safe.

    A link that is dropped without `close` has what it held sent by its session, which then ends.

    Args:
        address: the server.
        opening: what OPEN says, without `next`.
        options: see there.
        before: a link to the same server, for as long as which this one is needed.
    """

    def __init__(
        self,
        address: Address,
        opening: dict[str, Any],
        options: LinkOptions,
        before: Link | None = None,
    ) -> None:
        earlier: Session | None = None if before is None else before.session
        self.session: Session = Session(address, opening, options, earlier)
        self.address, self.options = address, options
        self.lock = self.session.lock
        self.blocked = 0
        first = self.session.first
        self.kind, self.schema, self.max_frame = first.kind, first.schema, first.max_frame
        self.ndim = first.ndim

    def abandon(self) -> None:
        """Before `begin`: nothing will be sent after all."""
        self.session.abandon()

    def begin(self, record_size: int, padded: bool) -> None:
        """Makes room for records of this size, and starts the I/O thread."""
        weakref.finalize(self, self.session.leave, EXIT_S).atexit = False  # `lifetime` does that
        self.session.begin(record_size, padded)
        self.flight = self.session.flight
        self.outbox = self.flight.outbox
        self.frame_bytes = self.session.frame_bytes

    # -- items --------------------------------------------------------------------------------

    def add(self, put: Callable[[], object]) -> None:
        """Has an item added, with the lock, as soon as there is room for it.

        Raises:
            ConnectionClosedError: the server is gone, and did not come back in time.
            OverloadError: too much is in flight, and the client was told to raise.
        """
        with self.lock:
            self.check()
            full = self.flight.room()
            if self.session.ready and not full:
                put()
                self.session.kick()
                return
            self.blocked += bool(full)

        def attempt() -> bool:
            if not self._has_room():
                return False
            put()
            self.session.kick()
            return True

        self._wait_for(attempt, self.options.send_timeout_s, "room to send")

    def add_now(self, put: Callable[[], object]) -> None:
        """The same, room or no room: for who is dropped, or at the process's end, and cannot wait.

        Raises:
            TimeoutError: somebody has the lock, perhaps this thread.
        """
        if not self.lock.acquire(timeout=_SLICE_S):
            raise TimeoutError("the client is in use")
        try:
            self.check()
            put()
            self.session.kick()
        finally:
            self.lock.release()

    def _has_room(self) -> bool:
        full = self.flight.room()
        if not full:
            return self.session.lost_at is None
        if self.session.lost_at is None and self.options.on_full == "raise":
            raise OverloadError(f"{self._too_much(full)}: the server does not keep up")
        return False

    def _too_much(self, full: int) -> str:
        flight = self.flight
        if full == 1:
            most = self.options.max_inflight_msgs
            return f"{flight.frames} frames are in flight, with max_inflight_msgs={most}"
        return f"{flight.bytes} bytes are in flight, and at most {flight.most_bytes} may be"

    def wait(self, timeout: float | None) -> None:
        """Waits until everything added so far is acked."""
        if self.session.forked:
            self.check()
        upto = int(self.outbox.next)
        self._wait_for(lambda: self.flight.acked >= upto, timeout, "acks", upto)

    @property
    def pending(self) -> int:
        """Items not acked yet."""
        return self.session.pending

    @property
    def resends(self) -> int:
        """Frames that were sent again after a reconnect."""
        return self.session.resends

    def check(self) -> None:
        """Raises if the link is closed or failed."""
        self.session.check()

    # -- waiting ------------------------------------------------------------------------------

    def _wait_for(
        self,
        attempt: Callable[[], bool],
        timeout: float | None,
        what: str,
        upto: int = _NOTHING,
    ) -> None:
        """Tries something with the lock until it succeeds; waits in between, without the lock.

        Is woken also by acks of items below `upto`. Ends on failure, on a server that stays away,
        on the deadline.
        """
        session = self.session
        began = lost_since = time.monotonic()
        while True:
            with self.lock:
                seen = self.flight.changes
                if session.stopped or what != "acks" or session.failure is not None:
                    self.check()
                if attempt():
                    return
                now = time.monotonic()
                if not session.troubled(now):
                    lost_since = now
                self._check_patience(now - lost_since, now - began, timeout, what)
                session.kick()
            left = _SLICE_S if timeout is None else min(_SLICE_S, began + timeout - now)
            self.flight.wait(seen, upto, left)

    def _check_patience(
        self, lost_s: float, waited_s: float, timeout: float | None, what: str
    ) -> None:
        session, most = self.session, self.options.reconnect_s
        if lost_s >= most and session.troubled(time.monotonic()):
            raise ConnectionClosedError(
                f"the connection to {self.address.host}:{self.address.port} was lost "
                f"({session.cause}), and the server did not come back within {most} s; "
                f"{self.pending} items are not acked yet"
            )
        if timeout is not None and waited_s >= timeout:
            raise TimeoutError(f"no {what} within {timeout} s: {self.pending} items are not acked")

    # -- requests -----------------------------------------------------------------------------

    def request(self, kind: int, payload: bytes, timeout: float | None) -> tuple[int, bytes]:
        """Asks, and waits for the answer: its type and payload."""
        kind, _, answer = self.collect(self.ask(kind, payload, timeout=timeout), timeout)
        return kind, answer

    def ask(
        self, kind: int, payload: bytes, number: int | None = None, timeout: float | None = None
    ) -> Request:
        """Sends a request, for as long as it is held; waits while the server would refuse it."""
        requests, asked = self.session.requests, None

        def attempt() -> bool:
            nonlocal asked
            if not requests.may_ask(kind, len(payload)):
                return False
            asked = requests.ask(self.flight, kind, payload, number)
            self.session.kick()
            return True

        self._wait_for(attempt, timeout, "answers")
        assert asked is not None
        return asked

    def collect(self, asked: Request, timeout: float | None) -> tuple[int, int, bytes]:
        """Waits for a request's answer: its type, number and payload."""
        self._wait_for(lambda: asked.answer is not None, timeout, "answer")
        assert asked.answer is not None
        return asked.answer

    # -- the end ------------------------------------------------------------------------------

    def close(self, timeout: float | None) -> None:
        """Sends what is left, waits for its acks, says goodbye."""
        session = self.session
        with self.lock:
            if session.closing:
                return
            session.closing, session.ready = True, False
            session.told = True  # what is missing, by an exception
        self.flight.close()
        try:
            if self.pending:
                self.wait(timeout)
            if session.lost_at is None:
                self.flight.ask(wire.frame(Type.BYE))
                session.kick()
                session.bye.wait(1.0)
        finally:
            session.stopped = True
            self.flight.stop()
            self.flight.notify()
            session.wake()
            session.thread.join(5.0)
