"""A window onto the newest part of a tape, for any sampler."""

from __future__ import annotations

from ..arguments import whole
from .base import Draw, Index, OuterSampler, Request, Rng, Sampler, Window
from .uniform import RandomSampler

__all__ = ["WindowSampler"]


class WindowSampler(OuterSampler):
    """Lets another sampler see only the newest data. Several bounds: all of them hold.

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

    def window(self, index: Index) -> Window:
        """The window now, within the one that `index` already has."""
        outer = index.window or Window()
        low, ordinal, version = outer
        if self.last_rows is not None:
            low = max(low, index.head - self.last_rows)
        if self.last_trajectories is not None:
            ordinal = max(ordinal, int(index.view.ordinal_of_newest(self.last_trajectories)))
        if self.max_staleness is not None:
            newest = int(index.view.max_version) - self.max_staleness
            version = newest if version is None else max(version, newest)
        return Window(max(low, 0), ordinal, version)

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self.sampler.draw(index.narrowed(self.window(index)), rng, request)

    def missing(self, index: Index) -> str:
        window = self.window(index)
        return f"within {window}: {self.sampler.missing(index.narrowed(window))}"
