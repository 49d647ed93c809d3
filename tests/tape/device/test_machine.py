"""A DeviceStorage and a LazyTensorStorage get the same appends, in every form, and are the same:
rows, episodes, counts, and what samplers with the same seed draw from them. One that is late is the
same after a flush, and until then returns the seqs of the append before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contig import (
    DeviceStorage,
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
)
from contig.testing import episode, interleaved, row

pytest.importorskip("torch")

from tests.tape.device.rows import same, tensors

ends = st.sampled_from(["terminated", "truncated", None])
EPISODE = ["id", "traj_id", "first", "steps", "return", "terminated", "truncated", "trimmed"]
SAMPLERS: dict[str, Any] = {
    "rows": RandomSampler,
    "n steps": lambda: NStepSampler(3, 0.9),
    "priorities": PrioritizedSampler,
    "slices": lambda: SliceSampler(slice_len=3, strict_length=False),
}


class DeviceAndHost(RuleBasedStateMachine):
    late = False

    @initialize(
        capacity=st.integers(1, 40), keep=st.booleans(), sampler=st.sampled_from([*SAMPLERS])
    )
    def begin(self, capacity: int, keep: bool, sampler: str) -> None:
        self.storages = (
            DeviceStorage(capacity, "cpu", late=self.late),
            LazyTensorStorage(capacity, share_next=False, stack={}),
        )
        self.writers = [s.writer() for s in self.storages]
        self.buffers = [
            ReplayBuffer(s, SAMPLERS[sampler](), batch_size=9, seed=1, output="numpy")
            for s in self.storages
        ]
        self.form = tensors if keep else lambda x: x
        self.number, self.open, self.sampler = 0, None, sampler
        self.written = 0
        self.owed: list[int] | None = None  # seqs that the late one has not returned yet

    def both(self, write: Any, at_once: bool = False) -> None:
        one, other = (
            np.asarray(write(writer, form)).tolist()
            for writer, form in zip(self.writers, (self.form, lambda x: x))
        )
        if not self.late or at_once:
            assert one == other
            self.owed = None
        else:
            assert one == (self.owed or [])
            self.owed = other
        self.written += 1

    @rule()
    def flush(self) -> None:
        self.storages[0].flush()
        self.owed = None

    def new(self) -> int:
        self.number += 1
        return self.number

    @rule(length=st.integers(1, 12), end=ends)
    def extend(self, length: int, end: str | None) -> None:
        n = self.new()
        self.both(lambda w, form: w.extend(form(episode(n, length, end=end))))
        self.open = (n, length) if end is None else None

    @precondition(lambda self: self.open is not None)
    @rule(length=st.integers(1, 6), end=ends)
    def go_on(self, length: int, end: str | None) -> None:
        n, start = self.open  # type: ignore[misc]
        self.both(lambda w, form: w.extend(form(episode(n, length, start=start, end=end))))
        self.open = (n, start + length) if end is None else None

    @rule(count=st.integers(1, 4), end=ends)
    def add(self, count: int, end: str | None) -> None:
        n = self.new()
        for t in range(count):
            last = end if t == count - 1 else None
            self.both(lambda w, form, t=t, last=last: w.add(form(row(n, t, end=last))), True)
        self.open = None

    @rule(envs=st.integers(1, 4), length=st.integers(1, 4), end=ends, data=st.data())
    def add_steps(self, envs: int, length: int, end: str | None, data: Any) -> None:
        numbers = [self.new() for _ in range(envs)]
        for step in interleaved(numbers, length, end=end):
            mask = np.array(data.draw(st.lists(st.booleans(), min_size=envs, max_size=envs)))
            if not mask.any():  # nothing is appended, so that nothing is settled
                for writer in self.writers:
                    assert writer.add_step(self.form(step), range(envs), mask).tolist() == []
                continue
            self.both(lambda w, form, s=step, m=mask: w.add_step(form(s), range(envs), m))
        self.open = None

    @rule(length=st.integers(1, 8), truncated=st.booleans())
    def extend_trajectory(self, length: int, truncated: bool) -> None:
        rows = episode(self.new(), length, end=None)
        for flag in ("done", "terminated", "truncated"):
            del rows["next"][flag]
        if self.written == 0:
            rows = episode(self.number, length, end="truncated" if truncated else "terminated")
        how = {"truncated": truncated, "terminated": not truncated}
        self.both(lambda w, form: w.extend_trajectory(form(rows), **how), True)
        self.open = None

    @rule(length=st.integers(1, 5))
    def refused(self, length: int) -> None:
        rows = episode(self.new(), length)
        rows["action"] = np.zeros((length, 7))
        if self.written == 0:
            rows["next"]["done"] = ~rows["next"]["done"]
        for writer, form in zip(self.writers, (self.form, lambda x: x)):
            with pytest.raises(ValueError):
                writer.extend(form(rows))

    @rule()
    def empty(self) -> None:
        self.owed = None
        for buffer in self.buffers:
            buffer.empty()

    @precondition(lambda self: self.written and len(self.storages[0]))
    @rule()
    def sample(self) -> None:
        self.flush()
        one, other = (b.sample() for b in self.buffers)
        same(one, other)
        if self.sampler == "priorities":
            for buffer in self.buffers:
                buffer.update_priority(one["index"], one["next", "reward"] % 5)

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "storages") or self.owed is not None:
            return
        one, other = self.storages
        assert len(one) == len(other)
        assert one.tape.snapshot() == other.tape.snapshot()
        tables = [s.episodes()[EPISODE].tolist() for s in self.storages]
        assert tables[0] == tables[1]
        if len(one):
            head, tail, _, _ = one.tape.snapshot()
            seqs = np.arange(tail, head)
            same(one.gather(seqs)[0], other.gather(seqs)[0])
            assert [b.stats().rows_written for b in self.buffers] == [head, head]

    def teardown(self) -> None:
        for storage in getattr(self, "storages", ()):
            storage.close()


DeviceAndHost.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestDeviceAndHost = DeviceAndHost.TestCase


class LateDeviceAndHost(DeviceAndHost):
    late = True


LateDeviceAndHost.TestCase.settings = DeviceAndHost.TestCase.settings
TestLateDeviceAndHost = LateDeviceAndHost.TestCase
