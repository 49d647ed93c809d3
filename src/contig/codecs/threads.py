"""Threads that encode and decode beside the calling one; a forked child starts its own."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["cores", "in_parts"]

# Libraries let go of the GIL while they work on a row. Where that takes but microseconds, handing
# the GIL to and fro costs more than a second thread gains: 256 frames of 84x84 with lz4 take 0.74
# ms by one thread and 0.76 by two; with jpeg 5.3 and 3.1.
_ROW_BYTES = 1 << 15


class _Pool:
    """At most one per process, made when it is needed."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Threads do not come along when a process forks, and a lock may be held for ever."""
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        executor = self._executor
        if executor is None:
            with self._lock:
                if self._executor is None:
                    self._executor = ThreadPoolExecutor(cores() - 1, "contig-codec")
                executor = self._executor
        return executor.submit(work, *arguments)


def cores() -> int:
    """How many this process may use; at least 2."""
    try:
        return max(2, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on this system
        return max(2, os.cpu_count() or 1)


_POOL = _Pool()


def in_parts(
    work: Callable[[int, int], Any], rows: int, row_bytes: int, slow: bool = False
) -> list[Any]:
    """``work(start, end)`` over all rows, by several threads if that pays; results in order.

    Args:
        row_bytes: of a row that is decoded.
        slow: whether even a small row takes its time.

    Raises:
        what the work raises, of the earliest rows; all parts have ended by then.
    """
    parts = min(cores(), rows)
    if parts < 2 or (row_bytes < _ROW_BYTES and not slow):
        return [work(0, rows)]
    bounds = [rows * i // parts for i in range(parts + 1)]
    try:
        futures = [_POOL.submit(work, a, b) for a, b in itertools.pairwise(bounds[1:])]
    except RuntimeError:  # the interpreter is going down, and starts no thread any more
        return [work(0, rows)]
    error: BaseException | None = None
    results: list[Any] = []
    try:
        results.append(work(bounds[0], bounds[1]))
    except BaseException as came:
        error = came
    for future in futures:
        try:
            results.append(future.result())
        except BaseException as came:
            error = error or came
    if error is not None:
        raise error
    return results
