"""Counters of a buffer that is in shards."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RayBufferStats"]


class RayBufferStats(NamedTuple):
    """Counters of a sharded buffer; those of rows are sums over the shards that there are.

    Attributes:
        rows, capacity, rows_written, appends, trajectories, rows_sampled, batches_sampled: as in
            `BufferStats`.
        shards, shards_lost: how many there are now, and how many were ever lost.
        shards_silent: how many there are that do not answer; they are not among `shards`, and
            counters of rows are without theirs.
        stale_priority_updates: priorities set on rows that were evicted, or lost with their shard.
    """

    rows: int
    capacity: int
    rows_written: int
    appends: int
    trajectories: int
    rows_sampled: int
    batches_sampled: int
    stale_priority_updates: int
    shards: int
    shards_lost: int
    shards_silent: int
