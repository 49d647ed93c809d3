"""Counters of a buffer, and what else is read off storages and batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..convert import as_array
from ..tape import Storage

__all__ = ["BufferStats", "priorities_in", "row_counts"]


class BufferStats(NamedTuple):
    """Counters of a buffer, from `ReplayBuffer.stats`.

    Attributes:
        rows, capacity: rows that are there, and that there is room for.
        rows_written, appends, trajectories: ever written to the storage.
        rows_sampled, batches_sampled: ever drawn by this buffer.
        stale_priority_updates: priorities that came for rows that were evicted.
    """

    rows: int
    capacity: int
    rows_written: int
    appends: int
    trajectories: int
    rows_sampled: int
    batches_sampled: int
    stale_priority_updates: int


def row_counts(storage: Storage) -> dict[str, int]:
    """The counters that a buffer has from its storage."""
    tape = storage.tape
    return {
        "rows": len(storage),
        "capacity": storage.capacity,
        "rows_written": int(tape.snapshot()[0]),
        "appends": int(tape.appends),
        "trajectories": int(tape.trajectories),
    }


def priorities_in(data: Any, key: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The rows of a batch, and a priority for each: the largest of all that `key` has of it."""
    rows = as_array(data["index"]).reshape(-1)
    return rows, np.abs(as_array(data[key]).reshape(len(rows), -1)).max(-1)
