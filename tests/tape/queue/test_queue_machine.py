"""The batch queue against a list: any order of sending, taking, holding and letting go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from contig import Layout, LayoutError
from contig.tape.queue import BatchQueue
from tests.tape.queue.model import EXAMPLES, Model, columns, records, tree


class Held:
    """Something of a batch that keeps it alive, and what it must look like."""

    def __init__(self, batch: Any, expected: list[Any], how: str, pins: bool) -> None:
        arrays = [batch[leaf.path] for leaf in batch.layout.leaves]
        numbers = range(len(arrays))
        if how == "one array":
            numbers = range(len(arrays) - 1, len(arrays))
        if how == "rows of one":
            arrays = [array[-1:] for array in arrays]
            expected = [array[-1:] for array in expected]
            numbers = range(1)
        self.batch = batch if how == "batch" else None
        self.arrays = [arrays[i] for i in numbers]
        self.expected = [expected[i] for i in numbers]
        self.pins = pins

    def check(self) -> None:
        for array, expected in zip(self.arrays, self.expected):
            assert array.dtype == expected.dtype and array.shape == expected.shape
            assert array.tobytes() == expected.tobytes(), "a batch changed while it was held"


class QueueMachine(RuleBasedStateMachine):
    @initialize(
        example=st.sampled_from(sorted(EXAMPLES)),
        size=st.integers(1, 7),
        slots=st.integers(2, 5),
    )
    def create(self, example: str, size: int, slots: int) -> None:
        self.layout = Layout(EXAMPLES[example])
        self.queue = BatchQueue.create(self.layout, size, slots)
        self.native = self.queue.native
        self.model = Model(size, slots)
        self.held: list[Held] = []
        self.sent = 0  # of nobody's items
        self.short = False  # whether a batch was taken before it was full
        self.closed = False

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.held.clear()
            self.queue.close()

    # -- sending ------------------------------------------------------------------------------

    @precondition(lambda self: not self.closed)
    @rule(listed=st.booleans())
    def submit(self, listed: bool) -> None:
        item = (0, self.sent)
        given = tree(self.layout, item)
        if listed and isinstance(given, dict):  # another form: the queue has to pack it slowly
            given = {
                k: v.astype(">" + v.dtype.str[1:]) if isinstance(v, np.ndarray) else v
                for k, v in given.items()
            }
        before = self.native.data_word
        expected = self.model.accept(0, self.sent, 1)
        if expected.full:
            with pytest.raises(TimeoutError, match="room"):
                self.queue.submit(given, timeout=0)
            return
        self.queue.submit(given, timeout=0)
        self.sent += 1
        self.check_woken(before, 1)

    @precondition(lambda self: not self.closed)
    @rule()
    def submit_something_else(self) -> None:
        with pytest.raises(LayoutError):
            self.queue.submit({"neither": 1.0}, timeout=0)

    @rule(
        producer=st.integers(0, 3),
        shift=st.sampled_from([0, 0, 0, -1, -2, -5, -30, 1, 3]),
        n=st.one_of(st.integers(1, 12), st.integers(8, 40)),
    )
    def accept(self, producer: int, shift: int, n: int) -> None:
        following = self.model.seen.get(producer, 0) if producer else self.sent
        first = max(following + shift, 0) if producer else following
        before = self.native.data_word
        expected = self.model.accept(producer, first, n)
        data = records(self.layout, [(producer, first + i) for i in range(n)])
        data.flags.writeable = False
        assert self.native.accept_records(data, producer, first) == expected
        if not producer:
            self.sent += expected.added
        self.check_woken(before, expected.added)

    def check_woken(self, before: int, added: int) -> None:
        """Whoever waits for a batch must hear of one that has become full."""
        if added and len(self.model.pending) % self.model.size < added:
            assert self.native.data_word != before
        else:
            assert self.native.data_word == before

    @rule(producer=st.integers(1, 3), following=st.integers(0, 5))
    def ask(self, producer: int, following: int) -> None:
        assert self.native.seen(producer, following) == self.model.seen.get(producer, following)

    @rule(producer=st.integers(1, 3), ahead=st.integers(-2, 4))
    def skip(self, producer: int, ahead: int) -> None:
        """Items that will not come."""
        following = max(self.model.seen.get(producer, 0) + ahead, 0)
        self.native.skip(producer, following)
        if producer in self.model.seen:  # one that is not known goes on where it says
            self.model.seen[producer] = max(self.model.seen[producer], following)

    @rule(producer=st.integers(1, 4))
    def leave(self, producer: int) -> None:
        """Its connection is gone; 4 stands for the whole ingest process."""
        if producer == 4:
            self.native.leave_all()
        else:
            self.native.leave(producer)

    # -- taking -------------------------------------------------------------------------------

    @rule(
        copy=st.booleans(),
        how=st.sampled_from(["batch", "one array", "rows of one"]),
        times=st.integers(1, 5),
    )
    def take(self, copy: bool, how: str, times: int) -> None:
        for _ in range(times):
            self.take_one(copy, False, how)

    @precondition(lambda self: self.model.pending)
    @rule(copy=st.booleans())
    def take_what_there_is(self, copy: bool) -> None:
        self.take_one(copy, True, "batch")

    def take_one(self, copy: bool, partial: bool, how: str) -> None:
        batch = self.queue.take(copy, partial)
        expected = self.model.take(copy, partial)
        assert (batch is None) == (expected is None)
        if batch is None or expected is None:
            return
        items, pins = expected
        self.short |= len(items) < self.model.size
        assert batch.shape == (len(items),)
        values = columns(self.layout, items)
        Held(batch, values, "batch", False).check()
        for leaf in self.layout.leaves:
            assert batch[leaf.path].flags.writeable == copy, "only a copy may be written to"
        self.held.append(Held(batch, values, how, pins))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1 << 16))
    def let_go(self, which: int) -> None:
        before = self.native.space_word
        held = self.held.pop(which % len(self.held))
        self.model.pinned -= held.pins
        pinned = held.pins
        del held
        assert (self.native.space_word != before) == pinned

    @precondition(lambda self: not self.closed and self.model.taken > 3)
    @rule()
    def close(self) -> None:
        """Tells everybody who waits; what is in the queue can still be taken."""
        words = self.native.data_word, self.native.space_word
        assert not self.native.closed
        self.native.close()
        self.closed = True
        assert self.native.closed
        assert self.native.data_word != words[0] and self.native.space_word != words[1]

    # -- at any time --------------------------------------------------------------------------

    @invariant()
    def nothing_held_changes(self) -> None:
        for held in getattr(self, "held", ()):
            held.check()

    @invariant()
    def the_counters_are_right(self) -> None:
        if not hasattr(self, "queue"):
            return
        counters, model = self.native.counters(), self.model
        for name in ("taken", "blocked", "fresh", "duplicates"):
            assert counters[name] == getattr(model, name), name
        assert max(counters["head"] - counters["taken"] * model.size, 0) == len(model.pending)
        if not self.short:
            assert counters["head"] == model.total
        assert self.native.histogram("queue_dwell")[0] == model.taken


QueueMachine.TestCase.settings = settings(stateful_step_count=60)
TestQueueMachine = QueueMachine.TestCase
