"""Batches drawn ahead in a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Prefetcher"]


class Prefetcher:
    """Keeps up to `depth` results of `draw` ready, in order.

    A failure of the thread is raised, with its traceback, by the `take` whose turn it was; the
    next `take` starts drawing again. Thread-safe.

    Args:
        draw: makes one result.
        mark: taken before each draw; `drain` returns the oldest one that was not delivered.
        depth: results to keep ready.
    """

    def __init__(self, draw: Callable[[], Any], mark: Callable[[], Any], depth: int) -> None:
        self._draw, self._mark, self._depth = draw, mark, depth
        self._ready: deque[tuple[Any, Any, BaseException | None]] = deque()
        self._change = threading.Condition()
        self._epoch = 0
        self._thread: threading.Thread | None = None
        self._stopped = False

    def take(self) -> Any:
        """The next result."""
        with self._change:
            if self._stopped:
                raise RuntimeError("the prefetcher was closed")
            self._start()
            while not self._ready:
                self._change.wait()
            _, result, error = self._ready.popleft()
            self._change.notify_all()
        if error is not None:
            raise error
        return result

    def drain(self) -> Any:
        """Throws away what is ready or under way; returns the oldest mark of it, or None."""
        with self._change:
            self._epoch += 1
            thread, self._thread = self._thread, None
            self._change.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._change:
            oldest = self._ready[0][0] if self._ready else None
            self._ready.clear()
            return oldest

    def close(self) -> None:
        self.drain()
        self._stopped = True

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(self._epoch,), name="contig-prefetch", daemon=True
            )
            self._thread.start()

    def _run(self, epoch: int) -> None:
        while True:
            with self._change:
                while len(self._ready) >= self._depth and self._epoch == epoch:
                    self._change.wait()
                if self._epoch != epoch:
                    return
            mark = self._mark()
            result, error = None, None
            try:
                result = self._draw()
            except BaseException as caught:  # it belongs to the taker
                error = caught
            with self._change:
                self._ready.append((mark, result, error))
                self._change.notify_all()
                if error is not None:
                    if self._epoch == epoch:
                        self._thread = None
                    return
