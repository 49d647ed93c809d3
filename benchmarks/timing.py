"""Best-of timing, and how much of it to do.

A repeat calls the function as often as fills a fixed time and divides; the reported figure is the
best repeat. The best, not the mean: other processes of the machine only ever add time.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """How large the buffers are and how long is measured."""

    rows: int = 1_000_000
    """Capacity of the buffers; they are full when measured."""
    priority_slice_rows: int = 100_000
    tianshou_rows: int = 20_000
    repeats: int = 40
    seconds_per_repeat: float = 0.02
    """Many short ones: on a shared machine a long one is never undisturbed."""
    quick: bool = False

    @classmethod
    def of(cls, quick: bool) -> Effort:
        """The full effort, or one that only shows that everything runs."""
        if not quick:
            return cls()
        return cls(
            rows=100_000,
            priority_slice_rows=20_000,
            repeats=3,
            seconds_per_repeat=0.03,
            quick=True,
        )


def seconds_of(function: Callable[[], Any], calls: int) -> float:
    """Wall-clock seconds of `calls` calls; the results are dropped one by one."""
    counter = itertools.repeat(None, calls)
    start = time.perf_counter()
    for _ in counter:
        function()
    return time.perf_counter() - start


def best_us(function: Callable[[], Any], effort: Effort) -> float:
    """Microseconds per call of `function`, best of `effort.repeats` repeats."""
    gc.collect()
    function()  # first-call work: allocation, lazy imports, caches
    calls = 1
    while True:
        spent = seconds_of(function, calls)
        if spent >= effort.seconds_per_repeat / 4:
            break
        calls *= 4
    calls = max(1, round(calls * effort.seconds_per_repeat / spent))
    return 1e6 * min(seconds_of(function, calls) / calls for _ in range(effort.repeats))


def cycling(items: Sequence[T]) -> Callable[[], T]:
    """A function that returns the items in turn, for ever: fresh input at each call."""
    return itertools.cycle(items).__next__
