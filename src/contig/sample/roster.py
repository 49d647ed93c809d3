"""Trajectories, or groups of them, that may be delivered now: kept by what changes.

A group is complete when it has all its members and all of them have ended. Until then it waits; one
that waits too long is released as it is, or dropped. The first of its members stands for a group
that is ready: draws are from those, so that a draw costs nothing of what is stored.

A roster is of one tape, or of several shards: then a trajectory is named by shard and number in one
(`numbering.py`), and groups have members of any of them.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .filters import Array, Columns
from .numbering import SEQ_BITS, base_of
from .predicate import Predicate
from .report import Grouping, Report, report_of
from .undo import Change, Point, UndoLog

__all__ = ["Group", "Roster"]


class Group:
    """Some trajectories with the same value of the field, in the order in which they began."""

    __slots__ = ("delivers", "leader", "members", "newest")

    def __init__(self) -> None:
        self.members: list[int] = []
        self.newest = 0  # when the newest run of a member was appended
        self.leader = -1  # of one that is ready: the member that stands for it
        self.delivers = 0  # members, if it is ready


class _Value:
    """All trajectories with one value of the field, and the groups that they make."""

    __slots__ = ("groups", "members")

    def __init__(self) -> None:
        self.members: dict[int, tuple[bool, int]] = {}  # may it be delivered; its newest run
        self.groups: list[Group] = []


class Roster:
    """What of tapes is ready, what waits, and what is done with. Not thread-safe.

    It judges for the index: what it lets pass are single trajectories that are ready, or, of
    groups, their members.

    Args:
        where: which trajectories count at all.
        grouping: None: each trajectory for itself.
        whole: whether only complete trajectories may be delivered.

    Attributes:
        done: trajectories that were consumed, or dropped.
        heard: by tape (0, if there is one), the label of what was taken in last; a tape that is not
            there, or has another label, is to be looked at as a whole.
        flips: of groups, members that begin or cease to stand for one; taken by who draws.
        ready: what could be drawn next, as of the last draw; set by who draws.
        waiting: groups that are not ready; `ready_members`: trajectories of those that are.
        consumed: trajectories that were delivered, and not given back, so far.
        released, dropped: groups that waited too long, so far.
        evicted: members that were evicted, or lost with their shard, so far.
    """

    def __init__(self, where: Predicate | None, grouping: Grouping | None, whole: bool) -> None:
        self.where, self.grouping, self.whole = where, grouping, whole
        self.ages = () if where is None else where.ages
        self.done: set[int] = set()
        self.heard: dict[int, int] = {}
        self.ready = self.consumed = self.released = self.dropped = self.evicted = 0
        self.rank, self.ranks = 0, 1
        self.flips: dict[int, bool] = {}
        self._undo = UndoLog()
        self._last: list[int] = []  # what was delivered last, as it is noted
        self._were: dict[int, tuple[bytes, bool, int]] = {}  # and what was known of its members
        self._by_leader: dict[int, Group] = {}
        # Members of groups that were counted as released, and when their newest run was appended:
        # groups are made up anew, and what was given out may come back.
        self._counted: dict[int, int] = {}
        self.forget()

    def forget(self) -> None:
        """What is known of the tapes; they are to be looked at anew."""
        self.heard.clear()
        self.flips = dict.fromkeys((*self.flips, *self._by_leader), False)
        self._by_leader = {}
        self._value_of: dict[int, bytes] = {}  # by member
        self._values: dict[bytes, _Value] = {}
        self._old: list[tuple[int, int, Group]] = []  # a heap of those that wait, by newest run
        self._pushed = 0
        self.waiting = self.ready_members = 0

    def __str__(self) -> str:
        return "" if self.where is None else str(self.where)

    @property
    def total(self) -> int:
        """Members of groups that are ready or wait."""
        return len(self._value_of)

    @property
    def waiting_members(self) -> int:
        return self.total - sum(len(g.members) for g in self._by_leader.values())

    # -- following the tapes ----------------------------------------------------------------------

    def judge(self, columns: Columns) -> Array:
        """Takes in what has changed of the only tape: the trajectories that count."""
        return self.take_in(report_of(columns, self.where, self.grouping, self.whole))

    def take_in(self, report: Report, tape: int = 0) -> Array:
        """Takes in what has changed of a tape: which of the trajectories count."""
        base, n, passes = base_of(tape), len(report.ids), report.counts
        ids = (report.ids + base).tolist()
        gone = (report.gone + base).tolist()
        if self.done:
            passes = passes & np.fromiter((i not in self.done for i in ids), np.bool_, n)
        if self.grouping is not None:
            self._regroup(report, ids, passes, self._gone(report, ids, gone, tape))
        elif self.ranks > 1:
            passes = passes & (report.ids % self.ranks == self.rank)
        self.done.difference_update(gone)
        for member in gone if self._counted else ():
            self._counted.pop(member, None)
        if report.everything and self._counted:
            there = set(ids)
            known = self._counted.items()
            self._counted = {m: t for m, t in known if m in there or m >> SEQ_BITS != tape}
        if report.everything and n and len(self.done) > 2 * n + 1024:  # others are long gone
            self.done = {i for i in self.done if i >= ids[0] or i >> SEQ_BITS != tape}
        return passes

    def _gone(self, report: Report, ids: list[int], gone: list[int], tape: int) -> list[int]:
        if not report.everything:
            return gone
        there = set(ids)
        return [m for m in self._of(tape) if m not in there]

    def _of(self, tape: int) -> list[int]:
        """The members that lie on a tape. Costs what all tapes hold."""
        return [m for m in self._value_of if m >> SEQ_BITS == tape]

    def _regroup(self, report: Report, ids: list[int], passes: Array, gone: list[int]) -> None:
        touched: set[bytes] = set()
        for member in gone:
            self.evicted += member in self._value_of
            self._leave(member, touched)
        keys = [] if report.keys is None else [value.tobytes() for value in report.keys]
        told = zip(ids, passes.tolist(), keys, report.whole.tolist(), report.times.tolist())
        for member, counts, key, whole, time_ns in told:
            counts = counts and self._mine(key)
            if not counts or self._value_of.get(member, key) != key:
                self._leave(member, touched)
            if counts:
                self._value_of[member] = key
                value = self._values.setdefault(key, _Value())
                value.members[member] = (whole, time_ns)
                touched.add(key)
        for key in touched:
            self._settle(key)

    def suspend(self, tape: int) -> None:
        """A tape is out of reach, perhaps for a while: what it has cannot be delivered, and groups
        wait for it. When it is back, it is looked at as a whole."""
        self.heard.pop(tape, None)
        touched: set[bytes] = set()
        for member in self._of(tape):
            key = self._value_of[member]
            members = self._values[key].members
            members[member] = (False, members[member][1])
            touched.add(key)
        for key in touched:
            self._settle(key)

    def lose(self, tape: int) -> None:
        """A tape is gone for good, and its trajectories with it."""
        self.heard.pop(tape, None)
        touched: set[bytes] = set()
        for member in self._of(tape):
            self.evicted += 1
            self._leave(member, touched)
        for key in touched:
            self._settle(key)
        self.done = {m for m in self.done if m >> SEQ_BITS != tape}
        self._counted = {m: t for m, t in self._counted.items() if m >> SEQ_BITS != tape}

    def _mine(self, key: bytes) -> bool:
        return self.ranks == 1 or zlib.crc32(key) % self.ranks == self.rank

    def _leave(self, member: int, touched: set[bytes]) -> None:
        key = self._value_of.pop(member, None)
        if key is not None:
            del self._values[key].members[member]
            touched.add(key)

    def _settle(self, key: bytes) -> None:
        """Makes up the groups of a value anew: those that began first are one, and so on. It
        depends on what is there only, not on how it came."""
        assert self.grouping is not None
        value = self._values[key]
        members = sorted(value.members)
        size = self.grouping.size or max(len(members), 1)
        for i, at in enumerate(range(0, len(members), size)):
            if i == len(value.groups):
                value.groups.append(Group())
                self.waiting += 1
            group = value.groups[i]
            group.members = members[at : at + size]
            of = [value.members[m] for m in group.members]
            group.newest = max(time_ns for _, time_ns in of)
            complete = all([whole for whole, _ in of])
            if complete and len(of) == (self.grouping.size or len(of)):
                self._stand(group, group.members)
            else:
                self._wait(group)
        while len(value.groups) > -(-len(members) // size):
            group = value.groups.pop()
            group.members = []
            self._stand(group, [])
            self.waiting -= 1
        if not members:
            del self._values[key]

    def _wait(self, group: Group) -> None:
        assert self.grouping is not None
        self._stand(group, [])
        if self.grouping.timeout_ns is not None:
            self._pushed += 1
            heapq.heappush(self._old, (group.newest, self._pushed, group))

    def _stand(self, group: Group, delivers: list[int]) -> None:
        """Makes a group ready, with these members, of which the first stands for it; or not."""
        before, group.leader = group.leader, delivers[0] if delivers else -1
        self.ready_members += len(delivers) - group.delivers
        group.delivers = len(delivers)
        self.waiting += (before >= 0) - (group.leader >= 0)
        if before != group.leader and self._by_leader.get(before) is group:
            del self._by_leader[before]
            self.flips[before] = False
        if delivers:
            self._by_leader[group.leader] = group
            self.flips[group.leader] = True

    def _whole(self, group: Group) -> list[int]:
        value = self._values[self._value_of[group.members[0]]]
        return [m for m in group.members if value.members[m][0]]

    # -- waiting ----------------------------------------------------------------------------------

    def expire(self, clock: Callable[[], float]) -> None:
        """Releases or drops groups that wait for too long."""
        if not self._old:
            return
        assert self.grouping is not None and self.grouping.timeout_ns is not None
        bound = int(clock() * 1e9) - self.grouping.timeout_ns
        while self._old and self._old[0][0] <= bound:
            newest, _, group = heapq.heappop(self._old)
            if group.newest != newest or group.leader >= 0 or not group.members:
                continue  # it is ready, gone, or has a newer run
            if self.grouping.drops:
                self.dropped += 1
                self.finish(list(group.members))
            elif members := self._whole(group):
                self.released += all(self._counted.get(m) != newest for m in group.members)
                self._counted.update(dict.fromkeys(group.members, newest))
                self._stand(group, members)

    # -- delivering -------------------------------------------------------------------------------

    def members(self, leader: int) -> list[int]:
        """What is delivered of the group that a trajectory stands for, in order of beginning."""
        return self._whole(self._by_leader[leader])

    def finish(self, members: Iterable[int]) -> None:
        """Done with them: they will not come again."""
        touched: set[bytes] = set()
        for member in members:
            self.done.add(member)
            self._leave(member, touched)
        for key in touched:
            self._settle(key)

    def deliver(self, members: list[int]) -> None:
        """What `finish` does, for those that were drawn; it can be taken back."""
        known = [(m, self._value_of[m]) for m in members if m in self._value_of]
        self._were = {m: (key, *self._values[key].members[m]) for m, key in known}
        self.finish(members)
        self.consumed += len(members)
        self._last = list(members)
        self._undo.note(self._last)

    def undeliver(self, members: list[int]) -> None:
        """Some of those that were delivered last came to nobody, because some of them were evicted:
        the others wait again. What was evicted of them is told as any other change is."""
        self.done.difference_update(members)
        self.consumed -= len(members)
        touched: set[bytes] = set()
        for member in members:
            self._last.remove(member)
            if member in self._were:
                key, whole, time_ns = self._were[member]
                self._value_of[member] = key
                self._values.setdefault(key, _Value()).members[member] = (whole, time_ns)
                touched.add(key)
        for key in touched:
            self._settle(key)

    def mark(self) -> Point:
        return self._undo.mark()

    def rewind(self, mark: Point) -> None:
        self._put_back(self._undo.since(mark))

    def taken(self, mark: Point) -> list[Change]:
        return self._undo.changes(mark)

    def give_back(self, taken: list[Change]) -> None:
        self._put_back(self._undo.undo(taken))

    def _put_back(self, draws: list[list[int]]) -> None:
        for delivered in draws:
            self.done.difference_update(delivered)
            self.consumed -= len(delivered)
            for tape in {member >> SEQ_BITS for member in delivered}:
                self.heard.pop(tape, None)  # what they are like now is to be told again

    # -- state ------------------------------------------------------------------------------------

    def reset(self) -> None:
        """The tapes were emptied: nothing is done with, and nothing can be given back."""
        self._undo = UndoLog()
        self.done.clear()
        self._counted.clear()
        self.forget()

    def state(self) -> dict[str, Any]:
        done = np.array(sorted(self.done), np.int64)
        counted = np.array(sorted(self._counted.items()), np.int64).reshape(-1, 2)
        names = ("consumed", "released", "dropped", "evicted")
        state = {"done": done, **{name: getattr(self, name) for name in names}}
        return {**state, "counted": counted} if len(counted) else state

    def load(self, state: dict[str, Any]) -> None:
        self.reset()
        self.done = set(np.asarray(state["done"], np.int64).tolist())
        nothing = np.empty((0, 2), np.int64)
        self._counted = dict(np.asarray(state.get("counted", nothing), np.int64).tolist())
        self.consumed = int(state["consumed"])
        self.released, self.dropped = int(state["released"]), int(state["dropped"])
        self.evicted = int(state.get("evicted", 0))  # nobody counted them at first

    def lacking(self, per_batch: int) -> str:
        """For an error message: what there is, and what a batch needs, if it is whole or none."""
        what = "trajectories" if self.grouping is None else "groups"
        text = f"{self.ready} {what} are ready"
        if per_batch:
            text += f", {per_batch} trajectories are one batch"
        if self.grouping is not None:
            text += f", {self.waiting} wait for members or their end"
        return text
