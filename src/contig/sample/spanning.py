"""Groups of trajectories whose members lie on several tapes, drawn by the one who asks them all.

    tape's side     Scout ──Report: what has changed──┐
    tape's side     Scout ──Report────────────────────┼──▶ Roster ──▶ draw: groups, by number
    tape's side     Scout ──Report────────────────────┘                  │
                    want, take ◀──numbers of members, to the tape that has each

The same object has both sides: the user's own sampler draws, its copies on the tapes report and
take. A group is delivered when every member of it was gathered; else nothing of it is, and what has
become of it is in the next reports.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .. import _native
from .filters import Array
from .index import Index
from .numbering import SEQ_BITS, decode
from .report import Asked, Grouping, Report, Scout
from .roster import Roster

__all__ = ["Members", "Spanning", "renumbered"]

Members = list[int]  # of a group, by shard and number
Have = Callable[[list[Members]], list[bool]]


class Spanning:
    """Both sides of it. Not thread-safe.

    Args:
        roster: of the whole; a copy on a tape has one, too, and does not use it.
        grouping: what makes a group.
        consume: each group once.

    Attributes:
        clock: the time in seconds.
        wanted: on a tape: trajectories to take, by its own numbers.
        found: on a tape: which of them were there.
    """

    def __init__(self, roster: Roster, grouping: Grouping, consume: bool) -> None:
        self.roster, self.grouping, self.consume = roster, grouping, consume
        self.clock: Callable[[], float] = time.time
        self.wanted: Array = np.empty(0, np.int64)
        self.found: Array = np.empty(0, np.bool_)
        self._scout = Scout(roster.where, grouping, roster.whole)
        self._pool: list[int] = []  # what stands for a group that is ready, ascending
        self._label = 0
        self._tapes: set[int] = set()  # that the roster knows of
        self._most = 0  # tapes that there were at a time

    # -- on a tape --------------------------------------------------------------------------------

    def report(self, index: Index, asked: Asked) -> Report | None:
        """What has changed since a report; None: nothing has."""
        return self._scout.report(index, asked)

    def want(self, ids: Array) -> None:
        """Says which trajectories the next `take` is to take."""
        self.wanted = np.ascontiguousarray(ids, np.int64)
        self.found = np.zeros(len(ids), np.bool_)

    def look(self, index: Index, spec: Any) -> Array:
        """Which of those that are wanted are there, and in the index's window: a mask."""
        self.found = index.view.has_trajectories(self.wanted, index.window, spec).astype(np.bool_)
        return self.found

    # -- the whole --------------------------------------------------------------------------------

    def ask(self, tapes: Iterable[int]) -> list[Asked]:
        """What tapes are to be asked for their reports."""
        self._label += 1
        return [Asked(self.roster.heard.get(tape, -1), self._label) for tape in tapes]

    def hear(self, tapes: list[int], reports: list[Report | None]) -> None:
        """Takes in what tapes say to the last `ask`. Those that say nothing are missing: what they
        have cannot be delivered; once there are as many tapes as ever, others are in their place.
        """
        roster = self.roster
        for tape, report in zip(tapes, reports):
            if report is not None:
                roster.take_in(report, tape)
            roster.heard[tape] = self._label
        missing = self._tapes.difference(tapes)
        for tape in missing:
            if len(tapes) >= self._most:
                roster.lose(tape)
                self._tapes.discard(tape)
            elif tape in roster.heard:
                roster.suspend(tape)
        self._tapes.update(tapes)
        self._most = max(self._most, len(tapes))
        roster.expire(self.clock)
        self._fill()

    def _fill(self) -> None:
        flips = self.roster.flips
        for leader, stands in flips.items():
            if stands:
                self._put(leader)
            else:
                self._remove(leader)
        flips.clear()
        self.roster.ready = len(self._pool)

    def _put(self, leader: int) -> None:
        at = bisect_left(self._pool, leader)
        if at == len(self._pool) or self._pool[at] != leader:
            self._pool.insert(at, leader)

    def _remove(self, leader: int) -> bool:
        at = bisect_left(self._pool, leader)
        there = at < len(self._pool) and self._pool[at] == leader
        if there:
            del self._pool[at]
        return there

    def draw(
        self, words: Array, n: int, aside: list[Members], have: Have | None = None
    ) -> list[Members]:
        """Groups of at least n trajectories, each as likely as any other; none: there are too few.

        Args:
            words: random numbers.
            n: trajectories.
            aside: groups that are not drawn, unless they have changed since.
            have: which of some groups the tapes let pass; None: all.
        """
        out: list[int] = []  # of the pool, until this is over
        for group in aside:
            if self._remove(group[0]):
                out.append(group[0])
                if self.roster.members(group[0]) != group:
                    self._put(out.pop())
        try:
            return self._draw(words, n, have, out)
        finally:
            for leader in out:
                insort(self._pool, leader)

    def _draw(self, words: Array, n: int, have: Have | None, out: list[int]) -> list[Members]:
        enough, members = self.grouping.enough, self.roster.members
        chosen: list[Members] = []
        at_once = 1 if have is None else self.grouping.groups_of(n)
        while self._pool and not enough(chosen, n):
            drawn = self._candidates(words, at_once, out)
            groups = [members(leader) for leader in drawn]
            passes = [True] * len(groups) if have is None else have(groups)
            for leader, group, passed in zip(drawn, groups, passes):
                if passed and not enough(chosen, n):
                    chosen.append(group)
                elif not passed and self._remove(leader):
                    out.append(leader)
            if have is not None:  # hardly any may pass: ask for more at a time
                at_once *= 2
        return chosen if enough(chosen, n) else []

    def _candidates(self, words: Array, n: int, out: list[int]) -> list[int]:
        drawn: list[int] = []
        while len(drawn) < n and self._pool:
            leader = self._pool[int(_native.uniform_below(words, 0, len(self._pool), 1)[0])]
            drawn.append(leader)
            if self.consume and self._remove(leader):
                out.append(leader)
        return drawn

    def deliver(self, groups: list[Members]) -> None:
        """They were gathered: if each comes once, they will not come again."""
        if self.consume:
            self.roster.deliver([member for group in groups for member in group])
            self._fill()

    def lacking(self, per_batch: int) -> str:
        """Why nothing can be drawn, for an error message."""
        text = self.roster.lacking(per_batch if self.consume else 0)
        where = self.roster.where
        return text if where is None else f"where={where} leaves {self.roster.total}; {text}"


def renumbered(ids: Array, numbers: dict[int, int]) -> Array:
    """Trajectories by shard and number, of shards that have other numbers now; those of shards
    that are not named are left out."""
    shard, own = decode(ids)
    known = np.isin(shard, list(numbers))
    now = np.array([numbers[s] for s in shard[known].tolist()], np.int64)
    return (now << SEQ_BITS) | own[known]
