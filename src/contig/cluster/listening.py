"""The thread in which a learner hears of shards that come and go."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

from .engine import ray

__all__ = ["Listener", "listen"]

_WAIT_S = 10.0


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


def listen(buffer: Listener) -> None:
    """Starts the thread, which does not keep the buffer alive."""
    threading.Thread(
        target=_run, args=(weakref.ref(buffer),), name="contig-shards", daemon=True
    ).start()


def _run(buffer: weakref.ref[Any]) -> None:
    while True:
        held: Listener | None = buffer()
        if held is None or held.closed:
            return
        asked, version = held.directory.changes, held.version
        del held
        failure: Exception | None = None
        try:
            found = ray.get(asked.remote(version, _WAIT_S))
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
