"""xoshiro256** (Blackman and Vigna), and numbers drawn with it."""

from __future__ import annotations

_WORD = 2**64 - 1


def _rotl(x: int, k: int) -> int:
    return (x << k | x >> 64 - k) & _WORD


class Xoshiro:
    def __init__(self, state: list[int]) -> None:
        self.s = list(state)

    def next(self) -> int:
        s = self.s
        result = _rotl(s[1] * 5 & _WORD, 7) * 9 & _WORD
        t = s[1] << 17 & _WORD
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = _rotl(s[3], 45)
        return result

    def unit(self) -> float:
        return (self.next() >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        """Lemire: the high word of a product, unless its low word is among the surplus ones."""
        while True:
            product = self.next() * n
            if product & _WORD >= 2**64 % n:
                return product >> 64
