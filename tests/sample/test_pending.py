"""What ordered samplers have still to deliver, against plain lists; and states of version 0.1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contig import FifoSampler, LazyTensorStorage, LifoSampler, ReplayBuffer, WindowSampler
from contig.sample.pending import NewestRows, Pending
from contig.testing import World


class Newest(RuleBasedStateMachine):
    """A stack of rows that come on top and are evicted below."""

    @initialize(times=st.integers(1, 3))
    def begin(self, times: int) -> None:
        self.times = times
        self.rows = NewestRows(times)
        self.low = self.high = 0
        self.had: dict[int, int] = {}  # deliveries
        self.mark: Any = None

    @rule(new=st.integers(0, 9), gone=st.integers(0, 6))
    def move(self, new: int, gone: int) -> None:
        self.high += new
        self.low = min(self.low + gone, self.high)

    @rule(n=st.integers(1, 8))
    def pick(self, n: int) -> None:
        due = [
            row
            for row in range(self.high - 1, self.low - 1, -1)
            for _ in range(self.times - self.had.get(row, 0))
        ][:n]
        assert self.rows.pick(self.low, self.high, n) == due
        for row in due:
            self.had[row] = self.had.get(row, 0) + 1

    @rule()
    def take_mark(self) -> None:
        self.mark = (self.rows.mark(), dict(self.had))

    @rule()
    def rewind(self) -> None:
        if self.mark is not None:
            self.rows.rewind(self.mark[0])
            self.had = dict(self.mark[1])

    @rule()
    def through_a_checkpoint(self) -> None:
        state = self.rows.state()
        self.rows = NewestRows(self.times)
        self.rows.load(state)
        self.mark = None


class Items(RuleBasedStateMachine):
    """Items that become eligible in any order, cease to be, and are gone."""

    @initialize(times=st.integers(1, 3), newest_first=st.booleans())
    def begin(self, times: int, newest_first: bool) -> None:
        self.times, self.newest_first = times, newest_first
        self.items = Pending(newest_first, times)
        self.eligible: set[int] = set()
        self.had: dict[int, int] = {}
        self.fresh: list[int] = []
        self.everything = True
        self.next = 0
        self.mark: Any = None

    @rule(skip=st.integers(0, 3))
    def one_more(self, skip: int) -> None:
        self.next += 1 + skip
        self.eligible.add(self.next)
        self.fresh.append(self.next)

    @rule(which=st.integers(0, 30), back=st.booleans())
    def fall_out(self, which: int, back: bool) -> None:
        item = which % (self.next + 1)
        if item in self.eligible:
            self.eligible.remove(item)
        elif back:  # late, or again
            self.eligible.add(item)
            self.fresh.append(item)

    @rule(n=st.integers(1, 8))
    def pick(self, n: int) -> None:
        on = sorted(self.eligible) if self.everything else self.fresh
        self.items.follow((1, self.everything, np.array(on, np.int64), np.empty(0, np.int64)))
        self.fresh, self.everything = [], False
        due = [
            item
            for item in sorted(self.eligible, reverse=self.newest_first)
            for _ in range(self.times - self.had.get(item, 0))
        ][:n]
        got = self.items.pick(n, lambda items: np.isin(items, list(self.eligible)))
        assert got == due
        for item in due:
            self.had[item] = self.had.get(item, 0) + 1

    @rule()
    def take_mark(self) -> None:
        self.mark = (self.items.mark(), dict(self.had))

    @rule()
    def rewind(self) -> None:
        if self.mark is not None:
            self.items.rewind(self.mark[0])
            self.had = dict(self.mark[1])

    @rule()
    def through_a_checkpoint(self) -> None:
        state = self.items.state()
        self.items = Pending(self.newest_first, self.times)
        self.items.load(state)
        self.everything, self.mark = True, None

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "had"):
            assert {i: c for i, c in self.had.items() if c} == self.items.counts


_settings = settings(deadline=None, max_examples=150, stateful_step_count=40)
TestNewest = Newest.TestCase
TestNewest.settings = _settings
TestItems = Items.TestCase
TestItems.settings = _settings


@pytest.mark.parametrize("bounds", [None, {"last_trajectories": 3}], ids=str)
def test_states_of_version_0_1(bounds: dict[str, int] | None) -> None:
    world = World(LazyTensorStorage(100))
    for _ in range(3):
        world.extend(4)

    def rest(sampler: Any, state: dict[str, Any]) -> list[int]:
        sampler.load(state)
        outer = sampler if bounds is None else WindowSampler(sampler, **bounds)
        buffer = ReplayBuffer(world.storage, outer, batch_size=100)
        return list(buffer.sample()["index"].tolist())

    # Rows 11, 10 and 6 are delivered, row 9 once of twice.
    state = {"done": [[6, 7], [10, 12]], "counts": [[9, 1]]}
    expected = [9, 8, 8, 7, 7, *(row for row in range(5, -1, -1) for _ in range(2))]
    assert rest(LifoSampler(max_times_sampled=2), state) == expected
    # Trajectory 1 is delivered, trajectory 0 is not.
    state = {"done": [[1, 3]], "counts": []}
    assert rest(LifoSampler(per="trajectories"), state) == [0, 1, 2, 3]
    old = {"next": -1, "times": 0, "counts": [[0, 1], [1, 1]], "skipped": 0}
    assert rest(FifoSampler(per="trajectories"), old) == [8, 9, 10, 11]
