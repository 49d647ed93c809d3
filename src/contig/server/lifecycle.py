"""What a server has running: its ingest side, port, tables and signs of life, and how they end.

Apart from the Server, which nothing here refers to: so one that nobody holds any more is noticed,
and ended as its `close` would have done it.
"""

from __future__ import annotations

import _thread
import atexit
import os
import socket
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ClosedError
from ..process import lifetime
from ..tape import BatchQueue
from ..tape.segment import Segment
from ..weights.board import WeightsBoard
from ..wire.announce import say_closed
from .ingest_process import IngestProcess
from .ingest_thread import IngestThread
from .sampling_service import SamplingService

if TYPE_CHECKING:
    from ..dashboard import Dashboard

__all__ = ["Lifecycle"]

_END_S = 15.0  # for the ends of servers that were dropped, when the process ends


class Lifecycle:
    """The parts of one server that have to be ended. Thread-safe.

    Attributes:
        queue: if it is one.
        board: where weights are published, once there are any.
        announcement: how it is found on its own host.
        ingest, service, listening, metrics, port: once it is started.
        dashboards: pages that show it.
        ending, closed: `close` was called; it is done with what may come in.
        pid: the process it belongs to.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: BatchQueue | None = None
        self.board: WeightsBoard | None = None
        self.announcement: Segment | None = None
        self.ingest: IngestProcess | IngestThread | None = None
        self.service: SamplingService | None = None
        self.listening: socket.socket | None = None
        self.metrics: socket.socket | None = None
        self.port: int | None = None
        self.unfeed: list[Callable[[], None]] = []
        self.dashboards: list[Dashboard] = []
        self.ending = self.closed = False
        self.pid = os.getpid()
        self._ended = threading.Event()

    def watch(self, server: object) -> None:
        """From now on it is ended with its process, or when nobody holds its server any more."""
        _running.add(self)
        weakref.finalize(server, self.drop).atexit = False

    def check_process(self) -> None:
        """Raises ClosedError in a forked child, which has no part in it."""
        if self.pid != os.getpid():
            raise ClosedError(
                f"this server belongs to process {self.pid}, and this is its forked child "
                f"{os.getpid()}: ask there, or give the child a client"
            )

    def check(self) -> None:
        """Raises ServerError if the ingest process died."""
        if self.ingest is not None:
            self.ingest.check()

    def close(self, final: bool) -> None:
        """Ends everything, once; in a forked child nothing, which is its parent's."""
        if self.ending or self.pid != os.getpid():
            return
        self.ending = True
        try:
            while self.dashboards:
                self.dashboards.pop().close()
            if self.ingest is not None:
                self.ingest.stop(final)
            self.closed = True  # only now: until here items may come in
            for end in self.unfeed:
                end()  # so that remote samples that wait for rows give up
            self.unfeed = []
            if self.service is not None:
                self.service.close()
            self.stop_listening()
            if self.queue is not None:
                self.queue.native.close()
                self.queue.close()
            if self.board is not None:
                self.board.close()
            if self.announcement is not None:
                say_closed(self.announcement)
                self.announcement.close()
        finally:
            _running.discard(self)
            self._ended.set()

    def stop_listening(self) -> None:
        """Closes the ports, as far as they are this process's."""
        for sock in (self.listening, self.metrics):
            if sock is not None:
                sock.close()

    def drop(self) -> None:
        """Nobody holds its server any more, and nobody closed it.

        The garbage collector may call it, anywhere: what takes a while is done in a thread, which
        is started without a lock.
        """
        if self.ending or self.pid != os.getpid():
            return
        if self.ingest is None:
            self.close(final=False)
            return
        _thread.start_new_thread(self._end, ())
        warnings.warn(
            f"the server {self.name!r} on port {self.port} was dropped without close(): it is "
            "ended now, and clients come back for their reconnect_s; use `with Server(...)`, or "
            "keep it for as long as it is needed",
            ResourceWarning,
            stacklevel=2,
        )

    def _end(self) -> None:
        """In a bare thread, which a thread of its own kind takes over from."""
        threading.Thread(target=self.close, args=(False,), name="contig-end", daemon=True).start()

    def await_end(self, timeout_s: float) -> None:
        """Waits for another thread's `close`."""
        self._ended.wait(timeout_s)

    def fork(self) -> None:
        """In a forked child: the port and the sign of life are the parent's."""
        self.stop_listening()
        if self.announcement is not None:
            self.announcement.close()
        if isinstance(self.ingest, IngestThread):
            self.ingest.fork()


_running: set[Any] = set()  # not their servers


@atexit.register
def _close_all() -> None:
    """Ends the threads of servers that nobody closed, while there still is an interpreter."""
    lifetime.flush_all()  # clients of the same process come first
    for running in list(_running):
        if running.ending:
            running.await_end(_END_S)
        else:
            running.close(final=False)


def _forked() -> None:
    for running in list(_running):
        running.fork()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
