"""Whole trajectories: alone or in groups, again and again or each once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..arguments import seconds, whole
from ..keys import INIT, TRAJ_LENGTH, TRUNCATED
from ..tree import as_path
from .base import Array, Draw, Index, Mass, Request, Rng, Sampler
from .candidates import uniform_slices
from .fields import FieldLeaves
from .predicate import Predicate, Where, left_out
from .report import Grouping
from .roster import Roster
from .slice_marks import SliceMarks, Slices
from .spanning import Spanning, renumbered
from .undo import Change

__all__ = ["TrajectorySampler", "TrajectoryStats"]

# A trajectory as one slice, however long.
_ANY = _native.SliceSpec(2**62)
_COMPLETE = _native.SliceSpec(2**62, complete_only=True)
_OVERTAKEN = 64  # draws of a group that a window cuts, before all of them are looked at
_MOST_S = 1e9  # longer than anybody waits


class TrajectoryStats(NamedTuple):
    """What a TrajectorySampler knew at its last draw, and has counted so far.

    Attributes:
        ready: trajectories, or groups, that could be drawn next. None: nobody has counted them,
            because `where` is a function of `age`, which is asked about what is drawn.
        waiting: groups that wait for members, or for their end.
        waiting_trajectories: the members that they have.
        consumed: trajectories that will not come again.
        released, dropped: groups that waited longer than `timeout_s`.
        evicted: of groups, members that were evicted, or lost with their shard, unless they had
            been consumed.
    """

    ready: int | None
    waiting: int
    waiting_trajectories: int
    consumed: int
    released: int
    dropped: int
    evicted: int


class TrajectorySampler(Sampler):
    """Whole trajectories, flat, one after another; each row says how long its own is.

    Adds `("collector", "traj_length")`, and marks them as slices are marked. A batch has any number
    of rows; `batch_size` counts trajectories and may be left out.

    With `group`, a batch is made of complete groups, whose members lie side by side. Of a value
    with more members than `group_size`, those that began first are a group, the next ones another.
    Trajectories that `where` does not hold for are no members. Over shards, members of a group may
    lie on any of them; those of a lower shard count as having begun first.

    Args:
        num_trajectories: of a batch; with `group_size`, a multiple of it, and what was released
            with fewer members counts as a whole group. With groups of no known size, at least so
            many, in whole groups.
        where: only trajectories that it holds for; see `Predicate`.
        group: path of the field that members of a group have in common; each row gets it, as if it
            were among `fields`.
        group_size: members of a group. None: all that there are, once every one has ended: for
            groups whose members begin before the first of them ends.
        consume: each trajectory once, also across checkpoints. A batch is whole or none: what is
            too little for one waits. Else they are drawn with replacement.
        timeout_s: a group whose newest run was appended so long ago is not waited for.
        on_timeout: "release" gives it out with the members that have ended, "drop" does not.
        complete_only: only trajectories stored from their first row to their end; else, what there
            is of them. (Members of a group have always ended.)
        fields: fields of its trajectory that each row gets, below `fields`.

    Attributes:
        clock: the time in seconds, for `timeout_s`; the tape's is `time.time`.
    """

    def __init__(
        self,
        num_trajectories: int,
        *,
        where: Where | None = None,
        group: Any = None,
        group_size: int | None = None,
        consume: bool = False,
        timeout_s: float | None = None,
        on_timeout: str = "release",
        complete_only: bool = True,
        fields: Sequence[Any] = (),
    ) -> None:
        self.num_trajectories = whole("num_trajectories", num_trajectories, 1)
        self.batch_size = self.num_trajectories
        self.consume, self.complete_only = bool(consume), bool(complete_only)
        self._grouping = _grouping(group, group_size, timeout_s, on_timeout)
        if self._size is not None and self.num_trajectories % self._size:
            raise ValueError(
                f"num_trajectories {num_trajectories} is not a multiple of group_size {group_size}"
            )
        self._where = Predicate.of(where)
        extra = () if self._grouping is None else (self._grouping.path,)
        self._fields = FieldLeaves((*extra, *FieldLeaves(fields).paths))
        self._marks = SliceMarks(INIT, TRUNCATED)
        self.clock: Callable[[], float] = time.time
        self._roster: Roster | None = None
        if self.consume or self._grouping is not None:
            self._roster = Roster(self._where, self._grouping, self.complete_only)
        self._spanning: Spanning | None = None
        if self._roster is not None and self._grouping is not None:
            self._spanning = Spanning(self._roster, self._grouping, self.consume)
        self._ready: int | None = 0  # without a roster
        self._given: tuple[Array, list[list[int]]] | None = None  # the last draw, if each is once

    def _shown(self) -> dict[str, Any]:
        group = self._grouping
        if group is None:
            return super()._shown()
        return {**super()._shown(), "group": group.path, "group_size": group.size}

    @property
    def _size(self) -> int | None:
        return None if self._grouping is None else self._grouping.size

    @property
    def _spec(self) -> Any:
        return _COMPLETE if self.complete_only else _ANY

    def request(self, batch_size: int) -> Request:
        if batch_size != self.num_trajectories:
            raise ValueError(
                f"batch_size {batch_size}: it counts trajectories here, and num_trajectories is "
                f"{self.num_trajectories}; leave it out, or give another sampler"
            )
        return Request(batch_size)

    # -- drawing ----------------------------------------------------------------------------------

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self._draw(index, rng, request.groups, self.consume)

    def take(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        if self._spanning is not None:
            return self._wanted(index, rng, self._spanning)
        return self._draw(index, rng, request.groups, False)

    def _draw(self, index: Index, rng: Rng, n: int, whole: bool) -> Draw | None:
        """So many trajectories; if the batch is to be `whole`, all of them or none."""
        self._fields.check(index)
        roster, view = self._roster, index.view
        if roster is None:
            index = index.where(self._where)
            found = uniform_slices(index, rng, self._spec, n)
            known = not index.put_off  # else, to count them, all would have to be judged
            self._ready = int(view.weigh_slices(index.bounds, self._spec)) if known else None
            return None if found is None else self._marked(index, found, None)
        ready, number = self._follow(index, roster)
        roster.ready = int(view.count(ready.window, self._spec))
        if roster.ready == 0 or (whole and self._too_few(roster, n)):
            return None
        if self._grouping is None:
            picked = view.draw_trajectories(rng.words, ready.window, self._spec, n, number)
            groups = [[member] for member in picked.tolist()]
        elif self.consume:
            groups = self._pick_once(index, ready, rng, n, number)
        else:
            groups = self._pick(index, ready, rng, n)
        if not groups:
            return None
        if self.consume:
            roster.deliver([member for group in groups for member in group])
            roster.ready -= len(groups)
        return self._gathered(index, rng, groups)

    def _follow(self, index: Index, roster: Roster) -> tuple[Index, int]:
        """What is ready now: an index with nothing else, and the number of its filter."""
        if roster.heard.get(0) != index.filters.number:
            index.filters.look_again(roster)
        number = index.filters.judged(roster)
        roster.heard[0] = index.filters.number
        if self._grouping is None:
            return index.holding(number), number
        roster.expire(self.clock)
        number = index.filters.own(self)
        if roster.flips:
            leaders = np.fromiter(roster.flips, np.int64, len(roster.flips))
            stand = np.fromiter(roster.flips.values(), np.bool_, len(leaders))
            index.view.set_passes(number, leaders, stand)
            roster.flips.clear()
        return index.holding(number), number

    def _too_few(self, roster: Roster, n: int) -> bool:
        if self._grouping is None:
            return roster.ready < n
        if self._grouping.size is None:
            return roster.ready_members < n
        return roster.ready < self._grouping.groups_of(n)

    def _pick(self, index: Index, ready: Index, rng: Rng, n: int) -> list[list[int]]:
        """Groups, each alike, with replacement."""
        assert self._roster is not None and self._grouping is not None
        groups: list[list[int]] = []
        enough = self._grouping.enough
        for _ in range(_OVERTAKEN * self._grouping.groups_of(n)):
            found = index.view.draw_trajectories(rng.words, ready.window, self._spec, 1)
            group = self._roster.members(int(found[0]))
            if self._drawable(index, group):
                groups.append(group)
                if enough(groups, n):
                    return groups
        # The window leaves hardly any group whole: look at all of them.
        leaders = index.view.ordinals(ready.window, self._spec).tolist()
        all_there_are = [self._roster.members(leader) for leader in leaders]
        left = [group for group in all_there_are if self._drawable(index, group)]
        while left and not enough(groups, n):
            groups.append(left[int(_native.uniform_below(rng.words, 0, len(left), 1)[0])])
        return groups if enough(groups, n) else []

    def _pick_once(
        self, index: Index, ready: Index, rng: Rng, n: int, number: int
    ) -> list[list[int]]:
        """Groups, each alike, none of them twice."""
        assert self._roster is not None and self._grouping is not None
        groups: list[list[int]] = []
        enough = self._grouping.enough
        cut: list[int] = []  # by a window: they stay ready
        while not enough(groups, n):
            found = index.view.draw_trajectories(rng.words, ready.window, self._spec, 1, number)
            if not len(found):
                break
            group = self._roster.members(int(found[0]))
            if self._drawable(index, group):
                groups.append(group)
            else:
                cut.append(int(found[0]))
        if cut and not enough(groups, n):
            cut += [group[0] for group in groups]
            groups = []
        index.view.set_passes(number, np.array(cut, np.int64), np.ones(len(cut), np.bool_))
        return groups

    def _drawable(self, index: Index, group: list[int]) -> bool:
        if index.window is None:
            return True
        members = np.array(group, np.int64)
        return bool(index.view.has_trajectories(members, index.window, self._spec).all())

    def _gathered(self, index: Index, rng: Rng, groups: list[list[int]]) -> Draw | None:
        slices = self._slices(index, rng, [m for group in groups for m in group])
        if len(slices[1]) < sum(map(len, groups)):  # evicted just now
            if not self.consume:
                return None
            parts = [self._slices(index, rng, group) for group in groups]
            kept = [len(part[1]) == len(group) for group, part in zip(groups, parts)]
            self._undeliver(groups, ~np.array(kept))
            if not any(kept):
                return None
            groups = [group for group, there in zip(groups, kept) if there]
            merged = zip(*(part for part, there in zip(parts, kept) if there))
            slices = tuple(np.concatenate(p) for p in merged)  # type: ignore[assignment]
        units = None
        if self._grouping is not None:
            units = np.array([len(group) for group in groups], np.int64)
        if self.consume:
            self._given = (slices[0][np.cumsum(slices[1]) - slices[1]], groups)
        return self._marked(index, slices, units)

    def _slices(self, index: Index, rng: Rng, members: list[int]) -> Slices:
        ordinals = np.array(members, np.int64)
        return index.view.slices_of(rng.words, index.window, self._spec, ordinals, len(members))[0]

    def _marked(self, index: Index, slices: Slices, units: Array | None) -> Draw:
        draw = self._marks.draw(slices, 0)
        columns = {**draw.columns, TRAJ_LENGTH: np.repeat(slices[1], slices[1])}
        return self._fields.add(index, draw._replace(columns=columns, units=units))

    def missing(self, index: Index) -> str:
        text = f"{index.view.trajectories} trajectories"
        roster = self._roster
        if roster is None:
            return text + left_out(index.filters, self._where)
        if self._where is not None:
            text += f", of which where={self._where} leaves {index.filters.passing(roster)}"
        return f"{text}; {roster.lacking(self.num_trajectories if self.consume else 0)}"

    def stats(self) -> TrajectoryStats:
        """What is ready and what waits, as of the last draw, and what was counted."""
        roster = self._roster
        if roster is None:
            return TrajectoryStats(self._ready, 0, 0, 0, 0, 0, 0)
        return TrajectoryStats(
            roster.ready,
            roster.waiting,
            roster.waiting_members,
            roster.consumed,
            roster.released,
            roster.dropped,
            roster.evicted,
        )

    # -- over several tapes, or for several learners ----------------------------------------------

    @property
    def drops_last(self) -> bool | None:  # type: ignore[override]
        """Whether an epoch ends before a batch it cannot fill; None: there are no epochs."""
        return False if self.consume else None

    def mass(self, index: Index, request: Request) -> Mass:
        if self._spanning is not None:  # nobody draws shares of groups
            return Mass(int(self._spanning.look(index, self._spec).sum()))
        if self._roster is None:
            index = index.where(self._where)
            return Mass(int(index.view.weigh_slices(index.window, self._spec)))
        ready, _ = self._follow(index, self._roster)
        return Mass(int(index.view.count(ready.window, self._spec)))

    @property
    def spanning(self) -> Spanning | None:
        if self._spanning is not None:
            self._spanning.clock = self.clock
        return self._spanning

    def _wanted(self, index: Index, rng: Rng, spanning: Spanning) -> Draw | None:
        """Trajectories that the whole's sampler has drawn, as far as they are there."""
        self._fields.check(index)
        there = spanning.wanted[spanning.look(index, self._spec)]
        slices = self._slices(index, rng, there.tolist())
        if len(slices[1]) < len(there):  # evicted just now
            parts = [self._slices(index, rng, [member]) for member in there.tolist()]
            found = [i for i, part in enumerate(parts) if len(part[1])]
            spanning.found[spanning.found] = [len(part[1]) > 0 for part in parts]
            if not found:
                return None
            merged = zip(*(parts[i] for i in found))
            slices = tuple(np.concatenate(p) for p in merged)  # type: ignore[assignment]
        return self._marked(index, slices, None) if len(slices[1]) else None

    def divide(self, rank: int, world_size: int) -> None:
        roster = self._roster
        if roster is not None and (rank, world_size) != (roster.rank, roster.ranks):
            roster.rank, roster.ranks = rank, world_size
            roster.forget()

    # -- state ------------------------------------------------------------------------------------

    def mark(self) -> Any:
        return None if self._roster is None else self._roster.mark()

    def rewind(self, mark: Any) -> None:
        if self._roster is not None:
            self._roster.rewind(mark)

    def taken(self, mark: Any) -> list[Change]:
        return [] if self._roster is None else self._roster.taken(mark)

    def give_back(self, taken: list[Change]) -> None:
        if self._roster is not None:
            self._roster.give_back(taken)

    def progress(self, mark: Any) -> Any:
        # Of groups over shards, the roster of the whole knows what was taken.
        return [list(change.what) for change in self.taken(mark)]

    def advance(self, index: Index, progress: Any) -> None:
        for members in progress:
            assert self._roster is not None
            self._roster.deliver(members)

    def missed(self, seqs: Array) -> None:
        if self._given is not None:
            firsts, groups = self._given
            starts = np.cumsum([0, *map(len, groups)])[:-1]
            self._undeliver(groups, np.logical_or.reduceat(np.isin(firsts, seqs), starts))

    def _undeliver(self, groups: list[list[int]], lost: Array) -> None:
        assert self._roster is not None
        gone = [group for group, is_lost in zip(groups, lost.tolist()) if is_lost]
        self._roster.undeliver([member for group in gone for member in group])

    def reset(self) -> None:
        if self._roster is not None:
            self._roster.reset()

    def state(self) -> dict[str, Any]:
        return {} if self._roster is None else self._roster.state()

    def load(self, state: dict[str, Any]) -> None:
        if self._roster is not None:
            self._roster.load(state)

    def moved(self, state: dict[str, Any], numbers: dict[int, int]) -> dict[str, Any]:
        if self._spanning is None:
            return state
        return {**state, "done": renumbered(np.asarray(state["done"], np.int64), numbers)}


def _grouping(group: Any, size: Any, timeout_s: Any, on_timeout: Any) -> Grouping | None:
    if on_timeout not in ("release", "drop"):
        raise ValueError(f'on_timeout: expected "release" or "drop", got {on_timeout!r}')
    if group is None:
        for name, value in (("group_size", size), ("timeout_s", timeout_s)):
            if value is not None:
                raise ValueError(f"{name} is of groups: give group=, the field that makes them")
        return None
    if size is not None:
        size = whole("group_size", size, 1, "a number of trajectories")
    wait = None if timeout_s is None else seconds("timeout_s", timeout_s)
    ns = None if wait is None or wait > _MOST_S else int(wait * 1e9)
    return Grouping(as_path(group), size, ns, on_timeout == "drop")
