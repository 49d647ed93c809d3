"""The keyed permutation of [0, n): a shuffle if n is small, else a network walked back into it."""

from __future__ import annotations

from .rng import Xoshiro

_WORD = 2**64 - 1
_SHUFFLED = 1024  # up to so many places


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _WORD
    return x ^ x >> 31


def _subkey(key: int, i: int) -> int:
    return _mix(key + 0x9E3779B97F4A7C15 * i & _WORD)


def permute(key: int, n: int, position: int) -> int:
    """Where a position below n goes."""
    return (_shuffled if n <= _SHUFFLED else _network)(key, n, position)


def _shuffled(key: int, n: int, position: int) -> int:
    """Fisher and Yates, from the last place down."""
    rng = Xoshiro([_subkey(key, i) for i in range(1, 5)])
    places = list(range(n))
    for i in range(n, 1, -1):
        j = rng.below(i)
        places[i - 1], places[j] = places[j], places[i - 1]
    return places[position]


def _network(key: int, n: int, position: int) -> int:
    """A Feistel network over an even number of bits; a value past n goes through it again."""
    half = next(h for h in range(1, 33) if h == 32 or 4**h >= n)
    mask = 2**half - 1
    x = position
    while True:
        left, right = x >> half, x & mask
        for r in range(1, 7):
            left, right = right, left ^ _mix(right ^ _subkey(key, r)) & mask
        x = left << half | right
        if x < n:
            return x
