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
        put_off: predicates that are not in the window yet, see `put_off`.

    Attributes:
        bounds: the window, but for predicates that are put off.
        put_off: predicates to be asked about what is drawn within `bounds` (`candidates.py`), or,
            by whoever reads `window`, about all trajectories.
    """

    def __init__(
        self,
        storage: Storage,
        window: Window | None = None,
        filters: Filters | None = None,
        put_off: tuple[Judge, ...] = (),
    ) -> None:
        self.storage = storage
        self.bounds, self.put_off = window, put_off
        self.filters = Filters(storage) if filters is None else filters
        self.view = self.filters.view

    @property
    def window(self) -> Window | None:
        """The part of the storage that may be drawn; None: all. Predicates that were put off are
        asked about everything now, for which it may raise what `where` raises."""
        if self.put_off:
            low, ordinal, version, filters = self.bounds or Window()
            for judge in self.put_off:
                filters |= 1 << self.filters.judged(judge)
            self.bounds, self.put_off = Window(low, ordinal, version, filters), ()
        return self.bounds

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
        return tail if self.bounds is None else max(tail, self.bounds.min_seq)

    @property
    def capacity(self) -> int:
        """Rows that the storage has room for."""
        return self.storage.capacity

    @property
    def contiguous(self) -> bool:
        """Whether the window has every row from `tail` on."""
        if self.put_off:
            return False
        w = self.bounds
        return w is None or (w.min_ordinal == 0 and w.min_version is None and not w.filters)

    def eligible(self, seqs: Array) -> Array:
        """Which of some rows are there, and in the window: a mask."""
        if self.contiguous:
            return (seqs >= self.tail) & (seqs < self.head)
        return self.view.has_rows(np.ascontiguousarray(seqs), self.window).astype(bool)

    def narrowed(self, window: Window) -> Index:
        """The same index seen through other bounds."""
        return Index(self.storage, window, self.filters, self.put_off)

    def where(self, predicate: Judge | None) -> Index:
        """The same index with those trajectories only that a predicate holds for. It is evaluated
        for those that have changed since; if its verdicts change by themselves, it is put off.

        Raises:
            ValueError: it cannot be, or gives something else than a bool for each.
        """
        if predicate is None:
            return self
        number = self.filters.followed(predicate)
        if number is not None:
            return self.holding(number)
        return Index(self.storage, self.bounds, self.filters, (*self.put_off, predicate))

    def holding(self, number: int) -> Index:
        """The same index with those trajectories only that a filter of the view holds for."""
        low, ordinal, version, filters = self.bounds or Window()
        return self.narrowed(Window(low, ordinal, version, filters | 1 << number))
