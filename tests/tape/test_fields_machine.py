"""Fields of trajectories against a model that has a dict for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contig import LazyTensorStorage, SharedStorage, _native

EXAMPLE = {"task": np.int32(0), "judge": {"score": np.zeros(2, np.float32)}, "won": False}
NAMES = ("task", "judge.score", "won")
ENVS = 3

Record = dict[str, Any]
numbers = st.integers(0, 5)


@st.composite
def some_fields(draw: Any) -> Record:
    """Values of some of the fields, by column."""
    names = draw(st.sets(st.sampled_from(NAMES)))
    values: Record = {}
    if "task" in names:
        values["task"] = draw(numbers)
    if "judge.score" in names:
        values["judge.score"] = [float(draw(numbers)), float(draw(numbers))]
    if "won" in names:
        values["won"] = draw(st.booleans())
    return values


def tree_of(values: Record) -> Record:
    out = {k: v for k, v in values.items() if k != "judge.score"}
    if "judge.score" in values:
        out["judge"] = {"score": np.array(values["judge.score"], np.float32)}
    return out


def stacked(each: list[Record]) -> Record:
    """One value for each, of those fields that all of them have."""
    names = set.intersection(*(set(x) for x in each))
    return tree_of({name: np.array([x[name] for x in each]) for name in names})


@dataclass
class Trajectory:
    """Its fields, which it takes along when all of its rows are evicted and it goes on."""

    fields: Record
    id: int = -1
    last: int = -1  # seq
    first: int = -1


class Model:
    def __init__(self, capacity: int) -> None:
        self.capacity, self.head, self.tail, self.ids = capacity, 0, 0, 0
        self.open: dict[Any, Trajectory] = {}  # by writer and lane
        self.stored: dict[int, Trajectory] = {}
        self.owner: dict[int, int] = {}  # of seqs

    def append(self, rows: list[tuple[Any, bool, Record]], fresh: bool = False) -> None:
        """Rows of lanes, in order: whether each is the last of its trajectory, and what is given.

        fresh: a lane's first row starts a trajectory.
        """
        skipped = max(len(rows) - self.capacity, 0)
        seq = self.head - skipped
        self.head += len(rows) - skipped
        self.tail = max(self.tail, self.head - self.capacity)
        begun = set()
        for lane, done, given in rows:
            if fresh and lane not in begun:
                self.open.pop(lane, None)
            begun.add(lane)
            t = self.open.setdefault(lane, Trajectory(dict(ZERO)))
            if seq >= self.tail:
                if t.id < 0 or t.last < self.tail:  # nothing of it is left
                    t = Trajectory(dict(t.fields), self.ids, first=seq)
                    self.stored[self.ids] = self.open[lane] = t
                    self.ids += 1
                t.last = seq
                self.owner[seq] = t.id
            else:
                t.id = -1
            t.fields.update(given)
            if done:
                del self.open[lane]
            seq += 1

    def living(self) -> dict[int, Trajectory]:
        return {i: t for i, t in self.stored.items() if t.last >= self.tail}


ZERO: Record = {"task": 0, "judge.score": [0.0, 0.0], "won": False}


class FieldsMachine(RuleBasedStateMachine):
    @initialize(capacity=st.integers(4, 14), shared=st.booleans(), first=some_fields())
    def make(self, capacity: int, shared: bool, first: Record) -> None:
        kind = SharedStorage if shared and _native.ROBUST_LOCKS else LazyTensorStorage
        self.storage = kind(capacity, ndim=2, fields=EXAMPLE)
        self.writers = [self.storage.writer(), self.storage.writer()]
        self.model = Model(capacity)
        self.uid = 0
        self.view: Any = None

    def rows(self, shape: tuple[int, ...], done: Any) -> Any:
        n = int(np.prod(shape))
        self.uid += n
        uids = np.arange(self.uid - n, self.uid).reshape(shape)
        return {"uid": uids, "next": {"done": np.reshape(np.asarray(done, bool), shape)}}

    @rule(w=st.integers(0, 1), done=st.booleans(), given=some_fields())
    def add(self, w: int, done: bool, given: Record) -> None:
        fields = tree_of(given) if given or done else None
        self.writers[w].add(self.rows((), done), fields)
        self.model.append([((w, 0), done, given)])

    @rule(
        w=st.integers(0, 1),
        done=st.lists(st.booleans(), min_size=1, max_size=16),
        given=some_fields(),
    )
    def extend(self, w: int, done: list[bool], given: Record) -> None:
        self.writers[w].extend(self.rows((len(done),), done), fields=tree_of(given))
        self.model.append([((w, 0), d, given) for d in done])

    @rule(
        w=st.integers(0, 1),
        done=st.lists(st.booleans(), min_size=2, max_size=8),
        continues=st.booleans(),
        each=st.lists(some_fields(), min_size=2, max_size=2),
        how=st.sampled_from(["list", "stacked", "one"]),
    )
    def extend_lanes(
        self, w: int, done: list[bool], continues: bool, each: list[Record], how: str
    ) -> None:
        steps = len(done) // 2
        fields: Any = [tree_of(x) or None for x in each]
        if how == "stacked":
            names = set(each[0]) & set(each[1])
            each = [{k: x[k] for k in names} for x in each]
            fields = stacked(each)
        elif how == "one":
            each = [each[0], each[0]]
            fields = tree_of(each[0])
        data = self.rows((2, steps), done[: 2 * steps])
        self.writers[w].extend(data, continues or None, fields)
        rows = [
            ((w, "lane", lane), done[lane * steps + t], each[lane])
            for lane in range(2)
            for t in range(steps)
        ]
        self.model.append(rows, fresh=not continues)

    @rule(
        w=st.integers(0, 1),
        done=st.lists(st.booleans(), min_size=ENVS, max_size=ENVS),
        mask=st.lists(st.booleans(), min_size=ENVS, max_size=ENVS),
        each=st.lists(some_fields(), min_size=ENVS, max_size=ENVS),
        as_list=st.booleans(),
    )
    def add_step(
        self, w: int, done: list[bool], mask: list[bool], each: list[Record], as_list: bool
    ) -> None:
        fields: Any = [tree_of(x) for x in each]
        if not as_list:
            names = set.intersection(*(set(x) for x in each))
            each = [{k: x[k] for k in names} for x in each]
            fields = stacked(each)
        self.writers[w].add_step(self.rows((ENVS,), done), mask=mask, fields=fields)
        rows = [((w, "env", b), done[b], each[b]) for b in range(ENVS) if mask[b]]
        if rows:
            self.model.append(rows)

    @rule(w=st.integers(0, 1), steps=st.integers(1, 9), given=some_fields())
    def whole(self, w: int, steps: int, given: Record) -> None:
        done = [False] * (steps - 1) + [True]
        self.writers[w].extend_trajectory(self.rows((steps,), done), fields=tree_of(given))
        self.model.append([((w, "whole"), d, given) for d in done])

    @rule(
        ids=st.lists(st.integers(-1, 40), unique=True, max_size=4),
        newest=st.integers(0, 3),
        values=some_fields(),
        shared=st.booleans(),
    )
    def set_fields(self, ids: list[int], newest: int, values: Record, shared: bool) -> None:
        living = self.model.living()
        ids = list(dict.fromkeys([*ids, *list(living)[len(living) - newest :]]))
        each = [values] * len(ids)
        if not shared:
            each = [{**values, "task": i} if "task" in values else values for i in range(len(ids))]
        fields = tree_of(values) if shared else [tree_of(x) for x in each]
        changed = self.storage.set_fields(np.array(ids, np.int64), fields)
        assert changed == (len(living.keys() & set(ids)) if values else 0)
        for i, value in zip(ids, each):
            if i in living:
                living[i].fields.update(value)

    @rule()
    def empty(self) -> None:
        self.storage.empty()
        self.model.tail = self.model.head

    @invariant()
    def table_is_right(self) -> None:
        if not hasattr(self, "storage"):
            return
        living = self.model.living()
        table = self.storage.episodes()
        assert table["id"].tolist() == list(living) if len(living) else len(table) == 0
        for name in NAMES if len(living) else ():
            assert table[name].tolist() == [t.fields[name] for t in living.values()], name

    @invariant()
    def runs_are_found(self) -> None:
        if not hasattr(self, "storage") or not self.model.head:
            return
        tape = self.storage.tape
        if self.view is None:
            self.view = _native.View(tape)
        self.view.refresh()
        seqs = np.arange(max(self.model.tail - 2, 0), self.model.head + 2)
        wanted = [
            self.model.owner[s] if self.model.tail <= s < self.model.head else -1 for s in seqs
        ]
        assert self.view.trajectories_of(seqs).tolist() == wanted
        living = self.model.living()
        ids = np.arange(-1, self.model.ids + 1)
        runs = self.view.last_runs(ids)
        assert {int(i) for i, run in zip(ids, runs) if run >= 0} == set(living)
        layout = self.storage.fields
        assert layout is not None
        records = layout.unpack(tape.fields_of(runs))
        for i, task in zip(ids, records["task"]):
            assert task == (living[i].fields["task"] if i in living else 0)

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.storage.close()


TestFields = FieldsMachine.TestCase
TestFields.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
