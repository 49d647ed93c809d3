"""What servers count and tell: a sample with its info, histograms, statistics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..batch import Batch

__all__ = ["Counters", "HistSnapshot", "Sample", "SampleInfo", "ServerStats"]


class HistSnapshot(NamedTuple):
    """A histogram of durations in nanoseconds; percentiles are good to a fifth.

    Attributes:
        count: durations in it.
        min_ns, max_ns, mean_ns: exact.
        p50_ns, p90_ns, p99_ns: percentiles.
    """

    count: int  # type: ignore[assignment]
    min_ns: int
    max_ns: int
    mean_ns: float
    p50_ns: float
    p90_ns: float
    p99_ns: float


class SampleInfo(NamedTuple):
    """The queue's state when a sample was taken.

    Attributes:
        store_size: items in the queue.
        active_connections: clients connected over TCP.
        queue_depth_sum, queue_depth_max: items that wait in connections for room: in all of them,
            and in the fullest.
        push_blocked_count: how often an item found the queue full.
        samples_inserted_total: items ever taken in.
        fresh_blocks: batches that were copied because every buffer was held.
        drain_round: handling what one read from a socket brought.
        memcpy: scattering a frame's items into the queue.
        queue_dwell: from a batch's first item to its delivery.
    """

    store_size: int
    active_connections: int
    queue_depth_sum: int
    queue_depth_max: int
    push_blocked_count: int
    samples_inserted_total: int
    fresh_blocks: int
    drain_round: HistSnapshot
    memcpy: HistSnapshot
    queue_dwell: HistSnapshot


class Sample(NamedTuple):
    """One batch of a queue, leaves ``[batch_size, ...]``, and what the queue looked like.

    Attributes:
        batch: read-only; its memory is reused when nothing refers to it any more.
        info: the queue's state.
    """

    batch: Batch
    info: SampleInfo


class ServerStats(NamedTuple):
    """A server's counters since its start.

    If its ingest process dies and is started again, they go on from what it had counted half a
    second before, or when they were last asked for.

    Attributes:
        connections, connections_total: now, and ever.
        frames_in, items_in, rows_in, bytes_in, bytes_out: traffic.
        duplicates_dropped: items that were sent again and had been seen.
        resent_frames: frames with at least one such item, most of them after a reconnect.
        lost_items: acked as received, and then the server was closed, or the process died, before
            there was room for them.
        unconfirmed_rows: of samplers that give each once: rows that clients were sent and have not
            said to have taken, which went without a goodbye, and have not come back. Those
            among them that a client had asked for ahead, and did not take, are lost.
        blocked, blocked_s: how often and how long connections waited for room.
        rejected: refused frames and handshakes, by reason.
        bytes_held: memory of all receive buffers, and of TLS.
        open_bytes: memory of what is known of the trajectories that clients have begun.
        tables: of each table, rows in and out, depth, episodes, age of what was sampled.
        clients: of each connected client, its peer, table, rows, bytes, seconds, and for how
            many of them it waited for room.
    """

    connections: int = 0
    connections_total: int = 0
    frames_in: int = 0
    items_in: int = 0
    rows_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    duplicates_dropped: int = 0
    resent_frames: int = 0
    lost_items: int = 0
    unconfirmed_rows: int = 0
    blocked: int = 0
    blocked_s: float = 0.0
    rejected: dict[str, int] = {}  # noqa: RUF012
    bytes_held: int = 0
    open_bytes: int = 0
    tables: dict[str, Any] = {}  # noqa: RUF012
    clients: list[Any] = []  # noqa: RUF012

    @staticmethod
    def of(ingest: dict[str, Any], tables: dict[str, Any]) -> ServerStats:
        """Counters of the ingest process and of the tables, as one."""
        known = {k: v for k, v in ingest.items() if k in ServerStats._fields}
        return ServerStats(**{**known, "tables": tables})


@dataclass
class Counters:
    """What only grows, since the server's start; named as in its statistics."""

    connections_total: int = 0
    frames_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    items_in: int = 0
    rows_in: int = 0
    duplicates_dropped: int = 0
    resent_frames: int = 0
    lost_items: int = 0
    blocked: int = 0
    blocked_s: float = 0.0
    requests_answered: int = 0
    weights_sent: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def going_on(before: dict[str, Any] | None) -> Counters:
        """Where a process that is no more left off, as JSON has it."""
        if before is None:
            return Counters()
        return Counters(**{**before, "rejected": Counter(before["rejected"])})
