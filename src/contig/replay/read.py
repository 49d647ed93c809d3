"""From a draw, or from seqs, to a batch: gathers rows, draws again what was evicted meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import whole_numbers
from ..batch import Batch, stack_batches
from ..convert import as_array
from ..errors import CodecError, EmptyBufferError, NothingEligibleError
from ..keys import INDEX
from ..sample import Draw, Index, Request, Rng, Sampler, UniformRows, UniformSlices
from ..tape import Storage
from ..tape.schema import ExtraLeaf

__all__ = [
    "extras_of",
    "finish",
    "gather_draw",
    "read_batch",
    "read_rows",
    "whole_groups",
    "without_lost",
]

# Tries that lose rows to writers before the lock is taken. A writer that passes by costs a reader
# a row or two, which the next try finds nearly always: so many in a row mean that writers go round
# the ring while it gathers (few and large rows), and each further try is a gather for nothing.
_OVERTAKEN = 4
_TRIES = 100  # in all: rows may also be damaged, or replaced by a checkpoint
_BY_KEY: dict[tuple[Any, ...], tuple[Any, ...]] = {}
_BY_COLUMNS: dict[
    int, tuple[dict[Any, Any], tuple[Any, ...]]
] = {}  # keeps the dict: its id is taken


def read_batch(index: Index, sampler: Sampler, rng: Rng, request: Request) -> Batch:
    """One batch, flat. Lock-free; only if writers keep overtaking it, once under the lock.

    Raises:
        EmptyBufferError, NothingEligibleError: judged under the lock, so it is certain.
        CodecError: rows cannot be decoded, and there are too few others.
    """
    how = sampler.at_once()
    if how is not None:
        batch = _read_at_once(index, how, rng, request)
        if batch is not None:
            return batch
    storage = index.storage
    parts: list[Batch] = []
    overtaken = 0
    for _ in range(_TRIES):
        index.refresh()
        draw = sampler.draw(index, rng, request)
        if draw is None:
            break
        batch, lost = gather_draw(storage, draw)
        if index.view.stale:  # a checkpoint was loaded: other rows may have these seqs now
            continue
        if lost is None:
            return stack_batches([*parts, batch]) if parts else batch
        request = _keep(parts, draw, batch, lost, request)
        evicted = lost & (draw.seqs < storage.tape.snapshot()[1])
        if evicted.any():
            overtaken += 1
            sampler.missed(draw.only(~whole_groups(draw, evicted)).seqs)
        if overtaken == _OVERTAKEN:
            break
    if storage.schema is None:
        raise EmptyBufferError("the buffer is empty: nothing has been written yet")
    with storage.held():
        return _read_held(index, sampler, rng, request, parts)


def _read_at_once(
    index: Index, how: UniformRows | UniformSlices, rng: Rng, request: Request
) -> Batch | None:
    """A batch by one native call. None: it is to be read step by step, whatever the reason; that
    way knows what to say of it."""
    try:
        if isinstance(how, UniformSlices):
            return _slices_at_once(index, how, rng, request)
        plan = index.storage.plan(_NO_COLUMNS, how.recipe)
    except NothingEligibleError:
        return None
    if plan is None:
        return None
    block = plan.gatherer.sample(index.view, rng.words, index.window, request.groups)
    if block is None:
        return None
    return Batch(block, plan.layout, (request.groups,), plan.extras)


def _slices_at_once(index: Index, how: UniformSlices, rng: Rng, request: Request) -> Batch | None:
    plan = index.storage.plan(extras_of(how.form), None)
    marks = None if plan is None else how.marks(plan)
    if plan is None or marks is None:
        return None
    how.check(index)
    spec = how.spec(request.length)
    found = plan.gatherer.sample_slices(
        index.view, rng.words, index.window, spec, request.groups, marks
    )
    if found is None:
        return None
    block, rows = found
    return Batch(block, plan.layout, (rows,), plan.extras)


def _read_held(
    index: Index, sampler: Sampler, rng: Rng, request: Request, parts: list[Batch]
) -> Batch:
    """The rest of a batch, while nobody writes."""
    storage = index.storage
    index.refresh()
    if len(storage) == 0:
        raise EmptyBufferError("the buffer is empty: every row was evicted or none was written")
    for _ in range(_TRIES):
        draw = sampler.draw(index, rng, request)
        if draw is None and parts:  # no more are left: what was drawn is not thrown away
            return stack_batches(parts)
        if draw is None:
            raise NothingEligibleError(
                f"{len(storage)} rows are stored, but {type(sampler).__name__} may draw none of "
                f"them: {sampler.missing(index)}"
            )
        batch, lost = gather_draw(storage, draw)
        if lost is None:
            parts.append(batch)
            return stack_batches(parts)
        request = _keep(parts, draw, batch, lost, request)
    assert draw is not None and lost is not None  # and nobody evicts now
    storage.gather(draw.seqs, (), draw.steps)  # says what is wrong, if they cannot be decoded
    raise NothingEligibleError(
        f"{len(storage)} rows are stored, but {int(lost.sum())} of {len(lost)} that were "
        "drawn are damaged and set aside: `contig inspect` says which and why"
    )


def _keep(
    parts: list[Batch], draw: Draw, batch: Batch, lost: np.ndarray[Any, Any], request: Request
) -> Request:
    """Keeps the groups that are whole; what is to be drawn in place of the others."""
    kept, bad = without_lost(draw, batch, lost)
    if kept is not None:
        parts.append(kept)
    return request._replace(groups=bad)


def gather_draw(storage: Storage, draw: Draw) -> tuple[Batch, np.ndarray[Any, Any] | None]:
    """The batch, finished; or as it is, with a mask of the rows that were lost."""
    extras = extras_of(draw)
    try:
        batch, lost = storage.gather(draw.seqs, extras, draw.steps)
    except CodecError:  # whoever wrote such rows, a client perhaps: the others are to be had
        batch, lost = storage.gather(draw.seqs, extras, draw.steps, aside=True)
    if isinstance(lost, np.ndarray):
        return batch, lost
    if lost:
        return batch, draw.seqs < lost
    return finish(batch, draw) if draw.columns or draw.finish is not None else batch, None


def finish(batch: Batch, draw: Draw) -> Batch:
    for path, value in draw.columns.items():
        # Added leaves start as zeros.
        if value is not np.False_ and path in batch.extras:
            batch[path][...] = value
    return batch if draw.finish is None else draw.finish(batch, draw)


def extras_of(draw: Draw) -> tuple[Any, ...]:
    """The leaves a draw adds, in a form that is the same object every time."""
    columns = draw.columns
    known = _BY_COLUMNS.get(id(columns))
    if known is not None and known[0] is columns:
        return known[1]
    key = tuple((p, v.shape[1:], v.dtype, p in draw.kept) for p, v in columns.items())
    found = _BY_KEY.get(key)
    if found is None:
        index = ExtraLeaf(INDEX, (), np.dtype(np.int64))
        found = (index, *(ExtraLeaf(*leaf) for leaf in key))
        _BY_KEY[key] = found
    if all(v.ndim == 0 for v in columns.values()):  # a sampler's constant: the same dict each time
        if len(_BY_COLUMNS) > 256:
            _BY_COLUMNS.clear()
        _BY_COLUMNS[id(columns)] = (columns, found)
    return found


_NO_COLUMNS = extras_of(Draw(np.empty(0, np.int64)))


def without_lost(draw: Draw, batch: Batch, gone: np.ndarray[Any, Any]) -> tuple[Batch | None, int]:
    """The groups of a gathered batch that are whole, finished; and how many are not."""
    whole = whole_groups(draw, gone)
    bad = int(np.count_nonzero(~whole))
    if bad == draw.groups:
        return None, bad
    rows = whole if draw.lengths is None else np.repeat(whole, draw.lengths)
    return finish(batch[np.flatnonzero(rows)], draw.only(whole)), bad


def whole_groups(draw: Draw, gone: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which groups of a draw have all their rows; of units, all their groups."""
    if draw.lengths is None:
        return ~gone
    starts = np.cumsum(draw.lengths) - draw.lengths
    whole = ~np.logical_or.reduceat(gone, starts)
    if draw.units is not None:
        firsts = np.cumsum(draw.units) - draw.units
        whole = np.repeat(np.logical_and.reduceat(whole, firsts), draw.units)
    return whole


