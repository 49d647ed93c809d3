"""Prefetching, feeding, and waiting: nothing stale, nothing lost, nobody waits for nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from contig import (
    EmptyBufferError,
    FifoSampler,
    LazyTensorStorage,
    NothingEligibleError,
    ReplayBuffer,
    SliceSampler,
)
from tests.tape.rows import row, rows

PATIENCE_S = 6  # of a join that should return at once; only a failing test waits for it


class Call:
    """A call in a thread, with its result or its error."""

    def __init__(self, work):
        self.value = self.error = None

        def run():
            try:
                self.value = work()
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    @property
    def ended(self):
        self.thread.join(PATIENCE_S)
        return not self.thread.is_alive()


def filled(n=20, **options):
    options.setdefault("batch_size", 4)
    buffer = ReplayBuffer(LazyTensorStorage(50), seed=0, **options)
    buffer.extend(rows(range(n), "." * n))
    return buffer


def test_prefetched_batches_are_those_of_the_seed():
    plain, ahead = filled(), filled(prefetch=3)
    for _ in range(10):
        assert plain.sample()["index"].tolist() == ahead.sample()["index"].tolist()
    ahead.close()


def test_another_batch_size_is_drawn_aside():
    buffer = filled(prefetch=2)
    assert len(buffer.sample()) == 4 and len(buffer.sample(7)) == 7 and len(buffer.sample(4)) == 4
    buffer.close()


def test_prefetched_fifo_batches_keep_their_order():
    buffer = filled(prefetch=3, sampler=FifoSampler(), batch_size=3)
    got = [u for _ in range(6) for u in buffer.sample()["uid"].tolist()]
    assert got == list(range(18))
    buffer.close()


def test_saving_takes_back_what_was_drawn_ahead(tmp_path):
    buffer = filled(prefetch=3, sampler=FifoSampler(), batch_size=3)
    assert buffer.sample()["uid"].tolist() == [0, 1, 2]
    buffer.save(tmp_path / "c")
    assert buffer.sample()["uid"].tolist() == [3, 4, 5]
    other = ReplayBuffer(LazyTensorStorage(50), FifoSampler(), batch_size=3, prefetch=3)
    other.load(tmp_path / "c")
    assert other.sample()["uid"].tolist() == [3, 4, 5]
    for b in (buffer, other):
        b.close()


def test_an_error_of_the_prefetcher_is_raised_and_it_goes_on():
    buffer = ReplayBuffer(LazyTensorStorage(50), batch_size=2, prefetch=2, seed=0)
    with pytest.raises(EmptyBufferError):
        buffer.sample()
    buffer.extend(rows(range(3), "..."))
    for _ in range(6):
        try:
            batch = buffer.sample()
            break
        except EmptyBufferError:  # drawn ahead, before the rows came
            continue
    assert set(batch["uid"].tolist()) <= {0, 1, 2}
    buffer.close()


def test_a_closed_buffer_with_a_prefetcher():
    buffer = filled(prefetch=2)
    buffer.sample()
    buffer.close()
    buffer.close()
    with pytest.raises(RuntimeError, match="closed"):
        buffer.sample()


def test_empty_throws_away_what_was_drawn_ahead():
    for sampler in (None, SliceSampler(slice_len=2)):
        buffer = filled(prefetch=3, sampler=sampler)
        for generation in range(1, 8):
            buffer.sample()
            buffer.empty()
            base = 100 * generation
            buffer.extend(rows(range(base, base + 6), "." * 6))
            for _ in range(4):
                assert buffer.sample()["uid"].min() >= base
        buffer.close()


def test_two_threads_waiting_on_a_failing_prefetcher_both_hear_of_it():
    """Not only the one whose turn it was, leaving the other waiting for ever."""
    both_wait = threading.Event()

    def check():
        both_wait.wait(PATIENCE_S)
        raise ConnectionError("the feeder died")

    buffer = ReplayBuffer(LazyTensorStorage(50), batch_size=2, prefetch=1)
    buffer.feed(check)
    calls = [Call(buffer.sample) for _ in range(2)]
    waiting(calls)
    both_wait.set()
    assert all(c.ended for c in calls), "a sampler waits for a thread that is gone"
    assert all(isinstance(c.error, ConnectionError) for c in calls)


def waiting(calls):
    """Gives threads that are about to wait the time to do so; more than they need."""
    for c in calls:
        c.thread.join(0.2)
        assert c.thread.is_alive()


def test_empty_while_another_thread_waits_for_a_sample():
    """The waiter gets a batch of what comes after, or an error; it does not wait for ever."""

    class Slow:
        def __init__(self):
            self.drawing, self.release = threading.Event(), threading.Event()

        def on_sample(self, batch):
            self.drawing.set()
            self.release.wait(PATIENCE_S)
            return batch

    for _ in range(6):
        slow = Slow()
        buffer = filled(prefetch=1, transform=slow)
        sampling = Call(buffer.sample)
        assert slow.drawing.wait(PATIENCE_S)
        emptying = Call(buffer.empty)
        waiting([emptying])
        slow.release.set()
        assert emptying.ended
        buffer.extend(rows(range(3), "..."))
        assert sampling.ended, "the waiter was forgotten"


@pytest.mark.parametrize("method", ["close", "empty"])
def test_a_waiting_prefetcher_does_not_hold_up(method):
    """A feeder that is slow: close and empty do not wait for its rows."""
    buffer = ReplayBuffer(
        LazyTensorStorage(50),
        FifoSampler(),
        batch_size=2,
        prefetch=1,
        sample_timeout_s=3 * PATIENCE_S,
    )
    asked = threading.Event()
    buffer.feed(asked.set)
    buffer.extend(rows(range(2), ".."))
    buffer.sample()
    assert asked.wait(PATIENCE_S)  # the prefetcher now waits for more
    call = Call(getattr(buffer, method))
    ended = call.ended
    buffer.storage.writer().extend(rows(range(2), ".."))  # lets it go in any case
    assert ended and call.error is None


# -- feeding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_fed_buffer_waits_for_the_first_rows(prefetch):
    buffer = ReplayBuffer(LazyTensorStorage(50), batch_size=2, prefetch=prefetch)
    checks = []
    buffer.feed(lambda: checks.append(1))
    call = Call(buffer.sample)
    waiting([call])
    buffer.add(row(7, "."))
    assert call.ended and call.value["uid"].tolist() == [7, 7]
    assert checks, "the feeder is asked while waiting"
    buffer.close()


def test_a_fed_buffer_waits_for_drawable_rows():
    buffer = ReplayBuffer(LazyTensorStorage(50), SliceSampler(slice_len=2, complete_only=True))
    buffer.feed(lambda: None)
    call = Call(lambda: buffer.sample(2))
    buffer.add(row(0, "."))
    waiting([call])
    buffer.add(row(1, "t"))
    assert call.ended and call.value["uid"].tolist() == [0, 1]


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_dead_feeder_raises_its_own_error(prefetch):
    def check():
        raise ChildProcessError("worker 3 died")

    buffer = ReplayBuffer(LazyTensorStorage(50), batch_size=2, prefetch=prefetch)
    buffer.feed(check)
    call = Call(buffer.sample)
    assert call.ended and isinstance(call.error, ChildProcessError)
    assert "worker 3 died" in str(call.error)
    assert call.error.__traceback__ is not None


def test_the_timeout_says_what_was_missing():
    buffer = ReplayBuffer(LazyTensorStorage(50), batch_size=2, sample_timeout_s=0.05)
    buffer.feed(lambda: None)
    with pytest.raises(EmptyBufferError, match=r"0\.05 s.*empty"):
        buffer.sample()
    slices = ReplayBuffer(
        buffer.storage,
        SliceSampler(slice_len=5, strict_length=True),
        batch_size=5,
        sample_timeout_s=0.05,
    )
    slices.feed(lambda: None)
    buffer.extend(rows(range(3), "..t"))
    with pytest.raises(NothingEligibleError, match=r"0\.05 s.*longest with 3"):
        slices.sample()


def test_when_the_feeding_ends_an_empty_buffer_raises_at_once():
    buffer = ReplayBuffer(LazyTensorStorage(50), batch_size=2, sample_timeout_s=3 * PATIENCE_S)
    stop = buffer.feed(lambda: None)
    stop()
    call = Call(buffer.sample)
    assert call.ended and isinstance(call.error, EmptyBufferError)


def test_samples_under_a_fast_writer_are_whole():
    """A ring that is overwritten all the time: rows and slices are never mixed."""
    storage = LazyTensorStorage(64)
    plain = ReplayBuffer(storage, batch_size=32, prefetch=2)
    slices = ReplayBuffer(storage, SliceSampler(slice_len=4), batch_size=32)
    storage.writer().extend(rows(range(64), "." * 63 + "t"))
    stop = threading.Event()

    def write():
        writer, uid = storage.writer(), 1000
        while not stop.is_set():
            writer.extend(rows(range(uid, uid + 48), "." * 47 + "t"))
            uid += 48

    writing = Call(write)
    try:
        for _ in range(150):
            for buffer in (plain, slices):
                batch = buffer.sample()
                uid = batch["uid"]
                np.testing.assert_array_equal(batch["obs"][:, 0], uid.astype(np.float32))
                np.testing.assert_array_equal(batch["next", "obs"][:, 0], uid.astype(np.float32))
            gap = np.diff(batch["uid"])
            inside = ~batch["is_init"][1:]
            assert (gap[inside] == 1).all()
            assert (np.diff(batch["index"])[inside] == 1).all()
    finally:
        stop.set()
        assert writing.ended and writing.error is None
        plain.close()
