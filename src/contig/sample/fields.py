"""Fields of trajectories as leaves of a sample: each row gets those of its trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..keys import FIELDS
from ..layout import Leaf
from ..tree import Path, as_path, show_path
from .base import Draw, Index
from .filters import field_values

__all__ = ["FieldLeaves"]


class FieldLeaves:
    """Adds leaves `("fields", *path)`, which take the place of stored ones of that name.

    Args:
        paths: of the fields: names, or tuples for nested ones.
    """

    def __init__(self, paths: Sequence[Any]) -> None:
        if isinstance(paths, str) or not isinstance(paths, Sequence):
            raise TypeError(f'fields: expected a sequence such as ("task",), got {paths!r}')
        self.paths: tuple[Path, ...] = tuple(dict.fromkeys(as_path(p) for p in paths))

    def check(self, index: Index) -> None:
        """Raises ValueError for fields that the storage does not have: to be asked before a draw
        changes anything."""
        if self.paths and index.storage.schema is not None:
            for path in self.paths:
                self._leaf(index, path)

    def add(self, index: Index, draw: Draw) -> Draw:
        """The draw with the fields of its rows' trajectories, each read whole."""
        if not self.paths:
            return draw
        leaves = [self._leaf(index, path) for path in self.paths]
        rows, lengths = draw.seqs, draw.lengths
        if lengths is not None:  # a group has one trajectory
            rows = rows[np.cumsum(lengths) - lengths]
        view = index.view
        runs = view.last_runs(view.trajectories_of(np.ascontiguousarray(rows)))
        # What is gone has zeros, and is drawn again when its rows are missing.
        records = index.storage.tape.fields_of(runs)
        columns = dict(draw.columns)
        for leaf in leaves:
            values = field_values(leaf, records)
            each = values if lengths is None else np.repeat(values, lengths, axis=0)
            columns[(*FIELDS, *leaf.path)] = each
        return draw._replace(columns=columns)

    def _leaf(self, index: Index, path: Path) -> Leaf:
        layout = index.storage.fields
        leaf = None if layout is None else layout.by_path.get(path)
        if leaf is None:
            known = [] if layout is None else [show_path(x.path) for x in layout.leaves]
            there = f"it has {', '.join(known)}" if known else "it has none: give it fields="
            raise ValueError(f"fields: the storage has no field {show_path(path)}; {there}")
        return leaf
