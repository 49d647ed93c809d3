"""A window onto the newest part of a tape, for any sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..arguments import whole
from .base import Draw, Index, Mass, OuterSampler, Request, Rng, Sampler, Window
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


class WindowSampler(OuterSampler):
    """Lets another sampler see only the newest data. Several bounds: all of them hold.

    Over shards, whose rows have no common order, the newest rows or trajectories are equally many
    of each; the newest policy version is that of all.

    Args:
        sampler: what draws; RandomSampler if None.
        last_trajectories: how many trajectories: those that began last.
        last_rows: how many rows: those written last.
        max_staleness: how far the policy version of a row may be behind the newest on the tape.
    """

    def __init__(
        self,
        sampler: Sampler | None = None,
        *,
        last_trajectories: int | None = None,
        last_rows: int | None = None,
        max_staleness: int | None = None,
    ) -> None:
        super().__init__(RandomSampler() if sampler is None else sampler)
        bounds = {
            "last_trajectories": last_trajectories,
            "last_rows": last_rows,
            "max_staleness": max_staleness,
        }
        if all(v is None for v in bounds.values()):
            raise ValueError(f"WindowSampler needs one of {', '.join(bounds)}")
        for name, value in bounds.items():
            least = 0 if name == "max_staleness" else 1
            bounds[name] = None if value is None else whole(name, value, least)
        self.last_trajectories = bounds["last_trajectories"]
        self.last_rows = bounds["last_rows"]
        self.max_staleness = bounds["max_staleness"]
        self._told: _Bounds | None = None

    def window(self, index: Index) -> Window:
        """The window now, within the one that `index` already has."""
        low, ordinal, version = index.window or Window()
        told = self._told
        if told is None:
            told = _Bounds(self.last_rows, self.last_trajectories, int(index.view.max_version))
        if told.rows is not None:
            low = max(low, index.head - told.rows)
        if told.trajectories is not None:
            newest = int(index.view.ordinal_of_newest(max(told.trajectories, 1)))
            ordinal = max(ordinal, newest if told.trajectories else _NEVER)
        if self.max_staleness is not None:
            oldest = told.newest_version - self.max_staleness
            version = oldest if version is None else max(version, oldest)
        return Window(max(low, 0), ordinal, version)

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self.sampler.draw(index.narrowed(self.window(index)), rng, request)

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
        return self.sampler.mass(index.narrowed(self.window(index)), request)

    def take(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self.sampler.take(index.narrowed(self.window(index)), rng, request)

    def begin_epoch(self, index: Index, rng: Rng) -> None:
        self.sampler.begin_epoch(index.narrowed(self.window(index)), rng)

    def missing(self, index: Index) -> str:
        window = self.window(index)
        return f"within {window}: {self.sampler.missing(index.narrowed(window))}"
