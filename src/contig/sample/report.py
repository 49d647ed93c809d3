"""What a roster has to know of trajectories that have changed.

    tape of its own     view ──▶ Columns ──▶ Report ──▶ Roster
    one of several      view ──▶ Columns ──▶ Scout ──Report, with a label──▶ the whole's Roster

A Report is what has changed since the last one that was heard. One that got lost on its way, or was
for somebody else, is noticed by its label, and everything is told again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._native import RunFlag
from ..tree import Path, show_path
from .filters import Array, Columns
from .index import Index
from .predicate import Predicate

__all__ = ["Asked", "Grouping", "Report", "Scout", "report_of"]

_ENDED = int(RunFlag.TERMINATED | RunFlag.TRUNCATED)
_BEGINS = int(RunFlag.BEGINS)
_NONE = np.empty(0, np.int64)


class Grouping(NamedTuple):
    """What makes a group.

    Attributes:
        path: of the field that its members have in common.
        size: how many they are; None: those that there are, once all have ended.
        timeout_ns: how long one waits, from the time of its newest run on; None: for ever.
        drops: one that waited so long is dropped; else it is released with the members it has.
    """

    path: Path
    size: int | None = None
    timeout_ns: int | None = None
    drops: bool = False

    def groups_of(self, n: int) -> int:
        """Groups that so many trajectories are, of those of a known size."""
        return n if self.size is None else -(-n // self.size)

    def enough(self, groups: list[list[int]], n: int) -> bool:
        """Whether some groups are as many trajectories."""
        if self.size is None:
            return sum(map(len, groups)) >= n
        return len(groups) >= self.groups_of(n)


class Report(NamedTuple):
    """Trajectories of one tape that have changed, by its own numbers.

    Attributes:
        everything: these are all there are.
        ids: which, ascending if they are all.
        counts: whether `where` holds for them.
        whole: whether they have ended, and, if that is asked for, are stored from their first row.
        times: when the newest run of each was appended, in nanoseconds.
        keys: ``[n, ...]`` the values that make groups; None: there are none.
        gone: ids of trajectories that are no more.
    """

    everything: bool
    ids: Array
    counts: Array
    whole: Array
    times: Array
    keys: Array | None
    gone: Array


class Asked(NamedTuple):
    """Which report is asked for.

    Attributes:
        last: label of the last one that was heard; -1: none was.
        now: label of this one.
    """

    last: int
    now: int


def report_of(
    columns: Columns, where: Predicate | None, grouping: Grouping | None, whole: bool
) -> Report:
    """What the columns of changed trajectories say.

    Raises:
        ValueError: `where` failed, or there is no such field.
    """
    n = len(columns.ids)
    counts = np.ones(n, np.bool_) if where is None else where.judge(columns)
    ready = (columns.flags & _ENDED) != 0
    if whole:
        ready &= (columns.flags & _BEGINS) != 0
    keys = None if grouping is None or not n else _keys(columns, grouping.path)
    return Report(columns.everything, columns.ids, counts, ready, columns.times, keys, columns.gone)


def _keys(columns: Columns, path: Path) -> Array:
    try:
        values = columns[path]
    except KeyError as error:
        raise ValueError(f"group={show_path(path)}: {error.args[0]}") from None
    if values.dtype.kind not in "biu":
        values = values + values.dtype.type(0)  # -0.0 becomes 0.0, which is equal
    return values


class Scout:
    """Looks at one tape for a roster elsewhere. Judges for the tape's index.

    Args:
        where, grouping, whole: as the roster has them.
    """

    def __init__(self, where: Predicate | None, grouping: Grouping | None, whole: bool) -> None:
        self.where, self.grouping, self.whole = where, grouping, whole
        self.ages = () if where is None else where.ages
        self._found: Report | None = None
        self._told = (-1, -1)  # label of the last report, and the filters that it came from
        self._empty = False  # it said that there is nothing

    def judge(self, columns: Columns) -> Array:
        self._found = report_of(columns, self.where, self.grouping, self.whole)
        return self._found.counts

    def report(self, index: Index, asked: Asked) -> Report | None:
        """What has changed since the report `asked.last`; None: nothing has."""
        everything = self._told != (asked.last, index.filters.number)
        if everything:
            index.filters.look_again(self)
        self._found, self._told = None, (-1, -1)
        index.filters.judged(self)
        found, self._found = self._found, None
        if found is None and everything:
            none = np.empty(0, np.bool_)
            found = Report(True, _NONE, none, none, _NONE, None, _NONE)
        self._told = (asked.now, index.filters.number)
        known = self._empty and not everything  # that there is nothing: a tape without rows says it
        if found is not None:  # each time
            self._empty = found.everything and not len(found.ids)
        return None if known and self._empty else found
