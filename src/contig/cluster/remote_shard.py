"""A shard on another node: calls of its actor, and what is done when it does not answer.

    silent     neither an answer nor a sign of life for a while: left out, and asked to go on
    go_on      the shard refuses requests that it had not begun, and puts back a share that nobody
               got; its answer says that it may be asked again

A shard that works on an answer for long is not silent: it says so meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..batch import Batch
from ..layout import Layout
from ..replay.shard_reader import Fetched, Part, ShardLost
from ..sample import Mass, Request, Sampler
from ..sample.report import Asked, Report
from .engine import ray
from .place import Place
from .progress import Progress

__all__ = ["Answer", "RemoteShard", "answer_of"]

Array = np.ndarray[Any, Any]

_PATIENCE_S = 1.5  # for an answer, and again for a sign of life
_AGAIN_S = 0.5  # between attempts to reach a silent shard


def answer_of(ref: Any, timeout_s: float | None = None) -> Any:
    """Returns what an actor answers.

    Raises:
        TimeoutError: there is no answer yet, or the actor cannot be reached just now.
        ShardLost: there will be none.
    """
    errors = ray.exceptions
    try:
        return ray.get(ref, timeout=timeout_s)
    except (errors.GetTimeoutError, errors.ActorUnavailableError) as error:
        raise TimeoutError(str(error)) from error
    except (errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError) as error:
        raise ShardLost(str(error)) from error


class Answer:
    """An answer of an actor that is on its way.

    Args:
        ref: Ray's promise of it.
        read: makes of it what was asked for.
        source: the shard, if it is not waited for once it is silent.
    """

    def __init__(
        self,
        ref: Any,
        read: Callable[[Any], Any] | None = None,
        source: RemoteShard | None = None,
    ) -> None:
        self._ref, self._read, self._source = ref, read, source
        self._asked_at = time.monotonic()

    def get(self) -> Any:
        found = self._await()
        return found if self._read is None else self._read(found)

    def _await(self) -> Any:
        source = self._source
        while True:
            left = None
            if source is not None:
                left = max(0.0, self._asked_at + _PATIENCE_S - time.monotonic())
            try:
                return answer_of(self._ref, left)
            except TimeoutError as error:
                if source is None or not source.is_alive():
                    if source is not None:
                        source.is_silent = True
                    raise ShardLost(f"no answer: {error}") from error
                self._asked_at = time.monotonic()


class RemoteShard:
    """A shard on another node. Each learner has its own reader there.

    Args:
        place: where it is.
        learner: whose reader is asked.
        sampler: for that reader, if it has none yet.
        layouts: of batches, as far as they are known, by fingerprint.
        peers: the shards that are asked with it.
        progress: where its sampler is, of a shard that may come back; it is kept up to date.

    Attributes:
        is_silent: it did not answer, and was not heard of since.
    """

    def __init__(
        self,
        place: Place,
        learner: str,
        sampler: Sampler,
        layouts: dict[str, tuple[Layout, frozenset[Any]]],
        peers: Callable[[], Sequence[Any]],
        progress: Progress | None,
    ) -> None:
        self.place, self.number = place, place.number
        self._learner, self._layouts, self._peers = learner, layouts, peers
        # Calls may overtake each other in the shard: what must have happened before goes along.
        self._after: Any = place.actor.open.remote(learner, sampler, progress)
        self.progress = progress
        self._late: Any = None  # how many priorities came too late, when it is known
        self._requests = 0  # that change what the sampler knows; each has its number
        self._share = 0  # the request for a share that was not read yet
        self.is_silent = False
        self._pinged: tuple[Any, float] | None = None
        self._going_on: Any = None
        self._asked_at = 0.0

    def _answer(self, ref: Any, read: Callable[[Any], Any] | None = None) -> Answer:
        return Answer(ref, read, self)

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    def survey(self) -> Answer:
        after, self._after = self._after, None
        return self._answer(self.place.actor.survey.remote(self._learner, after))

    def offer(self, request: Request, told: Any, turn: int, sure: bool) -> Answer:
        after, self._after = self._after, None
        ref = self.place.actor.offer.remote(
            self._learner, self._next(), tuple(request), told, turn, sure, after
        )
        return self._answer(ref, lambda found: Mass(*found))

    def begin_epoch(self, words: Array) -> Answer:
        ref = self.place.actor.begin_epoch.remote(
            self._learner, self._next(), words, self.progress is not None
        )
        return self._answer(ref, self._begin_progress)

    def _begin_progress(self, state: Any) -> None:
        if self.progress is not None:
            self.progress.begin(state)

    def take(self, request: Request, words: Array, least: float, sure: bool) -> Answer:
        self._share = self._next()
        whole = None if self.progress is None else self.progress.needs_state
        ref = self.place.actor.take.remote(
            self._learner, self._share, tuple(request), words, least, sure, whole
        )
        return self._answer(ref, self._part)

    def _part(self, found: Any) -> Part | None:
        share, step = found
        part = None if share is None else (self._batch(*share[:3]), share[3])
        # From here on the learner has it.
        self._share = 0
        if self.progress is not None:
            is_state, change = step
            (self.progress.begin if is_state else self.progress.take)(change)
        return part

    def _batch(self, block: Array, name: str, rows: int) -> Batch:
        if name not in self._layouts:
            self._layouts[name] = self._answer(self.place.actor.layout.remote(name)).get()
        layout, extras = self._layouts[name]
        return Batch(block, layout, (rows,), extras)

    def report(self, asked: Asked, sure: bool) -> Answer:
        after, self._after = self._after, None
        ref = self.place.actor.report.remote(self._learner, tuple(asked), sure, after)
        return self._answer(ref, lambda found: None if found is None else Report(*found))

    def have(self, ids: Array) -> Answer:
        return self._answer(self.place.actor.have.remote(self._learner, ids))

    def fetch(self, ids: Array, words: Array, sure: bool) -> Answer:
        ref = self.place.actor.fetch.remote(self._learner, ids, words, sure)
        return self._answer(ref, self._fetched)

    def _fetched(self, found: Any) -> Fetched:
        block, name, lengths = found
        return None if name is None else self._batch(block, name, int(lengths.sum())), lengths

    def missing(self) -> Answer:
        return self._answer(self.place.actor.missing.remote(self._learner))

    def counts(self) -> Answer:
        return self._answer(self.place.actor.counts.remote())

    def update_priority(self, seqs: Array, priority: Array) -> None:
        """Before the next draw; nobody waits for it."""
        if self.progress is not None:
            self.progress.update_priority(seqs, priority)
        update = self.place.actor.update_priority
        self._after = self._late = update.remote(self._learner, seqs, priority, self._after)

    def stale_updates(self) -> Any:
        return 0 if self._late is None else self._answer(self._late, int)

    def rewind(self, turn: int) -> Answer:
        """Before the next draw, also if the shard is silent."""
        wants_state = self.progress is not None
        self._after = self.place.actor.rewind.remote(self._learner, turn, wants_state, self._after)
        return self._answer(self._after, self._begin_progress)

    def reset(self) -> Answer:
        """Before the next draw, also if the shard is silent."""
        self._begin_progress(None)
        self._after = self.place.actor.forget.remote(self._learner, True, self._after)
        return self._answer(self._after)

    def state(self) -> Answer:
        return Answer(self.place.actor.sampler_state.remote(self._learner, self._after))

    def load(self, state: Any) -> Answer:
        self._begin_progress(state)
        return Answer(self.place.actor.load_sampler.remote(self._learner, state))

    # -- silence ----------------------------------------------------------------------------------

    def is_alive(self) -> bool:
        """Returns whether its process gives a sign of life.

        All are asked at once: when a node cannot be reached, several shards are silent, and one
        wait is for all of them.
        """
        for shard in self._peers():
            if isinstance(shard, RemoteShard):
                shard._ping()
        ref, asked_at = self._ping()
        try:
            answer_of(ref, max(0.0, asked_at + _PATIENCE_S - time.monotonic()))
        except TimeoutError:
            return False
        except ShardLost:
            pass  # which the answer that is waited for is going to say, too
        self._pinged = None
        return True

    def _ping(self) -> tuple[Any, float]:
        """A call that is answered at once, and when it was made."""
        now = time.monotonic()
        if self._pinged is None or now > self._pinged[1] + 2 * _PATIENCE_S:  # of another wait
            self._pinged = (self.place.actor.pid.remote(), now)
        return self._pinged

    def go_on(self) -> None:
        """Asks a silent shard to go on, when it can be reached."""
        self._asked_at = time.monotonic()
        if self.progress is not None:
            self.progress.broke()
        go_on = self.place.actor.go_on
        self._going_on = go_on.remote(self._learner, self._requests, self._share)

    def is_back(self) -> bool:
        """Whether a silent shard has gone on.

        Raises:
            ShardLost: it never will.
        """
        try:
            answer_of(self._going_on, 0)
        except TimeoutError:
            if time.monotonic() > self._asked_at + _AGAIN_S:
                unreachable = bool(ray.wait([self._going_on], timeout=0)[0])
                if unreachable:  # the call has failed, and not the shard
                    self.go_on()
            return False
        self.is_silent, self._share, self._pinged = False, 0, None
        return True
