"""Predicates, evaluated where something changed, against evaluating them for everything.

Views of different age follow one tape (`TapeMachine`), each with several predicates; whatever is
asked must be answered as if each had been looked at in full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from contig import _native
from contig.sample import Index, Rng
from contig.sample.predicate import Predicate
from tests.sample.tape_machine import NUMBERS, WINDOWS, TapeMachine
from tests.sample.test_ledger import Known
from tests.tape.model import Piece

Facts = dict[str, Any]
# What is given to contig; what it means for one trajectory.
CASES: list[tuple[Any, Callable[[Facts], bool]]] = [
    (("return", ">", 0.0), lambda t: t["return"] > 0),
    (("steps", ">=", 3), lambda t: t["steps"] >= 3),
    ([("terminated", "==", True), ("steps", "<", 6)], lambda t: t["terminated"] and t["steps"] < 6),
    (("policy_version", "in", [1, 3]), lambda t: t["policy_version"] in (1, 3)),
    (("age", "<", 5), lambda t: t["age"] < 5),
    ([("age", ">=", 2), ("age", "<=", 9)], lambda t: 2 <= t["age"] <= 9),
    (("age", "==", 4), lambda t: t["age"] == 4),
    (("age", "not in", [0, 3.5, 7]), lambda t: t["age"] not in (0, 7)),
    (lambda c: (c["age"] < 7) & ~c["truncated"], lambda t: t["age"] < 7 and not t["truncated"]),
    (lambda c: c["steps"] % 2 == 0, lambda t: t["steps"] % 2 == 0),
    (("score", ">", 1), lambda t: t["score"] > 1),
    ([("meta.liked", "==", True), ("age", "<", 12)], lambda t: t["meta.liked"] and t["age"] < 12),
    (lambda c: c["meta", "liked"] | (c["score"] == c["steps"]), lambda t: t["either"]),
]
SPECS: list[dict[str, Any]] = [
    {"length": 1},
    {"length": 3, "strict": True, "over_steps": True},
    {"length": 2**62, "complete_only": True},
]
WHICH = {
    "which": st.integers(0, 2),
    "cases": st.lists(st.integers(0, len(CASES) - 1), min_size=1, max_size=2),
    "spec": st.integers(0, len(SPECS) - 1),
    "bounds": WINDOWS,
}


class Filtered(TapeMachine):
    fields = {"score": np.int64(0), "meta": {"liked": False}}  # noqa: RUF012

    def given(self) -> Any:
        return [None, {"score": self.uid % 4}, {"meta": {"liked": self.uid % 2 == 0}}][self.uid % 3]

    @precondition(lambda self: len(self.tape) > 0)
    @rule(which=NUMBERS, score=st.integers(0, 4), liked=st.sampled_from([None, True, False]))
    def set_fields(self, which: int, score: int, liked: bool | None) -> None:
        ids = list(self.tape.pieces())
        given: Any = {"score": score} if liked is None else {"meta": {"liked": liked}}
        assert self.storage.set_fields(ids[which % len(ids)], given) == 1

    @initialize()
    def ask(self) -> None:
        self.specs = [_native.SliceSpec(**spec) for spec in SPECS]
        self.predicates = [[Predicate(where) for where, _ in CASES] for _ in range(3)]
        self.known: dict[Any, Known] = {}

    def facts(self, piece: Piece) -> Facts:
        t, stored = piece.of, self.stored_fields[piece.of.ordinal]
        return {
            "score": stored["score"],
            "meta.liked": stored["meta.liked"],
            "either": stored["meta.liked"] or stored["score"] == len(piece),
            "steps": len(piece),
            "return": t.ret,
            "terminated": t.terminated,
            "truncated": t.truncated,
            "policy_version": t.version,
            "age": self.tape.head - 1 - piece.seqs[-1],
        }

    def asked(
        self, which: int, cases: list[int], bounds: tuple[int | None, ...]
    ) -> tuple[Index, dict[int, Piece], set[int]]:
        """An index with predicates and a window; the trajectories and rows that it should have."""
        index = self.indexes[which]
        index.refresh()
        # What fields are is not the question here: the tape's own tests say it.
        self.stored_fields = {row["id"]: row for row in self.storage.episodes()}
        holding = {
            ordinal
            for ordinal, piece in self.tape.pieces().items()
            if all(CASES[c][1](self.facts(piece)) for c in cases)
        }
        window, naive = self.window(index, bounds)
        if window is not None:
            index = index.narrowed(window)
        for c in cases:
            index = index.where(self.predicates[which][c])
        pieces = {o: p for o, p in self.tape.pieces(**naive).items() if o in holding}
        rows = {s for s in self.rows_in(naive) if self.tape.by_seq[s][0].ordinal in holding}
        return index, pieces, rows

    def starts(self, spec: dict[str, Any], pieces: dict[int, Piece]) -> dict[int, list[int]]:
        return {
            ordinal: piece.seqs[: len(piece) - min(spec["length"], len(piece)) + 1]
            for ordinal, piece in pieces.items()
            if (not spec.get("strict") or len(piece) >= spec["length"])
            and (not spec.get("complete_only") or piece.complete)
        }

    @invariant()
    def the_first_view_asks_each_time(self) -> None:
        if hasattr(self, "known") and hasattr(self, "tape"):
            self.each_predicate(0)

    @rule(which=st.integers(1, 2))
    def each_predicate(self, which: int) -> None:
        for case in range(len(CASES)):
            index, pieces, _ = self.asked(which, [case], (None, None, None))
            assert index.view.ordinals(index.window, self.specs[0]).tolist() == list(pieces)

    @rule(**WHICH)
    def counted(
        self, which: int, cases: list[int], spec: int, bounds: tuple[int | None, ...]
    ) -> None:
        index, pieces, rows = self.asked(which, cases, bounds)
        view, window = index.view, index.window
        starts = self.starts(SPECS[spec], pieces)
        assert view.count(window, self.specs[spec]) == len(starts)
        assert view.ordinals(window, self.specs[spec]).tolist() == list(starts)
        assert view.weigh_rows(window) == len(rows)
        firsts, counts = view.spans_in(window)
        spans = [s for a, n in zip(firsts.tolist(), counts.tolist()) for s in range(a, a + n)]
        assert spans == sorted(rows)
        every = np.arange(self.tape.tail, self.tape.head)
        assert every[index.eligible(every)].tolist() == sorted(rows)
        whole = self.tape.pieces()
        for c in cases:
            holds = sum(CASES[c][1](self.facts(p)) for p in whole.values())
            assert index.filters.passing(self.predicates[which][c]) == holds

    @rule(**WHICH)
    def changed_rows(
        self, which: int, cases: list[int], spec: int, bounds: tuple[int | None, ...]
    ) -> None:
        index, pieces, rows = self.asked(which, cases, bounds)
        known = self.known.setdefault((which, spec, frozenset(cases)), Known())
        known.take(index.view.changed_rows(index.window, self.specs[spec], known.token))
        known.on = {s for s in known.on if s >= self.tape.tail}
        if SPECS[spec] == {"length": 1}:
            assert known.on == rows
        else:
            starts = self.starts(SPECS[spec], pieces)
            assert known.on == {s for seqs in starts.values() for s in seqs}

    @rule(**WHICH)
    def drawn(
        self, which: int, cases: list[int], spec: int, bounds: tuple[int | None, ...]
    ) -> None:
        index, pieces, rows = self.asked(which, cases, bounds)
        rng, window = Rng(self.uid), index.window
        found = index.view.draw_rows(rng.words, window, 6)
        assert set() == rows if found is None else set(found.tolist()) <= rows
        starts = self.starts(SPECS[spec], pieces)
        slices = index.view.draw_slices(rng.words, window, self.specs[spec], 5)
        if slices is None:
            assert not starts
            return
        firsts = slices[0][np.cumsum(slices[1]) - slices[1]].tolist()
        assert set(firsts) <= {s for seqs in starts.values() for s in seqs}
        picked = index.view.draw_trajectories(rng.words, window, self.specs[spec], 4)
        assert len(picked) == 4 and set(picked.tolist()) <= set(starts)

    @rule(which=st.integers(0, 2), case=st.integers(0, len(CASES) - 1))
    def replaced(self, which: int, case: int) -> None:
        """A sampler goes, and another one comes: its predicate's place is free again."""
        self.predicates[which][case] = Predicate(CASES[case][0])


TestFiltered = Filtered.TestCase
TestFiltered.settings = settings(
    deadline=None,
    max_examples=60,
    stateful_step_count=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
