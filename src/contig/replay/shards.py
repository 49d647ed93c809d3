"""Batches from several tapes, drawn as from one (see `sample.shards`). Nothing here knows Ray.

read_shards    one batch from several shards: each draws its share; or, of groups whose members may
               lie on any of them, each gives what was drawn (`group_shards`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _native
from ..batch import Batch, stack_batches
from ..errors import CodecError, LayoutError
from ..sample import Draw, Mass, Request, Rng, Sampler
from ..sample.shards import split, streams
from .group_shards import GroupRound
from .read import extras_of, finish, without_lost
from .shard_reader import Asking, Later, Part, ShardLost, ShardReader, Source, gather_apart, said

__all__ = ["Later", "ShardLost", "ShardReader", "Source", "read_shards"]

Array = np.ndarray[Any, Any]

_OVERTAKEN = 4  # rounds that lose rows to writers before shares are drawn under the shards' locks
_TRIES = 100


def read_shards(
    sampler: Sampler,
    rng: Rng,
    sources: Sequence[Source],
    request: Request,
    lost: Callable[[Source], None],
    turn: int = 0,
) -> Batch:
    """One batch, flat, a shard's rows after another's; of groups, a group's after another's.

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
    asking = Asking(list(sources), lost)
    if sampler.spanning is not None:
        return GroupRound(sampler, sampler.spanning, rng, asking, request).read()
    return _Round(sampler, rng, asking, request, turn).read()


class _Round:
    """One batch in the making."""

    def __init__(
        self, sampler: Sampler, rng: Rng, asking: Asking, request: Request, turn: int
    ) -> None:
        self.sampler, self.rng, self.turn = sampler, rng, turn
        self.asking, self._answers = asking, asking.answers
        self.request, self.need = request, request.groups
        self.parts: list[Batch] = []

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
        raise self.asking.nothing(self.sampler)

    def _weigh(self, sure: bool) -> list[Mass]:
        sampler, request, turn = self.sampler, self.request, self.turn
        surveys: list[Any] = [None] * len(self.asking.sources)
        if sampler.surveys:
            surveys = self._answers([s.survey() for s in self.asking.sources])
        told = sampler.agree(surveys) if surveys else None
        sources = self.asking.sources
        each = [None] * len(sources) if told is None else told
        return self._answers([s.offer(request, t, turn, sure) for s, t in zip(sources, each)])

    def _begin_epoch(self) -> None:
        self.parts, self.need = [], self.request.groups
        words = streams(self.rng, len(self.asking.sources))
        self._answers([s.begin_epoch(w) for s, w in zip(self.asking.sources, words)])

    def _take(self, masses: list[Mass], held: bool) -> Batch | None:
        """Has shards draw their shares; the batch if it is whole."""
        once = self.sampler.drops_last is not None
        weights = [m.weight for m in masses]
        n = min(self.need, int(sum(weights))) if once else self.need
        shares = split(self.rng, weights, n, once)
        least = min(m.least for m in masses)
        words = streams(self.rng, len(self.asking.sources))
        asked, later = [], []
        here: list[tuple[ShardReader, Draw]] = []
        for source, share, stream in zip(self.asking.sources, shares, words):
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
                self._add(said(source, answer))
            except ShardLost:
                self.asking.drop(source)

    def _add(self, part: Part | None) -> None:
        if part is not None:
            self.parts.append(part[0])
            self.need -= part[1]


def _whole(parts: list[Batch]) -> Batch:
    """A batch that can be written to, as all can; what came from elsewhere is read where it is."""
    if len(parts) > 1 or parts[0].block.flags.writeable:
        return stack_batches(parts)
    part = parts[0]
    block = _native.Block(len(part.block))
    memoryview(block)[:] = memoryview(part.block)  # type: ignore[arg-type]
    return Batch(block, part.layout, part.shape, part.extras)


def _gather_together(here: list[tuple[ShardReader, Draw]]) -> Part | None:
    """Shares of several tapes of this machine in one block, each row copied once."""
    if len(here) == 1:
        return gather_apart(*here[0])
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
    parts = [part for one in here if (part := gather_apart(*one)) is not None]
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
