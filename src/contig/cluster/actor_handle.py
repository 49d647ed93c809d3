"""An actor as its collector sees it, and the carrier of all of them.

Calls are answered in Ray's threads, which put what a worker says into the collector's events. An
actor that died is made again by Ray, elsewhere if its node is gone; the handle that replaces its
old one prepares it.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..collect.carrier import Events
from ..collect.sink import Address, address_elsewhere
from ..collect.worker_spec import WorkerSpec
from ..process.channel import Message
from .actor_options import ActorOptions
from .engine import ray
from .weights import Shown, WeightsObject
from .worker_actor import Answer, Start, WorkerActor

__all__ = ["ActorHandle", "Actors"]

_STOP_S = 3.0
_WATCH_S = 2.0
_SILENT_S = 20.0
_ANSWER_S = 2.0


@dataclass
class _Progress:
    """What an actor's last answer said: see `Progress`.

    `given` counts a stretch as soon as it is asked for: of one that died in the middle nobody knows
    what it has written, and there are never more frames than asked for.
    """

    finished: int = 0
    rows: int = 0
    given: int = 0
    sure: int = 0
    writer: int = 0
    newest: int = -1


class ActorHandle:
    """One actor at its work. See `Handle`; `node` is where it is.

    Args:
        start: its job.
        number: the worker's.
        actor: Ray's handle of it.
        events: where what it says is put.
        weights: those that it collects with.
    """

    def __init__(
        self, start: Start, number: int, actor: Any, events: Events, weights: WeightsObject
    ) -> None:
        self.number, self.actor, self.attempt = number, actor, start.attempt
        self.ready = self.dead = self.ended = False
        self.asked: int | None = None
        self.said: str | None = None
        self.owed = self.collected = self.received = self.stretches = 0
        self.pid, self.node = 0, ""
        self.page = _Progress()
        self.still = False
        self._why = ""
        self._hang: str | None = None  # what it has been doing for too long
        self._start, self._events, self._weights = start, events, weights
        self._begun = self._heard = time.monotonic()
        self._lock = threading.Lock()  # guards the next two
        self._prepared = False
        self._waiting: list[Callable[[], None]] = []  # commands for when it is
        self._prepare()

    # -- calls and answers --------------------------------------------------------------------

    def _prepare(self) -> None:
        self._call(self.actor.prepare.remote(self._start), self._begin, self._prepare_again)

    def _prepare_again(self, error: BaseException) -> None:
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            self._prepare()  # the process that it was sent to was about to go
        else:
            self._end(error)

    def _begin(self, answer: Answer) -> None:
        self._heard = time.monotonic()
        self._take(answer)
        if not self.ended:
            self._watch()
            with self._lock:
                self._prepared, waiting = True, self._waiting
            for command in waiting:
                command()

    def _once_prepared(self, command: Callable[[], None]) -> None:
        with self._lock:
            if not self._prepared:
                self._waiting.append(command)
                return
        command()

    def _call(
        self,
        ref: Any,
        take: Callable[[Any], None],
        lost: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Has an answer taken in by one of Ray's threads, or what became of the call."""

        def answered(future: Any) -> None:
            error = future.exception()
            if self.dead:
                return
            if error is None:
                take(future.result())
            else:
                (lost or self._end)(error)

        ref.future().add_done_callback(answered)

    def _take(self, answer: Answer) -> None:
        page = self.page
        self.pid, self.node = answer.pid, answer.node
        page.rows, page.given, page.sure = answer.rows, answer.given, answer.given
        failed = False
        for content, raw in answer.messages:
            failed = failed or content["op"] == "failed"
            self._events.put((self, Message(content, raw)))
        if failed:
            self._end(None)

    def _watch(self) -> None:
        self._call(self.actor.watch.remote(_WATCH_S), self._watched)

    def _watched(self, what: str | None) -> None:
        self._heard = time.monotonic()
        if what is None:
            self._watch()
        else:
            self._hang = what

    def _end(self, error: BaseException | None) -> None:
        self._why = str(error)
        if not self.ended:
            self.ended = True
            self._events.put((self, None))

    # -- commands -----------------------------------------------------------------------------

    def collect(self, frames: int) -> None:
        self.asked, self.owed = frames, 0
        self._once_prepared(partial(self._collect, frames))

    def _collect(self, frames: int) -> None:
        self.page.given = self.page.sure + frames
        self._call(self.actor.collect.remote(frames, self._weights.newest), self._take)

    def finish(self) -> None:
        self.asked = 0
        self._once_prepared(lambda: self._call(self.actor.finish.remote(), self._take))

    def done(self) -> None:
        self.collected += self.asked or 0
        self.asked = None

    def publish(self, weights: Shown) -> None:
        self.actor.publish.remote(weights)

    def hold(self, still: bool) -> None:
        self.still = False
        self.actor.hold.remote(still)
        if still:
            self._ask_still()

    def _ask_still(self) -> None:
        self._call(self.actor.still.remote(), self._told_still)

    def _told_still(self, still: bool) -> None:
        self.still = still
        if not still and self.asked is not None:
            self._ask_still()

    # -- what is wrong ------------------------------------------------------------------------

    def hangs(self, step_s: float, start_s: float) -> str | None:
        if self.ready or self._hang is not None:
            return self._hang
        if time.monotonic() - self._begun < start_s:
            return None
        self._hang = f"did not start within {start_s} s: {self._where()}"
        return self._hang

    def _where(self) -> str:
        try:
            return f"it is in\n{ray.get(self.actor.where.remote(), timeout=_ANSWER_S)}"
        except ray.exceptions.RayError:
            there: dict[str, float] = ray.available_resources()
            free = {k: v for k, v in there.items() if not k.startswith("node:")}
            return f"Ray has not placed it; free in the cluster: {free}"

    def silent(self) -> str | None:
        silence_s = time.monotonic() - self._heard
        if not self.ready or silence_s < max(_SILENT_S, self._start.limits_s[1]):
            return None
        self._hang = f"gave no sign of life for {silence_s:.0f} s; was it stopped?"
        return self._hang

    def describe_end(self) -> str:
        return f"died: {self._why}" if self.said is None else f"failed:\n{self.said}"

    # -- end ----------------------------------------------------------------------------------

    def kill(self) -> None:
        """Makes one that hangs go; one that failed goes when it is prepared again."""
        if self._hang is not None and not self.dead:
            _end(self.actor, restart=True)

    def ask_to_stop(self) -> None:
        if not self.dead and not self.ended:
            self.actor.stop.remote()

    def stop(self) -> None:
        """Waits for the end of its work; its process is ended by the carrier."""
        if self.dead:
            return
        self.dead = True
        if self.ready and not self.ended and self._hang is None:
            ray.wait([self.actor.close.remote()], timeout=_STOP_S)


