"""Who gets in: connections are accepted while there are descriptors and memory for them.

    listening socket -> Acceptor -> (TLS handshake) -> protocol

Anybody can connect, so what happens before a peer has proven anything is bounded here.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..wire import log

__all__ = ["Acceptor", "raise_descriptor_limit"]

_AT_ONCE = 64  # accepted in one turn of the loop
_HANDSHAKES = 128  # of TLS at a time: each has some 300 kB
_HANDSHAKE_S = 1.0  # that each of them has while others wait
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0  # when the system has no descriptor or memory left
_EPISODE_S = 30.0  # without such trouble: the next one is worth a line again
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_SPARE_DESCRIPTORS = 1024  # files, storages and the like

# Nobody forks between the moment in which the system gives a connection out and that in which its
# acceptor knows of it: the child could not close its copy.
_forking = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_forking.acquire,
        after_in_parent=_forking.release,
        after_in_child=_forking.release,
    )


class Acceptor:
    """Accepts from one socket. Belongs to its loop's thread.

    Args:
        loop: asyncio's own, or uvloop's.
        listening: a listening socket, which is closed with it.
        factory: makes the protocol of a connection.
        tls: None: connections are not encrypted.
        handshake_s: how long a TLS handshake may take.
        rejected: called with a reason for each peer that was turned away.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        factory: Callable[[], Any],
        tls: ssl.SSLContext | None,
        handshake_s: float,
        rejected: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._factory = factory
        self._tls = tls
        self._handshake_s = handshake_s
        self._rejected = rejected
        self._handshakes: dict[asyncio.Task[None], float] = {}  # and since when, oldest first
        self._coming: set[socket.socket] = set()  # accepted, and not a protocol's yet
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = _PAUSE_S
        self._troubled = -_EPISODE_S
        self._reading = self._closed = False
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        self._closed = True
        self._stop_reading()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._handshakes):
            task.cancel()
        self._listening.close()

    def fork(self) -> None:
        """In a forked child, which has no part in this: closes its copies of the sockets."""
        self._listening.close()
        for sock in self._coming:
            sock.close()

    def _resume(self) -> None:
        self._timer = None
        if not self._reading and not self._closed:
            self._reading = True
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._listening.fileno())

    def _rest(self, seconds: float, then: Callable[[], None]) -> None:
        """Accepts nobody for a while: who comes waits in the system's queue."""
        self._stop_reading()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, then)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if self._tls is not None and len(self._handshakes) >= _HANDSHAKES:
                oldest = next(iter(self._handshakes.values()))
                left = oldest + _HANDSHAKE_S - time.monotonic()
                self._rest(max(left, 0.0), self._make_way)
                return
            try:
                with _forking:
                    sock, _ = self._listening.accept()
                    self._coming.add(sock)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._exhausted(error)
                return
            self._pause_s = _PAUSE_S
            self._admit(sock)

    def _exhausted(self, error: OSError) -> None:
        """To try at once again would be all this process does."""
        now = time.monotonic()
        self._rejected("descriptors")
        if now - self._troubled > _EPISODE_S:
            log.warning(
                "cannot accept connections (%s): they wait. Raise the limit of open files "
                "(ulimit -n) of the server's process",
                error.strerror,
            )
        self._troubled = now
        self._rest(self._pause_s, self._resume)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._connect(sock))
        self._handshakes[task] = time.monotonic()
        task.add_done_callback(partial(self._done, sock))

    async def _connect(self, sock: socket.socket) -> None:
        timeout_s = None if self._tls is None else self._handshake_s
        try:
            await self._loop.connect_accepted_socket(
                self._factory,
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=timeout_s,
            )
        except (OSError, asyncio.CancelledError):
            sock.close()
            self._rejected("tls" if self._tls is not None else "lost")
        finally:
            self._coming.discard(sock)

    def _done(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        del self._handshakes[task]
        if sock in self._coming:  # cancelled before it began
            self._coming.discard(sock)
            sock.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection could not be made", exc_info=error)
        if not self._reading and len(self._handshakes) == _HANDSHAKES - 1:
            self._resume()

    def _make_way(self) -> None:
        """Others wait: the oldest handshake has had its time."""
        self._timer = None
        if len(self._handshakes) >= _HANDSHAKES:
            next(iter(self._handshakes)).cancel()
        self._resume()


def raise_descriptor_limit(connections: int) -> None:
    """Lets this process open as many files as that takes, if the system allows it."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # not allowed here: connections wait where it ends
