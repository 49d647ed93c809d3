"""The index of runs as a table of trajectories."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .._native import RunFlag
from .entry import ENTRY, ends_of, flags_of, steps_of

__all__ = ["EPISODE", "EpisodeReader", "IndexTable", "read_index"]

EPISODE = np.dtype(
    [
        ("id", np.int64),
        ("traj_id", np.int64),
        ("first", np.int64),
        ("steps", np.int64),
        ("return", np.float64),
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("trimmed", np.bool_),
        ("complete", np.bool_),
        ("writer", np.int64),
        ("policy_version", np.int64),
        ("time", np.float64),
    ]
)


class IndexTable(NamedTuple):
    """Live runs, sorted by (trajectory, number), and the bounds they hold for."""

    entries: np.ndarray[Any, Any]
    head: int
    tail: int

    def by_number(self) -> np.ndarray[Any, Any]:
        """The entries as they are in the index."""
        return self.entries.take(np.argsort(self.entries["number"]))

    def episodes(self) -> np.ndarray[Any, Any]:
        """One row per trajectory, in the order in which they began."""
        if not len(self.entries):
            return np.empty(0, EPISODE)
        ordinal = self.entries["ordinal"]
        starts = np.flatnonzero(np.r_[True, ordinal[1:] != ordinal[:-1]])
        start = self.entries.take(starts)
        last = self.entries.take(np.r_[starts[1:] - 1, len(ordinal) - 1])
        cut = np.maximum(self.tail - start["first"], 0)
        out = np.empty(len(start), EPISODE)
        out["id"] = start["ordinal"]
        out["traj_id"] = start["traj_id"]
        out["first"] = start["first"] + cut
        out["steps"] = last["before"] + steps_of(last) - start["before"] - cut
        out["return"] = last["ret"]
        out["terminated"] = (flags_of(last) & RunFlag.TERMINATED) != 0
        out["truncated"] = (flags_of(last) & RunFlag.TRUNCATED) != 0
        out["trimmed"] = (start["before"] > 0) | (cut > 0)
        begins = (flags_of(start) & RunFlag.BEGINS) != 0
        out["complete"] = begins & ~out["trimmed"] & (out["terminated"] | out["truncated"])
        out["writer"] = start["writer"]
        out["policy_version"] = last["version"]
        out["time"] = last["time_ns"] / 1e9
        return out


def read_index(tape: Any) -> IndexTable:
    """The live part of the index now, without those runs that no longer have rows."""
    flat, head, tail = tape.read_index()
    entries = flat.view(ENTRY)
    entries = entries.compress(ends_of(entries) > tail)
    order = np.lexsort((entries["number"], entries["ordinal"]))
    return IndexTable(entries.take(order), head, tail)


class EpisodeReader:
    """Finds rows of single episodes, in a mirror of the index that is kept up to date. Thread-safe.

    Args:
        tape: the native one.
    """

    def __init__(self, tape: Any) -> None:
        self._tape = tape
        self._lock = threading.Lock()
        self.mirror: Any = None  # made when it is needed

    def rows_of(self, ordinal: int) -> np.ndarray[Any, Any]:
        """Seqs of an episode's rows, at the cost of what was written since the last call."""
        with self._lock:
            if self.mirror is None:
                self.mirror = _native.View(self._tape)
            return self.mirror.rows_of(ordinal) if ordinal >= 0 else np.empty(0, np.int64)

    @property
    def stale(self) -> bool:
        """Whether a checkpoint took the place of everything since the last call."""
        return bool(self.mirror.stale)

    def close(self) -> None:
        self.mirror = None
