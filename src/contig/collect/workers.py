"""Workers of a collector: started, listened to, and replaced; their Supervision."""

from __future__ import annotations

import queue
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ..arguments import seconds
from ..errors import WorkerError
from ..process.channel import Message
from .carrier import Carrier, Events, Handle
from .relay import Relay
from .sink import has_after
from .worker_spec import WorkerSpec

__all__ = ["Supervision", "Workers"]

_SLICE_S = 0.05
_LOOK_S = 0.1


def _worker_error(handle: Handle, why: str) -> WorkerError:
    return WorkerError(f"worker {handle.number} (pid {handle.pid}) {why}")


class Supervision:
    """Looks at workers ten times a second, however often it is asked.

    Args:
        step_timeout_s, start_timeout_s: as the collector has them.
    """

    def __init__(self, step_timeout_s: float, start_timeout_s: float) -> None:
        self._limits_s = (
            seconds("step_timeout_s", step_timeout_s),
            seconds("start_timeout_s", start_timeout_s),
        )
        self._looked = self._checked = 0.0

    def failing(self, handles: Sequence[Handle]) -> Iterator[tuple[Handle, str]]:
        """Workers that hang, or do not even run, and why."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        for handle in list(handles):
            idle = handle.asked is None and handle.ready
            what = None if idle else handle.hangs(*self._limits_s)
            if what := what or handle.silent():
                yield handle, what

    def check(self, handles: Sequence[Handle]) -> None:
        """Raises WorkerError for one that ended or was stopped. From any thread."""
        now = time.monotonic()
        look = now - self._checked > _LOOK_S  # every sample asks
        self._checked = now if look else self._checked
        for handle in handles:
            if handle.dead or not (handle.ended or look):
                continue
            why = handle.describe_end() if handle.ended else handle.silent()
            if why is not None:
                raise _worker_error(handle, why)


class Workers:
    """The workers of one collector. For one thread, but `check`.

    Args:
        jobs: their work.
        carrier: runs them.
        relay: where batches go that come back; None: workers write them.
        buffers: that they write to.
        supervision: looks after them.
        max_restarts: how often, in all, one that failed is replaced.

    Attributes:
        handles: the workers, by number.
        done: those whose stretch is there, and not delivered yet.
        rows: that were written, by all of them or for them.
        finishing: they were told that all frames are there.
        restarts: how many were replaced.
        dropped_trajectories, dropped_frames: that were not complete at the end, or were lost.
    """

    def __init__(
        self,
        jobs: list[WorkerSpec],
        carrier: Carrier,
        relay: Relay | None,
        buffers: Sequence[Any],
        supervision: Supervision,
        max_restarts: int,
    ) -> None:
        self.handles: list[Handle] = []
        self.done: deque[int] = deque()
        self.rows = self._rows_before = 0
        self.restarts = self.dropped_trajectories = self.dropped_frames = 0
        self._jobs, self._carrier = jobs, carrier
        self._relay, self._buffers = relay, buffers
        self._whole = jobs[0].collection.trajs_per_batch is not None
        self._supervision, self._max_restarts = supervision, max_restarts
        self.finishing = False
        self._events: Events = queue.SimpleQueue()
        self._killer = weakref.finalize(self, _kill, self.handles)

    def start(self) -> None:
        for job in self._jobs:
            self.handles.append(self._carrier.start(job, self._events))

    @property
    def ready(self) -> bool:
        return all(h.ready for h in self.handles)

    def finish(self) -> None:
        """Tells all that all frames are there."""
        self.finishing = True
        for handle in self.handles:
            handle.finish()

    # -- what they say ------------------------------------------------------------------------

    def take_event(self, paused: bool) -> None:
        """Waits a moment for something to happen, and looks after workers.

        Args:
            paused: one that is replaced has nothing to do for now.

        Raises:
            WorkerError: a worker failed, and may not be replaced.
        """
        for handle, why in self._supervision.failing(self.handles):
            self._replace(handle, why, paused)
        try:
            handle, message = self._events.get(timeout=_SLICE_S)
        except queue.Empty:
            return
        if handle.dead:
            return  # of one that was replaced
        if message is None:
            self._replace(handle, handle.describe_end(), paused)
        else:
            self._hear(handle, message)

    def _hear(self, handle: Handle, message: Message) -> None:
        content = message.content
        op = content["op"]
        if op == "ready":
            handle.ready = True
        elif op == "failed":
            handle.said = content["error"]
        elif op == "batch":
            assert self._relay is not None
            handle.received += self._relay.receive(handle.number, content, message.raw)
        else:
            handle.done()
            if op == "done":
                handle.stretches += 1
                self.done.append(handle.number)
            if self._relay is None:
                self.rows = self._rows_before + sum(h.page.rows for h in self.handles)
            count, frames = content.get("dropped", (0, 0))
            self.dropped_trajectories += count
            self.dropped_frames += frames

    # -- those that fail ----------------------------------------------------------------------

    def _replace(self, handle: Handle, why: str, paused: bool) -> None:
        """A worker failed: starts another in its place, or raises."""
        handle.kill()
        number = handle.number
        if handle.asked is not None and handle.page.finished > handle.stretches:
            handle.done()  # it only could not say so
            self.done.append(number)
        asked, rows, given = handle.asked, handle.page.rows, self._given(handle)
        handle.stop()
        if self.restarts >= self._max_restarts:
            raise _worker_error(handle, why)
        self.restarts += 1
        if self._relay is None:
            self._rows_before += rows
        elif asked is not None:
            self._relay.drop_stretch(number)
        # What it gave of a stretch is not collected again; of trajectories, the rest is lost.
        owed = handle.owed if asked is None else asked
        owed = max(owed - max(given - handle.collected, 0), 0)
        lost = max(handle.collected - given, 0)
        self.dropped_frames += lost
        self.dropped_trajectories += lost > 0
        fresh = self.handles[number] = self._instead(handle, max(handle.collected, given))
        fresh.owed = owed
        if asked is None or paused:
            return
        if self.finishing:
            fresh.finish()
        elif owed:
            fresh.collect(owed)
        else:
            self.done.append(number)

    def _instead(self, handle: Handle, frames: int) -> Handle:
        """Another worker, with other seeds, after one that had collected so many frames."""
        number = handle.number
        job = self._jobs[number] = self._jobs[number].after(frames, 0)
        later = self.restarts * len(self._jobs) * job.lanes
        return self._carrier.start(job.after(0, later), self._events, handle)

    def _given(self, handle: Handle) -> int:
        """Frames of a worker that ended which are where they belong."""
        if self._relay is not None:  # a stretch counts when all of it is there
            return handle.received if self._whole else handle.collected
        page = handle.page
        if page.given > page.sure and self._buffers:  # it died while it wrote
            buffer = self._buffers[handle.number % len(self._buffers)]
            if not has_after(buffer.storage, page.writer, page.newest):
                return page.sure
        return page.given

    def check(self) -> None:
        """Raises WorkerError for one that failed, if none may be replaced. From any thread."""
        if self.restarts >= self._max_restarts:  # else the next call that collects replaces it
            self._supervision.check(self.handles)

    # -- pauses and the end -------------------------------------------------------------------

    def hold(self, still: bool) -> None:
        """Tells them not to write, or to go on."""
        for handle in self.handles:
            if not handle.dead:
                handle.hold(still)

    @property
    def held(self) -> bool:
        """Whether all that have something to do stand still."""
        return all(h.asked is None or h.still for h in self.handles)

    def close(self) -> None:
        for handle in self.handles:
            handle.ask_to_stop()
        for handle in self.handles:
            handle.stop()


def _kill(handles: list[Handle]) -> None:
    for handle in handles:
        handle.kill()
