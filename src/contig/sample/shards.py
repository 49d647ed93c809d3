"""One batch from several tapes: how many of its groups come from each, and which row is meant.

A batch of n is drawn over shards as it would be from one tape with all their rows:

    masses   each shard says between how much it would choose at this moment (`Sampler.mass`)
    split    with replacement: multinomial, in proportion to the masses
             in an epoch: as many of each as n places of one shuffled deck would be
    take     each shard draws its share from the very state that it had weighed

What is evicted in between is drawn again the same way, from new masses. So every row, trajectory
or start is as likely as on one tape, whatever the shards' sizes, and however they grow.

Groups of trajectories, whose members may lie on several tapes, are drawn by the whole's own sampler
instead (`spanning.py`).

A sampled row's `index` says its shard and its seq in one number (`numbering.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import _native
from .base import Array, Rng
from .numbering import MOST_SHARDS, SEQ_BITS, base_of, decode

__all__ = ["MOST_SHARDS", "SEQ_BITS", "base_of", "decode", "split", "streams"]


def split(rng: Rng, masses: Sequence[float], groups: int, once: bool) -> list[int]:
    """How many groups come from each shard.

    Args:
        rng: of the whole.
        masses: of the shards; not all 0. Whole numbers are taken exactly.
        groups: how many in all; with `once` no more than the masses' sum.
        once: masses are places left of an epoch: none is taken twice.
    """
    if len(masses) == 1:
        return [groups]
    if not once:
        return _native.multinomial(rng.words, list(masses), groups)
    upto = np.cumsum(np.asarray(masses, np.int64))
    places = _native.permute(rng.key(), int(upto[-1]), 0, groups)
    shard = np.searchsorted(upto, places, side="right")
    return [int(n) for n in np.bincount(shard, minlength=len(masses))]


def streams(rng: Rng, shards: int) -> list[Array]:
    """A random state for each shard's draw: the same wherever it runs."""
    words = _native.uniform_below(rng.words, 0, 2**63 - 1, 4 * shards).view(np.uint64)
    return [words[at : at + 4] for at in range(0, 4 * shards, 4)]
