"""Batches drawn ahead in a thread."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import ClosedError

__all__ = ["Cancelled", "Prefetcher"]

_running = threading.local()
_SLEEP_S = 1.0


class Cancelled(Exception):
    """A draw was given up, because what was drawn ahead is being thrown away."""


class Prefetcher:
    """Keeps up to `depth` results of `draw` ready, in order.

    A failure of the thread is raised, with its traceback, by the `take` whose turn it was; the
    next `take` starts drawing again. Thread-safe.

    Its thread does not keep what it draws from alive: it ends when nobody else has that.

    Args:
        draw: makes one result; a method.
        mark: a method, called before each draw; `drain` returns the oldest mark that was not
            delivered.
        depth: results to keep ready.
    """

    def __init__(self, draw: Callable[[], Any], mark: Callable[[], Any], depth: int) -> None:
        self._draw = weakref.WeakMethod(draw, lambda _: self._give_up())
        self._mark, self._depth = weakref.WeakMethod(mark), depth
        self._ready: deque[tuple[Any, Any, BaseException | None]] = deque()
        self._change = threading.Condition()
        self._epoch = 0
        self._thread: threading.Thread | None = None
        self._stopped = False

    def take(self, stale: tuple[type[Exception], ...] = ()) -> Any:
        """The next result.

        Args:
            stale: errors that may have passed since they were caught: if one of them lay ready, it
                is dropped and drawing starts again.
        """
        with self._change:
            if self._ready and isinstance(self._ready[0][2], stale):
                self._ready.popleft()
            while not self._ready:
                if self._stopped:
                    raise ClosedError("this buffer is closed")
                self._start()  # again, if it failed for another taker or was drained
                self._change.wait()
            _, result, error = self._ready.popleft()
            self._change.notify_all()
        if error is not None:
            raise error
        return result

    def drain(self) -> tuple[Any, list[Any]]:
        """Throws away what is ready or under way; returns the oldest mark of it, or None, and the
        results."""
        with self._change:
            self._epoch += 1
            thread = self._thread
            self._change.notify_all()
        if thread is not None:
            thread.join()
        with self._change:
            oldest = self._ready[0][0] if self._ready else None
            results = [result for _, result, _ in self._ready]
            self._ready.clear()
            self._thread = None
            self._change.notify_all()
            return oldest, results

    def _give_up(self) -> None:
        """Nobody is going to take any more."""
        with self._change:
            self._stopped = True
            self._epoch += 1
            self._change.notify_all()

    def close(self) -> None:
        self._stopped = True
        self.drain()

    def cancelled(self) -> bool:
        """Whether the calling thread is a prefetcher's whose result nobody wants any more."""
        return getattr(_running, "epoch", None) not in (None, self._epoch)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(self._epoch,), name="contig-prefetch", daemon=True
            )
            self._thread.start()

    def _run(self, epoch: int) -> None:
        _running.epoch = epoch
        while True:
            with self._change:
                while len(self._ready) >= self._depth and self._epoch == epoch:
                    # Not for ever: what it draws from may be collected in this thread, just here.
                    self._change.wait(_SLEEP_S)
                if self._epoch != epoch:
                    return
            mark, result, error = self._next()
            with self._change:
                self._ready.append((mark, result, error))
                if error is not None:
                    if self._epoch == epoch:
                        self._thread = None
                    self._change.notify_all()
                    return
                self._change.notify_all()

    def _next(self) -> tuple[Any, Any, BaseException | None]:
        """A mark and a result, or what went wrong."""
        draw, mark = self._draw(), self._mark()
        if draw is None or mark is None:  # just now
            return None, None, ClosedError("this buffer is closed")
        marked: Any = None
        try:
            marked = mark()
            return marked, draw(), None
        except BaseException as caught:  # it belongs to the taker
            return marked, None, caught
