"""Trajectories of a storage that are set aside, and the rows that they have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ..entry import ends_of

__all__ = ["Quarantine"]

Array = np.ndarray[Any, Any]

_NOTHING = np.zeros((0, 2), np.int64)


class Quarantine:
    """Which trajectories are not served, by ordinal (`id`), with reasons. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[int, str] = {}
        self._repaired: set[int] = set()
        self._spans = _NOTHING  # rows [first, last) of them, ascending; replaced as a whole

    @property
    def reasons(self) -> dict[int, str]:
        return self._reasons

    @property
    def repaired(self) -> set[int]:
        """Those that a repair set aside: nothing that is news."""
        return self._repaired

    def add(
        self, found: dict[int, str], entries: Callable[[], Array], repaired: set[int] | None = None
    ) -> dict[int, str]:
        """Sets trajectories aside; those that were not before. `entries` gives the index."""
        with self._lock:
            self._repaired = self._repaired | (repaired or set())
            new = {o: r for o, r in found.items() if o not in self._reasons}
            self._reasons = {**self._reasons, **new}
            if self._reasons:
                index = entries()
                mine = index.compress(np.isin(index["ordinal"], list(self._reasons)))
                spans = np.stack([mine["first"], ends_of(mine)], 1)
                self._spans = spans[np.argsort(spans[:, 0])]
            return new

    def covers(self, seqs: Array) -> Array | None:
        """A mask of rows that are set aside, or None if there are none at all."""
        spans = self._spans  # once: another thread may find more meanwhile
        if not len(spans):
            return None
        at = np.searchsorted(spans[:, 0], seqs, side="right") - 1
        return np.asarray((at >= 0) & (seqs < spans[np.maximum(at, 0), 1]))

    def clear(self) -> None:
        with self._lock:
            self._reasons, self._repaired, self._spans = {}, set(), _NOTHING
