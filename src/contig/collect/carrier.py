"""Who carries a collector's workers, as the collector sees it: processes here, or actors elsewhere.

Carrier.start(job) ──> Handle ──collect, finish──> worker
                         ^                           │
(handle, message) ── events <── ready, batch, done ──┘
"""

from __future__ import annotations

import queue
from typing import Any, Protocol

from ..process.channel import Message
from .sink import Address
from .worker_spec import WorkerSpec

__all__ = ["Carrier", "Events", "Handle", "Progress"]


class Progress(Protocol):
    """What is known of a worker's writes, also when it is gone: see `HeartbeatPage`."""

    finished: int
    rows: int
    given: int
    sure: int
    writer: int
    newest: int


class Handle(Protocol):
    """One worker.

    Attributes:
        asked: frames of the stretch it was told to collect, or None while it has nothing to do.
        owed: frames it has to collect for the worker that it replaces, once told to.
        collected: frames of the stretches it finished.
        received: rows of the batches it sent.
        stretches: how many it said it finished.
        said: the traceback that it sent before it ended.
        ended: nothing comes from it any more.
        dead: it was replaced, or stopped.
    """

    number: int
    ready: bool
    asked: int | None
    owed: int
    collected: int
    received: int
    stretches: int
    said: str | None
    ended: bool
    dead: bool

    @property
    def pid(self) -> int: ...
    @property
    def page(self) -> Progress: ...
    @property
    def still(self) -> bool:
        """Whether it stands still: it has nothing to do, or was told to hold."""

    def collect(self, frames: int) -> None: ...
    def finish(self) -> None: ...
    def done(self) -> None: ...
    def hold(self, still: bool) -> None: ...
    def hangs(self, step_s: float, start_s: float) -> str | None:
        """What it has been doing for too long, and where; or None."""

    def silent(self) -> str | None:
        """What is wrong if it does not even run; or None."""

    def describe_end(self) -> str: ...
    def kill(self) -> None: ...
    def ask_to_stop(self) -> None: ...
    def stop(self) -> None: ...


Events = queue.SimpleQueue[tuple[Handle, Message | None]]  # None: its end


class Carrier(Protocol):
    """Runs workers. For one thread, but `publish`."""

    def address(self, buffer: Any, number: int) -> Address | None:
        """How worker i writes to a buffer; None if its batches come back."""

    def publish(self, version: int | None, tree: Any) -> int:
        """Makes weights the newest for all workers, and returns their version; copies what it
        keeps. Without a version it is the one after the newest, 0 at first."""

    def start(self, job: WorkerSpec, events: Events, instead: Any = None) -> Handle:
        """A worker at its work.

        Args:
            events: where what it says is put.
            instead: the handle of the one that it replaces.
        """

    def close(self) -> None:
        """After the last of them has ended."""
