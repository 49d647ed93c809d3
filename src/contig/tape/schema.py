"""What a storage knows of its records once the first row came: layout, marks, packers."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..errors import LayoutError
from ..keys import INDEX
from ..layout import Layout, plan_leaf
from ..tree import Path, show_path
from .boundaries import Boundaries, dual_ops, optional_flags
from .folding import ExtraLeaf, Recipe, fold_of

__all__ = ["ExtraLeaf", "Schema", "Wide", "row_layout"]


class Wide(NamedTuple):
    """A stored layout with a sampler's extra leaves, and what gathers rows into it."""

    layout: Layout
    gatherer: Any
    extras: frozenset[Path]


class Schema:
    """Immutable after construction, apart from its caches; shared by a process's threads."""

    def __init__(self, layout: Layout, traj_key: Any, end_key: Any) -> None:
        self.layout = layout
        self.boundaries = Boundaries.resolve(layout, traj_key, end_key)
        self.marks = self.boundaries.marks(layout)
        self.flag_paths = optional_flags(layout, self.boundaries.flags)
        self.first_leaf = layout.leaves[0]
        self._plans: dict[frozenset[Path], Any] = {}
        self._wides: dict[tuple[ExtraLeaf, ...], Wide] = {}
        self._last_wide: tuple[tuple[ExtraLeaf, ...], Wide] | None = None
        self._folded: dict[tuple[tuple[ExtraLeaf, ...], Recipe], Wide] = {}
        self._last_folded: tuple[tuple[ExtraLeaf, ...], Recipe, Wide] | None = None

    def plan(self, missing: frozenset[Path]) -> Any:
        """The native packer for trees that lack these flags."""
        found = self._plans.get(missing)
        if found is None:
            tree = self.layout.structure.numbered(self.layout.number, missing)
            ops = dual_ops(self.layout, self.boundaries.flags, missing)
            leaves = [plan_leaf(x) for x in self.layout.leaves]
            found = _native.Plan(tree, leaves, ops, self.layout.record_size)
            self._plans[missing] = found
        return found

    def wide(self, tape: Any, extras: tuple[ExtraLeaf, ...]) -> Wide:
        """The layout of batches to which a sampler adds these leaves, in place of stored ones of
        the same path unless those are to be kept.

        An extra leaf ``index`` gets the seqs.
        """
        last = self._last_wide
        if last is not None and last[0] is extras:  # hashing them costs more than the look-up
            return last[1]
        found = self._wides.get(extras)
        if found is None:
            found = self._wides[extras] = self._widened(tape, extras, (), frozenset())
        self._last_wide = (extras, found)
        return found

    def folded(self, tape: Any, extras: tuple[ExtraLeaf, ...], recipe: Recipe) -> Wide:
        """As `wide`, of batches whose rows are several stored ones, folded into one."""
        last = self._last_folded
        if last is not None and last[0] is extras and last[1] is recipe:
            return last[2]
        found = self._folded.get((extras, recipe))
        if found is None:
            whole = fold_of(self.layout, recipe)
            found = self._widened(tape, extras, whole.leaves, whole.not_first)
            found.gatherer.fold(*whole.arguments(found.layout))
            self._folded[extras, recipe] = found
        self._last_folded = (extras, recipe, found)
        return found

    def _widened(
        self,
        tape: Any,
        extras: tuple[ExtraLeaf, ...],
        replaced: tuple[ExtraLeaf, ...],
        not_copied: frozenset[Path],
    ) -> Wide:
        leaves = [ExtraLeaf(*x) for x in extras]
        new = [x for x in leaves if not (x.kept and x.path in self.layout.by_path)]
        layout, moved = self.layout.with_leaves(x[:3] for x in (*new, *replaced))
        # What is made of stored leaves below `next` is not added, it is those leaves.
        added = frozenset(x.path for x in (*new, *replaced) if x in new or x.path[0] != "next")
        stored = [
            (m, x.offset, x.nbytes)
            for m, x in zip(moved, self.layout.leaves)
            if x.path not in not_copied and x.path not in added
        ]
        gatherer = _native.Gatherer(
            tape,
            np.array([x.nbytes for x in layout.leaves], np.int64),
            np.array(stored, np.int64).ravel(),
            layout.number[INDEX] if INDEX in added else -1,
        )
        return Wide(layout, gatherer, added)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {"layout": self.layout.to_json(), "keys": self.boundaries.to_json()}
        ).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Schema:
        parsed = json.loads(data)
        keys = parsed["keys"]
        return Schema(Layout.from_json(parsed["layout"]), keys["traj_key"], keys["end_key"])


def row_layout(tree: Any, batch_ndim: int) -> tuple[Layout, int]:
    """The layout of a row of data with up to so many batch dims, and how many it has.

    Raises:
        LayoutError: some leaf has none, and there should be one.
    """
    full = Layout(tree)
    ndim = min([batch_ndim, *(len(x.shape) for x in full.leaves)]) if batch_ndim else 0
    if batch_ndim and ndim == 0:
        scalar = next(x.path for x in full.leaves if not x.shape)
        raise LayoutError(f"{show_path(scalar)}: no leading dim; use add for a single row")
    leaves = [(x.path, x.shape[ndim:], x.dtype) for x in full.leaves]
    return Layout.of(full.structure, leaves), ndim
