"""The index of runs as a table of trajectories."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["EPISODE", "IndexTable", "read_index"]

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

# Words of an entry, native/tape/tape_format.h: struct Entry; the last one read_index fills in.
FIRST, STEPS_FLAGS, PREV, JUMP, BEFORE, ORDINAL, VERSION, RETURN = range(8)
TRAJ_ID, WRITER, TIME, DEPTH, NUMBER = 8, 9, 10, 11, 15
_BEGINS, _TERMINATED, _TRUNCATED = 1, 2, 4


class IndexTable(NamedTuple):
    """Live runs, one row of words each, sorted by (trajectory, number); bounds they hold for."""

    words: np.ndarray[Any, Any]
    head: int
    tail: int

    def episodes(self) -> np.ndarray[Any, Any]:
        """One row per trajectory, in the order in which they began."""
        w = self.words
        if not len(w):
            return np.empty(0, EPISODE)
        steps = w[:, STEPS_FLAGS] >> 8
        start = np.flatnonzero(np.r_[True, w[1:, ORDINAL] != w[:-1, ORDINAL]])
        last = np.r_[start[1:] - 1, len(w) - 1]
        cut = np.maximum(self.tail - w[start, FIRST], 0)
        flags = w[last, STEPS_FLAGS] & 0xFF
        out = np.empty(len(start), EPISODE)
        out["id"] = w[start, ORDINAL]
        out["traj_id"] = w[start, TRAJ_ID]
        out["first"] = w[start, FIRST] + cut
        out["steps"] = w[last, BEFORE] + steps[last] - w[start, BEFORE] - cut
        out["return"] = w[last, RETURN].view(np.float64)
        out["terminated"] = (flags & _TERMINATED) != 0
        out["truncated"] = (flags & _TRUNCATED) != 0
        out["trimmed"] = (w[start, BEFORE] > 0) | (cut > 0)
        begins = (w[start, STEPS_FLAGS] & _BEGINS) != 0
        out["complete"] = begins & ~out["trimmed"] & (out["terminated"] | out["truncated"])
        out["writer"] = w[start, WRITER]
        out["policy_version"] = w[last, VERSION]
        out["time"] = w[last, TIME] / 1e9
        return out


def read_index(tape: Any) -> IndexTable:
    """The live part of the index now, without those runs that no longer have rows."""
    flat, head, tail = tape.read_index()
    words = flat.reshape(-1, 16)
    words = words[words[:, FIRST] + (words[:, STEPS_FLAGS] >> 8) > tail]
    order = np.lexsort((words[:, NUMBER], words[:, ORDINAL]))
    return IndexTable(np.ascontiguousarray(words[order]), head, tail)
