"""Storages in every state that matters to a sampler, and the tests that draws are put to.

All seeds are fixed: a test here passes or fails, always the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np
import scipy.stats  # type: ignore[import-untyped]

from contig import LazyTensorStorage
from contig.sample import Draw, Index, Request, Rng, Sampler, Window
from contig.testing import World

Array = np.ndarray[Any, Any]


def plain() -> World:
    """Episodes one after another, nothing evicted."""
    world = World(LazyTensorStorage(100))
    for length in (5, 1, 8, 3, 6):
        world.extend(length)
    world.extend(4, end="truncated")
    world.extend(3, end=None)
    return world


def evicted() -> World:
    """The ring has turned twice; the oldest episode is cut."""
    world = World(LazyTensorStorage(31))
    for k in range(14):
        world.extend(2 + k % 7, end=("terminated", "truncated")[k % 2])
    world.extend(4, end=None)
    assert world.storage.episodes()["trimmed"].any()
    return world


def seam() -> World:
    """The reference case: 14 rows of episodes of 4 in a ring of 10, one of them wrapping."""
    world = World(LazyTensorStorage(10))
    for _ in range(3):
        world.extend(4)
    world.extend(2, end=None)
    return world


def linked() -> World:
    """Several envs step by step: every episode lies in many parts."""
    world = World(LazyTensorStorage(100))
    world.interleave(3, 6)
    world.extend(4)
    world.interleave(2, 3, end="truncated")
    world.interleave(4, 5, end=None)
    return world


def linked_evicted() -> World:
    """The same in a ring that has turned: first parts of episodes are gone."""
    world = World(LazyTensorStorage(29))
    for k in range(4):
        world.interleave(3, 3 + k)
        world.extend(2)
    world.interleave(2, 4, end=None)
    assert world.storage.episodes()["trimmed"].any()
    return world


SCENES: dict[str, Callable[[], World]] = {
    f.__name__: f for f in (plain, evicted, seam, linked, linked_evicted)
}


def draw(
    world: World,
    sampler: Sampler,
    groups: int,
    length: int = 1,
    *,
    seed: int = 0,
    window: Window | None = None,
) -> Draw:
    """One large draw."""
    index = Index(world.storage, window)
    index.refresh()
    found = sampler.draw(index, Rng(seed), Request(groups, length))
    assert found is not None
    return found


def starts_of(found: Draw) -> Array:
    """The first seq of each group."""
    if found.lengths is None:
        return found.seqs
    starts: Array = found.seqs[np.cumsum(found.lengths) - found.lengths]
    return starts


def agrees(outcomes: Iterable[Hashable], expected: dict[Any, float]) -> None:
    """Chi-square: the outcomes come with probabilities in proportion to those expected.

    Nothing that is not expected, or expected with 0, may come at all.
    """
    counts = Counter(outcomes)
    total = sum(expected.values())
    possible = [k for k, p in expected.items() if p > 0]
    strange = set(counts) - set(possible)
    assert not strange, f"drawn but impossible: {sorted(strange, key=repr)[:10]}"
    if len(possible) == 1:
        return
    n = sum(counts.values())
    want = np.array([expected[k] / total * n for k in possible])
    assert want.min() >= 5, f"too few draws for this test: {want.min():.1f} expected of one outcome"
    got = np.array([counts[k] for k in possible])
    p = scipy.stats.chisquare(got, want).pvalue
    worst = possible[int(np.argmax(np.abs(got - want) / np.sqrt(want)))]
    assert p > 1e-4, (
        f"p = {p:.2g} over {n} draws of {len(possible)} outcomes; the worst is {worst}: "
        f"{counts[worst]}, expected {expected[worst] / total * n:.0f}"
    )


def uniform(outcomes: Iterable[Hashable], over: Iterable[Any]) -> None:
    agrees(outcomes, dict.fromkeys(over, 1.0))


def slice_starts(
    world: World,
    length: int,
    *,
    strict: bool = False,
    complete: bool = False,
    episodes: dict[int, list[int]] | None = None,
) -> dict[int, list[int]]:
    """Valid starts of slices by episode, from what was written."""
    out = {}
    for number, seqs in (world.episodes() if episodes is None else episodes).items():
        if (strict and len(seqs) < length) or (complete and not world.complete(number)):
            continue
        out[number] = seqs[: len(seqs) - min(length, len(seqs)) + 1]
    return out


def per_trajectory(starts: dict[int, list[int]]) -> dict[int, float]:
    """Each trajectory alike, then its starts."""
    return {s: 1 / len(seqs) for seqs in starts.values() for s in seqs}


def per_step(starts: dict[int, list[int]]) -> dict[int, float]:
    """Each start alike."""
    return {s: 1.0 for seqs in starts.values() for s in seqs}
