"""How old what is sampled is: which rows are looked at, and histograms of their ages.

    learner: buffer.draw ── SeenRows (some of them, within a budget) ──> page: ages, staleness

Nothing is drawn for it where the learner's own draws can be seen.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arguments import seconds
from ..batch import Batch
from ..convert import as_array
from ..tape import Storage
from ..tape.entry import ENTRY, ends_of

__all__ = ["SEEN", "Budget", "RowTimes", "SeenRows", "ages_of", "histogram", "seen_now"]

Array = np.ndarray[Any, Any]

# A row that was drawn, and what was so at that moment: its age is that of the draw, whenever
# somebody looks.
SEEN = np.dtype(
    [
        ("head", "<i8"),  # the next seq that was to be written
        ("seq", "<i8"),  # of the row
        ("time_ns", "<i8"),  # since 1970
        ("version", "<i8"),  # the newest that was published, or -1
    ]
)

_MOST = 256  # rows of one batch
_KEPT = 64  # batches between two looks
_BINS = 24


class Budget:
    """At most so many rows per second. Not thread-safe: losing a race costs one batch.

    Args:
        rows_per_s: 0: none at all.
    """

    def __init__(self, rows_per_s: float) -> None:
        self.rows_per_s = seconds("samples_per_s", rows_per_s)
        self._next = 0.0

    @property
    def is_open(self) -> bool:
        """Whether rows may be looked at now."""
        return self.rows_per_s > 0 and time.monotonic() >= self._next

    def spend(self, rows: int) -> None:
        """So many were: it is closed until they are paid for."""
        self._next = time.monotonic() + rows / self.rows_per_s


class SeenRows:
    """Rows that a buffer drew, some of them: called with batches by whoever draws.

    Args:
        storage: where they are from.
        rows_per_s: how many are looked at.
        newest: gives the newest version of the policy that was published, or None.
    """

    def __init__(
        self,
        storage: Storage,
        rows_per_s: float,
        newest: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._tape = storage.tape
        self._newest = newest
        self._budget = Budget(rows_per_s)
        self._seen: deque[Array] = deque(maxlen=_KEPT)

    def __call__(self, batch: Batch) -> None:
        """Takes note of a batch's rows, or of some."""
        if not self._budget.is_open:
            return
        rows = as_array(batch["index"]).reshape(-1)
        most = int(min(_MOST, max(self._budget.rows_per_s, 1)))
        seqs = rows[:: max(-(-len(rows) // most), 1)]
        if not len(seqs):
            return
        self._budget.spend(len(seqs))
        self._seen.append(seen_now(self._tape.snapshot()[0], seqs, self._newest()))

    def take(self) -> Array:
        """What was seen since the last call, as `SEEN`."""
        parts = []
        while self._seen:
            parts.append(self._seen.popleft())
        return np.concatenate(parts) if parts else np.empty(0, SEEN)


def seen_now(head: int, seqs: Array, newest: int | None = None) -> Array:
    """Rows that are drawn at this moment, as `SEEN`."""
    out = np.empty(len(seqs), SEEN)
    out["head"], out["seq"], out["time_ns"] = head, seqs, time.time_ns()
    out["version"] = -1 if newest is None else newest
    return out


class RowTimes:
    """When rows were written, and by which version of the policy: the index, read now and then.
    Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._due = 0.0
        self._entries: Array = np.empty(0, ENTRY)

    def of(self, seqs: Array) -> tuple[Array, Array, Array]:
        """Of each row: whether it is known, when (seconds since 1970), which version."""
        with self._lock:
            entries = self._fresh()
            if not len(entries):
                none = np.zeros(len(seqs))
                return none.astype(bool), none, none.astype(np.int64)
            at = np.searchsorted(entries["first"], seqs, "right") - 1
            known = (at >= 0) & (seqs < ends_of(entries)[at])
            return known, entries["time_ns"][at] / 1e9, entries["version"][at]

    @property
    def newest_version(self) -> int | None:
        """Of all rows; None if no version was recorded with any of them."""
        with self._lock:
            versions = self._fresh()["version"]
            newest = int(versions.max()) if len(versions) else -1
            return None if newest < 0 else newest

    def newest_before(self, heads: Array) -> Array:
        """The newest version of the rows below each head; -1: none was recorded with them."""
        with self._lock:
            entries = self._fresh()
            newest = np.maximum.accumulate(np.append(-1, entries["version"]))
            return np.asarray(newest[np.searchsorted(entries["first"], heads)])

    def _fresh(self) -> Array:
        """The index, sorted by rows; reading it takes at most a twentieth of the time."""
        began = time.monotonic()
        if began >= self._due:
            self._storage.poll()
            entries = self._storage.tape.read_index()[0].view(ENTRY)
            self._entries = entries.take(np.argsort(entries["first"], kind="stable"))
            self._due = began + max(1.0, 20 * (time.monotonic() - began))
        return self._entries


def histogram(values: Array, *, whole: bool = False) -> dict[str, Any] | None:
    """Counts of values in bins of equal width, and their mean and quantiles, as JSON.

    Args:
        values: finite numbers.
        whole: they are whole numbers: bins begin and end at such.
    """
    if not len(values):
        return None
    values = np.asarray(values, np.float64)
    low, high = float(values.min()), float(values.max())
    bins = _BINS
    if whole:
        width = max(int(np.ceil((high - low + 1) / _BINS)), 1)
        bins = int((high - low) // width) + 1
        high = low + bins * width
    elif low == high:
        bins, high = 1, low + 1.0
    counts, edges = np.histogram(values, bins, (low, high))
    p10, p50, p90 = np.quantile(values, (0.1, 0.5, 0.9))
    return {
        "edges": [float(e) for e in edges],
        "counts": [int(c) for c in counts],
        "count": len(values),
        "mean": float(values.mean()),
        "p10": float(p10),
        "p50": float(p50),
        "p90": float(p90),
    }


def ages_of(seen: Array, times: RowTimes, newest: int | None) -> dict[str, Any]:
    """Histograms of what was sampled, as it was when it was: ages in rows and in seconds,
    staleness in versions.

    Args:
        seen: the rows, as `SEEN`.
        times: of the storage they are from.
        newest: the newest version that is known now besides those of the rows, or None.
    """
    known, written, versions = times.of(seen["seq"])
    then = np.maximum(seen["version"], times.newest_before(seen["head"]))
    versioned = known & (versions >= 0)
    stored = times.newest_version
    return {
        "rows": histogram(np.maximum(seen["head"] - seen["seq"], 0), whole=True),
        "seconds": histogram(np.maximum(seen["time_ns"] / 1e9 - written, 0.0)[known]),
        "staleness": histogram(np.maximum(then - versions, 0)[versioned], whole=True),
        "stored_version": stored,
        "newest_version": max((v for v in (newest, stored) if v is not None), default=None),
    }
