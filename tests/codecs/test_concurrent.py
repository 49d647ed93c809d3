"""Leaves with codecs under damage, threads that overwrite, and other processes."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contig import (
    CodecError,
    FifoSampler,
    LazyTensorStorage,
    NStepSampler,
    RandomSampler,
    ReplayBuffer,
    SharedStorage,
    SliceSampler,
    TrajectorySampler,
)
from contig.tape.decoding import stored_bytes
from tests.codecs.frames import check, codecs, pixels, rows


@pytest.mark.parametrize("name", ["zstd", "lz4", "png", "qoi"])
def test_damaged_bytes_are_an_error_that_names_the_leaf(name):
    storage = LazyTensorStorage(8, codecs={"pixels": name}, blob_bytes=1 << 16)
    buffer = ReplayBuffer(storage, batch_size=8, seed=0)
    buffer.extend(rows(np.arange(8)))
    check(buffer.sample())
    offset, size = storage.tape.blob_range
    memory = storage._segment.map_data(offset, size)
    memory[:] = 0
    with pytest.raises(CodecError, match=r'"pixels"\)?: row \d of 8'):
        buffer.sample()


@pytest.mark.parametrize("name", ["zstd", "lz4", "png", "qoi"])
@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler,
        FifoSampler,
        lambda: NStepSampler(2, 0.9),
        lambda: SliceSampler(slice_len=2),
        lambda: TrajectorySampler(2),
    ],
)
def test_samples_go_without_rows_that_cannot_be_decoded(name, sampler, caplog):
    storage = LazyTensorStorage(40, codecs=codecs(name), blob_bytes=1 << 18)
    buffer = ReplayBuffer(storage, sampler(), batch_size=2, seed=0)
    for first in range(0, 40, 4):
        buffer.extend_trajectory(rows(np.arange(first, first + 4)), terminated=True)
    offset, _ = storage.tape.blob_range
    size = sum(len(stored_bytes(storage, x, np.arange(12)).values) for x in codecs(name))
    storage._segment.map_data(offset, size)[:] = 7  # the first three trajectories
    seen = set()
    for _ in range(14):
        batch = buffer.sample()
        assert np.array_equal(batch["pixels"], pixels(batch["t"]))
        seen |= set(batch["index"].tolist())
    assert seen and min(seen) >= 12
    assert 0 < storage.undecodable <= 12
    assert "cannot be decoded, and samples go without them" in caplog.text
    with pytest.raises(CodecError, match="row 0 of 1"):
        buffer[[3]]
    buffer.extend(rows(np.arange(40, 52)))  # they are evicted, and forgotten
    assert storage.undecodable == 0


@pytest.mark.parametrize("sampler", [RandomSampler, lambda: NStepSampler(3, 0.9), None])
def test_rows_that_are_overwritten_meanwhile_are_never_mixed(sampler):
    make = sampler or (lambda: SliceSampler(slice_len=4))
    storage = LazyTensorStorage(64, example=rows(0), codecs=codecs("lz4"), blob_bytes=24_000)
    buffer = ReplayBuffer(storage, make(), batch_size=16, seed=0)
    stop = threading.Event()
    failures = []

    def write():
        first = 0
        writer = storage.writer()
        try:
            while not stop.is_set():
                n = np.arange(first, first + 8)
                writer.extend(rows(n, n % 8 == 7))
                first += 8
        except BaseException as error:
            failures.append(error)

    buffer.extend(rows(np.arange(8), np.arange(8) == 7))
    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(150):
            batch = buffer.sample()
            if sampler is not None and "steps_to_next_obs" in batch:
                assert np.array_equal(batch["pixels"], pixels(batch["t"]))
                last = batch["t"] + batch["steps_to_next_obs"]
                assert np.array_equal(batch["next", "pixels"], pixels(last))
            else:
                check(batch)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def _write(storage, first, told):
    buffer = ReplayBuffer(storage, batch_size=4)
    buffer.extend(rows(np.arange(first, first + 20)))
    check(buffer.sample())
    told.put(True)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", [LazyTensorStorage, SharedStorage])
def test_other_processes_write_and_read_encoded_rows(kind, method):
    context = multiprocessing.get_context(method)
    with kind(80, codecs=codecs("zstd")) as storage:
        told = context.Queue()
        # The first writer is another process: it knows the codecs.
        children = [context.Process(target=_write, args=(storage, 0, told))]
        children[0].start()
        assert told.get(timeout=60)
        buffer = ReplayBuffer(storage, batch_size=8, seed=0)
        assert {c.name for c in storage.codecs.values()} == {"zstd"}
        check(buffer.sample())
        children.append(context.Process(target=_write, args=(storage, 20, told)))
        children[1].start()
        assert told.get(timeout=60)
        buffer.extend(rows(np.arange(40, 60)))
        everything = buffer[:]
        assert sorted(everything["t"].tolist()) == list(range(60))
        check(everything)
        for child in children:
            child.join(60)
            assert child.exitcode == 0


class CodedTape(RuleBasedStateMachine):
    """A small ring of rows and a small ring of bytes beside a list."""

    @initialize(name=st.sampled_from(["zstd", "lz4", "png", "qoi"]))
    def start(self, name):
        storage = LazyTensorStorage(
            12, ndim=2, example=rows(0), codecs=codecs(name), blob_bytes=4500
        )
        self.buffer = ReplayBuffer(storage, SliceSampler(slice_len=2), batch_size=4, seed=0)
        self.written = 0

    def numbers(self, n):
        self.written += n
        return np.arange(self.written - n, self.written)

    @rule(done=st.booleans())
    def add(self, done):
        self.buffer.add(rows(self.numbers(1)[0], done))

    @rule(n=st.integers(1, 7), done=st.booleans())
    def extend(self, n, done):
        numbers = self.numbers(n)
        self.buffer.extend(rows(numbers, (numbers == numbers[-1]) & done))

    @rule(lanes=st.integers(1, 3), n=st.integers(1, 3))
    def extend_lanes(self, lanes, n):
        self.buffer.extend(rows(self.numbers(lanes * n).reshape(lanes, n)))

    @rule(n=st.integers(1, 15))
    def trajectory(self, n):
        self.buffer.extend_trajectory(rows(self.numbers(n)), truncated=True)

    @rule(n=st.integers(1, 5))
    def refused(self, n):
        wrong = {**rows(np.arange(n)), "pixels": np.zeros((n, 1, 1, 3), np.uint8)}
        with pytest.raises(ValueError, match='"pixels"'):
            self.buffer.extend(wrong)

    @rule()
    def sample(self):
        try:
            check(self.buffer.sample())
        except (RuntimeError, ValueError) as error:
            assert not isinstance(error, CodecError), error  # too little is stored

    @rule()
    def empty(self):
        self.buffer.empty()

    @invariant()
    def everything_is_what_was_written_last(self):
        if not self.written or not len(self.buffer):
            return
        stored = self.buffer[:]
        check(stored)
        n = len(stored)
        assert n <= 12
        assert stored["t"].tolist() == list(range(self.written - n, self.written))
        for episode in self.buffer.storage.episodes():
            check(self.buffer.storage.read_episode(episode["id"]))


TestCodedTape = CodedTape.TestCase
TestCodedTape.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
