"""Pieces of different length, sorted so that step t of all pieces lies together: no padding.

flat rows     a0 a1 | b0 b1 b2 | c0          packed rows   b0 a0 c0 | b1 a1 | b2
                                             sizes         3          2       1
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .steps import Array

__all__ = ["Packing", "pack"]


class Packing(NamedTuple):
    """Where rows go.

    Attributes:
        sizes: of each step, how many pieces are that long; falling.
        rows: of each packed row, the flat row it comes from.
        places: of each flat row, its packed row.
        first: of each piece, longest first, its first flat row.
    """

    sizes: list[int]
    rows: Array
    places: Array
    first: Array


def pack(starts: Array) -> Packing:
    """How to pack flat rows that start a piece where `starts` is True; the first row does."""
    n = len(starts)
    first = np.flatnonzero(starts)
    lengths = np.diff(first, append=n)
    order = np.argsort(-lengths, kind="stable")
    first, lengths = first[order], lengths[order]
    longest = int(lengths[0]) if n else 0
    # Pieces longer than t, for each t: lengths fall, so it is where t would go from the end.
    sizes = len(lengths) - np.searchsorted(lengths[::-1], np.arange(longest), side="right")
    offsets = np.cumsum(sizes) - sizes
    step = np.repeat(np.arange(longest), sizes)
    piece = np.arange(n) - np.repeat(offsets, sizes)
    rows = first[piece] + step
    places = np.empty(n, np.int64)
    places[rows] = np.arange(n)
    return Packing(sizes.tolist(), rows, places, first)
