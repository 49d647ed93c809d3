"""Rows of every kind of boundary, and a naive model of the trajectories that they are.

The model knows nothing of tapes, runs or writers. It reads a lane's rows one after another, as the
documentation says where a trajectory starts (`docs/guides/trajectories.md`):

    an id         where it changes; rows of one id are one trajectory, also with others between
    a done row    ends its trajectory: the next row starts another
    is_init       starts another
    a traj_key    decides alone: done rows and is_init start nothing
    another lane  another environment, or another writer: another trajectory, also with equal ids

A trajectory is complete if it is there from its beginning to its end. Where rows have `is_init`,
one that starts without it, and not behind a done row, lacks its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..keys import TRAJ_IDS
from ..tree import Path

__all__ = ["EVENTS", "SITUATIONS", "RowSpec", "Situation", "SituationTrajectory", "columns"]

# What may happen between two rows, and what becomes of the trajectories that are open then.
EVENTS = {
    "reconnect": "the connection to the server is lost and comes back",
    "restart": "the server ends in good order and comes back with what it had stored",
    "kill": "the server is killed and comes back with what it had stored",
    "rejoin": "the producer is another process, which was told what was open",
    "replace": "the producer is another process, which knows nothing",
}


class RowSpec(NamedTuple):
    """A row, by its marks.

    Attributes:
        lane, t: which row it is; rows carry both as their observation.
        end: "terminated", "truncated" or None.
        id: of its trajectory, where the situation has ids.
        init: `is_init`, where the situation has that.
        version: of the policy.
    """

    lane: int
    t: int
    end: str | None = None
    id: int = -1
    init: bool = False
    version: int = 0


class SituationTrajectory(NamedTuple):
    """A trajectory as it is to be found in the storage."""

    rows: tuple[RowSpec, ...]
    begins: bool

    @property
    def end(self) -> str | None:
        return self.rows[-1].end

    @property
    def is_complete(self) -> bool:
        return self.begins and self.end is not None


@dataclass(frozen=True)
class Situation:
    """Rows of one or more lanes, in the order in which each lane gives them.

    Attributes:
        name: for messages.
        lanes: the rows of each environment, or of each producer of single rows.
        has_ids, has_init: which marks the rows have besides done flags.
        traj_key: what the storage's sampler names.
        event: what happens, after how many rows of each lane; see `EVENTS`.
    """

    name: str
    lanes: tuple[tuple[RowSpec, ...], ...]
    has_ids: bool = False
    has_init: bool = False
    traj_key: Path | None = None
    event: tuple[str, int] | None = None

    def trajectories(self, goes_on: bool = True) -> list[SituationTrajectory]:
        """Returns the trajectories that are to be found.

        Args:
            goes_on: whether open trajectories go on behind the event. If not, their rest is apart
                and no beginning.
        """
        return [x for lane in self.lanes for x in self._of_lane(lane, goes_on)]

    def _of_lane(self, lane: Sequence[RowSpec], goes_on: bool) -> list[SituationTrajectory]:
        found: list[list[RowSpec]] = []
        begins: list[bool] = []
        current: dict[int, int] = {}  # the trajectory that rows of an id go on with
        lost: set[int] = set()  # ids whose rest lacks what came before
        for count, row in enumerate(lane):
            if self.event is not None and count == self.event[1]:
                if self.event[0] == "replace":
                    current = {}
                elif not goes_on:
                    lost = {i for i, number in current.items() if found[number][-1].end is None}
                    current = {i: n for i, n in current.items() if i not in lost}
            key = row.id if self.has_ids else -1
            number = current.get(key)
            ended = number is not None and found[number][-1].end is not None
            starts = number is None
            if self.traj_key is None:
                starts = starts or ended or (self.has_init and row.init)
            if starts:
                known = self.has_init and row.init
                after_end = ended and self.traj_key is None
                begins.append(known or after_end or not (self.has_init or key in lost))
                number = current[key] = len(found)
                found.append([])
                lost.discard(key)
            assert number is not None
            found[number].append(row)
        return [SituationTrajectory(tuple(rows), b) for rows, b in zip(found, begins)]

    @property
    def is_even(self) -> bool:
        """Returns whether all lanes have as many rows."""
        return len({len(lane) for lane in self.lanes}) == 1

    @property
    def is_playable(self) -> bool:
        """Returns whether environments can give such rows: episodes, and no other mark."""
        marks = self.has_ids or self.has_init or self.traj_key is not None
        versions = {row.version for lane in self.lanes for row in lane}
        return self.is_even and not marks and versions == {0} and self.event is None

    def columns(self, rows: Sequence[RowSpec], shape: tuple[int, ...] = (-1,)) -> dict[str, Any]:
        """Rows as a tree, ``[*shape, ...]`` each leaf."""
        return columns(rows, self.has_ids, self.has_init, shape)


def columns(
    rows: Sequence[RowSpec], has_ids: bool, has_init: bool, shape: tuple[int, ...] = (-1,)
) -> dict[str, Any]:
    """Rows as a tree, ``[*shape, ...]`` each leaf."""

    def leaf(values: Any, dtype: Any) -> Any:
        array = np.array(values, dtype)
        return array.reshape((*shape, *array.shape[1:]))

    ends = [row.end for row in rows]
    collector = {"policy_version": leaf([row.version for row in rows], np.int64)}
    tree: dict[str, Any] = {
        "observation": leaf([(row.lane, row.t) for row in rows], np.float32),
        "action": leaf([1000.0 * row.lane + row.t for row in rows], np.float64),
        "next": {
            "reward": leaf([1000.0 * row.lane + row.t + 1 for row in rows], np.float64),
            "done": leaf([end is not None for end in ends], bool),
            "terminated": leaf([end == "terminated" for end in ends], bool),
            "truncated": leaf([end == "truncated" for end in ends], bool),
        },
        "collector": collector,
    }
    if has_ids:
        collector["traj_ids"] = leaf([row.id for row in rows], np.int64)
    if has_init:
        tree["is_init"] = leaf([row.init for row in rows], bool)
    return tree


_ENDS = {"t": "terminated", "u": "truncated", ".": None}


def _lanes(
    *letters: str, ids: str = "", init: str = "", versions: str = ""
) -> tuple[tuple[RowSpec, ...], ...]:
    """Lanes of rows, a letter each: `.` goes on, `t` is terminated, `u` truncated. The digits of
    `ids` and `versions`, and the `x` of `init`, are those of every lane's rows."""
    return tuple(
        tuple(
            RowSpec(
                lane,
                t,
                _ENDS[letter],
                int(ids[t]) if ids else -1,
                init[t : t + 1] == "x",
                int(versions[t]) if versions else 0,
            )
            for t, letter in enumerate(row)
        )
        for lane, row in enumerate(letters)
    )


