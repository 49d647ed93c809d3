"""Writers that go round the ring while a reader gathers: it takes the lock after a few tries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, RandomSampler, ReplayBuffer, SliceSampler
from contig.sample import Draw, Index, Request, Rng, Sampler

CAPACITY, EPISODE = 12, 4
MOST_DRAWS = 5


class Writer:
    """A thread that writes one ring of rows whenever it is told to."""

    def __init__(self, storage: LazyTensorStorage) -> None:
        self.storage = storage
        self.written = 0
        self.go, self.done = threading.Event(), threading.Event()
        self.stopped = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        writer = self.storage.writer()
        while True:
            self.go.wait()
            self.go.clear()
            if self.stopped:
                return
            n = self.written + np.arange(CAPACITY)
            ends = n % EPISODE == EPISODE - 1
            # A row's numbers are its own: its seq, everywhere.
            writer.extend(
                {
                    "seq": n,
                    "wide": np.repeat(n[:, None], 2_000, 1),
                    "next": {"done": ends, "terminated": ends, "truncated": ends & False},
                }
            )
            self.written += CAPACITY
            self.done.set()

    def lap(self, patience_s: float) -> bool:
        """Has it write; False if it has not been able to within that time."""
        self.done.clear()
        self.go.set()
        return self.done.wait(patience_s)

    def stop(self) -> None:
        self.stopped = True
        self.go.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


class Lapped(Sampler):
    """Another sampler, whose rows are evicted between every draw and its gather, unless the lock
    keeps the writer out."""

    def __init__(self, sampler: Sampler, writer: Writer) -> None:
        self.sampler, self.writer = sampler, writer
        self.draws = 0
        self.kept_out = 0

    def request(self, batch_size: int) -> Request:
        return self.sampler.request(batch_size)

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        self.draws += 1
        found = self.sampler.draw(index, rng, request)
        if not self.writer.lap(1.0):
            self.kept_out += 1
        return found


@pytest.fixture
def writer() -> Iterator[Writer]:
    with LazyTensorStorage(CAPACITY) as storage:
        writer = Writer(storage)
        assert writer.lap(60)
        yield writer
        writer.stop()


@pytest.mark.parametrize(
    ("sampler", "batch_size"),
    [(RandomSampler(), 5), (SliceSampler(slice_len=3), 6)],
    ids=["rows", "slices"],
)
def test_a_lapped_reader_takes_the_lock_after_a_few_tries(
    writer: Writer, sampler: Any, batch_size: int
) -> None:
    lapped = Lapped(sampler, writer)
    buffer = ReplayBuffer(writer.storage, lapped, batch_size=batch_size, seed=0)
    batch = buffer.sample()
    assert lapped.draws <= MOST_DRAWS, f"{lapped.draws} draws for one batch"
    assert lapped.kept_out == 1, "the last draw keeps writers out"
    assert len(batch) == batch_size
    index = batch["index"]
    assert batch["seq"].tolist() == index.tolist()
    assert (batch["wide"] == index[:, None]).all()
    assert writer.done.wait(60), "the writer goes on afterwards"
