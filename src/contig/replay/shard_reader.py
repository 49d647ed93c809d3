"""One tape of several, and what is asked of it.

ShardReader    a tape and its copy of the sampler: in the learner's process, where the tape is on
               its machine, else inside the shard's
Source         a shard, wherever it is
Asking         several of them, asked at once: who does not answer is left out
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np

from ..batch import Batch
from ..errors import EmptyBufferError, NothingEligibleError
from ..keys import INDEX
from ..sample import Draw, Index, Mass, Request, Rng, Sampler
from ..sample.report import Asked, Report
from ..sample.shards import base_of
from ..tape import Storage
from ..tape.disk import DiskStorage
from .read import gather_draw, whole_groups, without_lost

__all__ = [
    "Asking",
    "Fetched",
    "Later",
    "Part",
    "ShardLost",
    "ShardReader",
    "Source",
    "gather_apart",
    "said",
]

Array = np.ndarray[Any, Any]

_MARKS = 1024  # batches that may be drawn ahead

Part = tuple[Batch, int]  # some rows of a batch, and how many groups they are
Fetched = tuple[Batch | None, Array]  # trajectories, and rows of each that was asked for, or 0


class ShardLost(Exception):
    """A shard does not answer any more."""


class Later(Protocol):
    """An answer that is on its way."""

    def get(self) -> Any:
        """Raises ShardLost if it will not come."""


class Source(Protocol):
    """A shard, here or elsewhere. Those elsewhere answer with a Later.

    Attributes:
        number: the shard's.
    """

    number: int

    def survey(self) -> Any: ...
    def offer(self, request: Request, told: Any, turn: int, sure: bool) -> Any: ...
    def begin_epoch(self, words: Array) -> Any: ...
    def take(self, request: Request, words: Array, least: float, sure: bool) -> Any: ...
    def report(self, asked: Asked, sure: bool) -> Any: ...
    def have(self, ids: Array) -> Any: ...
    def fetch(self, ids: Array, words: Array, sure: bool) -> Any: ...
    def missing(self) -> Any: ...


class ShardReader:
    """One tape and its copy of a sampler. Belongs to one thread at a time.

    Args:
        storage: the tape.
        sampler: a copy of the whole's, for this tape alone.
        number: the shard's.
    """

    def __init__(self, storage: Storage, sampler: Sampler, number: int) -> None:
        self.storage, self.sampler, self.number = storage, sampler, number
        self.index = Index(storage)
        self.base = base_of(number)
        self._rng = Rng(0)
        self._marks: dict[int, Any] = {}  # of the sampler, before each of the last batches
        self._fresh = False  # the index was refreshed for the offer that comes
        self.apart = isinstance(storage, DiskStorage)  # judges rows when it has gathered them

    def survey(self) -> Any:
        self.index.refresh()
        self._fresh = True
        return self.sampler.survey(self.index)

    def offer(self, request: Request, told: Any, turn: int = 0, sure: bool = False) -> Mass:
        """Between how much it would choose now; the next `take` does, from this state.

        Args:
            request: what the whole batch is to be.
            told: what samplers have agreed upon.
            turn: a batch's number, if `rewind` may want to go back to before it; else 0.
            sure: nobody may write while it looks: what it does not find is not there.
        """
        if sure and self.storage.schema is not None:
            with self.storage.held():
                self.index.refresh()
        elif not self._fresh:
            self.index.refresh()
        self._fresh = False
        if turn and turn not in self._marks:
            self._marks[turn] = self.sampler.mark()
            self._marks.pop(turn - _MARKS, None)
        if told is not None:
            self.sampler.adopt(told)
        return self.sampler.mass(self.index, request)

    def rewind(self, turn: int) -> None:
        """Back to before a batch and all that came after it, as far as that is remembered."""
        first = min((t for t in self._marks if t >= turn), default=None)  # it may lack the batch
        if first is not None:
            self.sampler.rewind(self._marks[first])
        self._marks.clear()

    def begin_epoch(self, words: Array) -> None:
        self._rng.words = words
        self.sampler.begin_epoch(self.index, self._rng)

    def draw(self, request: Request, words: Array, least: float) -> Draw | None:
        """Its share of a batch, as seqs."""
        self._rng.words = words
        draw = self.sampler.take(self.index, self._rng, request)
        return None if draw is None else self.sampler.correct(draw, least)

    def take(self, request: Request, words: Array, least: float, sure: bool = False) -> Part | None:
        """Its share of a batch, gathered; groups that were lost meanwhile are missing."""
        with self.storage.held() if sure else nullcontext():
            if sure:
                self.index.refresh()
            draw = self.draw(request, words, least)
            return None if draw is None else gather_apart(self, draw)

    # -- groups that span shards (see `group_shards`) ----------------------------------------------

    def report(self, asked: Asked, sure: bool = False) -> Report | None:
        """What has changed of its trajectories since a report."""
        spanning = self.sampler.spanning
        assert spanning is not None
        with self.storage.held() if sure and self.storage.schema is not None else nullcontext():
            self.index.refresh()
        return spanning.report(self.index, asked)

    def have(self, ids: Array) -> Array:
        """Which trajectories the sampler may take, as of the last report: a mask."""
        spanning = self.sampler.spanning
        assert spanning is not None
        spanning.want(ids)
        self.sampler.mass(self.index, Request(len(ids)))
        return spanning.found

    def fetch(self, ids: Array, words: Array, sure: bool = False) -> Fetched:
        """Trajectories as of the last report, each whole or not at all, one after another.

        Args:
            ids: which, each once.
            words: random numbers.
            sure: nobody may write meanwhile.
        """
        spanning = self.sampler.spanning
        assert spanning is not None
        spanning.want(ids)
        self._rng.words = words
        rows = np.zeros(len(ids), np.int64)
        with self.storage.held() if sure else nullcontext():
            draw = self.sampler.take(self.index, self._rng, Request(len(ids)))
            if draw is None:
                return None, rows
            batch, lost = gather_draw(self.storage, draw)
        if self.index.view.stale:  # a checkpoint was loaded: other rows may have these seqs now
            return None, rows
        assert draw.lengths is not None
        rows[spanning.found] = draw.lengths
        if lost is not None:
            rows[spanning.found] *= whole_groups(draw, lost)
            kept, _ = without_lost(draw, batch, lost)
            if kept is None:
                return None, rows
            batch = kept
        index = batch[INDEX]
        index += self.base
        return batch, rows

    def missing(self) -> tuple[int, str]:
        """How many rows there are, and why none can be drawn."""
        rows = len(self.storage)
        return rows, self.sampler.missing(self.index) if rows else ""

    def update_priority(self, seqs: Array, priority: Array) -> None:
        self.index.refresh()
        self.sampler.update_priority(self.index, seqs, priority)


class Asking:
    """The shards of a batch in the making.

    Args:
        sources: those that there are.
        lost: told of those that did not answer.
    """

    def __init__(self, sources: list[Source], lost: Callable[[Source], None]) -> None:
        self.sources, self._lost = sources, lost
        self._all_here = all([isinstance(s, ShardReader) for s in sources])

    def answers(self, answers: list[Any]) -> list[Any]:
        """What the shards say, one after another; those that do not are lost, and left out."""
        if self._all_here:
            return answers
        out, gone = [], []
        for source, answer in zip(self.sources, answers):
            try:
                out.append(said(source, answer))
            except ShardLost:
                gone.append(source)
        for source in gone:
            self.drop(source)
        return out

    def drop(self, source: Source) -> None:
        self.sources = [s for s in self.sources if s is not source]
        self._lost(source)

    def nothing(self, sampler: Sampler, why: str | None = None) -> Exception:
        """That nothing can be drawn; why, a shard says if nobody else does."""
        found = self.answers([s.missing() for s in self.sources])
        rows = sum(n for n, _ in found)
        shards = f"{len(found)} shards"
        if not rows:
            return EmptyBufferError(f"the buffer is empty: its {shards} have no rows")
        if why is None:
            why = next(text for n, text in found if n)
        return NothingEligibleError(
            f"{rows} rows are stored in {shards}, but {type(sampler).__name__} may draw none of "
            f"them: {why}"
        )


def said(source: Source, answer: Any) -> Any:
    """What a shard says, now or later.

    Raises:
        ShardLost: it does not.
    """
    return answer if isinstance(source, ShardReader) else answer.get()


def gather_apart(reader: ShardReader, draw: Draw) -> Part | None:
    """A share in a block of its own."""
    batch, lost = gather_draw(reader.storage, draw)
    if reader.index.view.stale:  # a checkpoint was loaded: other rows may have these seqs now
        return None
    groups = draw.groups
    if lost is not None:
        kept, bad = without_lost(draw, batch, lost)
        if kept is None:
            return None
        batch, groups = kept, groups - bad
    index = batch[INDEX]
    index += reader.base
    return batch, groups
