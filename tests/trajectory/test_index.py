"""The index against a list: windows, eviction, staleness, and draws from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig.sample import Rng
from contig.trajectory.cache import TrajectoryCache
from contig.trajectory.index import TrajectoryEntry, TrajectoryIndex

OPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("evict"), st.integers(0, 3)),
        st.tuples(st.just("damage"), st.integers(0, 3)),
        st.tuples(st.just("trim")),
        st.tuples(st.just("clear")),
    ),
    max_size=60,
)


class Model:
    """The same by lists."""

    def __init__(self, window: int, stale: int | None) -> None:
        self.window_size, self.stale = window, stale
        self.entries: list[TrajectoryEntry] = []
        self.weights: list[str] = []

    def window(self) -> list[TrajectoryEntry]:
        part = self.entries[-self.window_size :] if self.window_size else self.entries
        if self.stale is None:
            return part
        return [e for e in part if e.version >= len(self.weights) - 1 - self.stale]


@given(ops=OPS, window=st.integers(0, 4), stale=st.one_of(st.none(), st.integers(0, 2)))
def test_against_a_list(ops: list[Any], window: int, stale: int | None) -> None:
    table, model = TrajectoryIndex(window, stale), Model(window, stale)
    seq = 0
    for number, op in enumerate(ops):
        if op[0] == "add":
            _, samples, gap, weights = op
            seq += gap  # rows of somebody else
            name = f"w{weights}"
            if name not in model.weights:
                model.weights.append(name)
            version = table.version_of(name)
            assert version == model.weights.index(name)
            entry = TrajectoryEntry(
                "", number, samples, (samples, 1), 0, name, seq, number, version
            )
            table.add(entry)
            model.entries.append(entry)
            seq += samples
        elif op[0] == "evict" and model.entries:
            at = model.entries[min(op[1], len(model.entries) - 1)].first + 1
            table.drop_before(at)
            model.entries = [e for e in model.entries if e.first >= at]
        elif op[0] == "damage" and model.entries:
            gone = model.entries.pop(min(op[1], len(model.entries) - 1)).ordinal
            table.drop({gone})
        elif op[0] == "trim":
            table.drop_beyond_window()
            model.entries = model.entries[-window:] if window else model.entries
        elif op[0] == "clear":
            table.clear()
            model.entries, model.weights = [], []
        assert table.entries() == model.entries
        assert len(table) == len(model.entries)
        assert table.total_samples == sum(e.num_samples for e in model.entries)
        kept = model.entries[len(model.entries) - window + 1 :] if window else model.entries
        if window == 1:
            kept = []
        elif window and len(model.entries) < window:
            kept = model.entries
        assert table.rows_needed(9) == 9 + sum(e.num_samples for e in kept)
        _check_window(table, model)


def _check_window(table: TrajectoryIndex, model: Model) -> None:
    drawable = [e.first + i for e in model.window() for i in range(e.num_samples)]
    found = table.drawable()
    assert found.total == len(drawable)
    if drawable:
        # every sample number, in order, is the row it should be
        seqs = found.draw(Counting(), found.total)
        assert seqs.tolist() == drawable


class Counting(Rng):
    """Numbers that come in order instead of at random."""

    def __init__(self) -> None:
        self.words = None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _numbers_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from contig import _native

    real = _native.uniform_below

    def below(words: Any, low: int, high: int, n: int) -> Any:
        return np.arange(low, high)[:n] if words is None else real(words, low, high, n)

    monkeypatch.setattr(_native, "uniform_below", below)


def test_adjacent_or_not_the_numbers_are_the_same() -> None:
    def entry(first: int) -> TrajectoryEntry:
        return TrajectoryEntry("", 0, 5, (5, 1), 0, "", first)

    near, far = TrajectoryIndex(0, None), TrajectoryIndex(0, None)
    for i in range(4):
        near.add(entry(5 * i))
        far.add(entry(100 * i))
    a = near.drawable().draw(Rng(3), 1000)
    b = far.drawable().draw(Rng(3), 1000)
    assert near.drawable().adjacent and not far.drawable().adjacent
    assert np.array_equal(a, b // 100 * 5 + b % 100)


def test_cache() -> None:
    cache = TrajectoryCache(2)
    for number in range(3):
        cache.put(number, {"x": number})
    assert cache.get(0) is None and cache.get(1) == {"x": 1} and 2 in cache and len(cache) == 2
    cache.put(1, {"x": "new"})  # keeps its turn
    cache.put(3, {"x": 3})
    assert cache.get(1) is None and cache.get(2) == {"x": 2}
    cache.clear()
    assert len(cache) == 0 and TrajectoryCache().max_size == 5
    with pytest.raises(ValueError, match="max_size: expected .*, at least 1"):
        TrajectoryCache(0)
