"""Random writes by several writers, and every sampler, against a list of lists.

Rows are written by every method, in every form the boundary marks can have, to rings of 1 to 40
rows. After each step the lengths, the table of episodes and the rows must be the model's; samples
must be pieces of exactly one of its trajectories, with exact marks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import contig
from contig import (
    EmptyBufferError,
    FifoSampler,
    LazyTensorStorage,
    LifoSampler,
    NothingEligibleError,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SharedStorage,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    WindowSampler,
)
from tests.replay.checks import Slicing, check_plain, check_rows, check_slices
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
spans = st.sampled_from([False, False, True, 1, 2, (0, 2), (True, False), (1, 3)])
slicings = st.builds(
    Slicing,
    slice_len=st.integers(1, 6),
    num_slices=st.integers(1, 4),
    strict=st.sampled_from([True, False, True]),
    pad=st.sampled_from([False, False, True]),
    over=st.sampled_from(["steps", "trajectories"]),
    complete=st.sampled_from([False, False, True]),
    burn_in=st.sampled_from([0, 0, 1, 3, 50]),
    span=spans,
).map(
    lambda s: Slicing(
        s.slice_len,
        s.num_slices if s.span is False else 1,
        s.strict and not s.pad,
        s.pad,
        s.over,
        s.complete,
        s.burn_in,
        s.span,
    )
)
windows = st.sampled_from(
    [
        {"last_rows": 1},
        {"last_rows": 5},
        {"last_trajectories": 1},
        {"last_trajectories": 2},
        {"last_rows": 7, "last_trajectories": 3},
        {"max_staleness": 0},
        {"max_staleness": 1},
        {"max_staleness": 1, "last_trajectories": 2},
    ]
)
NOTHING = (EmptyBufferError, NothingEligibleError)


class Buffers(RuleBasedStateMachine):
    """Several buffers over one storage: each has its own reader of the index, which follows."""

    def storage_of(self, capacity: int) -> contig.Storage:
        return LazyTensorStorage(capacity, ndim=2)

    @initialize(capacity=st.integers(1, 40), form=forms)
    def begin(self, capacity: int, form: Form) -> None:
        self.form = form
        self.storage = self.storage_of(capacity)
        self.tape = ModelTape(capacity, form)
        key = form.traj_key

        def buffer(sampler: Any, n: int = 3) -> ReplayBuffer:
            return ReplayBuffer(self.storage, sampler, batch_size=n, seed=capacity)

        self.slices = buffer(SliceSampler(slice_len=3, traj_key=key))
        self.random = buffer(RandomSampler())
        self.retiring = buffer(RandomSampler(max_times_sampled=2))
        self.epochs = buffer(SamplerWithoutReplacement())
        self.traj_epochs = buffer(SliceSamplerWithoutReplacement(slice_len=4, traj_key=key), 8)
        self.prioritized = buffer(PrioritizedSampler(alpha=0.7, beta=0.5), 5)
        self.priority_slices = buffer(PrioritizedSliceSampler(slice_len=3, traj_key=key), 6)
        self.fifo = buffer(FifoSampler(max_times_sampled=2))
        self.lifo = buffer(LifoSampler(max_times_sampled=2))
        self.fifo_trajs = buffer(FifoSampler(per="trajectories", max_times_sampled=2))
        self.lifo_trajs = buffer(LifoSampler(per="trajectories"))
        self.nstep = buffer(NStepSampler(3, 0.5))

        self.writers = [self.storage.default_writer]
        self.models = [ModelWriter(0)]
        self.writer_ids: dict[int, int] = {}
        self.uid = self.version = 0
        self.delivered: dict[str, dict[int, int]] = {}
        self.epoch: set[int] = set()
        self.traj_epoch: set[int] = set()
        self.priority = {"rows": {}, "slices": {}}  # seq -> p
        self.largest = {"rows": 1.0, "slices": 1.0}
        self.stale = 0

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
        for name, p in self.priority.items():
            p |= dict.fromkeys(seqs, self.largest[name])

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

    @rule(where=st.sampled_from(["storage", "slices", "fifo"]))
    def empty(self, where: str) -> None:
        if where == "storage":
            self.storage.empty()
        else:
            getattr(self, where).empty()
        self.tape.empty()
        self.delivered.clear()
        self.priority = {"rows": {}, "slices": {}}
        self.epoch, self.traj_epoch = set(), set()

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

    # -- rows ---------------------------------------------------------------------------------

    def drawn(self, buffer: ReplayBuffer, expected: bool, size: int | None = None) -> Any:
        """A sample if the model has something to draw; else the error, and None."""
        if not expected:
            with pytest.raises(NOTHING):
                buffer.sample(size)
            return None
        return buffer.sample(size)

    @rule(n=st.integers(1, 9))
    def sample_rows(self, n: int) -> None:
        batch = self.drawn(self.random, len(self.tape) > 0, n)
        if batch is not None:
            assert len(check_plain(batch, self.tape)) == n

    @rule(n=st.integers(1, 9))
    def sample_retiring(self, n: int) -> None:
        counts = self.delivered.setdefault("retiring", {})
        left = sum(2 - counts.get(s, 0) for s in self.tape.by_seq)
        batch = self.drawn(self.retiring, left > 0, n)
        if batch is None:
            return
        seqs = check_plain(batch, self.tape)
        assert len(seqs) == min(n, left)
        for s in seqs:
            counts[s] = counts.get(s, 0) + 1
            assert counts[s] <= 2

    @rule(n=st.integers(1, 9))
    def sample_epochs(self, n: int) -> None:
        """Each row once: nothing twice before everything that is left was drawn."""
        batch = self.drawn(self.epochs, len(self.tape) > 0, n)
        if batch is None:
            return
        self.epoch &= set(self.tape.by_seq)
        if not self.epoch:
            self.epoch = set(self.tape.by_seq)
        seqs = check_plain(batch, self.tape)
        assert len(seqs) == min(n, len(self.epoch))
        for s in seqs:
            assert s in self.epoch, "drawn twice in an epoch, or written after it began"
            self.epoch.remove(s)

    @rule(n=st.integers(1, 6), order=st.sampled_from(["fifo", "lifo"]))
    def sample_in_order(self, n: int, order: str) -> None:
        counts = self.delivered.setdefault(order, {})
        due = [s for s in sorted(self.tape.by_seq) for _ in range(2 - counts.get(s, 0))]
        due = (due if order == "fifo" else due[::-1])[:n]
        batch = self.drawn(getattr(self, order), bool(due), n)
        if batch is None:
            return
        assert check_plain(batch, self.tape) == due
        for s in due:
            counts[s] = counts.get(s, 0) + 1

    @rule(
        n=st.integers(1, 7),
        update=st.lists(st.tuples(numbers, st.sampled_from([0.0, 0.5, 1.0, 3.0])), max_size=5),
    )
    def sample_by_priority(self, n: int, update: list[tuple[int, float]]) -> None:
        p = self.set_priorities("rows", self.prioritized, update)
        live = {s: (x + 1e-8) ** 0.7 for s, x in p.items() if x > 0}
        batch = self.drawn(self.prioritized, bool(live), n)
        if batch is None:
            return
        seqs = check_plain(batch, self.tape, frozenset({("priority_weight",)}))
        assert len(seqs) == n and set(seqs) <= set(live)
        least = min(live.values())
        expected = [(live[s] / least) ** -0.5 for s in seqs]
        np.testing.assert_allclose(batch["priority_weight"], expected, rtol=1e-5)

    def set_priorities(self, name: str, buffer: ReplayBuffer, update: Any) -> dict[int, float]:
        """Updates both; some go to evicted rows, which are counted and change nothing."""
        if self.storage.schema is None:
            return {}
        self.priority[name] = {
            s: x for s, x in self.priority[name].items() if s in self.tape.by_seq
        }
        known = self.priority[name]
        wanted = {max(self.tape.head - 1 - at, 0): x for at, x in update}
        if wanted:
            buffer.update_priority(list(wanted), list(wanted.values()))
        live = {s: x for s, x in wanted.items() if s in known}
        known |= live
        self.largest[name] = max(self.largest[name], *live.values(), 0.0)
        if name == "rows":
            self.stale += len(wanted) - len(live)
            assert buffer.stats().stale_priority_updates == self.stale
        return known

    @precondition(lambda self: self.form.reward == "next" and self.form.flags != "root")
    @rule()
    def sample_nstep(self) -> None:
        batch = self.drawn(self.nstep, len(self.tape) > 0)
        if batch is None:
            return
        assert len(batch) == 3
        for i, seq in enumerate(batch["index"].tolist()):
            trajectory, step = self.tape.by_seq[seq]
            ahead = [r for _, r in trajectory.rows[step - trajectory.before :]][:3]
            k = len(ahead)
            if self.form.flags is not None:
                k = next((j + 1 for j, r in enumerate(ahead) if r.done), k)
            last = ahead[k - 1]
            assert batch["steps_to_next_obs"][i] == k
            assert batch["uid"][i] == ahead[0].uid and batch["next", "uid"][i] == last.uid
            reward = sum(0.5**j * r.reward for j, r in enumerate(ahead[:k]))
            assert batch["next", "reward"][i].item() == pytest.approx(reward)
            if self.form.flags is not None:
                for flag in FLAGS:
                    assert batch["next", flag][i].item() == getattr(last, flag)

    # -- slices -------------------------------------------------------------------------------

    def slices_of(self, buffer: ReplayBuffer, how: Slicing, pieces: Any, exactly: bool) -> Any:
        """One sample of slices, checked; None if there is nothing eligible, which is checked."""
        eligible = how.eligible(pieces)
        try:
            batch = buffer.sample(how.slice_len * how.num_slices)
        except NOTHING as error:
            if "slices need to know" in str(error):
                self.nothing_told()
            else:
                assert not eligible, "eligible trajectories were not found"
            return None
        assert eligible
        found = check_slices(batch, self.tape, how, eligible)
        if exactly:
            assert len(found) == how.num_slices
        return found

    def nothing_told(self) -> None:
        alive = [p.of for p in self.tape.pieces().values()]
        assert self.form.bare
        assert not any(t.ended or t.traj_id != -1 for t in alive)
        assert len({t.writer for t in alive}) == len(alive)

    @rule(how=slicings)
    def sample_slices(self, how: Slicing) -> None:
        self.slices.sampler = SliceSampler(over=how.over, span=how.span, **how.options())
        for _ in range(4):
            self.slices_of(self.slices, how, self.tape.pieces(), True)

    @rule(how=slicings)
    def sample_slices_with_a_new_reader(self, how: Slicing) -> None:
        sampler = SliceSampler(
            over=how.over, span=how.span, traj_key=self.form.traj_key, **how.options()
        )
        fresh = ReplayBuffer(self.storage, sampler, seed=1)
        self.slices_of(fresh, how, self.tape.pieces(), True)

    @rule(how=slicings, window=windows, inner=st.sampled_from(["rows", "slices"]))
    def sample_window(self, how: Slicing, window: dict[str, int], inner: str) -> None:
        if "max_staleness" in window and not self.form.version:
            return
        bounds: dict[str, Any] = {}
        if "last_rows" in window:
            bounds["min_seq"] = self.tape.head - window["last_rows"]
        if "last_trajectories" in window:
            bounds["min_ordinal"] = self.tape.newest(window["last_trajectories"])
        if "max_staleness" in window:
            bounds["min_version"] = self.tape.max_version - window["max_staleness"]
        pieces = self.tape.pieces(**bounds)
        if inner == "slices":
            sampler = SliceSampler(over=how.over, span=how.span, **how.options())
            self.slices.sampler = WindowSampler(sampler, **window)
            self.slices_of(self.slices, how, pieces, True)
            return
        self.slices.sampler = WindowSampler(**window)
        batch = self.drawn(self.slices, bool(pieces), 5)
        if batch is not None:
            allowed = {s for p in pieces.values() for s in p.seqs}
            seqs = check_plain(batch, self.tape)
            assert len(seqs) == 5 and set(seqs) <= allowed

    @rule()
    def sample_traj_epochs(self) -> None:
        """Each trajectory once: nothing twice before all that are left were drawn."""
        found = self.slices_of(self.traj_epochs, Slicing(4, 2), self.tape.pieces(), False)
        if found is None:
            return
        self.traj_epoch &= set(self.tape.pieces())
        if not self.traj_epoch:
            self.traj_epoch = set(self.tape.pieces())
        assert len(found) == min(2, len(self.traj_epoch))
        for ordinal, _ in found:
            assert ordinal in self.traj_epoch
            self.traj_epoch.remove(ordinal)

    @rule(update=st.lists(st.tuples(numbers, st.sampled_from([0.0, 0.5, 1.0, 3.0])), max_size=5))
    def sample_slices_by_priority(self, update: list[tuple[int, float]]) -> None:
        p = self.set_priorities("slices", self.priority_slices, update)
        how, pieces = Slicing(3, 2), self.tape.pieces()
        starts = {
            piece.seqs[i]
            for piece in pieces.values()
            for i in range(max(len(piece) - 3, 0) + 1)
            if p.get(piece.seqs[i], 0) > 0
        }
        try:
            batch = self.priority_slices.sample()
        except NOTHING as error:
            if "slices need to know" in str(error):
                self.nothing_told()
            else:
                assert not starts
            return
        found = check_slices(batch, self.tape, how, pieces)
        assert len(found) == 2
        q = {s: (x + 1e-8) ** 0.6 for s, x in p.items() if x > 0}
        least, at = min(q.values()), 0
        for ordinal, step in found:
            piece = pieces[ordinal]
            first = piece.seqs[step - piece.start]
            assert first in starts, "a start whose priority is 0"
            weight = (q[first] / least) ** -0.4
            n = min(3, len(piece))
            np.testing.assert_allclose(batch["priority_weight"][at : at + n], weight, rtol=1e-5)
            at += n

    @rule(n=st.integers(1, 3), order=st.sampled_from(["fifo_trajs", "lifo_trajs"]))
    def sample_whole_trajectories(self, n: int, order: str) -> None:
        times = 2 if order == "fifo_trajs" else 1
        counts = self.delivered.setdefault(order, {})
        whole = {o: p for o, p in self.tape.pieces().items() if p.complete}
        due = [o for o in whole for _ in range(times - counts.get(o, 0))]
        due = (due if order == "fifo_trajs" else due[::-1])[:n]
        batch = self.drawn(getattr(self, order), bool(due), n)
        if batch is None:
            return
        found = check_slices(batch, self.tape, Slicing(10**6, n), whole)
        assert [o for o, _ in found] == due
        for o in due:
            counts[o] = counts.get(o, 0) + 1


class SharedBuffers(Buffers):
    """The same over a named segment of shared memory."""

    def storage_of(self, capacity: int) -> contig.Storage:
        return SharedStorage(capacity, ndim=2)


_common = settings(
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestBuffers = Buffers.TestCase
TestBuffers.settings = settings(_common, max_examples=120, stateful_step_count=40)
TestSharedBuffers = SharedBuffers.TestCase
TestSharedBuffers.settings = settings(_common, max_examples=20, stateful_step_count=30)
