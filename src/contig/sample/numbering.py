"""Which shard, and which row or trajectory of it: both in one number.

The shard's number is in the upper 16 bits below the sign, the seq (or a trajectory's own number) in
the lower 47. Numbers of shards are never used twice: one that takes the place of a lost one has
another, unless it came back with the same rows.
"""

from __future__ import annotations

from .index import Array

__all__ = ["MOST_SHARDS", "SEQ_BITS", "base_of", "decode"]

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
