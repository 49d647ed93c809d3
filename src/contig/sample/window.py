"""A window onto the newest part of a tape, for any sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..arguments import whole
from .base import Draw, Index, Mass, OuterSampler, Request, Rng, Sampler, Window
from .fields import FieldLeaves
from .predicate import Predicate, Where, left_out
from .uniform import RandomSampler

__all__ = ["WindowSampler"]

_NEVER = 2**62  # no trajectory has this number


class _Bounds(NamedTuple):
    """What of one of several tapes is in the window."""

    rows: int | None
    trajectories: int | None
    newest_version: int


def _evenly(n: int, there: Sequence[int]) -> list[int]:
    """n, or all there are, from several places: equally many of each, or all that one has."""
    out = [0] * len(there)
    left = n
    by_size = sorted(range(len(there)), key=lambda i: there[i])
    for taken, i in enumerate(by_size):
        out[i] = min(there[i], -(-left // (len(there) - taken)))
        left -= out[i]
    return out


def _oldest_of(index: Index, n: int) -> int:
    """The number of the oldest of the n newest trajectories that are not damaged."""
    oldest = int(index.view.ordinal_of_newest(n))
    damaged, among = index.storage.quarantined, 0
    while damaged and (more := sum(number >= oldest for number in damaged)) > among:
        among = more
        oldest = int(index.view.ordinal_of_newest(n + among))
    return oldest


class WindowSampler(OuterSampler):
    """Lets another sampler see only the newest data, or trajectories of a kind. Several bounds: all
    of them hold.

    Over shards, whose rows have no common order, the newest rows or trajectories are equally many
    of each; the newest policy version is that of all.

    Args:
        sampler: what draws; RandomSampler if None.
        last_trajectories: how many trajectories: those that began last. Damaged ones do not count.
        last_rows: how many rows: those written last.
        max_staleness: how far the policy version of a row may be behind the newest: on the tape,
            or `newest_version`.
        where: only rows of trajectories that it holds for, of those in the other bounds; see
            `Predicate`.
        fields: fields of its trajectory that each row gets, below `fields`.

    Attributes:
        newest_version: of the policy, if somebody knows of a newer one than the tape has.
    """

    newest_version = -1

    def __init__(
        self,
        sampler: Sampler | None = None,
        *,
        last_trajectories: int | None = None,
        last_rows: int | None = None,
        max_staleness: int | None = None,
        where: Where | None = None,
        fields: Sequence[Any] = (),
    ) -> None:
        super().__init__(RandomSampler() if sampler is None else sampler)
        bounds = {
            "last_trajectories": last_trajectories,
            "last_rows": last_rows,
            "max_staleness": max_staleness,
        }
        if all(v is None for v in (*bounds.values(), where)):
            raise ValueError(f"WindowSampler needs one of {', '.join(bounds)}, where")
        for name, value in bounds.items():
            least = 0 if name == "max_staleness" else 1
            bounds[name] = None if value is None else whole(name, value, least)
        self.last_trajectories = bounds["last_trajectories"]
        self.last_rows = bounds["last_rows"]
        self.max_staleness = bounds["max_staleness"]
        self._where, self._fields = Predicate.of(where), FieldLeaves(fields)
        self._told: _Bounds | None = None

    def window(self, index: Index) -> Window:
        """The window now, within the bounds that `index` already has."""
        low, ordinal, version, filters = index.bounds or Window()
        told = self._told
        if told is None:
            version_now = max(int(index.view.max_version), self.newest_version)
            told = _Bounds(self.last_rows, self.last_trajectories, version_now)
        if told.rows is not None:
            low = max(low, index.head - told.rows)
        if told.trajectories is not None:
            newest = _oldest_of(index, told.trajectories) if told.trajectories else _NEVER
            ordinal = max(ordinal, newest)
        if self.max_staleness is not None:
            oldest = told.newest_version - self.max_staleness
            version = oldest if version is None else max(version, oldest)
        return Window(max(low, 0), ordinal, version, filters)

    def _narrowed(self, index: Index) -> Index:
        self._fields.check(index)
        index = index.where(self._where)
        return index.narrowed(self.window(index))

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        draw = self.sampler.draw(self._narrowed(index), rng, request)
        return None if draw is None else self._fields.add(index, draw)

    @property
    def surveys(self) -> bool:
        return True

    def survey(self, index: Index) -> Any:
        view = index.view
        rows = int(view.head) - int(view.tail)
        return (rows, int(view.trajectories), int(view.max_version)), self.sampler.survey(index)

    def agree(self, surveys: list[Any]) -> list[Any] | None:
        rows, trajectories, versions = zip(*(own for own, _ in surveys))
        none: list[int | None] = [None] * len(surveys)
        of_rows = none if self.last_rows is None else _evenly(self.last_rows, rows)
        of_trajs = none
        if self.last_trajectories is not None:
            of_trajs = list(_evenly(self.last_trajectories, trajectories))
        inner = self.sampler.agree([below for _, below in surveys]) or none
        newest = max(versions)
        return [((r, t, newest), i) for r, t, i in zip(of_rows, of_trajs, inner)]

    def adopt(self, told: Any) -> None:
        own, inner = told
        self._told = _Bounds(*own)
        if inner is not None:
            self.sampler.adopt(inner)

    def mass(self, index: Index, request: Request) -> Mass:
        return self.sampler.mass(self._narrowed(index), request)

    def take(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        draw = self.sampler.take(self._narrowed(index), rng, request)
        return None if draw is None else self._fields.add(index, draw)

    def begin_epoch(self, index: Index, rng: Rng) -> None:
        self.sampler.begin_epoch(self._narrowed(index), rng)

    def missing(self, index: Index) -> str:
        window = self.window(index)
        bounds = ", ".join(f"{k}={v}" for k, v in window._asdict().items() if k != "filters")
        inner = self.sampler.missing(index.narrowed(window))
        return f"within Window({bounds}): {inner}{left_out(index.filters, self._where)}"
