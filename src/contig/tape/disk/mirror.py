"""The index in memory: taken from the files when a storage is opened, then kept up with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import _native
from ..entry import ends_of, join
from .changes import IndexState, Salts
from .entries import STORED, widen
from .extents import Extents

__all__ = ["follow", "ordinals_at", "ordinals_of", "set_salts", "take_in"]

Array = np.ndarray[Any, Any]


def set_salts(tape: Any, salts: Salts) -> None:
    """What the checksums of a tape's rows are of."""
    tape.set_salts(np.array(salts, np.int64).reshape(-1).view(np.uint64))


def take_in(tape: Any, state: IndexState, at_once: bool) -> None:
    """An index as it was found, into a tape, in place of what it has.

    Args:
        tape: a native one, whose capacity counts.
        state: the index; its parts are taken from it one by one, so that there is not a second
            copy of a large one.
        at_once: whether somebody is reading, who must not see a part of it.
    """
    parts = state.parts
    head, index_tail = state.head, state.index_tail
    if parts:
        head = int(ends_of(parts[-1])[-1])
    tail = max(state.tail, head - int(tape.capacity))
    while parts and ends_of(parts[0])[-1] <= tail:
        index_tail += len(parts.pop(0))
    if parts:
        skip = int(np.argmax(ends_of(parts[0]) > tail))
        parts[0] = parts[0][skip:]
        index_tail += skip
    else:
        tail = head
    # Ranks of entries of contig 0.1 are found out from all that are before them.
    ranked = all((part["depth"] & _native.RANKED).all() for part in parts)
    if len(parts) > 1 and (at_once or not ranked):
        parts[:] = [join(parts)]
    set_salts(tape, state.salts)
    index_head, known = index_tail, state.trajectories
    if not parts:
        tape.restore_stored(tail, head, np.zeros(0, np.uint64), index_tail, index_tail, known)
    fresh = True
    while parts:
        kept = parts.pop(0)
        upto, index_head = int(ends_of(kept)[-1]), index_head + len(kept)
        if fresh:
            tape.restore_stored(tail, upto, _flat(kept), index_tail, index_head, known)
        else:
            tape.follow(_flat(kept), tail, upto, index_tail, index_head, known)
        fresh = False
    tape.inserted, tape.sampled = state.limiter
    for producer, seq in state.producers.items():
        tape.set_producer(producer, seq)


def follow(tape: Any, extents: Extents, state: IndexState) -> bool:
    """What another process committed since; False if this is not a part of what went before."""
    head, tail, index_head, index_tail = tape.snapshot()
    fresh = join(state.parts) if state.parts else np.zeros(0, STORED)
    first = int(fresh[0]["number"]) if len(fresh) else index_head
    capacity = int(tape.capacity)
    then_tail = max(state.tail, state.head - capacity, tail)
    # Everything we knew is: of an entry that grew on, no row that we have would be left.
    gone = state.index_tail > index_head or first > index_head or tail < head <= then_tail
    back = state.head < head or state.index_head < index_head
    too_many = state.index_head - max(index_tail, state.index_tail) > capacity
    if gone or back or too_many:
        return False
    tape.retire(min(then_tail, head))  # before other rows get their places
    for extent in range(max(head, then_tail) // extents.rows, -(-state.head // extents.rows)):
        extents.map(extent)
    set_salts(tape, state.salts)
    index_tail = max(tape.snapshot()[3], state.index_tail)
    fresh = fresh.compress(fresh["number"] >= index_tail)
    then_index = max(state.index_head, index_tail)
    tape.follow(_flat(fresh), then_tail, state.head, index_tail, then_index, state.trajectories)
    tape.retire(then_tail)
    return True


def ordinals_of(entries: Array, low: int, high: int) -> list[int]:
    """Trajectories with rows among [low, high)."""
    inside = (entries["first"] < high) & (ends_of(entries) > low)
    return [int(o) for o in np.unique(entries["ordinal"][inside])]


def ordinals_at(entries: Array, seqs: Array) -> list[int]:
    """Trajectories of some rows; entries are in the order of their rows."""
    at = np.searchsorted(entries["first"], seqs, side="right") - 1
    inside = (at >= 0) & (seqs < ends_of(entries)[at])
    return [int(o) for o in np.unique(entries["ordinal"][at[inside]])]


def _flat(kept: Array) -> Array:
    return widen(kept).view(np.uint64)
