"""One batch from several tapes: how many of its groups come from each, and which row is meant.

A batch of n is drawn over shards as it would be from one tape with all their rows:

    masses   each shard says between how much it would choose at this moment (`Sampler.mass`)
    split    with replacement: multinomial, in proportion to the masses
             in an epoch: as many of each as n places of one shuffled deck would be
    take     each shard draws its share from the very state that it had weighed

What is evicted in between is drawn again the same way, from new masses. So every row, trajectory or
start has the probability that it has on one tape, whatever the shards' sizes, and however they grow.

A sampled row's `index` says its shard and its seq in one number: the shard's number in the upper 16
bits below the sign, the seq in the lower 47. Numbers are never used twice: a shard that takes the
place of a lost one has another, unless it came back with the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import _native
from .base import Array, Rng

__all__ = ["MOST_SHARDS", "SEQ_BITS", "base_of", "decode", "split", "streams"]

SEQ_BITS = 47
MOST_SHARDS = 1 << (63 - SEQ_BITS)
_SEQ = (1 << SEQ_BITS) - 1


def base_of(number: int) -> int:
    """What is added to seqs of a shard.

    Raises:
        OverflowError: so many shards have been lost that there is no number left.
    """
    if not 0 <= number < MOST_SHARDS:
        raise OverflowError(f"shard number {number}: there are {MOST_SHARDS}")
    return number << SEQ_BITS


def decode(index: Array) -> tuple[Array, Array]:
    """Shard numbers and seqs of rows by their `index`."""
    return index >> SEQ_BITS, index & _SEQ


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
    upto = np.cumsum(np.asarray(masses))
    total = upto[-1]
    if once:
        picked = _native.permute(rng.key(), int(total), 0, groups)
    elif upto.dtype.kind == "i":
        picked = _native.uniform_below(rng.words, 0, int(total), groups)
    else:
        picked = _native.uniform_below(rng.words, 0, 1 << 53, groups) * (float(total) / (1 << 53))
    # How many lie below each bound; a float that was rounded up to the total is the last one's.
    below = [int(np.count_nonzero(picked < bound)) for bound in upto[:-1]]
    below.append(groups)
    return [b - a for a, b in zip((0, *below), below)]


def streams(rng: Rng, shards: int) -> Array:
    """Random states for the shards' draws, ``[shards, 4]``: the same wherever they run."""
    words = _native.uniform_below(rng.words, 0, 2**63 - 1, 4 * shards)
    return (words.view(np.uint64) + np.uint64(1)).reshape(shards, 4)
