"""WorkerActor: the loop of a worker process in a Ray actor.

    default group   prepare  collect  finish      one thread, which makes and steps the environment
    control         publish  hold  where  stop    while it steps
    watch           watch                         answers when it hangs, and every few seconds

Calls return what a worker process would have sent: messages, and the bytes of batches as arrays,
which Ray carries through its object store. What the user's code raises is such a message too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..collect.worker import Worker
from ..process.heartbeat import HeartbeatPage, Stage, Watch
from .engine import ray
from .weights import ObjectBoard, Shown

__all__ = ["Answer", "Start", "WorkerActor"]

_LOOK_S = 0.1
_Call = TypeVar("_Call", bound=Callable[..., Any])


def _called(group: str | None = None) -> Callable[[_Call], _Call]:
    """A method that Ray never calls again by itself: whoever asked decides what a loss means.

    Args:
        group: of threads that it runs in; None: the one that works.
    """
    decorate: Any = ray.method
    where = {} if group is None else {"concurrency_group": group}
    return decorate(max_task_retries=0, **where)  # type: ignore[no-any-return]


class Start(NamedTuple):
    """What an actor is told first.

    Attributes:
        attempt: 0, and one more for each time that it is started again.
        path: of the collector's process; what is missing here is looked for there last.
        job: a WorkerSpec without its policy, by cloudpickle.
        policy: a reference to the policy, or to what makes it, by cloudpickle; in a list.
        made: it is what makes the policy.
        weights: the newest ones.
        limits_s: how long a step, and a start, may take.
    """

    attempt: int
    path: list[str]
    job: bytes
    policy: list[Any]
    made: bool
    weights: Shown | None
    limits_s: tuple[float, float]


class Answer(NamedTuple):
    """What a call returns.

    Attributes:
        messages: as a worker process sends them, each with its bytes.
        rows, given: that it has written, and frames, in all.
        pid: of its process.
        node: where it is.
    """

    messages: list[tuple[dict[str, Any], Any]]
    rows: int
    given: int
    pid: int
    node: str


class _Messages(list[tuple[dict[str, Any], Any]]):
    """What a worker reports during one call."""

    def send(self, content: dict[str, Any], raw: Any = b"") -> None:
        self.append((content, np.frombuffer(raw, np.uint8) if len(raw) else b""))


class WorkerActor:
    """One worker. Made by Ray, and made again by it: each process is prepared once."""

    def __init__(self) -> None:
        self._attempt = -1
        self._page = HeartbeatPage.create()
        self._watch = Watch(self._page)
        self._board = ObjectBoard()
        self._messages = _Messages()
        self._worker: Worker | None = None
        self._limits_s = (0.0, 0.0)
        self._thread = 0  # the one that works

    # -- the thread that works ----------------------------------------------------------------

    @_called()
    def prepare(self, start: Start) -> Answer:
        """Makes the environment. A process that has done so before, and failed, goes: Ray makes
        another."""
        if self._attempt >= 0:
            os._exit(1)
        self._attempt = start.attempt
        return self._answer(self._begin, start)

    def _begin(self, start: Start) -> None:
        import cloudpickle

        sys.path.extend(p for p in start.path if p not in sys.path)
        policy = cloudpickle.loads(ray.get(start.policy[0]))
        job = cloudpickle.loads(start.job)
        spec = replace(job.collection, policy=policy() if start.made else policy)
        self._limits_s = start.limits_s
        if start.weights is not None:
            self._board.show(start.weights)
        board = None if start.weights is None else self._board
        worker = Worker(job._replace(collection=spec), self._messages, self._page, board)
        worker.prepare()
        self._worker = worker

    @_called()
    def collect(self, frames: int, weights: Shown | None) -> Answer:
        """Collects a stretch, with weights of at least this version."""
        return self._answer(self._obey, {"op": "collect", "frames": frames}, weights)

    @_called()
    def finish(self) -> Answer:
        """All frames are there."""
        return self._answer(self._obey, {"op": "finish"}, None)

    def _obey(self, content: dict[str, Any], weights: Shown | None) -> None:
        if self._worker is None:
            raise RuntimeError("the actor was started again, and not prepared yet")
        if weights is not None:
            self._board.show(weights)
        self._worker.obey(content)

    def _answer(self, call: Any, *args: Any) -> Answer:
        self._thread = threading.get_ident()
        try:
            call(*args)
        except Exception:
            self._messages.send({"op": "failed", "error": traceback.format_exc()})
        messages = list(self._messages)
        self._messages.clear()
        self._page.enter(Stage.READY)
        node = ray.get_runtime_context().get_node_id()
        return Answer(messages, self._page.rows, self._page.given, os.getpid(), node)

    # -- other threads ------------------------------------------------------------------------

    @_called("control")
    def publish(self, weights: Shown) -> None:
        """Weights for its next step."""
        self._board.show(weights)

    @_called("control")
    def hold(self, still: bool) -> None:
        """Stands still where it would wait for room, or goes on."""
        self._page.held = still

    @_called("control")
    def still(self) -> bool:
        """Whether it does."""
        return self._page.stage == Stage.HELD

    @_called("watch")
    def watch(self, wait_s: float) -> str | None:
        """What it has been doing for too long, as soon as it has; None after some seconds."""
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            what = self._watch.hangs(*self._limits_s)
            if what is not None:
                return f"{what}:\n{self.where()}"
            time.sleep(_LOOK_S)
        return None

    @_called("control")
    def where(self) -> str:
        """Where the thread that works is now."""
        frame = sys._current_frames().get(self._thread)
        return "(it does not work)" if frame is None else "".join(traceback.format_stack(frame))

    @_called("control")
    def stop(self) -> None:
        """Makes it stop at its next step."""
        if self._worker is not None:
            self._worker.stop()

    @_called()
    def close(self) -> None:
        """Closes its environment, in the thread that made it."""
        if self._worker is not None:
            self._worker.close()
