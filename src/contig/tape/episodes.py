"""The index of runs as a table of trajectories."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .._native import RunFlag
from ..layout import Layout
from ..tree import Path
from .entry import ENTRY, ends_of, flags_of, steps_of

__all__ = ["EPISODE", "EpisodeReader", "IndexTable", "field_column", "read_episodes", "read_index"]

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


_TRIES = 100
_PART = 1 << 14  # trajectories


class IndexTable(NamedTuple):
    """Live runs, sorted by (trajectory, number), and the bounds they hold for."""

    entries: np.ndarray[Any, Any]
    head: int
    tail: int

    def by_number(self) -> np.ndarray[Any, Any]:
        """The entries as they are in the index."""
        numbers = self.entries["number"]
        if (numbers[1:] > numbers[:-1]).all():
            return self.entries
        return self.entries.take(np.argsort(numbers))

    def episodes(self) -> np.ndarray[Any, Any]:
        """One row per trajectory, in the order in which they began."""
        if not len(self.entries):
            return np.empty(0, EPISODE)
        ordinal = self.entries["ordinal"]
        starts = np.flatnonzero(np.r_[True, ordinal[1:] != ordinal[:-1]])
        lasts = self.lasts()
        out = np.empty(len(starts), EPISODE)
        # In parts: large arrays are given back to the system with the interpreter's lock held.
        for at in range(0, len(out), _PART):
            part = slice(at, at + _PART)
            self._describe(
                self.entries.take(starts[part]), self.entries.take(lasts[part]), out[part]
            )
        return out

    def _describe(
        self, start: np.ndarray[Any, Any], last: np.ndarray[Any, Any], out: np.ndarray[Any, Any]
    ) -> None:
        """Fills rows of `episodes` in from the first and last runs of trajectories."""
        cut = np.maximum(self.tail - start["first"], 0)
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

    def last_runs(self) -> np.ndarray[Any, Any]:
        """The number of each trajectory's newest run, in the order of `episodes`."""
        return self.entries["number"].take(self.lasts())

    def lasts(self) -> np.ndarray[Any, Any]:
        """The places of these runs among the entries."""
        ordinal = self.entries["ordinal"]
        return np.flatnonzero(np.r_[ordinal[1:] != ordinal[:-1], len(ordinal) > 0])


def field_column(path: Path) -> str:
    """What `episodes()` calls a field."""
    return ".".join(str(key) for key in path)


def with_fields(
    episodes: np.ndarray[Any, Any], fields: Layout, records: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """The table with a column for each field, of records ``[n, size]``."""
    columns = [(field_column(x.path), x.dtype, x.shape) for x in fields.leaves]
    out = np.empty(len(episodes), np.dtype([*EPISODE.descr, *columns]))
    for name in EPISODE.names or ():
        out[name] = episodes[name]
    for leaf in fields.leaves:
        value = records[:, leaf.offset : leaf.offset + leaf.nbytes]
        if value.size:
            shape = (len(episodes), *leaf.shape)
            out[field_column(leaf.path)] = value.copy().view(leaf.dtype).reshape(shape)
    return out


def read_episodes(tape: Any, fields: Layout | None) -> np.ndarray[Any, Any]:
    """One row per trajectory that is stored now, with its fields, if there are any."""
    if fields is None:
        return read_index(tape).episodes()
    tries = 0
    while True:
        restores = tape.restores
        table = read_index(tape)
        last = table.last_runs()
        records = tape.fields_of(last)
        there = last >= tape.snapshot()[3]  # others were evicted meanwhile
        if tape.restores != restores:  # numbers of runs may be those of other ones
            continue
        tries += 1
        if there.any() or tries == _TRIES or not _has_rows(tape):
            return with_fields(table.episodes(), fields, records).compress(there)


def read_index(tape: Any) -> IndexTable:
    """The live part of the index now, without those runs that no longer have rows. If writers evict
    all of it while it is read, it is read again: there are others in their place."""
    for _ in range(_TRIES):
        flat, head, tail = tape.read_index()
        entries = flat.view(ENTRY)
        is_stored = ends_of(entries) > tail
        if not is_stored.all():
            entries = entries.compress(is_stored)
        if len(entries) or not _has_rows(tape):
            break
    if not _is_sorted(entries):
        entries = entries.take(np.lexsort((entries["number"], entries["ordinal"])))
    return IndexTable(entries, head, tail)


def _is_sorted(entries: np.ndarray[Any, Any]) -> bool:
    """Returns whether runs are in the order of an IndexTable.

    Those of one writer always are, and copying them would take longer than finding out.
    """
    ordinals, numbers = entries["ordinal"], entries["number"]
    new, same = ordinals[1:] > ordinals[:-1], ordinals[1:] == ordinals[:-1]
    return bool((new | (same & (numbers[1:] > numbers[:-1]))).all())


def _has_rows(tape: Any) -> bool:
    head, tail, _, _ = tape.snapshot()
    return bool(head > tail)


class EpisodeRows(NamedTuple):
    """The rows of an episode that are stored.

    Attributes:
        first: its steps that were evicted.
        seqs: of the others.
        restores: another number, another checkpoint, whose seqs are other rows.
    """

    first: int
    seqs: np.ndarray[Any, Any]
    restores: int


class EpisodeReader:
    """Finds rows of single episodes, in a mirror of the index that is kept up to date. Thread-safe.

    Args:
        tape: the native one.
    """

    def __init__(self, tape: Any) -> None:
        self._tape = tape
        self._lock = threading.Lock()
        self.mirror: Any = None  # made when it is needed

    def rows_of(self, ordinal: int) -> EpisodeRows:
        """An episode's rows, at the cost of what was written since the last call."""
        with self._lock:
            if self.mirror is None:
                self.mirror = _native.View(self._tape)
            known = 0 <= ordinal < 2**63  # a number may come from anybody, of any size
            first, seqs = self.mirror.rows_of(ordinal) if known else (0, np.empty(0, int))
            return EpisodeRows(first, seqs, self.mirror.restores)

    def set_fields(
        self, ids: np.ndarray[Any, Any], records: np.ndarray[Any, Any], masks: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Changes fields of episodes; which of them were there."""
        with self._lock:
            if self.mirror is None:
                self.mirror = _native.View(self._tape)
            there = np.zeros(len(ids), np.int64)
            for mask in np.unique(masks):
                mine = masks == mask if len(masks) > 1 else slice(None)
                some = np.ascontiguousarray(records[mine])
                there[mine] = self._tape.set_fields(self.mirror, ids[mine], some, int(mask))
            return there

    @property
    def stale(self) -> bool:
        """Whether a checkpoint took the place of everything since the last call."""
        return bool(self.mirror.stale)

    def close(self) -> None:
        self.mirror = None
