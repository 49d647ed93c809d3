"""Supervision: which workers hang, were stopped or ended, and what is said about them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ..arguments import seconds
from ..errors import WorkerError
from .worker_handle import WorkerHandle

__all__ = ["Supervision", "worker_error"]

_LOOK_S = 0.1


def worker_error(handle: WorkerHandle, why: str) -> WorkerError:
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

    def failing(self, handles: Sequence[WorkerHandle]) -> Iterator[tuple[WorkerHandle, str]]:
        """Workers that hang, or do not even run, and why."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        for handle in list(handles):
            idle = handle.asked is None and handle.ready
            what = None if idle else handle.watch.hangs(*self._limits_s)
            if what := what or handle.watch.silent():
                yield handle, f"{what}:\n{handle.traceback()}"

    def check(self, handles: Sequence[WorkerHandle]) -> None:
        """Raises WorkerError for one that ended or was stopped. From any thread."""
        now = time.monotonic()
        look = now - self._checked > _LOOK_S  # every sample asks
        self._checked = now if look else self._checked
        for handle in handles:
            if handle.dead or not (handle.ended or look):
                continue
            why = handle.describe_end() if handle.ended else handle.watch.silent()
            if why is not None:
                raise worker_error(handle, why)
