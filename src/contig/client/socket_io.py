"""Input and output over one socket, in the session's thread: sends what is in flight, hears acks,
and hands over every frame that is something else.

    plain sockets                             one native call does it all: native/wire/inflight.cpp
    TLS; sockets that are no descriptors      the same loop in Python: PythonLoop

Either ends when the session is to end, and raises OSError when the connection is lost.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator
from typing import NoReturn

from .._native import Inflight, Received, Receiver
from ..wire import Type, frame
from ..wire.pulse import Pulse
from .connecting import Connected

__all__ = ["received_frames"]

_GONE = "the server closed the connection"

Frame = tuple[int, int, bytes]  # type, number and payload
Frames = Iterator[Frame]
Ending = Generator[Frame, None, int]  # and why there are no more


def received_frames(
    connection: Connected,
    inflight: Inflight,
    wake: socket.socket,
    goodbye: Callable[[], bytes] = lambda: frame(Type.BYE),
) -> Frames:
    """Frames that are neither acks nor beats, until the session is to end.

    Bytes at `wake` mean that there is something to do; `goodbye` is what a session says that nobody
    closes.
    """
    connection.sock.setblocking(False)
    natively = inflight.can_run() and not isinstance(connection.sock, ssl.SSLSocket)
    loop = _natively if natively else _in_python
    if (yield from loop(connection, inflight, wake)) == Inflight.Event.DRAINED:
        _say(goodbye(), connection.sock)


def _in_python(connection: Connected, inflight: Inflight, wake: socket.socket) -> Ending:
    return (yield from PythonLoop(connection, inflight, wake).frames())


def _natively(connection: Connected, inflight: Inflight, wake: socket.socket) -> Ending:
    sock, receiver, Event = connection.sock, connection.receiver, Inflight.Event
    while (event := inflight.run(sock.fileno(), wake.fileno(), receiver)) == Event.FRAME:
        yield receiver.type, receiver.number, receiver.payload()
        receiver.pop()
    if event == Event.REFUSED:
        _refuse(receiver)
    if event == Event.CLOSED:
        raise ConnectionResetError(_GONE)
    if event == Event.SILENT:
        _give_up(Pulse(connection.accepted.heartbeat_s))
    return event


class PythonLoop:
    """The loop of `native/wire/inflight.cpp`, for what only Python can read and write."""

    def __init__(self, connection: Connected, inflight: Inflight, wake: socket.socket) -> None:
        self._sock, self._receiver, self._wake = connection.sock, connection.receiver, wake
        self._inflight = inflight
        self._pulse = Pulse(connection.accepted.heartbeat_s)
        self._sending: list[memoryview] = []

    def frames(self) -> Ending:
        yield from self._read()  # what came with the handshake
        while (event := self._inflight.ended()) is None:
            if not self._sending:
                self._sending = [memoryview(part) for part in self._inflight.next_parts()]
            if not self._sending and self._pulse.due(time.monotonic()):
                self._sending = [memoryview(frame(Type.BEAT))]
            readable, woken = self._wait()
            self._inflight.rouse()
            if woken:
                _drain(self._wake)
            if readable:
                yield from self._read()
            if self._pulse.silent(time.monotonic()):
                _give_up(self._pulse)
        return event

    def _wait(self) -> tuple[bool, bool]:
        """Sends what there is to send, or waits; whether something came, and who was woken."""
        some = bool(self._sending)
        self._send_some()
        wanted, patience = selectors.EVENT_READ, 0.0
        if self._sending:
            wanted, patience = wanted | selectors.EVENT_WRITE, -1.0
        elif not some:
            patience = self._inflight.patience()
        bounds = [self._inflight.time_left()]
        beat = self._pulse.patience(time.monotonic(), not self._sending)
        if beat is not None:
            bounds.append(beat)
        if patience >= 0:
            bounds.append(patience)
        most = min(bounds)
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, wanted)
            selector.register(self._wake, selectors.EVENT_READ)
            ready = selector.select(None if most == float("inf") else most)
        came = [key.fileobj for key, events in ready if events & selectors.EVENT_READ]
        # What the TLS library has read ahead, no selector knows of.
        ahead = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0
        return self._sock in came or ahead, self._wake in came

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

    def _read(self) -> Frames:
        receiver = self._receiver
        while True:
            while (state := receiver.next()) is Received.READY:
                if receiver.type == Type.ACK:
                    self._inflight.ack(receiver.number)
                elif receiver.type != Type.BEAT:
                    yield receiver.type, receiver.number, receiver.payload()
                receiver.pop()
            if state is Received.GROW:
                receiver.resize(receiver.needed)
            elif state is not Received.MORE:
                _refuse(receiver)
            try:
                n = self._sock.recv_into(receiver.room())
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if n == 0:
                raise ConnectionResetError(_GONE)
            self._pulse.heard = time.monotonic()
            receiver.received(n)


def _say(goodbye: bytes, sock: socket.socket) -> None:
    """Everything is acked and nobody waits: if the server does not hear this, nothing that was
    sent is lost."""
    try:
        sock.send(goodbye)
    except OSError:
        pass


def _refuse(receiver: Receiver) -> NoReturn:
    raise ConnectionError(f"the server's frame was refused: {receiver.refusal}")


def _give_up(pulse: Pulse) -> NoReturn:
    raise ConnectionResetError(pulse.verdict("the server"))


def _drain(sock: socket.socket) -> None:
    try:
        while sock.recv(4096):
            pass
    except (BlockingIOError, OSError):
        pass
