"""Rows and slices of an index, drawn alike, also where a predicate is to be asked about them.

What a function of `age` said before is worth nothing, because ages change with every row. So it is
not asked about all trajectories: rows or slices are drawn as if there were no predicate, and it is
asked about theirs:

    draw ──▶ trajectories of these ──▶ judge ──▶ keep; draw more for the others

What is kept is drawn as if from those only that it holds for. If it holds for hardly any, all are
judged after so many candidates, and the rest of the draw is from those.

For samplers without a memory that draw each row or slice independently; others read the index's
`window`, and so have all trajectories judged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .base import Array, Index, Rng, Window
from .slice_marks import Slices

__all__ = ["uniform_rows", "uniform_slices"]

_ROUNDS = 4  # each of twice as many candidates for each one that is missing


def uniform_rows(index: Index, rng: Rng, n: int) -> Array | None:
    """So many rows, each alike; None: there are none."""
    view = index.view
    if not index.put_off:
        return view.draw_rows(rng.words, index.bounds, n)

    def draw(window: Window | None, count: int) -> Slices | None:
        seqs = view.draw_rows(rng.words, window, count)
        if seqs is None:
            return None
        zeros = np.zeros(count, np.int64)
        return seqs, zeros + 1, zeros, zeros

    found = _accepted(index, draw, n)
    return None if found is None else found[0]


def uniform_slices(index: Index, rng: Rng, spec: Any, n: int) -> Slices | None:
    """So many slices, each alike of those that `spec` describes; None: there are none."""
    view = index.view
    if not index.put_off:
        return view.draw_slices(rng.words, index.bounds, spec, n)
    return _accepted(index, lambda w, count: view.draw_slices(rng.words, w, spec, count), n)


def _accepted(
    index: Index, draw: Callable[[Window | None, int], Slices | None], n: int
) -> Slices | None:
    kept: list[Slices] = []
    left = n
    for turn in range(_ROUNDS):
        found = draw(index.bounds, left << turn)
        passes = None if found is None else _judged(index, found)
        if found is None or passes is None:
            break
        chosen = np.flatnonzero(passes)[:left]
        if len(chosen):
            kept.append(_only(found, chosen))
            left -= len(chosen)
        if not left:
            return _joined(kept)
    found = draw(index.window, left)
    return _joined(kept if found is None else [*kept, found])


def _judged(index: Index, slices: Slices) -> Array | None:
    """Which slices are of trajectories that every predicate holds for."""
    seqs, lengths, _, _ = slices
    firsts = np.ascontiguousarray(seqs[np.cumsum(lengths) - lengths])
    ordinals, each = np.unique(index.view.trajectories_of(firsts), return_inverse=True)
    passes = np.ones(len(ordinals), np.bool_)
    for judge in index.put_off:
        verdict = index.filters.judged_now(judge, ordinals)
        if verdict is None:
            return None
        passes &= verdict
    return passes[each]


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
