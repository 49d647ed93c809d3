"""Conformance of ways of writing: every verb of every way gives the same trajectories.

    rows -> buffer.add / writer / shared memory / TCP / collector / ... -> storage
            the same rows in, by whichever verb                            the same episodes() out

Subclass `WriteRoute`, say which verbs there are and how one of them is called, and hand it to
`check_write_route`. What is to be found is said by the naive model of `contig.testing.situations`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..batch import Batch
from ..errors import EmptyBufferError, LayoutError, NothingEligibleError
from ..keys import VERSION
from ..replay import ReplayBuffer
from ..sample import SliceSampler, WindowSampler
from ..tape import Storage
from ..tree import Path
from .situations import SITUATIONS, RowSpec, Situation, SituationTrajectory
from .steps import Step, identity, raises

__all__ = [
    "OpenRoute",
    "RouteCase",
    "RouteNeeds",
    "VerbKind",
    "WriteRoute",
    "check_route_case",
    "check_write_route",
    "public_members",
    "route_cases",
]


class VerbKind(StrEnum):
    """The kinds of data that a verb takes.

    ROW    one row; each lane has a producer of its own
    ROWS   rows of one lane, ``[n, ...]``; each lane has a producer of its own
    STEP   a row of each lane, ``[lanes, ...]``
    LANES  all rows of all lanes, a Batch ``[lanes, rows]``
    WHOLE  one whole trajectory, ``[n, ...]``
    PLAY   the lanes themselves: environments are to give these rows
    """

    ROW = "row"
    ROWS = "rows"
    STEP = "step"
    LANES = "lanes"
    WHOLE = "whole"
    PLAY = "play"


class RouteNeeds(NamedTuple):
    """The needs of one check, for which a route is opened.

    Attributes:
        example: one row.
        traj_key: what the storage's sampler is to name; None: nothing.
        lanes: how many producers there will be at most.
    """

    example: dict[str, Any]
    traj_key: Path | None
    lanes: int


class OpenRoute(ABC):
    """A route that leads to an empty storage."""

    @property
    @abstractmethod
    def storage(self) -> Storage:
        """The storage that rows end up in."""

    @abstractmethod
    def write(self, verb: str, lane: int, data: Any) -> None:
        """Calls a verb of the producer of a lane. Verbs of several lanes are those of lane 0."""

    def settle(self) -> None:  # noqa: B027
        """Returns when everything written is in the storage."""

    def happen(self, event: str) -> None:
        """Has one of the route's `events` happen, and returns when rows may be written again."""
        raise NotImplementedError(f"{type(self).__name__} says nothing of the event {event!r}")


class WriteRoute(ABC):
    """A way into a storage.

    Attributes:
        name: for messages.
        verbs: by the name of the method, perhaps with arguments in parentheses, what it takes.
        events: those of `contig.testing.situations.EVENTS` that it has, and whether open
            trajectories go on behind them.
    """

    name: str
    verbs: Mapping[str, VerbKind]
    events: Mapping[str, bool] = MappingProxyType({})

    @abstractmethod
    def open(self, needs: RouteNeeds) -> AbstractContextManager[OpenRoute]:
        """A route to an empty storage, closed behind the block."""


class RouteCase(NamedTuple):
    """A single check: one situation, written by one verb in pieces of some sizes.

    Attributes:
        situation: its rows.
        verb: what writes them.
        sizes: how many rows each piece has, in turns; empty: as many as the verb takes.
    """

    situation: Situation
    verb: str
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        pieces = "" if not self.sizes else " in pieces of " + ", ".join(map(str, self.sizes))
        return f"{self.verb}: {self.situation.name}{pieces}"


_PIECES: dict[VerbKind, tuple[tuple[int, ...], ...]] = {
    VerbKind.ROWS: ((100,), (1,), (2, 3, 1)),
}


def route_cases(route: WriteRoute) -> list[RouteCase]:
    """Everything that a route is checked with."""
    return [
        RouteCase(situation, verb, sizes)
        for verb, kind in route.verbs.items()
        for situation in SITUATIONS
        if _fits(route, kind, situation)
        for sizes in _PIECES.get(kind, ((),))
    ]


