"""Clients that nobody closed, when their process ends; and clients of a parent, after a fork.

At the interpreter's end what clients still have is sent, for `EXIT_S` seconds at most; what is not
acked by then is said on the log, and the exit code stays what it was. Children of `multiprocessing`
end without `atexit`, but not without its own finalizers, while other threads may still run: nothing
is closed here. `os._exit` and signals end a process at once.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from typing import Any, Protocol

__all__ = ["EXIT_S", "Leaving", "Steps", "flush_all", "watch", "watch_steps"]

EXIT_S = 5.0  # also for a client that was dropped


class Leaving(Protocol):
    """A session, as this module needs it."""

    stopped: bool

    @property
    def pending(self) -> int: ...
    def hurry(self) -> None: ...
    def settle(self, deadline: float) -> None: ...
    def tell(self, when: str) -> None: ...
    def fork(self, parent: int) -> None: ...


class Steps(Protocol):
    """A writer that may hold a step back."""

    def send_held(self) -> None: ...
    def forget(self) -> None: ...


_sessions: weakref.WeakSet[Any] = weakref.WeakSet()
_writers: weakref.WeakSet[Any] = weakref.WeakSet()
_pid = os.getpid()
_hooked = 0  # the process that calls `flush_all` at its end
_deadline: float | None = None  # however often it is called


def watch(session: Leaving) -> None:
    """To be ended with the process."""
    global _hooked
    _sessions.add(session)
    if _hooked != os.getpid():
        _hooked = os.getpid()
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, flush_all, exitpriority=10)


def watch_steps(writer: Steps) -> None:
    """Its last step goes out with the rest."""
    _writers.add(writer)


@atexit.register
def flush_all() -> None:
    """Sends what all clients of this process still have, all at once, and says what is left."""
    global _deadline
    for writer in list(_writers):
        writer.send_held()
    sessions = [s for s in _sessions if s.pending and not s.stopped]
    if sessions and _deadline is None:
        _deadline = time.monotonic() + EXIT_S
    for session in sessions:
        session.hurry()
    for session in sessions:
        session.settle(_deadline or 0.0)
        session.tell("the process ended")


def _forked() -> None:
    global _pid, _deadline
    parent, _pid, _deadline = _pid, os.getpid(), None
    for session in list(_sessions):
        session.fork(parent)
    for writer in list(_writers):
        writer.forget()
    _sessions.clear()
    _writers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
