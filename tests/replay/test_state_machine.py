"""Every sampler over a storage with random writes, against the model of a tape.

Samples must be pieces of exactly one of its trajectories, with exact marks; what is written, and
how it is looked at, is in tests/replay/writes.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

import contig
from contig import (
    EmptyBufferError,
    FifoSampler,
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
from tests.replay.checks import Slicing, check_plain, check_slices
from tests.replay.writes import Writes, forms, numbers
from tests.tape.model import (
    FLAGS,
    Form,
)

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


class Buffers(Writes):
    """Several buffers over one storage: each has its own reader of the index, which follows."""

    @initialize(capacity=st.integers(1, 40), form=forms)
    def begin(self, capacity: int, form: Form) -> None:
        super().begin(capacity, form)
        key = form.traj_key
        self.slices = self.buffer(SliceSampler(slice_len=3, traj_key=key))
        self.retiring = self.buffer(RandomSampler(max_times_sampled=2))
        self.epochs = self.buffer(SamplerWithoutReplacement())
        self.traj_epochs = self.buffer(SliceSamplerWithoutReplacement(slice_len=4, traj_key=key), 8)
        self.prioritized = self.buffer(PrioritizedSampler(alpha=0.7, beta=0.5), 5)
        self.priority_slices = self.buffer(PrioritizedSliceSampler(slice_len=3, traj_key=key), 6)
        self.fifo = self.buffer(FifoSampler(max_times_sampled=2))
        self.lifo = self.buffer(LifoSampler(max_times_sampled=2))
        self.fifo_trajs = self.buffer(FifoSampler(per="trajectories", max_times_sampled=2))
        self.lifo_trajs = self.buffer(LifoSampler(per="trajectories"))
        self.nstep = self.buffer(NStepSampler(3, 0.5))
        self.delivered: dict[str, dict[int, int]] = {}
        self.epoch: set[int] = set()
        self.traj_epoch: set[int] = set()
        self.priority = {"rows": {}, "slices": {}}  # seq -> p
        self.largest = {"rows": 1.0, "slices": 1.0}
        self.stale = 0

    def written(self, seqs: list[int]) -> None:
        for name, p in self.priority.items():
            p |= dict.fromkeys(seqs, self.largest[name])

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
