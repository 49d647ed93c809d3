"""The ingest process, as its server sees it: started, talked to, watched, started again."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

from ..errors import ServerError
from ..process.spawn import Child, describe_exit
from ..wire import log
from .sampling_service import SamplingService

__all__ = ["IngestProcess"]

_START_S = 30.0
_STOP_S = 5.0


class IngestProcess:
    """A child process that holds the sockets. Thread-safe.

    Args:
        config: what it is told at its start, see `Ingest`.
        listening: the socket it accepts from; it stays open here, so that a restarted process
            takes over what clients find.
        fds: descriptors of storages it needs.
        service: answers its requests.
        max_restarts: how often it is started again after it died.
    """

    def __init__(
        self,
        config: dict[str, Any],
        listening: socket.socket,
        fds: list[int],
        service: SamplingService,
        max_restarts: int,
    ) -> None:
        self.config = config
        self.restarts = 0
        self._listening = listening
        self._fds = fds
        self._service = service
        self._max_restarts = max_restarts
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._stopping = False
        self._failure: str | None = None
        self._told: str | None = None  # the traceback it sent before it died
        self._answers: dict[int, Any] = {}  # to questions that somebody waits for
        self._asked = 0
        self._arrived = threading.Condition()
        self._last_stats: dict[str, Any] | None = None
        self._counters: dict[str, Any] | None = None  # where a restarted process goes on
        self._start()
        self._watcher = threading.Thread(target=self._watch, name="contig-ingest", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def _start(self) -> None:
        service = self._service.attach()
        child = Child(
            "contig.server.ingest",
            inherited=[service.fileno(), self._listening.fileno(), *self._fds],
            environment={"OPENBLAS_NUM_THREADS": "1"},
            isolated=True,
        )
        told = {
            "service": service.fileno(),
            "listening": self._listening.fileno(),
            "parent": os.getpid(),
            "counters": self._counters,
        }
        service.close()
        self._ready = threading.Event()
        self._told = None
        self._reader = threading.Thread(target=self._read, args=(child,), name="contig-control")
        self._reader.daemon = True
        self._reader.start()
        with self._lock:  # before anything that others tell it, and with what they have told
            self._child = child
            self._tell({**self.config, **told})
        deadline = time.monotonic() + _START_S
        while not self._ready.wait(0.05) and not self._stopping:
            if child.process.poll() is not None:
                time.sleep(0.05)  # what it said last may be on its way
                raise ServerError(f"the ingest process did not start:\n{self._told or '(silent)'}")
            if time.monotonic() > deadline:
                child.kill()
                raise ServerError(f"the ingest process did not start within {_START_S} s")

    def _send(self, content: dict[str, Any]) -> None:
        with self._lock:
            self._tell(content)

    def _tell(self, content: dict[str, Any]) -> None:
        """With the lock."""
        try:
            self._child.channel.send(content)
        except OSError:
            pass  # it is gone; `check` says so

    def _read(self, child: Child) -> None:
        while (message := child.channel.receive()) is not None:
            said = message.content
            if said["op"] == "ready":
                self._ready.set()
            elif said["op"] == "failed":
                self._told = said["error"]
            elif said["op"] == "counted":
                self._counters = said["counters"]
            else:
                with self._arrived:
                    self._last_stats = said["stats"]
                    if said.get("id") in self._answers:
                        self._answers[said["id"]] = said["stats"]
                    self._arrived.notify_all()
        child.close()  # it is gone; `_watch` notices

    def _watch(self) -> None:
        """Waits for the process's end; starts another one if that is allowed."""
        while True:
            code = self._child.process.wait()
            if self._stopping:
                return
            time.sleep(0.02)
            said = f":\n{self._told}" if self._told else ""
            if self.restarts >= self._max_restarts:
                self._failure = (
                    f"the ingest process (pid {self.pid}) died: {describe_exit(code)}{said}"
                )
                return
            self.restarts += 1
            log.warning(
                "the ingest process (pid %d) died (%s) and is started again, %d of %d times%s",
                *(self.pid, describe_exit(code), self.restarts, self._max_restarts, said),
                extra={"event": "restart", "died": self.pid, "restarts": self.restarts},
            )
            with self._starting:
                if self._stopping:
                    return
                try:
                    self._start()
                except ServerError:
                    pass  # it died again: the next turn of the loop counts that

    def check(self) -> None:
        """Raises ServerError if the process died and is not coming back."""
        if self._failure is not None:
            raise ServerError(self._failure)

    def tell(self, **content: Any) -> None:
        self._send(content)

    def show(self, board: Any, name: str) -> None:
        """The board that weights are published on; a restarted process gets it too."""
        with self._lock:  # or one that is started just now hears of it in neither way
            self.config["board"] = name
            self._tell({"op": "board", "name": name})

    def stats(self, timeout_s: float = 5.0) -> dict[str, Any]:
        """Its counters now; of a process that does not answer, what it said last."""
        with self._arrived:
            self._asked += 1
            asked = self._asked
            self._answers[asked] = None
        self._send({"op": "stats", "id": asked})
        deadline = time.monotonic() + timeout_s
        try:
            with self._arrived:
                while self._answers[asked] is None:
                    left = deadline - time.monotonic()
                    if left <= 0 or self._failure is not None or self._stopping:
                        return self._last_said()
                    self._arrived.wait(min(left, 0.1))
                return dict(self._answers[asked])
        finally:
            self._answers.pop(asked, None)

    def _last_said(self) -> dict[str, Any]:
        """When it was last asked; and what it has counted since, which it says by itself."""
        known, last = self._counters or {}, self._last_stats or {}
        stopped = self._stopping and "uptime_s" in last  # its last word
        return {**known, **last} if stopped else {**last, **known}

    def stop(self, final: bool) -> None:
        """Ends it; clients are told only if it is `final`."""
        self._stopping = True
        with self._starting:
            self._send({"op": "stop", "final": final})
            self._child.end(_STOP_S)
            self._reader.join(_STOP_S)  # what it said last
        self._watcher.join(_STOP_S)
