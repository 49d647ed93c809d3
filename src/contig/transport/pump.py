"""Input and output of a link over one socket, in the link's thread."""

from __future__ import annotations

import json
import selectors
import socket
import ssl
import time
from typing import TYPE_CHECKING

from .. import _native
from .handshake import Accepted, raise_refusal
from .wire import Type

if TYPE_CHECKING:
    from .link import Link

__all__ = ["COALESCE_S", "Pump"]

COALESCE_S = 0.002  # how long an open frame waits for more while others are in flight


class Pump:
    """Input and output over one socket, until it breaks or the link is closed."""

    def __init__(self, link: Link, connection: Accepted) -> None:
        self._link = link
        self._sock = connection.sock
        self._receiver = connection.receiver
        self._sock.setblocking(False)
        self._wait = self._exchange
        if isinstance(self._sock, ssl.SSLSocket) or not _native.CAN_EXCHANGE:
            self._wait = self._select
        self._sending: list[memoryview] = []
        self._opened_at: float | None = None
        self._leaving = False

    def run(self) -> None:
        link = self._link
        self._read()  # what came with the handshake
        while not link._stopped and not self._leaving:
            if not self._sending:
                self._fill()
            readable, woken = self._wait()
            link.idle = False
            if woken:
                _drain(link._wake_out)
            if readable:
                self._read()

    def _fill(self) -> None:
        with self._link.lock:
            parts, self._opened_at = self._link.next_parts(self._opened_at)
        self._sending = [memoryview(p) for p in parts]

    def _patience(self) -> float:
        """How long to wait for something to send; negative: for ever."""
        link = self._link
        with link.lock:
            if self._opened_at is not None:
                return max(self._opened_at + COALESCE_S - time.monotonic(), 0.0)
            if link.has_more:
                return 0.0
            link.idle = True
            return -1.0

    def _exchange(self) -> tuple[bool, bool]:
        """Sends what there is to send, or waits; whether something came, and who was woken."""
        patience = -1.0 if self._sending else self._patience()
        sock, wake = self._sock.fileno(), self._link._wake_out.fileno()
        sent, readable, woken = _native.exchange(sock, wake, self._sending, patience)
        self._sent(sent)
        return readable, woken

    def _select(self) -> tuple[bool, bool]:
        """The same, in Python: of a TLS socket only the library knows what can be sent."""
        self._send_some()
        patience = -1.0 if self._sending else self._patience()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._sending else 0)
        wake = self._link._wake_out
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, wanted)
            selector.register(wake, selectors.EVENT_READ)
            ready = selector.select(None if patience < 0 else patience)
        came = [key.fileobj for key, events in ready if events & selectors.EVENT_READ]
        return self._sock in came, wake in came

    def _send_some(self) -> None:
        try:
            while self._sending:
                self._sent(self._sock.send(self._sending[0]))
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass

    def _sent(self, nbytes: int) -> None:
        done = 0
        while done < len(self._sending) and nbytes >= len(self._sending[done]):
            nbytes -= len(self._sending[done])
            done += 1
        del self._sending[:done]
        if nbytes:
            self._sending[0] = self._sending[0][nbytes:]

    def _read(self) -> None:
        receiver = self._receiver
        while True:
            while (state := receiver.next()) == 1:
                self._frame(receiver.type, receiver.number)
                receiver.pop()
            if state == 2:
                receiver.resize(receiver.needed)
            elif state == 3:
                raise ConnectionError(f"the server's frame was refused: {receiver.refusal}")
            try:
                n = self._sock.recv_into(receiver.room())
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if n == 0:
                raise ConnectionResetError("the server closed the connection")
            receiver.received(n)

    def _frame(self, kind: int, number: int) -> None:
        link = self._link
        if kind == Type.ACK:
            with link.lock:
                link.took(number)
        elif kind == Type.BYE:
            if not link._closing or link.pending:
                raise _Goodbye("the server was closed")
            link._bye.set()
            self._leaving = True
        elif kind == Type.REFUSE:
            try:
                raise_refusal(json.loads(self._receiver.payload()))
            except ConnectionError as error:
                raise _Goodbye(str(error)) from error
        else:
            link.answered(kind, number, self._receiver.payload())


class _Goodbye(Exception):
    """The server ended the connection in good order: there is nothing to come back to."""


def _drain(sock: socket.socket) -> None:
    try:
        while sock.recv(4096):
            pass
    except (BlockingIOError, OSError):
        pass
