"""Several rows gathered as one: n-step transitions, made while they are copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..errors import NothingEligibleError
from ..keys import DONE, NEXT, REWARD, STEPS
from ..layout import Layout
from ..tree import Path

__all__ = ["ExtraLeaf", "Fold", "Recipe", "FoldedSteps", "fold_of"]

Array = np.ndarray[Any, Any]


class ExtraLeaf(NamedTuple):
    """A leaf that a sampler adds to what is stored.

    Attributes:
        path, shape, dtype: of one row.
        kept: if there is a stored leaf of that path, it stays; else the sampler's takes its place.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kept: bool = False


@dataclass(frozen=True)
class Recipe:
    """How up to n rows become one: the rewards' discounts, gamma^0 and on.

    Attributes:
        discount: as above, n of them.
    """

    discount: tuple[float, ...]


class FoldedSteps(NamedTuple):
    """The rows that follow each row of a draw, itself first, one group after another.

    Attributes:
        rows: seqs of all groups, int64.
        lengths: rows of each group, at most as many as the recipe has discounts.
        recipe: how a group becomes one row.
    """

    rows: Array
    lengths: Array
    recipe: Recipe


class Fold(NamedTuple):
    """A recipe for the rows of one layout.

    Attributes:
        leaves: those that are made, in place of stored ones of their name.
        not_first: leaves that do not come from a group's first row.
    """

    stored: Layout
    recipe: Recipe
    leaves: tuple[ExtraLeaf, ...]
    not_first: frozenset[Path]

    def arguments(self, wide: Layout) -> tuple[Any, ...]:
        """What `_native.Gatherer.fold` takes, for batches of layout `wide`."""
        reward, done = self.stored.by_path[REWARD], self.stored.by_path.get(DONE)
        last = [
            (wide.number[x.path], x.offset, x.nbytes)
            for x in self.stored.leaves
            if x.path in self.not_first
            and x.path[:1] == NEXT
            and x.path != REWARD
            and not x.variable
        ]
        blobs = [wide.number[x.path] for x in self.stored.leaves if x.ragged and x.path[:1] == NEXT]
        kind, itemsize = _kind(reward.dtype)
        count = reward.nbytes // itemsize
        flag, place = "b", (0, 0)
        if done is not None and done.shape in ((), (1,)):  # flags of agents end nothing
            flag, place = _kind(done.dtype)[0], (done.offset, done.nbytes)
        return (
            np.array(last, np.int64).ravel(),
            wide.number[STEPS],
            kind + flag,
            np.array([wide.number[REWARD], reward.offset, itemsize, count], np.int64),
            np.array(place, np.int64),
            np.array(self.recipe.discount),
            np.array(blobs, np.int64) if blobs else None,
        )


def fold_of(layout: Layout, recipe: Recipe) -> Fold:
    """The fold of rows of a layout.

    Raises:
        NothingEligibleError: they have no reward, or one that cannot be summed.
    """
    reward = layout.by_path.get(REWARD)
    if reward is None:
        raise NothingEligibleError('n-step returns need a leaf ("next", "reward")')
    if not _native.can_fold(*_kind(reward.dtype)):
        raise NothingEligibleError(
            f'("next", "reward"): n-step returns of {reward.dtype} are not possible; store float32'
        )
    # Whole-number rewards have fractional returns.
    dtype = np.dtype(np.float32) if reward.dtype.kind in "biu" else reward.dtype
    made = (ExtraLeaf(STEPS, (), np.dtype(np.int64)), ExtraLeaf(REWARD, reward.shape, dtype))
    after = {x.path for x in layout.leaves if x.path[:1] == NEXT}
    return Fold(layout, recipe, made, frozenset({*after, STEPS}))


def _kind(dtype: np.dtype[Any]) -> tuple[str, int]:
    """Kind and size of a number as the kernel takes them: a complex one is a pair."""
    if dtype.kind == "c":
        return "f", dtype.itemsize // 2
    return "w" if dtype.name == "bfloat16" else dtype.kind, dtype.itemsize
