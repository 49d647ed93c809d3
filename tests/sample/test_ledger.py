"""What may be drawn, kept by what changed, against what a list of lists says it is.

Views of different age follow one tape (`TapeMachine`). Each question (slices, a window) is asked
again and again; the answer must be that of looking at everything.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from contig import _native
from contig.sample import Rng
from tests.sample.tape_machine import WINDOWS, TapeMachine
from tests.tape.model import Piece

SPECS: list[dict[str, Any]] = [
    {"length": 1},
    {"length": 3},
    {"length": 3, "strict": True},
    {"length": 4, "strict": True, "over_steps": True},
    {"length": 2, "complete_only": True},
    {"length": 3, "over_steps": True},
    {"length": 2**62, "complete_only": True},
]


class Known:
    """What a reader knows from changes: the token, and what it was told."""

    def __init__(self) -> None:
        self.token = 0
        self.on: set[int] = set()

    def take(self, changes: Any) -> list[int]:
        self.token, everything, on, off = changes
        if everything:
            self.on = set()
        self.on -= set(off.tolist())
        self.on |= set(on.tolist())
        return off.tolist()


class Ledgers(TapeMachine):
    @initialize()
    def ask(self) -> None:
        self.specs = [_native.SliceSpec(**spec) for spec in SPECS]
        self.rows_known: dict[Any, Known] = {}
        self.ordinals_known: dict[Any, Known] = {}

    def starts(self, spec: dict[str, Any], pieces: dict[int, Piece]) -> dict[int, list[int]]:
        out = {}
        for ordinal, piece in pieces.items():
            if spec.get("strict") and len(piece) < spec["length"]:
                continue
            if spec.get("complete_only") and not piece.complete:
                continue
            out[ordinal] = piece.seqs[: len(piece) - min(spec["length"], len(piece)) + 1]
        return out

    @rule(which=st.integers(0, 2), spec=st.integers(0, len(SPECS) - 1), bounds=WINDOWS)
    def changed_rows(self, which: int, spec: int, bounds: tuple[int | None, ...]) -> None:
        index = self.indexes[which]
        index.refresh()
        window, naive = self.window(index, bounds)
        known = self.rows_known.setdefault((which, spec), Known())
        known.take(index.view.changed_rows(window, self.specs[spec], known.token))
        known.on = {s for s in known.on if s >= self.tape.tail}
        if SPECS[spec] == {"length": 1}:
            assert known.on == self.rows_in(naive)
            return
        starts = self.starts(SPECS[spec], self.tape.pieces(**naive))
        assert known.on == {s for seqs in starts.values() for s in seqs}

    @rule(which=st.integers(0, 2), spec=st.integers(0, len(SPECS) - 1), bounds=WINDOWS)
    def changed_ordinals(self, which: int, spec: int, bounds: tuple[int | None, ...]) -> None:
        index = self.indexes[which]
        index.refresh()
        window, naive = self.window(index, bounds)
        known = self.ordinals_known.setdefault((which, spec), Known())
        gone = known.take(index.view.changed_ordinals(window, self.specs[spec], known.token))
        eligible = set(self.starts(SPECS[spec], self.tape.pieces(**naive)))
        assert not set(gone) & set(self.tape.pieces())
        assert known.on >= eligible  # those that ceased to be are not told

    @rule(which=st.integers(0, 2), spec=st.integers(0, len(SPECS) - 1), bounds=WINDOWS)
    def all_there_are(self, which: int, spec: int, bounds: tuple[int | None, ...]) -> None:
        index = self.indexes[which]
        index.refresh()
        window, naive = self.window(index, bounds)
        view = index.view
        eligible = self.starts(SPECS[spec], self.tape.pieces(**naive))
        assert view.count(window, self.specs[spec]) == len(eligible)
        assert view.ordinals(window, self.specs[spec]).tolist() == list(eligible)
        firsts, counts = view.spans_in(window)
        rows = [s for a, n in zip(firsts.tolist(), counts.tolist()) for s in range(a, a + n)]
        assert rows == sorted(self.rows_in(naive))
        for ordinal, piece in self.tape.pieces().items():
            first, seqs = view.rows_of(ordinal)
            assert (first, seqs.tolist()) == (piece.start, piece.seqs)

    @rule(which=st.integers(0, 2), spec=st.integers(0, len(SPECS) - 1), bounds=WINDOWS)
    def drawn(self, which: int, spec: int, bounds: tuple[int | None, ...]) -> None:
        index = self.indexes[which]
        index.refresh()
        window, naive = self.window(index, bounds)
        rng = Rng(self.uid)
        rows = index.view.draw_rows(rng.words, window, 6)
        stored = self.rows_in(naive)
        assert (rows is None) == (not stored)
        assert rows is None or set(rows.tolist()) <= stored
        starts = self.starts(SPECS[spec], self.tape.pieces(**naive))
        slices = index.view.draw_slices(rng.words, window, self.specs[spec], 5)
        assert (slices is None) == (not starts)
        if slices is None:
            return
        at = 0
        for length in slices[1].tolist():
            seqs = slices[0][at : at + length].tolist()
            trajectory, step = self.tape.by_seq[seqs[0]]
            assert seqs[0] in starts[trajectory.ordinal]
            steps = [self.tape.by_seq[s] for s in seqs]
            assert steps == [(trajectory, step + i) for i in range(length)]
            at += length


TestLedgers = Ledgers.TestCase
TestLedgers.settings = settings(
    deadline=None,
    max_examples=150,
    stateful_step_count=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_a_row_that_came_and_went_between_two_questions() -> None:
    state = Ledgers()
    state.ask()
    state.begin(capacity=1)
    state.write(ids=[0], letters="t", version=0, who=0)
    for _ in range(2):
        state.changed_rows(bounds=(None, None, 1), spec=6, which=0)
        state.all_there_are(bounds=(None, None, None), spec=6, which=0)
    state.teardown()
