"""Slices of trajectories that a function of their age holds for, without asking it about all.

Ages change with every row, so what such a function said before is worth nothing. Slices are drawn
from all trajectories instead, and it is asked about theirs:

    draw ──▶ trajectories of these slices ──▶ judge ──▶ keep; draw more for the others

What is kept is drawn as if from those only that it holds for. If it holds for hardly any, all are
judged after so many candidates, and the rest of the draw is from those.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Array, Index, Rng
from .predicate import Predicate
from .slice_marks import Slices

__all__ = ["draw_candidates"]

_ROUNDS = 4  # each of twice as many candidates for each slice that is missing


def draw_candidates(index: Index, where: Predicate, rng: Rng, spec: Any, n: int) -> Slices | None:
    """So many slices; None: there are none.

    Args:
        index: as if there were no predicate.
        where: it.
        rng: random numbers.
        spec: what a slice is.
        n: how many.
    """
    kept: list[Slices] = []
    left, view = n, index.view
    for turn in range(_ROUNDS):
        found = view.draw_slices(rng.words, index.window, spec, left << turn)
        passes = None if found is None else _judged(index, where, found)
        if found is None or passes is None:
            break
        chosen = np.flatnonzero(passes)[:left]
        if len(chosen):
            kept.append(_only(found, chosen))
            left -= len(chosen)
        if not left:
            return _joined(kept)
    exact = index.where(where)
    found = view.draw_slices(rng.words, exact.window, spec, left)
    return _joined(kept if found is None else [*kept, found])


def _judged(index: Index, where: Predicate, slices: Slices) -> Array | None:
    """Which slices are of trajectories that it holds for."""
    seqs, lengths, _, _ = slices
    firsts = np.ascontiguousarray(seqs[np.cumsum(lengths) - lengths])
    ordinals, each = np.unique(index.view.trajectories_of(firsts), return_inverse=True)
    verdict = index.filters.judged_now(where, ordinals)
    return None if verdict is None else verdict[each]


def _only(slices: Slices, chosen: Array) -> Slices:
    seqs, lengths, burn, ends = slices
    mine = np.zeros(len(lengths), np.bool_)
    mine[chosen] = True
    return seqs[np.repeat(mine, lengths)], lengths[mine], burn[mine], ends[mine]


def _joined(parts: list[Slices]) -> Slices | None:
    if not parts:
        return None
    seqs, lengths, burn, ends = (np.concatenate(column) for column in zip(*parts))
    return seqs, lengths, burn, ends
