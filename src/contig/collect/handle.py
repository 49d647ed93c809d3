"""A worker process, as its collector sees it."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from .job import Job, Page
from .protocol import Channel, Message

__all__ = ["Event", "Handle"]

_TRACE_S = 1.0
_STOP_S = 3.0


class Event(NamedTuple):
    """Something a worker said; None for its end."""

    handle: Handle
    message: Message | None


class Handle:
    """One worker process. Started by the constructor.

    Args:
        job: its work.
        events: where what it says is put, by a thread.

    Attributes:
        asked: rows of the stretch it was told to collect, or None while it has nothing to do.
        stretches: how many it said it finished.
    """

    def __init__(self, job: Job, events: queue.SimpleQueue[Event]) -> None:
        import cloudpickle

        self.number = job.number
        self.ready = False
        self.asked: int | None = None
        self.said: str | None = None  # the traceback it sent before it ended
        self.dead = False
        self.stretches = 0
        self._seen = (0, time.monotonic())  # the page's word, and since when it is that
        raw = cloudpickle.dumps(job)
        self.page = Page.create()
        self._trace = os.memfd_create("contig-trace", os.MFD_CLOEXEC)
        mine, theirs = socket.socketpair()
        inherited = [job.board] if job.board >= 0 else []
        if job.address is not None and job.address.fd >= 0:
            inherited.append(job.address.fd)
        fds = [theirs.fileno(), self.page.fd, self._trace]
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        one = {name: os.environ.get(name, "1") for name in _THREADS}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "contig.collect.worker", *map(str, fds)],
            pass_fds=[*fds, *inherited],
            env={**os.environ, **one, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._channel = Channel(mine)
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read, args=(events,), name="contig-worker")
        self._reader.daemon = True
        self._reader.start()
        self._send({"op": "job", "path": sys.path}, raw)

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self, events: queue.SimpleQueue[Event]) -> None:
        while (message := self._channel.receive()) is not None:
            events.put(Event(self, message))
        events.put(Event(self, None))

    def _send(self, content: dict[str, Any], raw: Any = b"") -> None:
        try:
            with self._sending:
                self._channel.send(content, raw)
        except OSError:
            pass  # it is gone; its event says so

    def collect(self, rows: int) -> None:
        """Tells it to collect that many rows of each lane."""
        self.asked = rows
        self._seen = (self.page.now, time.monotonic())
        self._send({"op": "collect", "rows": rows})

    def finish(self) -> None:
        """Tells it that all frames are there."""
        self.asked = 0
        self._send({"op": "finish"})

    # -- faults -------------------------------------------------------------------------------

    def hangs(self, step_s: float, reset_s: float) -> str | None:
        """What it has been doing for too long, or None."""
        now, clock = self.page.now, time.monotonic()
        if now != self._seen[0]:
            self._seen = (now, clock)
            return None
        stage, since = now & 3, clock - self._seen[1]
        if stage == Page.STEPPING and since > step_s:
            return f"hangs in env.step for more than step_timeout_s={step_s}"
        if stage == Page.RESETTING and since > reset_s:
            return f"hangs in env.reset for more than {reset_s} s"
        return None

    def traceback(self) -> str:
        """Where its threads are now, asked for by a signal that needs no cooperation."""
        before = os.fstat(self._trace).st_size
        try:
            self.process.send_signal(signal.SIGUSR1)
        except ProcessLookupError:
            return "(it is gone)"
        deadline = time.monotonic() + _TRACE_S
        size = before
        while time.monotonic() < deadline:
            time.sleep(0.02)
            last, size = size, os.fstat(self._trace).st_size
            if size > before and size == last:
                break
        text = os.pread(self._trace, size - before, before).decode(errors="replace")
        return text or "(it does not answer)"

    def describe_end(self) -> str:
        """Why it ended, once its socket has."""
        try:
            code = self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        reason = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        if self.said is not None:
            return f"failed:\n{self.said}"
        return f"died: {reason}"

    # -- end ----------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        self._send({"op": "stop"})

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Waits for its end; kills it if that does not come."""
        if self.dead:
            return
        self.dead = True
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._channel.close()
        self._reader.join(_STOP_S)
        self.page.close()
        os.close(self._trace)

    def kill(self) -> None:
        if not self.dead:
            self.process.kill()
            self.stop()


# Each worker computes with one thread, unless the environment says otherwise: there are many.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
