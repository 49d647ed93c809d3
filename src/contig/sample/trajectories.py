"""Whole trajectories: alone or in groups, again and again or each once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..arguments import seconds, whole
from ..keys import INIT, TRAJ_LENGTH, TRUNCATED
from ..tree import as_path, show_path
from .base import Array, Draw, Index, Mass, Request, Rng, Sampler
from .fields import FieldLeaves
from .predicate import Predicate, Where, left_out
from .roster import Grouping, Roster
from .slice_marks import SliceMarks, Slices
from .undo import Change, UndoLog

__all__ = ["TrajectorySampler", "TrajectoryStats"]

# A trajectory as one slice, however long.
_ANY = _native.SliceSpec(2**62)
_COMPLETE = _native.SliceSpec(2**62, complete_only=True)
_OVERTAKEN = 64  # draws of a group that a window cuts, before all of them are looked at
_MOST_S = 1e9  # longer than anybody waits


class TrajectoryStats(NamedTuple):
    """What a TrajectorySampler knew at its last draw, and has counted so far.

    Attributes:
        ready: trajectories, or groups, that could be drawn next.
        waiting: groups that wait for members, or for their end.
        waiting_trajectories: the members that they have.
        consumed: trajectories that will not come again.
        released, dropped: groups that waited longer than `timeout_s`.
    """

    ready: int
    waiting: int
    waiting_trajectories: int
    consumed: int
    released: int
    dropped: int


class TrajectorySampler(Sampler):
    """Whole trajectories, flat, one after another; each row says how long its own is.

    Adds `("collector", "traj_length")`, and marks them as slices are marked. A batch has any number
    of rows; `batch_size` counts trajectories and may be left out.

    With `group`, a batch is made of complete groups, whose members lie side by side. Of a value
    with more members than `group_size`, those that began first are a group, the next ones another.
    Trajectories that `where` does not hold for are no members.

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
        self._undo = UndoLog()
        self._followed = -1  # the filters that the roster has followed; -1: look at everything
        self._ready = self._consumed = 0

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
        return self._draw(index, rng, request.groups, False)

    def _draw(self, index: Index, rng: Rng, n: int, whole: bool) -> Draw | None:
        """So many trajectories; if the batch is to be `whole`, all of them or none."""
        self._fields.check(index)
        roster, view = self._roster, index.view
        if roster is None:
            index = index.where(self._where)
            found = view.draw_slices(rng.words, index.window, self._spec, n)
            self._ready = int(view.weigh_slices(index.window, self._spec))
            return None if found is None else self._marked(index, found, None)
        ready, number = self._follow(index, roster)
        self._ready = int(view.count(ready.window, self._spec))
        if self._ready == 0 or (whole and self._too_few(roster, n)):
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
            delivered = [member for group in groups for member in group]
            roster.finish(delivered)
            self._consumed += len(delivered)
            self._ready -= len(groups)
            self._undo.note(delivered)
        return self._gathered(index, rng, groups)

    def _follow(self, index: Index, roster: Roster) -> tuple[Index, int]:
        """What is ready now: an index with nothing else, and the number of its filter."""
        if self._followed != index.filters.number:
            index.filters.look_again(roster)
        number = index.filters.judged(roster)
        self._followed = index.filters.number
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

    def _groups_of(self, n: int) -> int:
        """Groups that so many trajectories are, of those of a known size."""
        return n if self._size is None else -(-n // self._size)

    def _too_few(self, roster: Roster, n: int) -> bool:
        if self._grouping is not None and self._size is None:
            return roster.ready_members < n
        return self._ready < self._groups_of(n)

    def _enough(self, groups: list[list[int]], n: int) -> bool:
        if self._size is None:
            return sum(map(len, groups)) >= n
        return len(groups) >= self._groups_of(n)

    def _pick(self, index: Index, ready: Index, rng: Rng, n: int) -> list[list[int]]:
        """Groups, each alike, with replacement."""
        assert self._roster is not None
        groups: list[list[int]] = []
        for _ in range(_OVERTAKEN * self._groups_of(n)):
            found = index.view.draw_trajectories(rng.words, ready.window, self._spec, 1)
            group = self._roster.members(int(found[0]))
            if self._drawable(index, group):
                groups.append(group)
                if self._enough(groups, n):
                    return groups
        # The window leaves hardly any group whole: look at all of them.
        leaders = index.view.ordinals(ready.window, self._spec).tolist()
        all_there_are = [self._roster.members(leader) for leader in leaders]
        left = [group for group in all_there_are if self._drawable(index, group)]
        while left and not self._enough(groups, n):
            groups.append(left[int(_native.uniform_below(rng.words, 0, len(left), 1)[0])])
        return groups if self._enough(groups, n) else []

    def _pick_once(
        self, index: Index, ready: Index, rng: Rng, n: int, number: int
    ) -> list[list[int]]:
        """Groups, each alike, none of them twice."""
        assert self._roster is not None
        groups: list[list[int]] = []
        cut: list[int] = []  # by a window: they stay ready
        while not self._enough(groups, n):
            found = index.view.draw_trajectories(rng.words, ready.window, self._spec, 1, number)
            if not len(found):
                break
            group = self._roster.members(int(found[0]))
            if self._drawable(index, group):
                groups.append(group)
            else:
                cut.append(int(found[0]))
        if cut and not self._enough(groups, n):
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
            kept = [i for i, part in enumerate(parts) if len(part[1]) == len(groups[i])]
            if not kept:
                return None
            groups = [groups[i] for i in kept]
            merged = zip(*(parts[i] for i in kept))
            slices = tuple(np.concatenate(p) for p in merged)  # type: ignore[assignment]
        units = None
        if self._grouping is not None:
            units = np.array([len(group) for group in groups], np.int64)
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
        what = "trajectories" if self._grouping is None else "groups"
        text += f"; {self._ready} {what} are ready"
        if self.consume:
            text += f", {self.num_trajectories} trajectories are one batch"
        if self._grouping is not None:
            text += f", {roster.waiting} wait for members or their end"
        return text

    def stats(self) -> TrajectoryStats:
        """What is ready and what waits, as of the last draw, and what was counted."""
        roster = self._roster
        if roster is None:
            return TrajectoryStats(self._ready, 0, 0, 0, 0, 0)
        return TrajectoryStats(
            self._ready,
            roster.waiting,
            roster.waiting_members,
            self._consumed,
            roster.released,
            roster.dropped,
        )

    # -- over several tapes, or for several learners ----------------------------------------------

    @property
    def drops_last(self) -> bool | None:  # type: ignore[override]
        """Whether an epoch ends before a batch it cannot fill; None: there are no epochs."""
        return False if self.consume else None

    def mass(self, index: Index, request: Request) -> Mass:
        if self._roster is None:
            index = index.where(self._where)
            return Mass(int(index.view.weigh_slices(index.window, self._spec)))
        ready, _ = self._follow(index, self._roster)
        return Mass(int(index.view.count(ready.window, self._spec)))

    def agree(self, surveys: list[Any]) -> list[Any] | None:
        if self._grouping is not None and len(surveys) > 1:
            raise TypeError(
                f"group={show_path(self._grouping.path)} over {len(surveys)} shards: members of a "
                "group may lie on different ones, and none knows when it is complete; use one shard"
            )
        return None

    def divide(self, rank: int, world_size: int) -> None:
        roster = self._roster
        if roster is not None and (rank, world_size) != (roster.rank, roster.ranks):
            roster.rank, roster.ranks = rank, world_size
            self._followed = -1

    # -- state ------------------------------------------------------------------------------------

    def mark(self) -> Any:
        return self._undo.mark()

    def rewind(self, mark: Any) -> None:
        self._put_back(self._undo.since(mark))

    def taken(self, mark: Any) -> list[Change]:
        return self._undo.changes(mark)

    def give_back(self, taken: list[Change]) -> None:
        self._put_back(self._undo.undo(taken))

    def _put_back(self, draws: list[list[int]]) -> None:
        for delivered in draws:
            assert self._roster is not None
            self._roster.done.difference_update(delivered)
            self._consumed -= len(delivered)
            self._followed = -1

    def reset(self) -> None:
        self._undo, self._followed = UndoLog(), -1
        if self._roster is not None:
            self._roster.done.clear()

    def state(self) -> dict[str, Any]:
        if self._roster is None:
            return {}
        return {**self._roster.state(), "consumed": self._consumed}

    def load(self, state: dict[str, Any]) -> None:
        self.reset()
        if self._roster is not None:
            self._roster.load(state)
            self._consumed = int(state["consumed"])


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
