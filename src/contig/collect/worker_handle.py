"""A worker process, as its collector sees it."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from ..process.channel import Channel, Message
from ..process.heartbeat import LIMITS, Heartbeat, Stage
from ..process.trace import Trace
from .worker_spec import WorkerSpec

__all__ = ["Event", "WorkerHandle"]

_STOP_S = 3.0
_LOOKS = 5
_LOOK_S = 0.1
_SILENT_S = 4.0  # a process that waits shows several times a second that it runs
_COPYING_S = (
    20.0  # our own code copies batches, which may be very large, and nothing runs meanwhile
)
_BOOT_S = 120.0  # until the interpreter and what the job needs is loaded


class Event(NamedTuple):
    """Something a worker said; None for its end."""

    handle: WorkerHandle
    message: Message | None


class WorkerHandle:
    """One worker process. Started by the constructor.

    Args:
        job: its work.
        events: where what it says is put, by a thread.

    Attributes:
        asked: frames of the stretch it was told to collect, or None while it has nothing to do.
        owed: frames it has to collect for the worker that it replaces, once told to.
        collected: frames of the stretches it finished.
        received: rows of the batches it sent.
        stretches: how many it said it finished.
    """

    def __init__(self, job: WorkerSpec, events: queue.SimpleQueue[Event]) -> None:
        import cloudpickle

        self.number = job.number
        self.ready = False
        self.asked: int | None = None
        self.said: str | None = None  # the traceback it sent before it ended
        self.dead = False
        self.ended = False  # its socket did
        self.collected = self.received = self.owed = self.stretches = 0
        raw = cloudpickle.dumps(job)
        self.page = Heartbeat.create()
        self._forget()
        self._trace = Trace()
        mine, theirs = socket.socketpair()
        inherited = [job.board] if job.board >= 0 else []
        if job.address is not None and job.address.fd >= 0:
            inherited.append(job.address.fd)
        fds = [theirs.fileno(), self.page.fd, self._trace.fd]
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        one = {name: os.environ.get(name, "1") for name in _THREADS}
        # `-P`: it has the path of this process, not the working directory.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "contig.collect.worker", *map(str, fds)],
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
        self.ended = True
        events.put(Event(self, None))

    def _send(self, content: dict[str, Any], raw: Any = b"") -> None:
        try:
            with self._sending:
                self._channel.send(content, raw)
        except OSError:
            pass  # it is gone; its event says so

    def collect(self, frames: int) -> None:
        """Tells it to collect that many frames of all its lanes together."""
        self.asked, self.owed = frames, 0
        self._forget()
        self._send({"op": "collect", "frames": frames})

    def finish(self) -> None:
        """Tells it that all frames are there."""
        self.asked = 0
        self._forget()
        self._send({"op": "finish"})

    def done(self) -> None:
        """It said that it finished what it was asked for."""
        self.collected += self.asked or 0
        self.asked = None

    def end(self) -> None:
        """Ends the process, now; what is on its page stays."""
        self.process.kill()
        self.process.wait()

    def given(self, relayed: bool, whole: bool) -> int:
        """Frames that are where they belong: written, or about to be when it died, or sent back.

        Args:
            relayed: it sends batches back.
            whole: these are complete trajectories; else a stretch counts when all of it is there.
        """
        if not relayed:
            return self.page.given
        return self.received if whole else self.collected

    # -- faults -------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._word, self._since, self._looks = self.page.now, time.monotonic(), 0

    def hangs(self, step_s: float, start_s: float) -> str | None:
        """What it has been doing for too long, or None. Asked several times a second."""
        if self.page.now != self._word:
            self._forget()
            return None
        self._looks += 1
        if self._looks < _LOOKS:
            return None  # if all processes stood still, it gets the time to go on first
        spent = time.monotonic() - self._since
        if not self.page.now:
            return f"did not start within {_BOOT_S} s" if spent > _BOOT_S else None
        limit = LIMITS.get(self.page.stage)
        if limit is None:
            return None
        most = step_s if limit.quick else start_s
        return f"hangs in {limit.what} for more than {most} s" if spent > most else None

    @property
    def silence_s(self) -> float:
        """How long ago it showed that it runs; 0 before it began to."""
        beat = self.page.beaten
        return (time.monotonic_ns() - beat) / 1e9 if beat else 0.0

    def silent(self) -> str | None:
        """What is wrong if it does not even run, as if it was stopped; or None.

        The user's code may hold the interpreter's lock, and then nothing else runs: while it is
        in such code, `hangs` judges.
        """
        stage = self.page.stage
        waits = stage in (Stage.READY, Stage.HELD)
        if stage in LIMITS or self.silence_s < (_SILENT_S if waits else _COPYING_S):
            return None
        before = self.page.beaten
        for _ in range(_LOOKS):  # if all processes stood still, it gets the time to go on first
            time.sleep(_LOOK_S)
            if self.page.beaten != before:
                return None
        return f"gave no sign of life for {self.silence_s:.0f} s; was it stopped?"

    def traceback(self) -> str:
        """Where its threads are now."""
        return self._trace.ask(self.process)

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
        self._trace.close()


# Each worker computes with one thread, unless the environment says otherwise: there are many.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
