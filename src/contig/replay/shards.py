"""Batches from several tapes, drawn as from one (see `sample.shards`). Nothing here knows Ray.

ShardReader    one tape and its copy of the sampler: in the learner's process, where the tape is
               on its machine, else inside the shard's
read_shards    one batch from several of them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np

from .. import _native
from ..batch import Batch, stack_batches
from ..errors import CodecError, EmptyBufferError, LayoutError, NothingEligibleError
from ..keys import INDEX
from ..sample import Draw, Index, Mass, Request, Rng, Sampler
from ..sample.shards import base_of, split, streams
from ..tape import Storage
from ..tape.disk import DiskStorage
from .read import extras_of, finish, gather_draw, without_lost

__all__ = ["Later", "ShardLost", "ShardReader", "Source", "read_shards"]

Array = np.ndarray[Any, Any]

_OVERTAKEN = 4  # rounds that lose rows to writers before shares are drawn under the shards' locks
_TRIES = 100
_MARKS = 1024  # batches that may be drawn ahead

Part = tuple[Batch, int]  # some rows of a batch, and how many groups they are


class ShardLost(Exception):
    """A shard does not answer any more."""


class Later(Protocol):
    """An answer that is on its way."""

    def get(self) -> Any:
        """Raises ShardLost if it will not come."""


class Source(Protocol):
    """A shard, here or elsewhere. Those elsewhere answer with a Later."""

    def survey(self) -> Any: ...
    def offer(self, request: Request, told: Any, turn: int, sure: bool) -> Any: ...
    def begin_epoch(self, words: Array) -> Any: ...
    def take(self, request: Request, words: Array, least: float, sure: bool) -> Any: ...
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
        """Back to before a batch, as far as that is remembered."""
        if turn in self._marks:
            self.sampler.rewind(self._marks[turn])
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
            return None if draw is None else _gather_apart(self, draw)

    def missing(self) -> tuple[int, str]:
        """How many rows there are, and why none can be drawn."""
        rows = len(self.storage)
        return rows, self.sampler.missing(self.index) if rows else ""

    def update_priority(self, seqs: Array, priority: Array) -> None:
        self.index.refresh()
        self.sampler.update_priority(self.index, seqs, priority)


def read_shards(
    sampler: Sampler,
    rng: Rng,
    sources: Sequence[Source],
    request: Request,
    lost: Callable[[Source], None],
    turn: int = 0,
) -> Batch:
    """One batch, flat, a shard's rows after another's.

    Args:
        sampler: the user's own, which knows what was changed; copies of it draw.
        rng: of the whole.
        sources: the shards.
        request: what is to be drawn.
        lost: told of shards that did not answer: the batch is made of the others.
        turn: the batch's number, if shards should be able to go back to before it.

    Raises:
        EmptyBufferError, NothingEligibleError: there is nothing to draw.
    """
    return _Round(sampler, rng, list(sources), request, lost, turn).read()


class _Round:
    """One batch in the making."""

    def __init__(
        self,
        sampler: Sampler,
        rng: Rng,
        sources: list[Source],
        request: Request,
        lost: Callable[[Source], None],
        turn: int,
    ) -> None:
        self.sampler, self.rng, self.sources, self.turn = sampler, rng, sources, turn
        self.request, self.need = request, request.groups
        self.parts: list[Batch] = []
        self._lost = lost
        self._all_here = all([isinstance(s, ShardReader) for s in sources])

    def read(self) -> Batch:
        drops_last = self.sampler.drops_last
        sure = begun = False
        for tries in range(_TRIES):
            masses = self._weigh(sure)
            total = sum(m.weight for m in masses)
            if total <= 0 or (drops_last and total < self.need):
                if drops_last is not None and not begun and (drops_last or not self.parts):
                    begun = True
                    self._begin_epoch()
                elif self.parts and not drops_last:
                    return _whole(self.parts)  # the end of an epoch, or rows that retired
                elif sure:
                    break
                else:
                    sure, begun = True, False
                continue
            batch = self._take(masses, sure or tries >= _OVERTAKEN)
            if batch is not None:
                return batch
        raise self._nothing()

    def _weigh(self, sure: bool) -> list[Mass]:
        sampler, request, turn = self.sampler, self.request, self.turn
        surveys: list[Any] = [None] * len(self.sources)
        if sampler.surveys:
            surveys = self._answers([s.survey() for s in self.sources])
        told = sampler.agree(surveys) if surveys else None
        if told is None:
            return self._answers([s.offer(request, None, turn, sure) for s in self.sources])
        return self._answers([s.offer(request, t, turn, sure) for s, t in zip(self.sources, told)])

    def _begin_epoch(self) -> None:
        self.parts, self.need = [], self.request.groups
        words = streams(self.rng, len(self.sources))
        self._answers([s.begin_epoch(w) for s, w in zip(self.sources, words)])

    def _take(self, masses: list[Mass], held: bool) -> Batch | None:
        """Has shards draw their shares; the batch if it is whole."""
        once = self.sampler.drops_last is not None
        weights = [m.weight for m in masses]
        n = min(self.need, int(sum(weights))) if once else self.need
        shares = split(self.rng, weights, n, once)
        least = min(m.least for m in masses)
        words = streams(self.rng, len(self.sources))
        asked, later = [], []
        here: list[tuple[ShardReader, Draw]] = []
        for source, share, stream in zip(self.sources, shares, words):
            if not share:
                continue
            request = Request(share, self.request.length)
            if isinstance(source, ShardReader) and not (held or source.apart):
                draw = source.draw(request, stream, least)
                if draw is not None:
                    here.append((source, draw))
            else:
                asked.append(source)
                later.append(source.take(request, stream, least, held))
        if here:
            self._add(_gather_together(here))
        if asked:
            self._collect(asked, later)
        return _whole(self.parts) if self.need <= 0 else None

    def _collect(self, asked: list[Source], later: list[Any]) -> None:
        for source, answer in zip(asked, later):
            try:
                self._add(answer if isinstance(source, ShardReader) else answer.get())
            except ShardLost:
                self._drop(source)

    def _add(self, part: Part | None) -> None:
        if part is not None:
            self.parts.append(part[0])
            self.need -= part[1]

    def _answers(self, answers: list[Any]) -> list[Any]:
        """What the shards say; those that do not are lost, and left out."""
        if self._all_here:
            return answers
        out, gone = [], []
        for source, answer in zip(self.sources, answers):
            try:
                out.append(answer if isinstance(source, ShardReader) else answer.get())
            except ShardLost:
                gone.append(source)
        for source in gone:
            self._drop(source)
        return out

    def _drop(self, source: Source) -> None:
        self.sources = [s for s in self.sources if s is not source]
        self._lost(source)

    def _nothing(self) -> Exception:
        found = self._answers([s.missing() for s in self.sources])
        rows = sum(n for n, _ in found)
        shards = f"{len(found)} shards"
        if not rows:
            return EmptyBufferError(f"the buffer is empty: its {shards} have no rows")
        why = next(text for n, text in found if n)
        return NothingEligibleError(
            f"{rows} rows are stored in {shards}, but {type(self.sampler).__name__} may draw none "
            f"of them: {why}"
        )


def _whole(parts: list[Batch]) -> Batch:
    """A batch that can be written to, as all can; what came from elsewhere is read where it is."""
    if len(parts) > 1 or parts[0].block.flags.writeable:
        return stack_batches(parts)
    part = parts[0]
    block = _native.Block(len(part.block))
    memoryview(block)[:] = memoryview(part.block)  # type: ignore[arg-type]
    return Batch(block, part.layout, part.shape, part.extras)


def _gather_apart(reader: ShardReader, draw: Draw) -> Part | None:
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


def _gather_together(here: list[tuple[ShardReader, Draw]]) -> Part | None:
    """Shares of several tapes of this machine in one block, each row copied once."""
    if len(here) == 1:
        return _gather_apart(*here[0])
    layout = here[0][0].storage.layout
    if layout is not None and layout.ragged:  # how large the block is depends on the rows
        return _stacked(here)
    rows = [len(draw.seqs) for _, draw in here]
    total, at = sum(rows), 0
    batch: Batch | None = None
    gone: Array | None = None
    for (reader, draw), n in zip(here, rows):
        wide = reader.storage.wide(extras_of(draw), draw.steps)
        if batch is None:
            block = _native.Block(wide.layout.block_columns(total).nbytes)
            batch = Batch(block, wide.layout, (total,), wide.extras)
        elif wide.layout is not batch.layout and wide.layout != batch.layout:
            raise LayoutError("the shards' rows differ:\n" + batch.layout.diff(wide.layout))
        if draw.steps is None:
            lost, _ = wide.gatherer.gather_at(draw.seqs, block, total, at, reader.base)
        else:
            steps = draw.steps
            lost, _ = wide.gatherer.gather_folded_at(
                draw.seqs, steps.rows, steps.lengths, block, total, at, reader.base
            )
        if wide.decoder is not None:
            try:
                lost = wide.decoder.fill(batch, draw.seqs, draw.steps, lost, None, at)
            except CodecError:
                return _stacked(here)  # which does without the rows that cannot be decoded
        stale = reader.index.view.stale
        if lost or stale:
            gone = np.zeros(total, np.bool_) if gone is None else gone
            gone[at : at + n] = True if stale else draw.seqs < lost
        at += n
    assert batch is not None
    return _finish_together(here, batch, gone)


def _stacked(here: list[tuple[ShardReader, Draw]]) -> Part | None:
    """The same, each share in a block of its own first."""
    parts = [part for one in here if (part := _gather_apart(*one)) is not None]
    if not parts:
        return None
    batches, groups = zip(*parts)
    return stack_batches(batches), sum(groups)


def _finish_together(
    here: list[tuple[ShardReader, Draw]], batch: Batch, gone: Array | None
) -> Part | None:
    joined = _joined([draw for _, draw in here], gone is not None)
    groups = joined.groups if joined.lengths is not None else len(batch)
    if gone is None:
        return finish(batch, joined), groups
    kept, bad = without_lost(joined, batch, gone)
    return None if kept is None else (kept, groups - bad)


def _joined(draws: list[Draw], whole: bool) -> Draw:
    """Several draws as one; its seqs only if that is asked for."""
    first = draws[0]
    if first.lengths is None and not first.columns and not first.aside and not whole:
        return first
    columns = {
        path: np.concatenate([d.columns[path] for d in draws]) if value.ndim else value
        for path, value in first.columns.items()
    }
    aside = {name: np.concatenate([d.aside[name] for d in draws]) for name in first.aside}
    if first.lengths is None:
        lengths = ends = None
    else:
        lengths = np.concatenate([d.lengths for d in draws])
        ends = np.concatenate([d.ends for d in draws])
    seqs = np.concatenate([d.seqs for d in draws]) if whole else first.seqs
    return first._replace(seqs=seqs, lengths=lengths, columns=columns, ends=ends, aside=aside)
