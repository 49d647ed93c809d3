"""WindowSampler(last_trajectories=): against the model of a tape.

The samplers live as long as the storage, so that what they keep up to date by changes is compared,
too, with what is there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contig import LazyTensorStorage, RandomSampler, SliceSampler, WindowSampler
from contig.sample import Index, Request, Rng
from tests.tape.model import IF_OPEN, NEW, Form, ModelTape, ModelWriter, Piece, Row, Whole

ENVS = 4
LAST = (1, 2, 3, 100)
LENGTH = 3
DRAWS = 1500  # of at most about 40 slices that are equally likely or more: none is left out


FORM = Form()
WHOLE = Whole(terminated=True, truncated=False, traj_id=-1, version=-1)


class Machine(RuleBasedStateMachine):
    """Trajectories interleaved over envs, evicted, left open, ended."""

    @initialize(capacity=st.integers(ENVS + 1, 14))
    def start(self, capacity: int) -> None:
        self.storage = LazyTensorStorage(capacity)
        self.writer = self.storage.writer()
        self.tape, self.model = ModelTape(capacity, FORM), ModelWriter(0)
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

    def rows(self, done: list[bool]) -> tuple[list[Row], dict[str, Any]]:
        """New rows, for the model and for the storage."""
        rows = [Row(self.tape.head + i, terminated=d) for i, d in enumerate(done)]
        return rows, {"n": np.array([r.uid for r in rows]), "next": {"done": np.array(done, bool)}}

    @rule(data=st.data(), some=st.permutations(range(ENVS)), n=st.integers(1, ENVS))
    def step(self, data: Any, some: list[int], n: int) -> None:
        self.step_envs(some[:n], data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))

    def step_envs(self, envs: list[int], done: list[bool]) -> None:
        rows, data = self.rows(done)
        self.writer.add_step(data, env_ids=envs)
        self.tape.append(self.model, [[row] for row in rows], IF_OPEN, envs=envs)

    @rule(n=st.integers(1, ENVS), over=st.booleans())
    def extend(self, n: int, over: bool) -> None:
        rows, data = self.rows([over and i == n - 1 for i in range(n)])
        self.writer.extend(data)
        self.tape.append(self.model, [rows], IF_OPEN)

    @rule(n=st.integers(1, ENVS))
    def whole(self, n: int) -> None:
        rows, data = self.rows([i == n - 1 for i in range(n)])
        self.writer.extend_trajectory(data)
        self.tape.append(self.model, [rows], NEW, WHOLE)

    @rule(some=st.integers(0, ENVS - 1), n=st.integers(1, 6))
    def long(self, some: int, n: int) -> None:
        """Steps of one env, so that trajectories grow longer than a slice."""
        for _ in range(n):
            self.step_envs([some], [False])

    @rule()
    def empty(self) -> None:
        self.storage.empty()
        self.tape.empty()

    @invariant()
    def drawn(self) -> None:
        if not hasattr(self, "samplers"):
            return
        stored = list(self.tape.pieces().values())
        for kind, last, sampler in self.samplers:
            window = stored[-last:]
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

    def slices(self, kind: Any, window: list[Piece]) -> set[tuple[int, ...]]:
        if kind == "rows":
            return {(s,) for piece in window for s in piece.seqs}
        _, strict, complete = kind
        out: set[tuple[int, ...]] = set()
        for piece in window:
            if (complete and not piece.complete) or (strict and len(piece) < LENGTH):
                continue
            for at in range(max(len(piece) - LENGTH, 0) + 1):
                out.add(tuple(piece.seqs[at : at + LENGTH]))
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
