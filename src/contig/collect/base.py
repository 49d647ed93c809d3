"""What all collectors share: iteration, or a thread that does it, and how that ends.

    for data in collector: ...                           or
    collector.start() ... pause() ... resume() ... async_shutdown()

Iterate from one thread. `start`, `pause`, `resume`, `update_policy_weights_` and `async_shutdown`
may be called from any thread.
"""

from __future__ import annotations

import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..errors import ClosedError, WorkerError
from .sink import buffers_of

__all__ = ["END", "CollectorBase"]

END: Final = object()  # in place of a batch: all frames are collected
_SLICE_S = 0.05
_STOP_S = 10.0


class CollectorBase(ABC):
    """A source of batches. Subclasses say how one is collected."""

    def __init__(self, replay_buffer: Any) -> None:
        self.replay_buffer = replay_buffer
        self._buffers = [] if replay_buffer is None else buffers_of(replay_buffer)
        self._thread: threading.Thread | None = None
        self._going = threading.Event()  # cleared while paused
        self._going.set()
        self._idle = threading.Event()  # set while the thread collects nothing
        self._stop = False
        self._closed = False
        self._failure: BaseException | None = None
        self._told = False  # whether somebody has seen the failure
        self._unfeed: list[Callable[[], None]] = []
        self._lock = threading.RLock()

    # -- for subclasses -----------------------------------------------------------------------

    @abstractmethod
    def _collect(self) -> Any:
        """The next batch, None if it went to the buffer, or END."""

    @abstractmethod
    def _close(self) -> None:
        """Lets go of environments and processes."""

    @abstractmethod
    def update_policy_weights_(self, policy_or_state: Any = None) -> None:
        """Makes weights current: the policy's own, or those given."""

    def _settle(self) -> None:  # noqa: B027
        """Returns when nothing that `_collect` began is still going on."""

    def _watch(self) -> None:  # noqa: B027
        """Raises if something failed that nobody waits for."""

    # -- iteration ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Batches, or None for each one that went to the buffer, until `total_frames`."""
        self._check_open()
        if self._thread is not None:
            raise RuntimeError(
                "this collector was started: its thread collects; sample from the buffer"
            )
        while True:
            self._check_open()
            with self._failing():
                data = self._collect()
            if data is END:
                return
            yield data

    def _failing(self) -> Any:
        return _Failing(self)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this collector was shut down")

    # -- in the background --------------------------------------------------------------------

    def start(self) -> None:
        """Collects into the buffer in the background until `async_shutdown` or `total_frames`.

        Raises:
            ValueError: there is no buffer to collect into.
        """
        with self._lock:
            self._check_open()
            if self.replay_buffer is None:
                raise ValueError("start() needs a replay_buffer to collect into; or iterate")
            if self._thread is not None:
                return
            self._unfeed = [b.feed(self.check, always=True) for b in self._buffers]
            self._thread = threading.Thread(target=self._run, name="contig-collect", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop:
                if not self._going.wait(_SLICE_S):
                    if not self._idle.is_set():
                        self._settle()
                        self._idle.set()
                    self._watch()
                    continue
                self._idle.clear()
                if self._collect() is END:
                    break
        except BaseException as error:
            if not (self._stop and isinstance(error, ClosedError)):
                self._failure = error
        finally:
            self._idle.set()

    def pause(self) -> None:
        """Returns when nothing is being collected any more; `resume` goes on.

        Before `start`, it makes the start wait for `resume`.
        """
        self._going.clear()
        while self._thread is not None and self._thread.is_alive() and not self._idle.is_set():
            time.sleep(0.002)
        self.check()

    def resume(self) -> None:
        """Goes on after `pause`."""
        self._idle.clear()
        self._going.set()
        self.check()

    def check(self) -> None:
        """Raises what made the collection fail, with its traceback."""
        if self._failure is not None:
            self._told = True
            raise _again(self._failure)

    # -- end ----------------------------------------------------------------------------------

    def async_shutdown(self, timeout: float | None = None) -> None:
        """Stops collecting and lets go of everything. Rows written stay.

        Raises:
            WorkerError: the collection had failed, and nobody had been told.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = self._stop = True
        thread = self._thread
        self._interrupt()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_S if timeout is None else timeout)
        for end in self._unfeed:
            end()
        self._unfeed = []
        self._close()
        if self._failure is not None and not self._told:
            self.check()

    shutdown = async_shutdown

    def _interrupt(self) -> None:  # noqa: B027
        """Makes a `_collect` that waits return soon."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, *exc: Any) -> None:
        if kind is not None:
            self._told = True  # one error at a time
        self.async_shutdown()


class _Failing:
    """Remembers what went wrong, so that later calls say it too."""

    def __init__(self, collector: CollectorBase) -> None:
        self._collector = collector

    def __enter__(self) -> None:
        self._collector.check()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            self._collector._failure = error
            self._collector._told = True


def _again(error: BaseException) -> BaseException:
    """An error of another thread, to be raised in this one."""
    if isinstance(error, WorkerError):
        return WorkerError(str(error))
    text = "".join(traceback.format_exception(error))
    return WorkerError(f"the collector failed: {error}\n{text}")
