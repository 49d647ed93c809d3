"""What samplers see of a storage: its trajectories, its bounds and a window onto them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..tape import Storage
from .filters import Filters, Judge

__all__ = ["Array", "Index", "Window"]

Array = np.ndarray[Any, Any]


class Window(NamedTuple):
    """The part of the tape a sampler may use. Each bound is inclusive.

    Attributes:
        min_seq: the oldest row.
        min_ordinal: the oldest trajectory.
        min_version: the oldest policy version; None: any.
        filters: predicates of the view that must hold for a trajectory, a bit each.
    """

    min_seq: int = 0
    min_ordinal: int = 0
    min_version: int | None = None
    filters: int = 0


class Index:
    """What samplers see of a storage: its trajectories, its bounds and a window onto them.

    Belongs to the one thread that samples. `refresh` before each draw.

    Args:
        storage: what is sampled.
        window: a part of it; None: all.
        filters: predicates on its trajectories; None: its own.
    """

    def __init__(
        self, storage: Storage, window: Window | None = None, filters: Filters | None = None
    ) -> None:
        self.storage = storage
        self.window = window
        self.filters = Filters(storage) if filters is None else filters
        self.view = self.filters.view

    def refresh(self) -> None:
        """Takes in what was written and evicted since."""
        self.storage.poll()
        self.view.refresh()

    @property
    def head(self) -> int:
        """The seq that the next row will have, as of the last `refresh`."""
        return int(self.view.head)

    @property
    def tail(self) -> int:
        """The first row that may be drawn."""
        tail = int(self.view.tail)
        return tail if self.window is None else max(tail, self.window.min_seq)

    @property
    def capacity(self) -> int:
        """Rows that the storage has room for."""
        return self.storage.capacity

    @property
    def contiguous(self) -> bool:
        """Whether the window has every row from `tail` on."""
        w = self.window
        return w is None or (w.min_ordinal == 0 and w.min_version is None and not w.filters)

    def eligible(self, seqs: Array) -> Array:
        """Which of some rows are there, and in the window: a mask."""
        if self.contiguous:
            return seqs >= self.tail
        return self.view.has_rows(np.ascontiguousarray(seqs), self.window).astype(bool)

    def narrowed(self, window: Window) -> Index:
        """The same index seen through another window."""
        return Index(self.storage, window, self.filters)

    def where(self, predicate: Judge | None) -> Index:
        """The same index with those trajectories only that a predicate holds for. It is evaluated
        for those that have changed since.

        Raises:
            ValueError: it cannot be, or gives something else than a bool for each.
        """
        if predicate is None:
            return self
        return self.holding(self.filters.judged(predicate))

    def holding(self, number: int) -> Index:
        """The same index with those trajectories only that a filter of the view holds for."""
        low, ordinal, version, filters = self.window or Window()
        return self.narrowed(Window(low, ordinal, version, filters | 1 << number))