class Actors:
    """The carrier of a RayCollector: see `Carrier`.

    Args:
        options: what each actor needs, and where it goes.
        policy: a policy, or what makes one.
        made: it is what makes one.
        limits_s: how long a step, and a start, may take.
    """

    def __init__(
        self, options: ActorOptions, policy: Any, made: bool, limits_s: tuple[float, float]
    ) -> None:
        import cloudpickle

        self._options, self._made, self._limits_s = options, made, limits_s
        raw = np.frombuffer(cloudpickle.dumps(policy), np.uint8)
        self._policy = [ray.put(raw)]  # once, however many actors there are
        self._weights = WeightsObject()
        self._handles: dict[int, ActorHandle] = {}
        self._actors: list[Any] = []
        self._lock = threading.Lock()  # weights may come while workers are replaced
        self._killer = weakref.finalize(self, _kill, self._actors)

    def address(self, buffer: Any, number: int) -> Address | None:
        return address_elsewhere(buffer, number)

    def publish(self, version: int | None, tree: Any) -> int:
        with self._lock:
            shown = self._weights.publish(version, tree)
            for handle in self._handles.values():
                if not handle.dead and not handle.ended:
                    handle.publish(shown)
        return shown.version

    def start(self, job: WorkerSpec, events: Events, instead: Any = None) -> ActorHandle:
        import cloudpickle

        number = job.number
        if instead is None:
            actor = _remote()(WorkerActor).options(**self._options.of(number)).remote()
            self._actors.append(actor)
        else:
            actor = instead.actor
        bare = job._replace(collection=replace(job.collection, policy=None))
        with self._lock:
            start = Start(
                attempt=0 if instead is None else instead.attempt + 1,
                path=list(sys.path),
                job=cloudpickle.dumps(bare),
                policy=self._policy,
                made=self._made,
                weights=self._weights.newest,
                limits_s=self._limits_s,
            )
            handle = ActorHandle(start, number, actor, events, self._weights)
            self._handles[number] = handle
        return handle

    def close(self) -> None:
        self._killer()


def _remote() -> Any:
    """Makes an actor of a class, with threads for what must not wait for its work."""
    remote: Any = ray.remote
    return remote(concurrency_groups={"control": 1, "watch": 1})


def _kill(actors: list[Any]) -> None:
    for actor in actors:
        _end(actor)
    actors.clear()


def _end(actor: Any, restart: bool = False) -> None:
    """Ends an actor's process, if there still is the cluster that it was in."""
    if not ray.is_initialized():  # or Ray would start one to ask
        return
    try:
        ray.kill(actor, no_restart=not restart)
    except (ray.exceptions.RayError, ValueError):
        pass  # of an earlier cluster
