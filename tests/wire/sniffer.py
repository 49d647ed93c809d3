"""A forwarding proxy that keeps what passes, and servers that are none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any


class Listener:
    """Accepts on a port of its own; each connection goes to `handle` in a thread."""

    def __init__(self, handle: Callable[[socket.socket], None] | None = None) -> None:
        self._handle = handle
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def handle(self, sock: socket.socket) -> None:
        assert self._handle is not None
        self._handle(sock)

    def _run(self, call: Any, *args: Any) -> None:
        thread = threading.Thread(target=call, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock = self._socket.accept()[0]
            except OSError:
                return
            self._keep(sock)
            self._run(self._serve, sock)

    def _keep(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.append(sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                self.handle(sock)
            except OSError:
                pass  # the other side has gone

    def cut(self) -> None:
        """Breaks every connection."""
        with self._lock:
            for sock in self._open:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self._open.clear()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.cut()
        for thread in self._threads:
            thread.join(60)


class Sniffer(Listener):
    """Forwards to `target`, a port of this machine.

    Attributes:
        sent, answered: what went to it, and what came back, of each connection.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.sent: list[bytearray] = []
        self.answered: list[bytearray] = []
        super().__init__()

    def handle(self, sock: socket.socket) -> None:
        self.sent.append(bytearray())
        self.answered.append(bytearray())
        with socket.create_connection(("127.0.0.1", self.target)) as onward:
            self._keep(onward)
            back = threading.Thread(target=_pass, args=(onward, sock, self.answered[-1]))
            back.start()
            _pass(sock, onward, self.sent[-1])
            back.join()


def _pass(source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
    try:
        while data := source.recv(1 << 16):
            seen += data
            sink.sendall(data)
    except OSError:
        pass
    for sock in (source, sink):
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
