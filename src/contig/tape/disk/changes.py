"""An index as values: what appends change in it, and what is read of it.

An append makes `Changes`, the committer merges and writes them, opening and following read an
`IndexState`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..entry import join
from .index_fields import FieldChanges, StoredFields, merged_fields

__all__ = ["Changes", "IndexBounds", "IndexState", "Salts", "merged"]

Array = np.ndarray[Any, Any]

# What rows' checksums begin with, from a seq on: (first seq, salt), ascending; 0: with nothing.
Salts = tuple[tuple[int, int], ...]


class Changes(NamedTuple):
    """What one or more appends changed.

    Attributes:
        entries: tape/entry.py, numbers ascending without gaps.
        producers: items taken in, by producer.
        tail, index_tail, head, index_head, trajectories: the tape's bounds afterwards.
        limiter: rows inserted and sampled, as the rate limiter counts them.
        salts: of the rows there are.
        blob_tail, blob_head: bytes of leaves of any size: from the first row's on, and behind the
            last row's.
        fields: of trajectories.
    """

    entries: Array
    producers: dict[int, int]
    tail: int
    index_tail: int
    head: int
    index_head: int
    trajectories: int
    limiter: tuple[int, int]
    salts: Salts
    blob_tail: int = 0
    blob_head: int = 0
    fields: FieldChanges | None = None


def merged(changes: list[Changes]) -> Changes:
    """Some changes, one after another, as one."""
    if len(changes) == 1:
        return changes[0]
    parts: list[Array] = []
    upto: int | None = None  # what later ones say counts
    producers: dict[int, int] = {}
    for one in reversed(changes):
        entries = one.entries
        if len(entries) and upto is not None:
            entries = entries[: max(upto - int(entries[0]["number"]), 0)]
        if len(entries):
            upto = int(entries[0]["number"])
            parts.append(entries)
        if one.producers:
            producers = {**one.producers, **producers}
    entries = join(parts[::-1]) if parts else changes[-1].entries
    fields = merged_fields(one.fields for one in changes)
    return changes[-1]._replace(entries=entries, producers=producers, fields=fields)


class IndexBounds(NamedTuple):
    """The one row of numbers that an index has; see `Changes` and `IndexState`."""

    store: int
    tail: int
    index_tail: int
    head: int
    index_head: int
    trajectories: int
    inserted: int
    sampled: int
    blob_tail: int
    blob_head: int
    loads: int
    revision: int


class IndexState(NamedTuple):
    """An index as it was read.

    Attributes:
        parts: entries as they are kept (`index_pages.STORED`), numbers ascending without gaps.
        quarantine: trajectories that are not to be served, with the reason.
        repaired: those of them that a repair set aside.
        bad: numbers of entries that could not be read, with a stand-in among `parts`.
        damaged: trajectories that are to be set aside for that, with the reason.
        lost_producers: how many could not be read.
        loads: how many times a checkpoint took the place of everything.
        revision: how many transactions it has seen.
        store: the number of the storage that it belongs to.
        data_version: SQLite's number of this state, for the connection that read it; another
            process committed since then if `DiskIndex.data_version` differs.
        fields: of trajectories; None: those of this storage have none.
    """

    tail: int
    index_tail: int
    head: int
    index_head: int
    trajectories: int
    limiter: tuple[int, int]
    parts: list[Array]
    producers: dict[int, int]
    lost_producers: int
    quarantine: dict[int, str]
    repaired: set[int]
    bad: list[int]
    damaged: dict[int, str]
    loads: int
    salts: Salts
    revision: int
    store: int
    data_version: int
    blob_tail: int = 0
    blob_head: int = 0
    fields: StoredFields | None = None
