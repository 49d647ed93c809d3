"""What a storage knows of its records once the first row came: layout, marks, packers."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..codecs import codec_of
from ..errors import LayoutError
from ..keys import INDEX
from ..layout import Layout, check_leaves, plan_leaf
from ..tree import Path, show_path
from .boundaries import Boundaries, dual_ops, optional_flags
from .decoding import Coded, Decoder
from .encoding import Codecs, Encoder
from .folding import ExtraLeaf, Recipe, fold_of
from .sharing import Sharing

__all__ = ["ExtraLeaf", "Schema", "Wide", "row_layout"]


class Wide(NamedTuple):
    """A stored layout with a sampler's extra leaves, and what gathers rows into it.

    Attributes:
        layout: of batches.
        gatherer: the native one.
        extras: paths of the leaves that are added.
        decoder: what fills the columns of leaves with codecs, which the gatherer leaves out.
    """

    layout: Layout
    gatherer: Any
    extras: frozenset[Path]
    decoder: Decoder | None = None


class Schema:
    """Immutable after construction, apart from its caches; shared by a process's threads."""

    def __init__(
        self,
        layout: Layout,
        traj_key: Any,
        end_key: Any,
        fields: Layout | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.layout = layout
        self.fields = fields  # of trajectories
        self.sharing = sharing  # what is stored once
        self.shared_form = None if sharing is None else sharing.native(layout)
        self.boundaries = Boundaries.resolve(layout, traj_key, end_key)
        self.marks = self.boundaries.marks(layout)
        self.flag_paths = optional_flags(layout, self.boundaries.flags)
        # Which tells how many batch dims data has: those of any size do not.
        self.first_leaf = min(layout.leaves, key=lambda x: (x.ragged, x.variable))
        # (place, bytes of an element) of leaves of any size, as the tape takes them
        pairs = [(x.offset, x.stored_element_bytes) for x in layout.variable]
        self.blob_leaves = np.array(pairs, np.int64).ravel()
        self.encoder = Encoder.of(layout)
        self._plans: dict[frozenset[Path], Any] = {}
        self._wides: dict[tuple[ExtraLeaf, ...], Wide] = {}
        self._last_wide: tuple[tuple[ExtraLeaf, ...], Wide] | None = None
        self._folded: dict[tuple[tuple[ExtraLeaf, ...], Recipe], Wide] = {}
        self._last_folded: tuple[tuple[ExtraLeaf, ...], Recipe, Wide] | None = None
        self._some: dict[tuple[Path, ...], Any] = {}

    @property
    def codecs(self) -> Codecs:
        """Codecs by the paths of their leaves; also of those that are encoded where they are
        stored once."""
        found = {x.path: codec_of(x.codec) for x in self.layout.leaves if x.codec is not None}
        if self.sharing is not None and self.sharing.codec is not None:
            found |= {x: codec_of(self.sharing.codec) for x in self.sharing.paths}
        return found

    def plan(self, missing: frozenset[Path]) -> Any:
        """The native packer for trees that lack these flags, and have passed the encoder."""
        found = self._plans.get(missing)
        if found is None:
            tree = self.layout.structure.numbered(self.layout.number, missing)
            ops = dual_ops(self.layout, self.boundaries.flags, missing)
            leaves = [plan_leaf(x, encoded=True) for x in self.layout.leaves]
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

    def some(self, tape: Any, paths: tuple[Path, ...]) -> Any:
        """What gathers these leaves of rows, and nothing else, each as one column."""
        found = self._some.get(paths)
        if found is None:
            leaves = [self.layout.by_path[path] for path in paths]
            sizes = np.array([leaf.nbytes for leaf in leaves], np.int64)
            places = [(i, leaf.offset, leaf.nbytes) for i, leaf in enumerate(leaves)]
            gatherer = _native.Gatherer(tape, sizes, np.array(places, np.int64).ravel(), -1)
            found = self._some[paths] = gatherer
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
        layout, moved = self.layout.decoded.with_leaves(x[:3] for x in (*new, *replaced))
        # What is made of stored leaves below `next` is not added, it is those leaves.
        added = frozenset(x.path for x in (*new, *replaced) if x in new or x.path[0] != "next")
        kept = [(m, x) for m, x in zip(moved, self.layout.leaves) if x.path not in added]
        stored = [
            (m, x.offset, x.nbytes) for m, x in kept if x.path not in not_copied and not x.variable
        ]
        blobs = [(m, x.offset, x.stored_element_bytes) for m, x in kept if x.ragged]
        coded = [Coded(x, m, x.path in not_copied) for m, x in kept if x.codec is not None]
        gatherer = _native.Gatherer(
            tape,
            np.array([8 if x.ragged else x.nbytes for x in layout.leaves], np.int64),
            np.array(stored, np.int64).ravel(),
            layout.number[INDEX] if INDEX in added else -1,
            np.array(blobs, np.int64).ravel() if blobs else None,
        )
        if not coded:
            return Wide(layout, gatherer, added)
        gatherer.leave(np.array([x.number for x in coded], np.int64))
        return Wide(layout, gatherer, added, Decoder(tape, coded))

    def with_sharing(self, sharing: Sharing | None) -> Schema:
        """The same rows, stored in another way."""
        keys = (self.boundaries.traj_key, self.boundaries.end_key)
        return Schema(self.layout, *keys, self.fields, sharing)

    def to_bytes(self) -> bytes:
        parts = {"layout": self.layout.to_json(), "keys": self.boundaries.to_json()}
        if self.fields is not None:
            parts["fields"] = self.fields.to_json()
        if self.sharing is not None:
            parts["shared"] = self.sharing.to_json()
        return json.dumps(parts).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Schema:
        parsed = json.loads(data)
        keys = parsed["keys"]
        fields, shared = parsed.get("fields"), parsed.get("shared")
        return Schema(
            Layout.from_json(parsed["layout"]),
            keys["traj_key"],
            keys["end_key"],
            None if fields is None else Layout.from_json(fields),
            None if shared is None else Sharing.from_json(shared),
        )


def row_layout(tree: Any, batch_ndim: int) -> tuple[Layout, int]:
    """The layout of a row of data with up to so many batch dims, and how many it has.

    Raises:
        LayoutError: some leaf has none, and there should be one.
    """
    check_leaves(tree)
    if not batch_ndim:
        return Layout(tree), 0
    full = Layout.of_rows(tree)
    ndim = min([batch_ndim, *(len(x.shape) for x in full.leaves if not x.ragged)])
    if ndim == 0:
        scalar = next(x.path for x in full.leaves if not x.shape and not x.ragged)
        raise LayoutError(f"{show_path(scalar)}: no leading dim; use add for a single row")
    return full.row(ndim), ndim
