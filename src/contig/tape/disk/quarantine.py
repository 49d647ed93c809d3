"""Trajectories that are set aside because rows of them are damaged; nobody is served them."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..entry import ends_of, read_entries
from ..folding import FoldedSteps

__all__ = ["Quarantine"]

log = logging.getLogger("contig.disk")

Array = np.ndarray[Any, Any]

_NOTHING = np.zeros((0, 2), np.int64)


class Quarantine:
    """Which trajectories are not served, by ordinal (`id`), with reasons. Thread-safe.

    Args:
        path: of the storage, for the log.
        tape: the native one.

    Attributes:
        reasons: of what is set aside; replaced as a whole.
        repaired: those that a repair set aside: nothing that is news.
        save: has the index remember some, and whether a repair set them aside; None: it is not
            ours to write.
    """

    def __init__(self, path: Path, tape: Any) -> None:
        self._path, self._tape = path, tape
        self.save: Callable[[dict[int, str], bool], None] | None = None
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self.reasons: dict[int, str] = {}
            self.repaired: set[int] = set()
            self._spans = _NOTHING  # rows [first, last) of them, ascending; replaced as a whole

    def add(self, found: dict[int, str], repaired: set[int]) -> dict[int, str]:
        """What the index knows, or is going to; those that are new here."""
        with self._lock:
            self.repaired = self.repaired | repaired
            new = {o: r for o, r in found.items() if o not in self.reasons}
            self.reasons = {**self.reasons, **new}
            if self.reasons:
                index = read_entries(self._tape)
                mine = index.compress(np.isin(index["ordinal"], list(self.reasons)))
                spans = np.stack([mine["first"], ends_of(mine)], 1)
                self._spans = spans[np.argsort(spans[:, 0])]
            return new

    def set_aside(self, found: dict[int, str], repaired: bool = False) -> None:
        """Sets trajectories aside: their rows are never served. By ordinal (`id`), with reasons.
        `repaired`: a repair did it, and later checks do not report them again."""
        new = self.add(found, set(found) if repaired else set())
        for ordinal, reason in new.items():
            log.error("%s: trajectory %d is set aside: %s", self._path, ordinal, reason)
        known = found if repaired else new
        if not known or self.save is None:
            return
        try:
            self.save(known, repaired)
        except (OSError, sqlite3.Error) as error:
            if repaired:
                raise
            log.warning("%s: the quarantine cannot be written: %s", self._path, error)

    def lost(
        self,
        seqs: Array,
        steps: FoldedSteps | None,
        lost: int,
        damaged: Array | None,
        bad: Array | None,
    ) -> Any:
        """What cannot be served of rows that were gathered, as `Storage.gather` says it.

        Args:
            seqs: the rows.
            steps: rows that follow each of them.
            lost, damaged: see `gone`; places among `steps`, if there are any.
            bad: a mask over `seqs` of those that cannot be decoded.
        """
        gone = self.gone(seqs if steps is None else steps.rows, lost, damaged)
        if gone is None:
            return lost if bad is None or not bad.any() else bad | (seqs < lost)
        if steps is not None:  # one bad row spoils what it is a part of
            gone = np.logical_or.reduceat(gone, np.cumsum(steps.lengths) - steps.lengths)
        if bad is not None:
            gone = gone | bad
        return gone if gone.any() else 0

    def gone(self, seqs: Array, lost: int, damaged: Array | None) -> Array | None:
        """A mask of rows that cannot be served, or None if all that counts is which are `lost`.

        Args:
            seqs: of the rows.
            lost: the seq below which they were evicted.
            damaged: places of those whose checksum is wrong.
        """
        aside = self._covers(seqs)
        if damaged is None and aside is None:
            return None
        mask = np.asarray(seqs < lost)
        if damaged is not None:
            mask[damaged] = True
        return mask if aside is None else mask | aside

    def _covers(self, seqs: Array) -> Array | None:
        """A mask of rows that are set aside, or None if there are none at all."""
        spans = self._spans  # once: another thread may find more meanwhile
        if not len(spans):
            return None
        at = np.searchsorted(spans[:, 0], seqs, side="right") - 1
        return np.asarray((at >= 0) & (seqs < spans[np.maximum(at, 0), 1]))
