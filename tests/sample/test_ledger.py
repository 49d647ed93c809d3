"""What may be drawn, kept by what changed, against what a list of lists says it is.

Views of different age follow one tape through appends by several writers, evictions, policy
versions that rise and fall, `empty` and loaded checkpoints. Each question (slices, a window) is
asked again and again; the answer must be that of looking at everything.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from contig import LazyTensorStorage, ReplayBuffer, _native
from contig.sample import Index, Rng, Window
from tests.tape.model import IF_OPEN, Form, ModelTape, ModelWriter, Piece, Row, build

FORM = Form(ids="collector", flags="next", version=True)
NUMBERS = st.integers(0, 99)
SPECS: list[dict[str, Any]] = [
    {"length": 1},
    {"length": 3},
    {"length": 3, "strict": True},
    {"length": 4, "strict": True, "over_steps": True},
    {"length": 2, "complete_only": True},
    {"length": 3, "over_steps": True},
    {"length": 2**62, "complete_only": True},
]
# Rows, trajectories and versions back from the newest; None: no bound.
WINDOWS = st.tuples(
    st.sampled_from([None, None, 1, 4, 9]),
    st.sampled_from([None, None, 1, 2, 5]),
    st.sampled_from([None, None, 0, 1, 2, 4]),
)


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


class Ledgers(RuleBasedStateMachine):
    @initialize(capacity=st.integers(1, 60))
    def begin(self, capacity: int) -> None:
        self.storage = LazyTensorStorage(capacity)
        self.buffer = ReplayBuffer(self.storage, batch_size=1)
        self.tape = ModelTape(capacity, FORM)
        self.writers = [self.storage.writer() for _ in range(3)]
        self.models = [ModelWriter(n) for n in range(3)]
        self.indexes = [Index(self.storage) for _ in range(3)]
        self.specs = [_native.SliceSpec(**spec) for spec in SPECS]
        self.rows_known: dict[Any, Known] = {}
        self.ordinals_known: dict[Any, Known] = {}
        self.uid = 0
        self.last: tuple[int, int, int] | None = None
        self.folder = tempfile.TemporaryDirectory()
        self.saved: list[Any] = []

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.buffer.close()
            self.storage.close()
            self.folder.cleanup()

    # -- what happens to the tape -----------------------------------------------------------------

    @rule(
        who=st.integers(0, 2),
        letters=st.text(alphabet="......tu", min_size=1, max_size=12),
        ids=st.lists(st.integers(0, 3), min_size=1, max_size=5),
        version=st.integers(0, 5),
    )
    def write(self, who: int, letters: str, ids: list[int], version: int) -> None:
        rows = []
        self.last = (who, ids[(len(letters) - 1) % len(ids)], version)
        for t, letter in enumerate(letters):
            id = 10 * who + ids[t % len(ids)]
            rows.append(Row(self.uid, who, letter == "t", letter == "u", id=id, version=version))
            self.uid += 1
        seqs = self.tape.append(self.models[who], [rows], IF_OPEN)
        assert self.writers[who].extend(build(FORM, rows)).tolist() == seqs

    @precondition(lambda self: self.last is not None)
    @rule(letters=st.sampled_from([".", "..", ".t"]))
    def go_on(self, letters: str) -> None:
        """More of what came last: the newest run grows."""
        assert self.last is not None
        who, id, version = self.last
        self.write(who, letters, [id], version)

    @rule()
    def empty(self) -> None:
        self.storage.empty()
        self.tape.empty()

    @precondition(lambda self: len(self.saved) < 2 and self.storage.schema is not None)
    @rule()
    def save(self) -> None:
        path = Path(self.folder.name) / str(len(self.saved))
        self.buffer.save(path)
        self.saved.append((path, copy.deepcopy(self.tape)))

    @precondition(lambda self: bool(self.saved))
    @rule(which=NUMBERS)
    def load(self, which: int) -> None:
        path, tape = self.saved[which % len(self.saved)]
        self.buffer.load(path)
        self.tape = copy.deepcopy(tape)
        # Open trajectories are let go of.
        self.models = [ModelWriter(n) for n in range(3)]
        self.writers = [self.storage.writer() for _ in range(3)]

    # -- what is asked ----------------------------------------------------------------------------

    def window(self, index: Index, bounds: tuple[int | None, ...]) -> tuple[Any, dict[str, Any]]:
        rows, trajectories, versions = bounds
        window: dict[str, Any] = {}
        if rows is not None:
            window["min_seq"] = max(self.tape.head - rows, 0)
        if trajectories is not None:
            window["min_ordinal"] = self.tape.newest(trajectories)
            assert index.view.ordinal_of_newest(trajectories) == window["min_ordinal"]
        if versions is not None:
            window["min_version"] = versions
        return (Window(**window) if window else None), window

    def starts(self, spec: dict[str, Any], pieces: dict[int, Piece]) -> dict[int, list[int]]:
        out = {}
        for ordinal, piece in pieces.items():
            if spec.get("strict") and len(piece) < spec["length"]:
                continue
            if spec.get("complete_only") and not piece.complete:
                continue
            out[ordinal] = piece.seqs[: len(piece) - min(spec["length"], len(piece)) + 1]
        return out

    def rows_in(self, window: dict[str, Any]) -> set[int]:
        return {
            s
            for s, (t, _) in self.tape.by_seq.items()
            if s >= window.get("min_seq", 0)
            and t.ordinal >= window.get("min_ordinal", 0)
            and self.tape.row(s).version >= window.get("min_version", 0)
        }

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
        for ordinal in self.tape.pieces():
            assert view.rows_of(ordinal).tolist() == self.tape.pieces()[ordinal].seqs

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
