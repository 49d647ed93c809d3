"""Trajectories, or groups of them, that may be delivered now: kept by what changes.

A group is complete when it has all its members and all of them have ended. Until then it waits; one
that waits too long is released as it is, or dropped. The first of its members stands for a group
that is ready: the view draws from those, so that a draw costs nothing of what is stored.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from .._native import RunFlag
from ..tree import Path, show_path
from .filters import Array, Columns
from .predicate import Predicate

__all__ = ["Group", "Grouping", "Roster"]

_ENDED = int(RunFlag.TERMINATED | RunFlag.TRUNCATED)
_BEGINS = int(RunFlag.BEGINS)


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


class Group:
    """Some trajectories with the same value of the field, in the order in which they began."""

    __slots__ = ("counted", "delivers", "leader", "members", "newest")

    def __init__(self) -> None:
        self.members: list[int] = []
        self.newest = 0  # when the newest run of a member was appended
        self.leader = -1  # of one that is ready: the member that stands for it
        self.delivers = 0  # members, if it is ready
        self.counted = -1  # as released, when that was its newest run


class _Value:
    """All trajectories with one value of the field, and the groups that they make."""

    __slots__ = ("groups", "members")

    def __init__(self) -> None:
        self.members: dict[int, tuple[bool, int]] = {}  # may it be delivered; its newest run
        self.groups: list[Group] = []


class Roster:
    """What of a tape is ready, what waits, and what is done with. Not thread-safe.

    It judges for the index: what it lets pass are single trajectories that are ready, or, of
    groups, their members.

    Args:
        where: which trajectories count at all.
        grouping: None: each trajectory for itself.
        whole: whether only complete trajectories may be delivered.

    Attributes:
        done: trajectories that were consumed, or dropped.
        flips: of groups, members that begin or cease to stand for one; taken by who draws.
        waiting: groups that are not ready; `ready_members`: trajectories of those that are.
        released, dropped: groups that waited too long, so far.
    """

    def __init__(self, where: Predicate | None, grouping: Grouping | None, whole: bool) -> None:
        self.where, self.grouping, self.whole = where, grouping, whole
        self.ages = () if where is None else where.ages
        self.done: set[int] = set()
        self.released = self.dropped = 0
        self.rank, self.ranks = 0, 1
        self.flips: dict[int, bool] = {}
        self._by_leader: dict[int, Group] = {}
        self.forget()

    def forget(self) -> None:
        """What is known of the tape; it is to be judged anew."""
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
    def waiting_members(self) -> int:
        return len(self._value_of) - sum(len(g.members) for g in self._by_leader.values())

    # -- following the tape -----------------------------------------------------------------------

    def judge(self, columns: Columns) -> Array:
        """Takes in what has changed: the trajectories that count."""
        n = len(columns.ids)
        if self.where is None:
            passes: Array = np.ones(n, np.bool_)
        else:
            passes = self.where.judge(columns)
        ids = columns.ids.tolist()
        if self.done:
            passes = passes & np.fromiter((i not in self.done for i in ids), np.bool_, n)
        if self.grouping is not None:
            keys = self._keys(columns, self.grouping.path)  # the last that may fail
            self._regroup(columns, ids, passes, keys)
        elif self.ranks > 1:
            passes = passes & (columns.ids % self.ranks == self.rank)
        self.done.difference_update(columns.gone.tolist())
        if columns.everything and n and len(self.done) > 2 * n + 1024:
            self.done = {i for i in self.done if i >= ids[0]}  # others are long gone
        return passes

    def _regroup(self, columns: Columns, ids: list[int], passes: Array, keys: list[bytes]) -> None:
        if columns.everything:
            self.forget()
        whole = (columns.flags & _ENDED) != 0
        if self.whole:
            whole &= (columns.flags & _BEGINS) != 0
        touched: set[bytes] = set()
        for member in columns.gone.tolist():
            self._leave(member, touched)
        times = columns.times.tolist()
        for i, (member, counts) in enumerate(zip(ids, passes.tolist())):
            counts = counts and self._mine(keys[i])
            if not counts or self._value_of.get(member, keys[i]) != keys[i]:
                self._leave(member, touched)
            if counts:
                self._value_of[member] = keys[i]
                value = self._values.setdefault(keys[i], _Value())
                value.members[member] = (bool(whole[i]), times[i])
                touched.add(keys[i])
        for key in touched:
            self._settle(key)

    def _keys(self, columns: Columns, path: Path) -> list[bytes]:
        try:
            values = columns[path]
        except KeyError as error:
            raise ValueError(f"group={show_path(path)}: {error.args[0]}") from None
        if values.dtype.kind not in "biu":
            values = values + values.dtype.type(0)  # -0.0 becomes 0.0, which is equal
        return [value.tobytes() for value in values]

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
                self.released += group.counted != newest
                group.counted = newest
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

    def state(self) -> dict[str, Any]:
        done = np.array(sorted(self.done), np.int64)
        return {"done": done, "released": self.released, "dropped": self.dropped}

    def load(self, state: dict[str, Any]) -> None:
        self.done = set(np.asarray(state["done"], np.int64).tolist())
        self.released, self.dropped = int(state["released"]), int(state["dropped"])
        self.forget()
