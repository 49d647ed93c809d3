"""A client's session with a server, as callers see it: adds items, waits for acks and answers.

    any thread: FrameBuilder <- items     its own thread: Inflight -> socket -> acks -> wake

Whatever callers do to what its thread knows they do with its lock, in one go. To wait, they let go
of it; each attempt takes it anew, so that no signal in between can leave it in the wrong hands.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable

from ..errors import ConnectionClosedError, OverloadError
from ..process.lifetime import EXIT_S
from .connecting import ServerAddress
from .requests import PendingRequest
from .session_thread import SessionThread

__all__ = ["Session"]

_SLICE_S = 0.1
_NOTHING = 2**63  # more items than there will be


class Session:
    """One connection that lasts. Thread-safe.

    One that is dropped without `close` has what it held sent by its thread, which then ends.

    Args:
        thread: its own, not started yet.
    """

    def __init__(self, thread: SessionThread) -> None:
        self.thread, self.options = thread, thread.options
        self.lock, self.inflight = thread.lock, thread.inflight
        self.builder, self.frame_bytes = thread.inflight.builder, thread.frame_bytes
        self.ndim, self.max_frame = thread.first.accepted.ndim, thread.first.max_frame
        self.max_row = thread.first.accepted.max_row
        self.blocked = 0
        weakref.finalize(self, thread.leave, EXIT_S).atexit = False  # `lifetime` does that
        thread.start()

    def be_patient(self, reconnect_s: float) -> None:
        """How long calls wait for a lost server from now on."""
        options = self.options._replace(reconnect_s=reconnect_s)
        self.options = self.thread.options = options

    @property
    def address(self) -> ServerAddress:
        """Where the server is."""
        return self.thread.address

    # -- items --------------------------------------------------------------------------------

    def add(self, put: Callable[[], object]) -> None:
        """Has an item added, with the lock, as soon as there is room for it.

        Raises:
            ConnectionClosedError: the server is gone, and did not come back in time.
            OverloadError: too much is in flight, and the client was told to raise.
        """
        with self.lock:
            self.check()
            full = self.inflight.room()
            if self.thread.ready and not full:
                put()
                self.thread.kick()
                return
            self.blocked += bool(full)

        def attempt() -> bool:
            if not self._has_room():
                return False
            put()
            self.thread.kick()
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
            self.thread.kick()
        finally:
            self.lock.release()

    def _has_room(self) -> bool:
        full = self.inflight.room()
        if not full:
            return self.thread.lost_at is None
        if self.thread.lost_at is None and self.options.on_full == "raise":
            raise OverloadError(f"{self._too_much(full)}: the server does not keep up")
        return False

    def _too_much(self, full: int) -> str:
        inflight = self.inflight
        if full == 1:
            most = self.options.max_inflight_msgs
            return f"{inflight.frames} frames are in flight, with max_inflight_msgs={most}"
        return f"{inflight.bytes} bytes are in flight, and at most {inflight.most_bytes} may be"

    def wait(self, timeout: float | None) -> None:
        """Waits until everything added so far is acked."""
        if self.thread.forked:
            self.check()
        upto = self.builder.next
        self._wait_for(lambda: self.inflight.acked >= upto, timeout, "acks", upto)

    def check(self) -> None:
        """Raises if it is closed or failed."""
        self.thread.check()

    def is_there(self) -> bool:
        """Whether the server is, at the moment; for who waits in pieces of his own.

        Raises:
            ConnectionClosedError: it has been away for `reconnect_s`.
        """
        with self.lock:
            self.check()
            lost_at = self.thread.lost_at
            if lost_at is not None:
                self._check_patience(time.monotonic() - lost_at, 0.0, None, "server")
            return lost_at is None

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
        thread = self.thread
        began = lost_since = time.monotonic()
        while True:
            with self.lock:
                seen = self.inflight.changes
                if thread.stopped or what != "acks" or thread.failure is not None:
                    self.check()
                if attempt():
                    return
                now = time.monotonic()
                if not thread.troubled(now):
                    lost_since = now
                self._check_patience(now - lost_since, now - began, timeout, what)
                thread.kick()
            left = _SLICE_S if timeout is None else min(_SLICE_S, began + timeout - now)
            self.inflight.wait(seen, upto, left)

    def _check_patience(
        self, lost_s: float, waited_s: float, timeout: float | None, what: str
    ) -> None:
        thread, most = self.thread, self.options.reconnect_s
        if lost_s >= most and thread.troubled(time.monotonic()):
            raise ConnectionClosedError(
                f"the connection to {self.address.host}:{self.address.port} was lost "
                f"({thread.cause}), and the server did not come back within {most} s; "
                f"{self.thread.pending} items are not acked yet"
            )
        if timeout is not None and waited_s >= timeout:
            raise TimeoutError(
                f"no {what} within {timeout} s: {self.thread.pending} items are not acked"
            )

    # -- requests -----------------------------------------------------------------------------

    def request(self, kind: int, payload: bytes, timeout: float | None) -> tuple[int, bytes]:
        """Asks, and waits for the answer: its type and payload."""
        kind, _, answer = self.collect(self.ask(kind, payload, timeout=timeout), timeout)
        return kind, answer

    def ask(
        self, kind: int, payload: bytes, number: int | None = None, timeout: float | None = None
    ) -> PendingRequest:
        """Sends a request, for as long as it is held; waits while the server would refuse it."""
        requests, asked = self.thread.requests, None

        def attempt() -> bool:
            nonlocal asked
            if not requests.may_ask(kind, len(payload)):
                return False
            asked = requests.ask(kind, payload, number)
            self.thread.kick()
            return True

        self._wait_for(attempt, timeout, "answers")
        assert asked is not None
        return asked

    def collect(self, asked: PendingRequest, timeout: float | None) -> tuple[int, int, bytes]:
        """Waits for a request's answer: its type, number and payload."""
        self._wait_for(lambda: asked.answer is not None, timeout, "answer")
        assert asked.answer is not None
        return asked.answer

    def take_first(self, line: deque[PendingRequest], timeout: float | None) -> PendingRequest:
        """Waits until one of some SAMPLE requests is answered, and removes the oldest that is: its
        batch is the caller's now. Batches that nobody takes are given back by `close`."""
        taken: PendingRequest | None = None

        def attempt() -> bool:
            nonlocal taken
            taken = next((asked for asked in list(line) if asked.answer is not None), None)
            if taken is not None:
                line.remove(taken)
                self.thread.requests.untaken.discard(taken.number)
            return taken is not None

        self._wait_for(attempt, timeout, "answer")
        assert taken is not None
        return taken

    def stand(self, published: PendingRequest, payload: bytes) -> None:
        """Has weights that were published be so on every server that comes back.

        Args:
            published: the request that published them.
            payload: of a request that publishes them as the version that they got.
        """
        with self.lock:
            self.thread.requests.stand(published, payload)

    # -- the end ------------------------------------------------------------------------------

    def close(self, timeout: float | None) -> None:
        """Sends what is left, waits for its acks, says goodbye."""
        thread = self.thread
        with self.lock:
            if thread.closing:
                return
            thread.closing, thread.ready = True, False
            thread.told = True  # what is missing, by an exception
        self.inflight.close()
        try:
            if self.thread.pending:
                self.wait(timeout)
            with self.lock:
                thread.goodbye = thread.lost_at is None
                if thread.goodbye:
                    self.inflight.ask(thread.requests.goodbye())
            if thread.goodbye:
                thread.kick()
                thread.bye.wait(1.0)
        finally:
            thread.stop()
            thread.join(5.0)
