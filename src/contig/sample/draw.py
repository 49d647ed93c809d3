"""What a sampler returns: which rows, and what is to be done with them when they are gathered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..batch import Batch
from ..tape import FoldedSteps
from ..tree import Path
from .index import Array

__all__ = ["Draw"]


class Draw(NamedTuple):
    """What a sampler returns.

    Attributes:
        seqs: rows, int64 [m].
        lengths: rows of each group, or None if every row is one.
        ends: of each group, how its trajectory ended with its last row (index flags), or 0.
        columns: leaves to add to the batch: an array of m rows, or one value for all. They take
            the place of stored leaves of the same path.
        kept: those of them that do not, where there is such a leaf.
        finish: called with the gathered batch; may change its leaves or return another.
        steps: rows that follow each row, to be folded into it when it is gathered.
        units: groups that stand or fall together, as members of a group of trajectories do: how
            many one after another; None: each for itself.
        aside: arrays of m rows that `finish` needs and the batch does not get.
    """

    seqs: Array
    lengths: Array | None = None
    columns: dict[Path, Any] = {}  # noqa: RUF012
    finish: Callable[[Batch, Draw], Batch] | None = None
    ends: Array | None = None
    steps: FoldedSteps | None = None
    kept: frozenset[Path] = frozenset()
    units: Array | None = None
    aside: dict[str, Array] = {}  # noqa: RUF012

    @property
    def groups(self) -> int:
        """How many groups it has."""
        return len(self.seqs) if self.lengths is None else len(self.lengths)

    def only(self, keep: Array) -> Draw:
        """The gathered draw without some groups; `keep` is a mask over groups."""
        rows = keep if self.lengths is None else np.repeat(keep, self.lengths)
        columns = {
            k: v[rows] if isinstance(v, np.ndarray) and v.ndim else v
            for k, v in self.columns.items()
        }
        lengths = None if self.lengths is None else self.lengths[keep]
        ends = None if self.ends is None else self.ends[keep]
        aside = {k: v[rows] for k, v in self.aside.items()}
        units = self.units
        if units is not None:
            units = units[keep[np.cumsum(units) - units]]
        return Draw(
            self.seqs[rows],
            lengths,
            columns,
            self.finish,
            ends,
            kept=self.kept,
            units=units,
            aside=aside,
        )