SITUATIONS: tuple[Situation, ...] = (
    Situation("done", _lanes("...t...t..t")),
    Situation("truncated", _lanes("..u....u.u")),
    Situation("open", _lanes("...t....")),
    Situation("one step each", _lanes("tut.")),
    Situation("several lanes", _lanes("..t..u..", "....t...", "t......u")),
    Situation("lanes of different lengths", _lanes("..t..u", "....", "t......u")),
    Situation("ids", _lanes("..t..u..", ids="44455566"), has_ids=True),
    Situation("ids without a done", _lanes("........", ids="33344455"), has_ids=True),
    Situation("an id again after its done", _lanes("..t..u..", ids="77777777"), has_ids=True),
    Situation("ids that take turns", _lanes("....tu", ids="121212"), has_ids=True),
    Situation("equal ids of lanes", _lanes("..t..u", "...t..", ids="111222"), has_ids=True),
    Situation("is_init", _lanes("...t..u.", init="x...x..x"), has_init=True),
    Situation("is_init without a done", _lanes("........", init="x..x..x."), has_init=True),
    Situation("no is_init at first", _lanes("..t..t", init="......"), has_init=True),
    Situation("is_init of lanes", _lanes("..t...", "....u.", init="x..x.."), has_init=True),
    Situation(
        "ids and is_init",
        _lanes("..t..u..", ids="44455566", init="x..x..x."),
        has_ids=True,
        has_init=True,
    ),
    Situation("versions", _lanes("....t...u", versions="000332222")),
    Situation(
        "a traj_key alone", _lanes("..t..u..t", ids="444445555"), has_ids=True, traj_key=TRAJ_IDS
    ),
    *(Situation(event, _lanes("..t.....t.u"), event=(event, 5)) for event in EVENTS),
    *(
        Situation(
            f"{event}, with ids", _lanes("..t.....t.u", ids="11122222233"), True, event=(event, 5)
        )
        for event in EVENTS
    ),
    *(
        Situation(f"{event}, several lanes", _lanes("..t..t", "......", "....u."), event=(event, 3))
        for event in EVENTS
    ),
)
