"""The keyed permutation: a Feistel network over an even number of bits, walked back into [0, n)."""

from __future__ import annotations

_WORD = 2**64 - 1


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _WORD
    return x ^ x >> 31


def permute(key: int, n: int, position: int) -> int:
    """Where a position below n goes."""
    half = next(h for h in range(1, 33) if h == 32 or 4**h >= n)
    mask = 2**half - 1
    x = position
    while True:
        left, right = x >> half, x & mask
        for r in range(1, 7):
            subkey = _mix(key + 0x9E3779B97F4A7C15 * r & _WORD)
            left, right = right, left ^ _mix(right ^ subkey) & mask
        x = left << half | right
        if x < n:
            return x
