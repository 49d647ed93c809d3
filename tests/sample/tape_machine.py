"""A tape to which everything happens, beside a list of lists that says what is on it.

Appends by several writers, growth, evictions, policy versions that rise and fall, `empty` and
loaded checkpoints; and views of different age that follow it. Subclasses add what is asked.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from contig import LazyTensorStorage, ReplayBuffer, Storage
from contig.sample import Index, Window
from tests.tape.model import IF_OPEN, Form, ModelTape, ModelWriter, Row, build

__all__ = ["NUMBERS", "WINDOWS", "TapeMachine"]

FORM = Form(ids="collector", flags="next", version=True)
NUMBERS = st.integers(0, 99)
# Rows, trajectories and versions back from the newest; None: no bound.
WINDOWS = st.tuples(
    st.sampled_from([None, None, 1, 4, 9]),
    st.sampled_from([None, None, 1, 2, 5]),
    st.sampled_from([None, None, 0, 1, 2, 4]),
)


class TapeMachine(RuleBasedStateMachine):
    fields: Any = None  # of the storage's trajectories

    def given(self) -> Any:
        """Fields that the next append gives."""
        return None

    def make_storage(self, capacity: int) -> Storage:
        return LazyTensorStorage(capacity, fields=self.fields)

    @initialize(capacity=st.integers(1, 60))
    def begin(self, capacity: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.storage = self.make_storage(capacity)
        self.buffer = ReplayBuffer(self.storage, batch_size=1)
        self.tape = ModelTape(capacity, FORM)
        self.writers = [self.storage.writer() for _ in range(3)]
        self.models = [ModelWriter(n) for n in range(3)]
        self.indexes = [Index(self.storage) for _ in range(3)]
        self.uid = 0
        self.last: tuple[int, int, int] | None = None
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
        given = self.given()
        assert self.writers[who].extend(build(FORM, rows), fields=given).tolist() == seqs

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

    # -- what is there ----------------------------------------------------------------------------

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

    def rows_in(self, window: dict[str, Any]) -> set[int]:
        return {
            s
            for s, (t, _) in self.tape.by_seq.items()
            if s >= window.get("min_seq", 0)
            and t.ordinal >= window.get("min_ordinal", 0)
            and self.tape.row(s).version >= window.get("min_version", 0)
        }
