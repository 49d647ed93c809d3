"""Input and output of a session over one socket, in the session's thread."""

from __future__ import annotations

import json
import selectors
import socket
import ssl
import time
from typing import TYPE_CHECKING, NoReturn

from .._native import InflightEvent, Received
from ..wire import Type, frame
from ..wire.heartbeat import Pulse
from .handshake import Accepted, raise_refusal

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Pump"]

_MORE, _READY, _GROW, _BAD = Received
_STOPPED, _FRAME, _REFUSED, _CLOSED, _FAILED, _SILENT, _DRAINED = InflightEvent


class Pump:
    """Input and output over one socket, until it breaks or the session ends.

    Natively where that can be; through `ssl`, and where sockets are not files, in Python.
    """

    def __init__(self, session: Session, connection: Accepted) -> None:
        self._session = session
        self._flight = session.flight
        self._sock = connection.sock
        self._receiver = connection.receiver
        self._pulse = Pulse(connection.heartbeat_s)
        self._sock.setblocking(False)
        encrypted = isinstance(self._sock, ssl.SSLSocket)
        self._native = self._flight.can_run() and not encrypted
        self._sending: list[memoryview] = []
        self._leaving = False

    def run(self) -> None:
        if self._native:
            self._run_natively()
        else:
            self._run()

    def _run_natively(self) -> None:
        sock, wake = self._sock.fileno(), self._session.wake_out.fileno()
        while not self._leaving:
            event = self._flight.run(sock, wake, self._receiver)
            if event == _STOPPED:
                return
            if event == _DRAINED:
                return self._say_goodbye()
            if event == _REFUSED:
                self._refuse()
            if event == _CLOSED:
                raise ConnectionResetError(_GONE)
            if event == _SILENT:
                raise ConnectionResetError(self._pulse.verdict("the server"))
            self._frame(self._receiver.type, self._receiver.number)
            self._receiver.pop()

    # -- in Python ----------------------------------------------------------------------------

    def _run(self) -> None:
        self._read()  # what came with the handshake
        while not self._session.over and not self._leaving:
            if not self._sending:
                self._sending = [memoryview(part) for part in self._flight.next_parts()]
            if not self._sending and self._pulse.due(time.monotonic()):
                self._sending = [memoryview(frame(Type.BEAT))]
            readable, woken = self._wait()
            self._flight.rouse()
            if woken:
                _drain(self._session.wake_out)
            if readable:
                self._read()
            if self._pulse.silent(time.monotonic()):
                raise ConnectionResetError(self._pulse.verdict("the server"))
        if not self._session.stopped and self._flight.drained:
            self._say_goodbye()

    def _wait(self) -> tuple[bool, bool]:
        """Sends what there is to send, or waits; whether something came, and who was woken."""
        some = bool(self._sending)
        self._send_some()
        wanted, patience = selectors.EVENT_READ, 0.0
        if self._sending:
            wanted, patience = wanted | selectors.EVENT_WRITE, -1.0
        elif not some:
            patience = self._flight.patience()
        now = time.monotonic()
        bounds = [self._pulse.patience(now, not self._sending), self._session.time_left(now)]
        if patience >= 0:
            bounds.append(patience)
        most = min((b for b in bounds if b is not None), default=None)
        wake = self._session.wake_out
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, wanted)
            selector.register(wake, selectors.EVENT_READ)
            ready = selector.select(most)
        came = [key.fileobj for key, events in ready if events & selectors.EVENT_READ]
        # What the TLS library has read ahead, no selector knows of.
        ahead = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0
        return self._sock in came or ahead, wake in came

    def _send_some(self) -> None:
        try:
            while self._sending:
                sent = self._sock.send(self._sending[0])
                self._pulse.spoke = time.monotonic()
                self._sending[0] = self._sending[0][sent:]
                if not self._sending[0]:
                    del self._sending[0]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass

    def _read(self) -> None:
        receiver = self._receiver
        while True:
            while (state := receiver.next()) is _READY:
                self._frame(receiver.type, receiver.number)
                receiver.pop()
            if state is _GROW:
                receiver.resize(receiver.needed)
            elif state is not _MORE:
                self._refuse()
            try:
                n = self._sock.recv_into(receiver.room())
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if n == 0:
                raise ConnectionResetError(_GONE)
            self._pulse.heard = time.monotonic()
            receiver.received(n)

    # -- both ---------------------------------------------------------------------------------

    def _frame(self, kind: int, number: int) -> None:
        session = self._session
        if kind == Type.ACK:
            self._flight.took(number)
        elif kind == Type.BYE:
            if not session.closing or session.pending:
                raise _Goodbye("the server was closed")
            session.bye.set()
            self._leaving = True
        elif kind == Type.REFUSE:
            raise_refusal(json.loads(self._receiver.payload()))
        elif kind != Type.BEAT:
            session.answered(kind, number, self._receiver.payload())

    def _say_goodbye(self) -> None:
        """Everything is acked and nobody waits: whether the server hears this does not matter."""
        try:
            self._sock.send(frame(Type.BYE))
        except OSError:
            pass

    def _refuse(self) -> NoReturn:
        raise ConnectionError(f"the server's frame was refused: {self._receiver.refusal}")


_GONE = "the server closed the connection"


class _Goodbye(Exception):
    """The server ended the connection in good order: there is nothing to come back to."""


def _drain(sock: socket.socket) -> None:
    try:
        while sock.recv(4096):
            pass
    except (BlockingIOError, OSError):
        pass
