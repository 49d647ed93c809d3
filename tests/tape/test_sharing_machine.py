"""Storages that store observations once, and one that does not, are given the same: what comes out
must be the same bytes, for every row, sampler and checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contig import (
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SharedStorage,
    SliceSampler,
)
from tests.tape.observations import Env, Form, batch_bytes, stacked

ENVS = 4

forms = st.builds(
    Form,
    frames=st.sampled_from([1, 1, 2, 4]),
    axis=st.sampled_from([0, -1]),
    image=st.booleans(),
    state=st.booleans(),
    below_next=st.sampled_from([True, True, True, False]),
).filter(lambda f: (f.below_next and (f.axis == 0 or f.frames > 1)) or f.frames > 1)


def samplers() -> list[Any]:
    return [
        RandomSampler(),
        PrioritizedSampler(),
        SliceSampler(slice_len=3),
        NStepSampler(3, 0.9),
    ]


class SharingMachine(RuleBasedStateMachine):
    storages: list[Any]

    @initialize(form=forms, capacity=st.sampled_from([1, 3, 8, 50, 300]), seed=st.integers(0, 1000))
    def make(self, form: Form, capacity: int, seed: int) -> None:
        stack = {} if form.frames > 1 and not form.below_next else form.stack
        shared = ("obs", "state") if form.state and form.below_next else ("obs",)
        codecs = dict.fromkeys(shared, "lz4")
        once = True if form.below_next else None
        self.form = form
        self.plain = LazyTensorStorage(capacity, share_next=False, stack={})
        self.storages = [
            self.plain,
            LazyTensorStorage(capacity, stack=form.stack),
            SharedStorage(capacity, share_next=once, stack=stack),
            LazyTensorStorage(capacity, share_next=once, stack=form.stack, codecs=codecs),
        ]
        self.rnd = np.random.default_rng(seed)
        self.envs = [Env(form, i, self.rnd) for i in range(ENVS)]
        self.alone = [Env(form, ENVS + i, self.rnd) for i in range(3)]
        self.writers = [[s.writer() for _ in range(3)] for s in self.storages]
        self.written = 0

    def teardown(self) -> None:
        for storage in getattr(self, "storages", []):
            storage.close()

    def _all(self, call: Any) -> None:
        for storage, writers in zip(self.storages, self.writers):
            call(storage, writers)
        self.written += 1

    @rule(which=st.integers(0, 2), n=st.integers(1, 4), end=st.booleans())
    def add(self, which: int, n: int, end: bool) -> None:
        for i in range(n):
            row = self.alone[which].row(end and i == n - 1)
            self._all(lambda _, writers, row=row: writers[which].add(row))

    @rule(n=st.integers(1, 5), ends=st.lists(st.booleans(), min_size=ENVS, max_size=ENVS))
    def add_step(self, n: int, ends: list[bool]) -> None:
        for i in range(n):
            last = i == n - 1
            step = stacked([env.row(end and last) for env, end in zip(self.envs, ends)])
            self._all(lambda s, _, step=step: s.default_writer.add_step(step))

    @rule(which=st.integers(0, 2), n=st.integers(1, 90), end=st.booleans())
    def extend(self, which: int, n: int, end: bool) -> None:
        rows = stacked([self.alone[which].row(end and i == n - 1) for i in range(n)])
        self._all(lambda _, writers: writers[which].extend(rows))

    @rule(n=st.integers(1, 12))
    def extend_trajectory(self, n: int) -> None:
        env = Env(self.form, 99, self.rnd)
        rows = stacked([env.row() for i in range(n)])
        self._all(lambda s, _: s.default_writer.extend_trajectory(rows, truncated=True))

    @rule()
    def clear(self) -> None:
        self._all(lambda s, _: s.empty())

    @rule(which=st.integers(0, 2))
    def new_writer(self, which: int) -> None:
        for storage, writers in zip(self.storages, self.writers):
            writers[which] = storage.writer()
        self.alone[which] = Env(self.form, 10 + which, self.rnd)

    @rule(seed=st.integers(0, 99))
    def sample(self, seed: int) -> None:
        if not len(self.plain):
            return
        for each in zip(*(samplers() for _ in self.storages)):
            got = []
            for storage, sampler in zip(self.storages, each):
                buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=6, seed=seed)
                try:
                    got.append(batch_bytes(buffer.sample()))
                except (RuntimeError, ValueError) as error:  # nothing that is long enough
                    got.append({"error": type(error).__name__.encode()})
            assert all(x == got[0] for x in got)

    @invariant()
    def same_rows(self) -> None:
        if not getattr(self, "written", 0) or not len(self.plain):
            return
        head, tail, _, _ = self.plain.tape.snapshot()
        seqs = np.arange(tail, head)
        expected = batch_bytes(self.plain.gather(seqs)[0])
        for storage in self.storages[1:]:
            assert storage.tape.snapshot() == self.plain.tape.snapshot()
            assert batch_bytes(storage.gather(seqs)[0]) == expected
            assert storage.schema.sharing is not None or not self.form.below_next
            records = np.empty(len(seqs) * storage.tape.record_size, np.uint8)
            assert storage.tape.gather_records(seqs, records) == 0


TestSharing = SharingMachine.TestCase
TestSharing.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
