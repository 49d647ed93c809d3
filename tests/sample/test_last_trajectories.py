"""WindowSampler(last_trajectories=): against a model that keeps a list of rows.

The samplers live as long as the storage, so that what they keep up to date by changes is compared,
too, with what is there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contig import LazyTensorStorage, RandomSampler, SliceSampler, WindowSampler
from contig.sample import Index, Request, Rng

ENVS = 4
LAST = (1, 2, 3, 100)
LENGTH = 3
DRAWS = 1500  # of at most about 40 slices that are equally likely or more: none is left out


class Row(NamedTuple):
    """A row of the model: whose it is, and whether it ends that."""

    trajectory: int  # numbered as they began
    first: bool
    done: bool


class Machine(RuleBasedStateMachine):
    """Trajectories interleaved over envs, evicted, left open, ended."""

    @initialize(capacity=st.integers(ENVS + 1, 14))
    def start(self, capacity: int) -> None:
        self.storage = LazyTensorStorage(capacity)
        self.writer = self.storage.writer()
        self.rows: list[Row] = []
        self.open: dict[int, int] = {}  # the trajectory that each env has open
        self.count = 0
        self.emptied = 0
        self.index, self.rng = Index(self.storage), Rng(0)
        self.samplers = [
            (kind, last, WindowSampler(make(), last_trajectories=last))
            for last in LAST
            for kind, make in (
                ("rows", RandomSampler),
                *(
                    ((over, strict, complete), _slices(over, strict, complete))
                    for over in ("trajectories", "steps")
                    for strict in (False, True)
                    for complete in (False, True)
                ),
            )
        ]

    def stored(self) -> dict[int, list[int]]:
        """Rows that are there, by trajectory, in the order in which those began."""
        out: dict[int, list[int]] = {}
        for seq in range(max(self.emptied, len(self.rows) - self.storage.capacity), len(self.rows)):
            out.setdefault(self.rows[seq].trajectory, []).append(seq)
        return dict(sorted(out.items()))

    def write(self, new: list[tuple[int, bool]]) -> None:
        """Rows of one append: whose, and whether it ends its trajectory."""
        tail = max(self.emptied, len(self.rows) + len(new) - self.storage.capacity)
        last = {row.trajectory: seq for seq, row in enumerate(self.rows)}
        here: set[int] = set()
        for who, done in new:
            known = self.open.get(who)
            goes_on = known is not None and (known in here or last[known] >= tail)
            if not goes_on:  # also one of which no row is left: it is another one then
                self.count += 1
            now = known if goes_on and known is not None else self.count
            here.add(now)
            self.rows.append(Row(now, known is None, done))
            self.open[who] = now
            if done:
                del self.open[who]

    def data(self, done: list[bool]) -> dict[str, Any]:
        n = len(done)
        seqs = np.arange(len(self.rows), len(self.rows) + n)
        return {"n": seqs, "next": {"done": np.array(done, bool)}}

    @rule(data=st.data(), some=st.permutations(range(ENVS)), n=st.integers(1, ENVS))
    def step(self, data: Any, some: list[int], n: int) -> None:
        done = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
        self.writer.add_step(self.data(done), env_ids=some[:n])
        self.write(list(zip(some[:n], done)))

    @rule(n=st.integers(1, ENVS), over=st.booleans())
    def extend(self, n: int, over: bool) -> None:
        done = [over and i == n - 1 for i in range(n)]
        self.writer.extend(self.data(done))
        self.write([(ENVS, d) for d in done])

    @rule(n=st.integers(1, ENVS))
    def whole(self, n: int) -> None:
        self.writer.extend_trajectory(self.data([i == n - 1 for i in range(n)]))
        self.write([(ENVS + 1, i == n - 1) for i in range(n)])

    @rule(some=st.integers(0, ENVS - 1), n=st.integers(1, 6))
    def long(self, some: int, n: int) -> None:
        """Steps of one env, so that trajectories grow longer than a slice."""
        for _ in range(n):
            self.writer.add_step(self.data([False]), env_ids=[some])
            self.write([(some, False)])

    @rule()
    def empty(self) -> None:
        self.storage.empty()
        self.emptied = len(self.rows)

    @invariant()
    def drawn(self) -> None:
        if not hasattr(self, "samplers"):
            return
        stored = self.stored()
        for kind, last, sampler in self.samplers:
            window = dict(list(stored.items())[-last:])
            length = 1 if kind == "rows" else LENGTH
            self.index.refresh()
            draw = sampler.draw(self.index, self.rng, Request(DRAWS, length))
            expected = self.slices(kind, window)
            if draw is None:
                assert not expected, (kind, last, expected)
                continue
            lengths = np.ones(len(draw.seqs), int) if draw.lengths is None else draw.lengths
            parts = np.split(draw.seqs, np.cumsum(lengths)[:-1])
            assert {tuple(p.tolist()) for p in parts} == expected, (kind, last)

    def slices(self, kind: Any, window: dict[int, list[int]]) -> set[tuple[int, ...]]:
        if kind == "rows":
            return {(s,) for seqs in window.values() for s in seqs}
        _, strict, complete = kind
        out: set[tuple[int, ...]] = set()
        for seqs in window.values():
            whole = self.rows[seqs[0]].first and self.rows[seqs[-1]].done
            if (complete and not whole) or (strict and len(seqs) < LENGTH):
                continue
            for at in range(max(len(seqs) - LENGTH, 0) + 1):
                out.add(tuple(seqs[at : at + LENGTH]))
        return out


def _slices(over: str, strict: bool, complete: bool) -> Any:
    return lambda: SliceSampler(
        slice_len=LENGTH, over=over, strict_length=strict, complete_only=complete
    )


Machine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
test_the_last_trajectories = pytest.mark.filterwarnings("ignore")(Machine.TestCase)
