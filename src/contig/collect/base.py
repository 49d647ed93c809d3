"""BaseCollector: iteration, or a thread that does it, and how that ends.

    for data in collector: ...                           or
    collector.start() ... pause() ... resume() ... async_shutdown()

A subclass says in `_collect` how the next batch comes about.

Iterate from one thread. `start`, `pause`, `resume`, `update_policy_weights_` and `async_shutdown`
may be called from any thread.
"""

from __future__ import annotations

import threading
import traceback
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, Self

from ..arguments import seconds
from ..errors import ClosedError, WorkerError
from .sink import HasProducers, RemoteSink, StorageSink, buffers_of, sink_of

__all__ = ["END", "BaseCollector"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ..batch import Batch

    Item_co = TypeVar("Item_co", covariant=True, default=Batch)  # as in replay/typed.py
else:
    Item_co = typing.TypeVar("Item_co", covariant=True)

END: Final = object()  # in place of a batch: all frames are collected
_SLICE_S = 0.05
_STOP_S = 10.0


class BaseCollector(ABC, Generic[Item_co]):
    """A source of batches. Base of all collectors; subclass it for data from elsewhere.

    A subclass has `_collect`; `_close` and `update_policy_weights_` if there is something to do.

    Args:
        replay_buffer: a ReplayBuffer, an ensemble, a Server, a RemoteReplayBuffer or a
            RayReplayBuffer that batches go to; None: iteration gives them.
    """

    END: Final = END

    def __init__(self, replay_buffer: Any = None) -> None:
        self.replay_buffer = replay_buffer
        self._sink: StorageSink | RemoteSink | None = None
        self._buffers = [] if replay_buffer is None else buffers_of(replay_buffer)
        cluster = [replay_buffer] if isinstance(replay_buffer, HasProducers) else []
        self._fed: list[Any] = self._buffers or cluster  # those whose samplers hear of failures
        self._thread: threading.Thread | None = None
        self._turn = threading.Condition()  # guards the next three
        self._paused = False
        self._busy = False  # whether the thread collects
        self._stop = False
        self._closed = False
        self._failure: BaseException | None = None
        self._told = False  # whether somebody has seen the failure
        self._unfeed: list[Callable[[], None]] = []
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        name = f"{type(self).__name__}{' closed' if self._closed else ''}"
        into = self.replay_buffer
        goes = "" if into is None else f", into a {type(into).__name__}"
        return f"<{name}: {self._about()}{goes}>"

    # -- for subclasses -----------------------------------------------------------------------

    def _about(self) -> str:
        """What it is, for `repr`."""
        return "a source of batches"

    @abstractmethod
    def _collect(self) -> Any:
        """The next batch; None if it went to the buffer, by `_write`; `END` if there is no more.

        Called by one thread at a time.
        """

    def _write(self, batch: Any) -> int:
        """Appends a batch to the buffer, waiting for room; returns its rows."""
        if self._sink is None:
            self._sink = sink_of(self.replay_buffer)
        return self._sink.write(batch, self._hold_still)

    def _close(self) -> None:
        """Lets go of environments and processes."""

    def update_policy_weights_(self, policy_or_state: Any = None) -> None:
        """Makes weights current: the policy's own, or those given."""

    def _settle(self) -> None:
        """Returns when nothing that `_collect` began is still going on."""

    def _release(self) -> None:
        """Undoes what `_settle` did to make things stand still."""

    def _watch(self) -> None:
        """Raises if something failed that nobody waits for."""

    def _peek(self) -> None:
        """The same at once, from any thread, without doing anything about it."""

    # -- iteration ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Item_co]:
        """Batches, until `total_frames`; with a buffer None for each, whatever their type says."""
        self._check_open()
        if self._thread is not None:
            raise RuntimeError(
                "this collector was started: its thread collects; sample from the buffer"
            )
        if not self._unfeed:
            self._unfeed = [b.watch(self.check) for b in self._fed]
        while True:
            self._check_open()
            if self._paused:
                raise RuntimeError("this collector is paused: call resume() before the next batch")
            data = self._attempt(self._collect)
            if data is END:
                return
            yield data

    def _attempt(self, work: Callable[[], Any]) -> Any:
        """Does it; what goes wrong, later calls say too."""
        self.check()
        try:
            return work()
        except Exception as error:
            self._failure, self._told = error, True
            raise

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
            self._end_feed()
            self._unfeed = [b.feed(self.check, always=True) for b in self._fed]
            self._thread = threading.Thread(target=self._run, name="contig-collect", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while self._await_turn() and self._collect() is not END:
                pass
        except BaseException as error:
            if not (self._stop and isinstance(error, ClosedError)):
                self._failure = error
        finally:
            with self._turn:
                self._busy = False
                self._turn.notify_all()

    def _await_turn(self) -> bool:
        """In the thread: returns when it may collect; False at the end."""
        if self._paused and self._busy:
            self._settle()
        while True:
            with self._turn:
                self._busy = not self._paused and not self._stop
                self._turn.notify_all()
                if self._busy or self._stop:
                    return self._busy
                self._turn.wait(_SLICE_S)
            self._watch()

    def _hold_still(self) -> None:
        """In the thread, while a write waits for room: stands still during a pause."""
        with self._turn:
            while self._paused and not self._stop:
                self._busy = False
                self._turn.notify_all()
                self._turn.wait(_SLICE_S)
            self._busy = True
            if self._stop:
                raise ClosedError("this collector was shut down")

    def pause(self) -> None:
        """Returns when nothing is being collected any more; `resume` goes on.

        Before `start`, it makes the start wait for `resume`.
        """
        with self._turn:
            self._paused = True
            thread = self._thread
            while thread is not None and thread.is_alive() and self._busy:
                self._turn.wait(_SLICE_S)
        if thread is None and not self._closed and self._failure is None:
            self._attempt(self._settle)
        self.check()

    def resume(self) -> None:
        """Goes on after `pause`."""
        self._release()
        with self._turn:
            self._paused = False
            self._turn.notify_all()
        self.check()

    def check(self) -> None:
        """Raises what made the collection fail, with its traceback."""
        if self._failure is not None:
            self._told = True
            raise _again(self._failure)
        if self._thread is None and not self._closed:
            self._note_unseen()
            if self._failure is not None:
                self.check()

    # -- end ----------------------------------------------------------------------------------

    def async_shutdown(self, timeout: float | None = None) -> None:
        """Stops collecting and lets go of everything. Rows written stay.

        Raises:
            WorkerError: the collection had failed, and nobody had been told.
        """
        wait_s = _STOP_S if timeout is None else seconds("timeout", timeout)
        with self._lock:
            if self._closed:
                return
            self._note_unseen()
            self._closed = True
        with self._turn:
            self._stop = True
            self._turn.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(min(wait_s, threading.TIMEOUT_MAX))
        self._end_feed()
        self._close()
        if self._failure is not None and not self._told:
            self.check()

    def _note_unseen(self) -> None:
        """Remembers a failure that no call has met yet."""
        if self._failure is None and self._thread is None:
            try:
                self._peek()
            except WorkerError as error:
                self._failure = error

    def _end_feed(self) -> None:
        for end in self._unfeed:
            end()
        self._unfeed = []

    shutdown = async_shutdown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *exc: Any) -> None:
        if kind is not None:
            self._told = True  # one error at a time
        self.async_shutdown()


def _again(error: BaseException) -> BaseException:
    """An error of another thread, to be raised in this one."""
    if isinstance(error, WorkerError):
        return WorkerError(str(error))
    text = "".join(traceback.format_exception(error))
    return WorkerError(f"the collector failed: {error}\n{text}")
