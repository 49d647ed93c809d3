"""What is written into a batch of slices: where they begin and end, which rows are real.

A slice's first row gets `is_init`, its last row `truncated` (and so `done`) unless the trajectory
really ended there; `("collector", "slice_end")` tells such cuts from stored truncations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _native
from ..batch import Batch
from ..keys import BURN_IN, DONE, FLAGS, MASK, SLICE_END
from ..layout import Layout
from ..tape import Wide
from ..tree import Path, as_path
from .base import Array, Draw

__all__ = ["SliceMarks", "Slices"]

# Seqs of all rows; of each slice, its rows, its burn-in rows and how it ended (index flags).
Slices = tuple[Array, Array, Array, Array]


class SliceMarks:
    """Writes the marks of slices into a gathered batch.

    Args:
        init_key: leaf for slice starts; None writes none.
        truncated_key: leaf for slice ends, beside `done` and `terminated`; None writes none.
        pad_output: whether short slices are padded.
        burn_in: whether slices carry a burn-in.
    """

    def __init__(
        self, init_key: Any, truncated_key: Any, pad_output: bool = False, burn_in: bool = False
    ) -> None:
        self.init: Path | None = None if init_key is None else as_path(init_key)
        self.truncated: Path | None = None if truncated_key is None else as_path(truncated_key)
        self.pad_output = pad_output
        self.burn_in = burn_in
        flags = () if self.truncated is None else (*self.truncated[:-1],)
        self._flags: tuple[Path, Path, Path] | None = None
        if self.truncated is not None:
            self._flags = ((*flags, FLAGS[0]), (*flags, FLAGS[1]), self.truncated)
        self._places: dict[Any, tuple[tuple[Any, ...], bool]] = {}
        self._numbers: dict[int, tuple[Wide, tuple[Any, ...] | None]] = {}
        self.columns: dict[Path, Any] = {SLICE_END: np.False_}
        if self.init is not None:
            self.columns[self.init] = np.False_
        if self._flags is not None:
            self.columns.update(dict.fromkeys(self._flags, np.False_))
        # Stored marks stay, and more are set.
        self._kept = frozenset(self.columns) - {SLICE_END}
        self.form = Draw(np.empty(0, np.int64), columns=self.columns, kept=self._kept)

    def draw(self, slices: Slices, length: int) -> Draw:
        """The Draw of some slices, which are padded to `length` if slices are."""
        seqs, lengths, burn, ends = slices
        columns = self.columns
        if self.pad_output:
            seqs, lengths, mask = _pad(seqs, lengths, length + burn)
            columns = {**columns, MASK: mask}
        if self.burn_in:
            columns = {**columns, BURN_IN: _burn_column(lengths, burn)}
        return Draw(seqs, lengths, columns, self.finish, ends, kept=self._kept)

    def finish(self, batch: Batch, draw: Draw) -> Batch:
        assert draw.lengths is not None and draw.ends is not None
        real = draw.lengths
        if self.pad_output:
            starts = np.cumsum(draw.lengths) - draw.lengths
            real = np.add.reduceat(batch[MASK].astype(np.int64), starts)
        if self._flags is not None:
            _adopt_root_flags(batch, self._flags)
        places, told = self._columns_of(batch)
        _native.mark_slices(batch.memory, draw.lengths, real, draw.ends, places, told)
        return batch

    def _columns_of(self, batch: Batch) -> tuple[tuple[Any, ...], bool]:
        """Where the marks go in a batch like this one: offset and "true" of each column; and
        whether ends are known from the index only, because the data has no done flags."""
        key = (batch.block_layout, len(batch))
        found = self._places.get(key)
        if found is None:
            *columns, told = self._columns(batch.block_layout, batch.extras)
            views = batch.block_layout.block_columns(len(batch)).views
            places = (None if c is None else (views[c[0]][2], c[1]) for c in columns)
            found = (tuple(places), told)
            if len(self._places) > 64:
                self._places.clear()
            self._places[key] = found
        return found

    def columns_in(self, wide: Wide) -> tuple[Any, ...] | None:
        """Number and "true" of the column of each mark, and whether ends are known from the index
        only, for slices that are marked while they are gathered. None: they cannot be, because
        flags at the root have to be looked at first."""
        found = self._numbers.get(id(wide))
        if found is None or found[0] is not wide:
            flags = wide.extras.intersection(self._flags or ())
            at_root = any((p[-1],) != p and (p[-1],) in wide.layout.by_path for p in flags)
            found = (wide, None if at_root else self._columns(wide.layout, wide.extras))
            if len(self._numbers) > 64:
                self._numbers.clear()
            self._numbers[id(wide)] = found  # keeps it: its id is taken
        return found[1]

    def _columns(self, layout: Layout, extras: frozenset[Path]) -> tuple[Any, ...]:
        done, terminated, truncated = self._flags or (DONE, None, None)
        if done not in layout.by_path:
            done = DONE[1:]

        def column(path: Path | None) -> tuple[int, bytes] | None:
            leaf = layout.by_path.get(path) if path is not None else None
            if leaf is None or leaf.shape not in ((), (1,)):
                return None  # flags of agents are ordinary leaves
            return layout.number[leaf.path], np.ones(leaf.shape, leaf.dtype).tobytes()

        paths = (self.init, done, terminated, truncated, SLICE_END)
        stored = done in layout.by_path and done not in extras
        told = not stored and DONE[1:] not in layout.by_path
        return (*(column(p) for p in paths), told)


def _adopt_root_flags(batch: Batch, flags: tuple[Path, Path, Path]) -> None:
    """Flags stored at the root only start out as such in the leaves that were added below next."""
    if not batch.extras.intersection(flags):
        return
    for path in flags:
        root = (path[-1],)
        if path in batch.extras and root != path and root in batch.layout.by_path:
            batch[path][...] = batch[root].reshape(len(batch), -1).any(-1)


def _burn_column(lengths: Array, burn: Array) -> Array:
    starts = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    return np.asarray(place < np.repeat(burn, lengths))


def _pad(seqs: Array, lengths: Array, to: Array) -> tuple[Array, Array, Array]:
    """Slices with their last row repeated up to a length each; and which rows are real."""
    starts = np.cumsum(lengths) - lengths
    place = np.arange(int(to.sum())) - np.repeat(np.cumsum(to) - to, to)
    real = np.repeat(lengths, to)
    rows = np.repeat(starts, to) + np.minimum(place, real - 1)
    return seqs[rows], to, place < real
