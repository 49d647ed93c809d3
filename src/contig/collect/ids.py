"""Trajectory ids that nobody else gives: a random part, then a counter."""

from __future__ import annotations

import secrets

import numpy as np

from .specs import Array

__all__ = ["TrajectoryIds"]

_COUNTER_BITS = 24


class TrajectoryIds:
    """63-bit numbers, unique across workers, restarts and machines. Not thread-safe."""

    def __init__(self) -> None:
        self._base = self._count = 0
        self._renew()

    def _renew(self) -> None:
        self._base = secrets.randbits(63 - _COUNTER_BITS) << _COUNTER_BITS
        self._count = 0

    def next(self) -> int:
        if self._count >> _COUNTER_BITS:
            self._renew()
        number = self._base | self._count
        self._count += 1
        return number

    def many(self, n: int) -> Array:
        return np.array([self.next() for _ in range(n)], np.int64)
