"""Random writes by several writers to one storage, against the model of a tape.

Rows are written by every method, in every form the boundary marks can have, to rings of 1 to 40
rows. After each step the lengths, the table of episodes and the rows must be the model's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import contig
from contig import (
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
)
from tests.replay.checks import check_rows
from tests.tape.model import (
    FLAGS,
    IF_OPEN,
    NEW,
    TOLD,
    Form,
    ModelTape,
    ModelWriter,
    Row,
    Whole,
    build,
    one,
    resolve,
)

forms = st.builds(
    Form,
    ids=st.sampled_from([None, "collector", "episode", "chunk"]),
    flags=st.sampled_from(["next", "next", "root", None]),
    init=st.booleans(),
    version=st.booleans(),
    reward=st.sampled_from(["next", "next", "root", None]),
    trailing=st.booleans(),
)
# One letter per row: going on, terminated, truncated, both.
ends = st.lists(st.sampled_from("........tub"), min_size=1, max_size=14).map("".join)
givens = st.sets(st.sampled_from(FLAGS), min_size=1).map(frozenset)
ids = st.lists(st.integers(0, 2), min_size=1, max_size=5)
numbers = st.integers(0, 99)


class Writes(RuleBasedStateMachine):
    def storage_of(self, capacity: int) -> contig.Storage:
        return LazyTensorStorage(capacity, ndim=2)

    @initialize(capacity=st.integers(1, 40), form=forms)
    def begin(self, capacity: int, form: Form) -> None:
        self.form = form
        self.storage = self.storage_of(capacity)
        self.tape = ModelTape(capacity, form)
        self.random = self.buffer(RandomSampler())
        self.writers = [self.storage.default_writer]
        self.models = [ModelWriter(0)]
        self.writer_ids: dict[int, int] = {}
        self.uid = self.version = 0

    def buffer(self, sampler: Any, n: int = 3) -> ReplayBuffer:
        return ReplayBuffer(self.storage, sampler, batch_size=n, seed=self.tape.capacity)

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.storage.close()

    # -- writing ------------------------------------------------------------------------------

    def rows(self, who: int, lanes: list[str], given: frozenset[str], ids: list[int]) -> list[Any]:
        """New rows for each lane, with marks as a collector would set them."""
        out = []
        for number, letters in enumerate(lanes):
            lane = []
            fresh: dict[Any, bool] = {}  # tracks this append touched: is the next row a beginning?
            for t, letter in enumerate(letters):
                id = ids[(number + t) % len(ids)] if self.form.ids else -1
                key = (number, id) if self.form.ids else number
                track = self.models[who].track(key)
                init = self.form.init and fresh.get(key, not track.open)
                flags = resolve(given, letter in "tb", letter in "ub")
                if self.form.flags is None:
                    flags = (False, False)
                lane.append(Row(self.uid, who, *flags, init, id, self.version))
                fresh[key] = any(flags) and self.form.ids != "chunk"
                self.uid += 1
            out.append(lane)
        return out

    def write(
        self,
        who: int,
        lanes: list[list[Row]],
        rule: str,
        call: Any,
        whole: Whole | None = None,
        envs: Any = None,
    ) -> None:
        seqs = self.tape.append(self.models[who], lanes, rule, whole, envs)
        got = call()
        assert np.atleast_1d(got).tolist() == seqs
        self.written(seqs)

    def written(self, seqs: list[int]) -> None:
        """For who looks at samples."""

    def pick(self, number: int) -> int:
        return number % len(self.writers)

    @precondition(lambda self: len(self.writers) < 3)
    @rule()
    def another_writer(self) -> None:
        self.writers.append(self.storage.writer())
        self.models.append(ModelWriter(len(self.models)))

    @rule()
    def new_policy(self) -> None:
        self.version += 1

    @rule(who=numbers, end=st.sampled_from("...tub"), given=givens, ids=ids)
    def add(self, who: int, end: str, given: frozenset[str], ids: list[int]) -> None:
        who = self.pick(who)
        lanes = self.rows(who, [end], given, ids)
        step = one(build(self.form, lanes[0], given=given))
        self.write(who, lanes, IF_OPEN, lambda: self.writers[who].add(step))

    @rule(who=numbers, ends=ends, given=givens, ids=ids)
    def add_step(self, who: int, ends: str, given: frozenset[str], ids: list[int]) -> None:
        who = self.pick(who)
        lanes = self.rows(who, list(ends[:4]), given, ids)
        step = build(self.form, [r for lane in lanes for r in lane], given=given)
        envs = range(len(lanes))  # not as many in every step
        call = lambda: self.writers[who].add_step(step, env_ids=envs)  # noqa: E731
        self.write(who, lanes, IF_OPEN, call, envs=envs)

    @rule(
        who=numbers,
        ends=ends,
        times=st.sampled_from([1, 1, 1, 3]),
        given=givens,
        ids=ids,
        continues=st.sampled_from([None, None, True, False]),
    )
    def extend(
        self,
        who: int,
        ends: str,
        times: int,
        given: frozenset[str],
        ids: list[int],
        continues: bool | None,
    ) -> None:
        who = self.pick(who)
        lanes = self.rows(who, [ends * times], given, ids)
        data = build(self.form, lanes[0], given=given)
        rule = {None: IF_OPEN, True: TOLD, False: NEW}[continues]
        self.write(who, lanes, rule, lambda: self.writers[who].extend(data, continues))

    @rule(
        who=numbers,
        ends=ends,
        lanes=st.integers(2, 3),
        given=givens,
        ids=ids,
        continues=st.sampled_from([None, True, False]),
    )
    def extend_lanes(
        self,
        who: int,
        ends: str,
        lanes: int,
        given: frozenset[str],
        ids: list[int],
        continues: bool | None,
    ) -> None:
        who = self.pick(who)
        letters = [ends[:6], ends[:6][::-1], "." * len(ends[:6])][:lanes]
        rows = self.rows(who, letters, given, ids)
        if not continues and self.form.init and not self.form.ids:  # every lane starts anew
            for lane in rows:
                lane[0] = Row(**{**vars(lane[0]), "init": True})
        flat = [r for lane in rows for r in lane]
        data = build(self.form, flat, (lanes, len(rows[0])), given)
        rule = TOLD if continues else NEW
        self.write(who, rows, rule, lambda: self.writers[who].extend(data, continues))

    @rule(
        who=numbers,
        ends=ends,
        how=st.sampled_from(["flags", "told terminated", "told truncated", "nothing"]),
        traj_id=st.sampled_from([None, 77]),
    )
    def extend_trajectory(self, who: int, ends: str, how: str, traj_id: int | None) -> None:
        who = self.pick(who)
        if self.form.flags is None and how == "flags":
            how = "nothing"
        elif self.form.flags is not None and self.storage.schema is None:
            how = "flags"  # the first write fixes the layout
        if how == "flags" and ends[-1] == ".":
            ends = ends[:-1] + "t"
        if self.form.flags is not None and how != "flags":
            last = {"told terminated": "t", "told truncated": "u", "nothing": "u"}[how]
            ends = "." * (len(ends) - 1) + last
        ends = "." * (len(ends) - 1) + ends[-1]  # rows of several are refused
        lane = self.rows(who, [ends], frozenset(FLAGS), [5])[0]
        given = frozenset(FLAGS) if how == "flags" else frozenset()
        data = build(self.form, lane, given=given)
        told = {
            "told terminated": {"terminated": True},
            "told truncated": {"truncated": True},
        }.get(how, {})
        last = lane[-1]
        end = (last.terminated, last.truncated)
        if self.form.flags is None:
            end = (how == "told terminated", how != "told terminated")
        version = self.version if self.form.version else -1
        own = -1 if self.form.ids is None else 5
        whole = Whole(*end, own if traj_id is None else traj_id, version)
        self.write(
            who,
            [lane],
            NEW,
            lambda: self.writers[who].extend_trajectory(data, traj_id=traj_id, **told),
            whole,
        )

    @rule(who=numbers, what=st.sampled_from(["shape", "dtype", "leaf", "flags", "length"]))
    def refused(self, who: int, what: str) -> None:
        """Changes nothing: every invariant and every later sample says so."""
        if self.storage.schema is None:
            return
        who = self.pick(who)
        rows = [Row(10**6 + i, 9, True, False, True, 1, 99) for i in range(3)]
        data = build(self.form, rows)
        if what == "shape":
            data["obs"] = data["obs"][:, :2]
        elif what == "dtype":
            data["uid"] = np.array([0.5, 1, 2])
        elif what == "leaf":
            data["surplus"] = np.zeros(3)
        elif what == "length":
            data["obs"] = data["obs"][:2]
        elif self.form.flags is not None:
            where = data["next"] if self.form.flags == "next" else data
            where["done"] = np.zeros_like(where["done"])
        else:
            return
        with pytest.raises(ValueError):
            self.writers[who].extend(data)

    # -- reading ------------------------------------------------------------------------------

    @invariant()
    def bounds(self) -> None:
        if not hasattr(self, "tape"):
            return
        assert len(self.random) == len(self.storage) == len(self.tape)
        stats = self.random.stats()
        assert stats.rows_written == self.tape.head
        assert stats.trajectories == self.tape.ordinals

    @invariant()
    def episodes(self) -> None:
        if not hasattr(self, "tape"):
            return
        table = self.storage.episodes()
        pieces = self.tape.pieces()
        assert table["id"].tolist() == list(pieces)
        for line, piece in zip(table, pieces.values()):
            t = piece.of
            assert line["traj_id"] == t.traj_id
            assert line["first"] == piece.seqs[0]
            assert line["steps"] == len(piece)
            if self.form.reward is None:
                assert math.isnan(line["return"])
            else:
                assert line["return"] == t.ret
            assert (line["terminated"], line["truncated"]) == (t.terminated, t.truncated)
            assert line["trimmed"] == (piece.start > 0)
            assert line["complete"] == piece.complete
            assert line["policy_version"] == (t.version if self.form.version else -1)
            assert self.writer_ids.setdefault(t.writer, line["writer"]) == line["writer"]
        assert len(set(self.writer_ids.values())) == len(self.writer_ids)

    @rule(which=numbers)
    def read_episode(self, which: int) -> None:
        pieces = self.tape.pieces()
        if not pieces:
            with pytest.raises(KeyError):
                self.storage.read_episode(self.tape.ordinals)
            return
        ordinal = list(pieces)[which % len(pieces)]
        batch = self.storage.read_episode(ordinal)
        check_rows(batch, pieces[ordinal].rows, self.form)

    @rule(picks=st.lists(numbers, min_size=1, max_size=6))
    def by_seq(self, picks: list[int]) -> None:
        if not len(self.tape):
            return
        seqs = [self.tape.tail + p % len(self.tape) for p in picks]
        check_rows(self.random[np.array(seqs)], [self.tape.row(s) for s in seqs], self.form)
        for outside in (self.tape.tail - 1, self.tape.head):
            with pytest.raises(IndexError):
                self.random[[outside]]

    @rule(a=numbers, b=numbers)
    def by_position(self, a: int, b: int) -> None:
        if self.storage.schema is None:
            return
        got = self.random[a % 45 : b % 45]
        seqs = range(self.tape.tail, self.tape.head)[a % 45 : b % 45]
        check_rows(got, [self.tape.row(s) for s in seqs], self.form) if len(seqs) else None
        assert len(got) == len(seqs)