def _fits(route: WriteRoute, kind: VerbKind, situation: Situation) -> bool:
    event = situation.event
    if event is not None and event[0] not in route.events:
        return False
    if kind is VerbKind.PLAY:
        return situation.is_playable
    if kind is VerbKind.STEP:
        return situation.is_even
    if kind is VerbKind.LANES:
        return situation.is_even and event is None
    if kind is VerbKind.WHOLE:  # which always begins
        return event is None and all(x.begins for x in situation.trajectories())
    return True


def check_write_route(route: WriteRoute) -> None:
    """Checks that a route gives every situation's trajectories, by every verb.

    Raises:
        AssertionError: it does not; the text says which verb, in which situation.
    """
    for case in route_cases(route):
        check_route_case(route, case)


def check_route_case(route: WriteRoute, case: RouteCase) -> None:
    """Checks one case of a route; for tests that have one for each."""
    situation, kind = case.situation, route.verbs[case.verb]
    first = situation.lanes[0][0]
    example = situation.columns([first._replace(end=None)], ())
    needs = RouteNeeds(example, situation.traj_key, len(situation.lanes))
    try:
        with route.open(needs) as way:
            _write(route, way, case)
            way.settle()
            event = situation.event
            goes_on = event is None or route.events[event[0]]
            expected = situation.trajectories(goes_on)
            _check_episodes(way.storage, situation, expected, made=kind is VerbKind.PLAY)
            _check_slices(way.storage, expected)
            _check_versions(way.storage, situation)
    except AssertionError as error:
        raise AssertionError(f"{route.name}, {case}: {error}") from error


# -- writing --------------------------------------------------------------------------------------


def _write(route: WriteRoute, way: OpenRoute, case: RouteCase) -> None:
    situation, verb, lanes = case.situation, case.verb, case.situation.lanes
    match route.verbs[verb]:
        case VerbKind.PLAY:
            way.write(verb, 0, lanes)
        case VerbKind.LANES:
            rows = [row for lane in lanes for row in lane]
            tree = situation.columns(rows, (len(lanes), len(lanes[0])))
            way.write(verb, 0, Batch.from_tree(tree, 2))
        case VerbKind.WHOLE:
            for number, lane in enumerate(lanes):
                _write_whole(way, verb, number, situation, lane)
        case kind:
            _write_pieces(way, verb, kind, case)


def _write_pieces(way: OpenRoute, verb: str, kind: VerbKind, case: RouteCase) -> None:
    """Lane by lane in turns, a piece of each; the event comes where the situation says."""
    situation, lanes = case.situation, case.situation.lanes
    length = max(len(lane) for lane in lanes)
    happens = length if situation.event is None else situation.event[1]
    sizes = case.sizes or (1,)
    at = turn = 0
    while at < length:
        if at == happens and situation.event is not None:
            way.happen(situation.event[0])
        size = min(sizes[turn % len(sizes)], (happens if at < happens else length) - at)
        pieces = [lane[at : at + size] for lane in lanes]
        if kind is VerbKind.STEP:
            way.write(verb, 0, situation.columns([row for (row,) in pieces]))
        for number, piece in enumerate(pieces if kind is not VerbKind.STEP else ()):
            if piece:
                shape = () if kind is VerbKind.ROW else (-1,)
                way.write(verb, number, situation.columns(piece, shape))
        at, turn = at + size, turn + 1


def _write_whole(
    way: OpenRoute, verb: str, number: int, situation: Situation, lane: Sequence[RowSpec]
) -> None:
    """A lane's trajectories, each as a whole; the lane as a whole is refused if it has several."""
    mine = [x for x in situation.trajectories() if x.rows[0].lane == lane[0].lane]
    if len(mine) > 1:
        with raises(LayoutError, match="several episodes: use extend"):
            way.write(verb, number, situation.columns(lane))
    for trajectory in mine:
        way.write(verb, number, situation.columns(trajectory.rows))


# -- judging --------------------------------------------------------------------------------------


def _steps(rows: Sequence[RowSpec]) -> list[Step]:
    return [(row.lane, row.t) for row in rows]


