"""The thread in which a learner hears of shards that come and go."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from .engine import ray

__all__ = ["LEAVE_S", "Listener", "answer", "listen"]

_WAIT_S = 10.0
_SLICE_S = 0.2
LEAVE_S = 5.0  # more than a thread needs to see that nobody listens any more


def answer(ref: Any, left: Callable[[], bool]) -> Any:
    """What an actor says; None: nobody wants to know any more. A thread that was still asking when
    its process leaves the cluster would end the process."""
    while not ray.wait([ref], timeout=_SLICE_S)[0]:
        if left():
            return None
    return None if left() else ray.get(ref)


class Listener(Protocol):
    """A buffer, as far as the thread knows it.

    Attributes:
        directory: the actor that has the news.
        version: of what was heard last.
        closed: nobody listens any more.
        failure: why there will be no more news.
    """

    directory: Any
    version: int
    closed: bool
    failure: Exception | None

    def heard(self, version: int, places: list[Any], lost: int) -> None: ...


def listen(buffer: Listener) -> threading.Thread:
    """Starts the thread, which does not keep the buffer alive."""
    thread = threading.Thread(
        target=_run, args=(weakref.ref(buffer),), name="contig-shards", daemon=True
    )
    thread.start()
    return thread


def _run(buffer: weakref.ref[Any]) -> None:
    def left() -> bool:
        held: Listener | None = buffer()
        return held is None or held.closed

    while True:
        held: Listener | None = buffer()
        if held is None or held.closed:
            return
        asked, version = held.directory.changes, held.version
        del held
        failure: Exception | None = None
        try:
            found = answer(asked.remote(version, _WAIT_S), left)
        except Exception as error:  # the directory, or the cluster, is gone
            failure = error
        held = buffer()
        if held is None or held.closed:
            return
        if failure is not None:
            held.failure = failure
            return
        held.heard(*found)
        del held
