"""A window onto the newest part of a tape, for any sampler."""

from __future__ import annotations

from typing import Any

from ..arguments import check_kind, whole
from .base import Array, Draw, Index, Request, Rng, Sampler, Window
from .uniform import RandomSampler

__all__ = ["WindowSampler"]


class WindowSampler(Sampler):
    """Lets another sampler see only the newest data. Several bounds: all of them hold.

    Args:
        sampler: what draws; RandomSampler if None.
        last_trajectories: the so many trajectories that began last.
        last_rows: the so many rows written last.
        max_staleness: rows whose policy version is at most so far behind the newest on the tape.
    """

    def __init__(
        self,
        sampler: Sampler | None = None,
        *,
        last_trajectories: int | None = None,
        last_rows: int | None = None,
        max_staleness: int | None = None,
    ) -> None:
        self.sampler = RandomSampler() if sampler is None else sampler
        check_kind("sampler", self.sampler, Sampler)
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
        self.traj_key, self.end_key = self.sampler.traj_key, self.sampler.end_key

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

    @property
    def name(self) -> str:
        return f"{type(self).__name__}({self.sampler.name})"

    def request(self, batch_size: int) -> Request:
        return self.sampler.request(batch_size)

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self.sampler.draw(index.narrowed(self.window(index)), rng, request)

    def missing(self, index: Index) -> str:
        window = self.window(index)
        return f"within {window}: {self.sampler.missing(index.narrowed(window))}"

    def update_priority(self, index: Index, seqs: Array, priority: Array) -> None:
        self.sampler.update_priority(index, seqs, priority)

    @property
    def stale_priority_updates(self) -> int:
        return self.sampler.stale_priority_updates

    def mark(self) -> Any:
        return self.sampler.mark()

    def rewind(self, mark: Any) -> None:
        self.sampler.rewind(mark)

    def reset(self) -> None:
        self.sampler.reset()

    def state(self) -> dict[str, Any]:
        return {"inner": self.sampler.state()}

    def load(self, state: dict[str, Any]) -> None:
        self.sampler.load(state["inner"])