def read_rows(storage: Storage, index: Any) -> Batch:
    """Rows by seq, or, for a slice, by position from the oldest one; -1 is the newest.

    Raises:
        IndexError: they are not stored, or not any more.
    """
    if isinstance(index, str):
        raise TypeError(f"rows are reached by seq; for the leaf {index!r} of all, buffer[:]")
    place = index if isinstance(index, slice) else None
    if place is None:
        seqs = whole_numbers("rows by seq", as_array(index))
        if np.ndim(index) == 0 and seqs[0] < 0:  # no seq is: it counts from the newest
            place = slice(int(seqs[0]), int(seqs[0]) + 1 or None)
    if place is None:
        batch, lost = _rows_at(storage, seqs, index)
    else:  # rows that are evicted meanwhile are not at their places any more: others are
        for _ in range(_OVERTAKEN):
            batch, lost = _rows_in(storage, place, index)
            if not lost:
                return batch
        with storage.held():
            batch, lost = _rows_in(storage, place, index)
    if lost:
        raise IndexError(f"rows below {lost} were evicted while they were read")
    return batch


def _rows_in(storage: Storage, place: slice, index: Any) -> tuple[Batch, int]:
    head, tail, _, _ = storage.tape.snapshot()
    seqs = np.arange(min(tail, head), head, dtype=np.int64)[place]
    if not len(seqs) and not isinstance(index, slice):
        raise IndexError(f"rows {tail} to {head - 1} are stored, asked for {index!r}")
    return _gathered(storage, seqs)


def _rows_at(storage: Storage, seqs: np.ndarray[Any, Any], index: Any) -> tuple[Batch, int]:
    head, tail, _, _ = storage.tape.snapshot()
    if len(seqs) and (int(seqs.min()) < tail or int(seqs.max()) >= head):
        raise IndexError(f"rows {tail} to {head - 1} are stored, asked for {index!r}")
    return _gathered(storage, seqs)


def _gathered(storage: Storage, seqs: np.ndarray[Any, Any]) -> tuple[Batch, int]:
    """Rows by seq, and the seq below which some were evicted meanwhile, or 0."""
    batch, lost = storage.gather(np.ascontiguousarray(seqs))
    if not isinstance(lost, np.ndarray):
        return batch, int(lost)
    tail = storage.tape.snapshot()[1]
    damaged = seqs[lost & (seqs >= tail)]  # what is below was evicted meanwhile
    if len(damaged):
        bad = ", ".join(str(x) for x in damaged[:8]) + (", ..." if len(damaged) > 8 else "")
        raise IndexError(f"rows {bad} are damaged and set aside: `contig inspect` says why")
    return batch, int(tail)
