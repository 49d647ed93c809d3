"""A worker process, as its collector sees it."""

from __future__ import annotations

import os
import threading
from typing import Any

from ..process.heartbeat import HeartbeatPage, Stage, Watch
from ..process.spawn import Child, describe_exit
from .carrier import Events
from .worker_spec import WorkerSpec

__all__ = ["WorkerHandle"]

_STOP_S = 3.0
# Each worker computes with one thread, unless the environment says otherwise: there are many.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerHandle:
    """One worker process. Started by the constructor.

    Args:
        job: its work.
        events: where what it says is put, by a thread; None for its end.

    Attributes:
        asked, ..., dead: see `Handle`.
        watch: judges whether it hangs.
    """

    def __init__(self, job: WorkerSpec, events: Events) -> None:
        import cloudpickle

        self.number = job.number
        self.ready = False
        self.asked: int | None = None
        self.said: str | None = None  # the traceback it sent before it ended
        self.dead = False
        self.ended = False  # its socket did
        self.collected = self.received = self.owed = self.stretches = 0
        raw = cloudpickle.dumps(job)
        self.page = HeartbeatPage.create()
        self.watch = Watch(self.page)
        self._child = Child(
            "contig.collect.worker",
            [self.page.fd],
            inherited=job.descriptors,
            environment={name: os.environ.get(name, "1") for name in _THREADS},
        )
        self.process, self.pid = self._child.process, self._child.pid
        self.traceback = self._child.traceback
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read, args=(events,), name="contig-worker")
        self._reader.daemon = True
        self._reader.start()
        try:
            self._child.give(raw)
        except OSError:
            pass  # it is gone; its event says so

    def _read(self, events: Events) -> None:
        while (message := self._child.channel.receive()) is not None:
            events.put((self, message))
        self.ended = True
        events.put((self, None))

    def _send(self, content: dict[str, Any]) -> None:
        try:
            with self._sending:
                self._child.channel.send(content)
        except OSError:
            pass  # it is gone; its event says so

    def collect(self, frames: int) -> None:
        """Tells it to collect that many frames of all its lanes together."""
        self.asked, self.owed = frames, 0
        self.watch.begin()
        self._send({"op": "collect", "frames": frames})

    def finish(self) -> None:
        """Tells it that all frames are there."""
        self.asked = 0
        self.watch.begin()
        self._send({"op": "finish"})

    def done(self) -> None:
        """It said that it finished what it was asked for."""
        self.collected += self.asked or 0
        self.asked = None

    def hold(self, still: bool) -> None:
        """Tells it to stand still where it would wait for room, or to go on."""
        self.page.held = still

    @property
    def still(self) -> bool:
        return self.page.stage == Stage.HELD

    def hangs(self, step_s: float, start_s: float) -> str | None:
        what = self.watch.hangs(step_s, start_s)
        return None if what is None else f"{what}:\n{self.traceback()}"

    def silent(self) -> str | None:
        what = self.watch.silent()
        return None if what is None else f"{what}:\n{self.traceback()}"

    # -- end ----------------------------------------------------------------------------------

    def describe_end(self) -> str:
        """Why it ended, once its socket has."""
        reason = describe_exit(self._child.end(_STOP_S))
        return f"died: {reason}" if self.said is None else f"failed:\n{self.said}"

    def kill(self) -> None:
        """Ends the process, now; what is on its page stays."""
        self.process.kill()
        self.process.wait()

    def ask_to_stop(self) -> None:
        self._send({"op": "stop"})

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Waits for its end; kills it if that does not come."""
        if self.dead:
            return
        self.dead = True
        self._child.end(timeout_s)
        self._child.close()
        self._reader.join(_STOP_S)
        self.page.close()