def _check_episodes(
    storage: Storage, situation: Situation, expected: list[SituationTrajectory], made: bool
) -> None:
    """`made`: the route makes marks of its own, so that ids and versions are its business."""
    found = {}
    for line in storage.episodes():
        steps = identity(storage.read_episode(int(line["id"])))
        said: dict[str, Any] = {
            "steps": steps,
            "terminated": bool(line["terminated"]),
            "truncated": bool(line["truncated"]),
            "complete": bool(line["complete"]),
            "trimmed": bool(line["trimmed"]),
            "return": float(line["return"]),
        }
        if not made:
            said["version"] = int(line["policy_version"])
            if situation.has_ids:
                said["id"] = int(line["traj_id"])
        assert int(line["steps"]) == len(steps)
        assert steps[0] not in found, f"row {steps[0]} begins two trajectories"
        found[steps[0]] = said
    wanted = {}
    for x in expected:
        rows = x.rows
        said = {
            "steps": _steps(rows),
            "terminated": x.end == "terminated",
            "truncated": x.end == "truncated",
            "complete": x.is_complete,
            "trimmed": False,
            "return": float(sum(1000 * row.lane + row.t + 1 for row in rows)),
        }
        if not made:
            said["version"] = rows[-1].version
            if situation.has_ids:
                said["id"] = rows[0].id
        wanted[rows[0].lane, rows[0].t] = said
    assert found == wanted, _difference(found, wanted)


def _difference(found: dict[Step, Any], wanted: dict[Step, Any]) -> str:
    lines = ["trajectories, by lane and first step:"]
    for key in sorted({*found, *wanted}):
        if found.get(key) != wanted.get(key):
            lines += [f"  {key} found    {found.get(key)}", f"  {key} expected {wanted.get(key)}"]
    return "\n".join(lines)


def _check_slices(storage: Storage, expected: list[SituationTrajectory]) -> None:
    """Slices lie within one trajectory, and `complete_only` gives complete ones only."""
    whose = {step: n for n, x in enumerate(expected) for step in _steps(x.rows)}
    place = {step: i for x in expected for i, step in enumerate(_steps(x.rows))}
    for complete in (False, True):
        seen = set()
        for piece in _slices(storage, SliceSampler(slice_len=3, complete_only=complete)):
            numbers = {whose[step] for step in piece}
            assert len(numbers) == 1, f"a slice of several trajectories: {piece}"
            at = [place[step] for step in piece]
            assert at == list(range(at[0], at[0] + len(at))), f"a slice with a gap: {piece}"
            seen |= numbers
        allowed = {n for n, x in enumerate(expected) if x.is_complete or not complete}
        assert seen <= allowed, f"complete_only={complete} gives trajectories {seen - allowed}"
        assert bool(seen) == bool(allowed), f"complete_only={complete} gives none of {allowed}"


def _slices(storage: Storage, sampler: SliceSampler) -> list[list[Step]]:
    """Returns some slices, as steps."""
    buffer: Any = ReplayBuffer(storage, sampler, batch_size=3, seed=0)
    try:
        return [identity(buffer.sample()) for _ in range(24)]
    except (NothingEligibleError, EmptyBufferError):
        return []


def _check_versions(storage: Storage, situation: Situation) -> None:
    """`max_staleness=0` gives rows of the newest version, and no others."""
    versions = {row.version for lane in situation.lanes for row in lane}
    if len(versions) < 2:
        return
    buffer: Any = ReplayBuffer(storage, WindowSampler(max_staleness=0), batch_size=64, seed=0)
    drawn = set(np.asarray(buffer.sample()[VERSION]).tolist())
    assert drawn == {max(versions)}, f"max_staleness=0 gives rows of versions {sorted(drawn)}"


# -- every verb -----------------------------------------------------------------------------------


def public_members(kind: type) -> Iterator[str]:
    """Returns the public members of a class, for tests that every verb which writes is driven by
    a route, and every other member is known not to write."""
    for name in dir(kind):
        if not name.startswith("_") and not hasattr(object, name):
            yield name
