"""RateLimiter: its arithmetic, its waits between threads and processes, its errors."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest

import contig
from contig import RateLimiter, RateLimitError, ReplayBuffer
from contig.sample import Draw, Index, Request, Rng
from contig.testing import episode, row
from tests.waiting import WAIT_S


def buffer_with(limiter: RateLimiter, storage: Any = None) -> ReplayBuffer:
    storage = contig.LazyTensorStorage(10_000) if storage is None else storage
    return ReplayBuffer(storage, batch_size=1, limiter=limiter, seed=0)


class Model:
    """What the limiter promises, in the words of its documentation."""

    def __init__(self, samples_per_insert: float, min_size: int, error_buffer: float) -> None:
        self.ratio, self.min_size, self.error = samples_per_insert, min_size, error_buffer
        self.inserted = self.sampled = 0

    def within(self, inserted: int, sampled: int) -> tuple[bool, bool]:
        drift = inserted * self.ratio - sampled - self.min_size * self.ratio
        return drift >= -self.error, drift <= self.error

    def may_sample(self, rows: int) -> bool:
        return self.inserted >= self.min_size and self.within(self.inserted, self.sampled + rows)[0]

    def may_insert(self, rows: int) -> bool:
        after = self.inserted + rows
        return after <= self.min_size or self.within(after, self.sampled)[1]


@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("min_size", [1, 7])
@pytest.mark.parametrize("error", [None, 20.0])
def test_arithmetic(ratio: float, min_size: int, error: float | None) -> None:
    limiter = RateLimiter(ratio, min_size, error, block=False)
    buffer = buffer_with(limiter)
    model = Model(ratio, min_size, limiter.error_buffer)
    rng = np.random.default_rng(0)
    outcomes = set()
    # Batches larger than the whole allowance are another test.
    largest = max(int(limiter.error_buffer), 1)
    for turn in range(300):
        if rng.random() < (0.9 if turn // 40 % 2 == 0 else 0.1):  # writers ahead, then samplers
            n = int(rng.integers(1, int(largest / ratio) + 1))
            may = model.may_insert(n)
            if may:
                buffer.extend(episode(0, n))
                model.inserted += n
            else:
                with pytest.raises(RateLimitError, match=f"cannot insert {n} rows"):
                    buffer.extend(episode(0, n))
            outcomes.add(("insert", may))
        else:
            n = int(rng.integers(1, largest + 1))
            may = model.may_sample(n)
            if may:
                assert len(buffer.sample(n)) == n
                model.sampled += n
            else:
                with pytest.raises(RateLimitError, match=f"cannot sample {n} rows"):
                    buffer.sample(n)
            outcomes.add(("sample", may))
        tape = buffer.storage.tape
        assert (tape.inserted, tape.sampled) == (model.inserted, model.sampled)
    assert len(outcomes) == 4


def test_nothing_is_sampled_before_min_size() -> None:
    buffer = buffer_with(RateLimiter(100.0, min_size=5, error_buffer=1000, block=False))
    for n in range(4):
        buffer.add(row(n, 0, end="terminated"))
        with pytest.raises(RateLimitError, match="writers are behind"):
            buffer.sample()
    buffer.add(row(4, 0, end="terminated"))
    buffer.sample()


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 2.5, 8.0])
def test_inserts_and_samples_of_one_row_never_deadlock(ratio: float) -> None:
    buffer = buffer_with(RateLimiter(ratio, min_size=3, block=False))
    done = refused = 0
    while done < 300 and refused < 2:
        for step in (lambda: buffer.add(row(0, 0, end="terminated")), buffer.sample):
            try:
                step()
                done, refused = done + 1, 0
            except RateLimitError:
                refused += 1
    assert done >= 300


@pytest.mark.parametrize("rows", [50, 200])
def test_a_batch_larger_than_the_allowance_is_no_deadlock(rows: int) -> None:
    buffer = buffer_with(RateLimiter(1.0, min_size=1, error_buffer=8, block=False))
    sampled = inserted = stuck = 0
    while sampled < 5 and stuck < 2:
        stuck += 1
        try:
            while True:
                buffer.add(row(0, 0, end="terminated"))
                inserted += 1
                stuck = 0
        except RateLimitError:
            pass
        try:
            buffer.sample(rows)
            sampled += 1
            stuck = 0
        except RateLimitError:
            pass
    assert sampled == 5
    # In the long run the proportion holds.
    assert inserted >= rows * (sampled - 1) - 16


def test_every_way_of_writing_is_limited_by_its_rows() -> None:
    def fresh() -> ReplayBuffer:
        return buffer_with(RateLimiter(1.0, min_size=1, error_buffer=2, block=False))

    for name, data, rows in (
        ("extend", episode(0, 4), 4),
        ("add_step", episode(0, 4), 4),
        ("extend_trajectory", episode(0, 4), 4),
    ):
        buffer = fresh()
        with pytest.raises(RateLimitError, match=f"insert {rows} rows"):
            for _ in range(4):
                getattr(buffer, name)(data)
        assert buffer.storage.tape.inserted == len(buffer)


def test_rows_with_a_transform_are_limited_too() -> None:
    limiter = RateLimiter(1.0, min_size=1, error_buffer=2, block=False)
    buffer = ReplayBuffer(
        contig.LazyTensorStorage(100), batch_size=1, limiter=limiter, transform=lambda b: b
    )
    with pytest.raises(RateLimitError):
        for n in range(10):
            buffer.add(row(n, 0, end="terminated"))
    assert len(buffer) == 3


def test_a_refused_append_is_not_counted() -> None:
    buffer = buffer_with(RateLimiter(1.0, min_size=1, error_buffer=10, block=False))
    buffer.extend(episode(0, 3))
    with pytest.raises(ValueError):
        buffer.extend({**episode(0, 3), "action": np.zeros(2)})
    assert buffer.storage.tape.inserted == 3


def test_deadline_says_what_was_waited_for() -> None:
    buffer = buffer_with(RateLimiter(2.0, min_size=4, timeout_s=0.05))
    buffer.extend(episode(0, 2))
    with pytest.raises(RateLimitError) as caught:
        buffer.sample()
    text = str(caught.value)
    for part in (
        "cannot sample 1 rows within 0.05 s",
        "writers are behind",
        "2 rows inserted",
        "0 sampled",
        "2.0 samples per insert",
        "min_size 4",
        "error_buffer 2.0",
    ):
        assert part in text, text
    assert isinstance(caught.value, TimeoutError)
    buffer.extend(episode(0, 3))
    with pytest.raises(RateLimitError, match="cannot insert 1 rows within 0.05 s: samplers are"):
        buffer.add(row(0, 0))


@pytest.mark.parametrize(
    "arguments",
    [(0,), (-1.0,), (1.0, 0), (1.0, 1, 0.5), (4.0, 1, 3.0), (float("nan"),), (float("inf"),)],
)
def test_arguments_that_make_no_sense(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):
        RateLimiter(*arguments)


# -- threads --------------------------------------------------------------------------------------


def run(*functions: Any) -> None:
    """Runs functions in threads to their end; raises what one of them raised."""
    failed: list[BaseException] = []

    def guarded(f: Any) -> None:
        try:
            f()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(f,), daemon=True) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join(WAIT_S)
        assert not t.is_alive(), "a thread still waits"
    if failed:
        raise failed[0]


def test_threads_wait_for_each_other() -> None:
    limiter = RateLimiter(2.0, min_size=5, error_buffer=6, timeout_s=WAIT_S)
    buffer = buffer_with(limiter)
    drifts: list[float] = []

    def write() -> None:
        for n in range(140):
            buffer.add(row(n, 0, end="terminated"))
            drifts.append(limiter.drift(buffer.storage))

    def read() -> None:
        for _ in range(90):
            buffer.sample(3)
            drifts.append(limiter.drift(buffer.storage))

    run(write, read)
    assert buffer.storage.tape.inserted == 140
    assert buffer.storage.tape.sampled == 270
    # One thread of each kind: neither bound is ever passed (below min_size there is no lower one).
    assert max(drifts) <= 6
    assert min(drifts[5:]) >= -6


class Gated(contig.RandomSampler):
    """Stops in its draws until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        self.entered.release()
        assert self.go.acquire(timeout=WAIT_S)
        return super().draw(index, rng, request)


def test_two_samplers_do_not_share_one_allowance() -> None:
    # The second asks after the first was let through and before it has its rows.
    limiter = RateLimiter(1.0, min_size=4, error_buffer=4, block=False)
    sampler = Gated()
    buffer = ReplayBuffer(contig.LazyTensorStorage(100), sampler, limiter=limiter, seed=0)
    buffer.extend(episode(0, 4))
    got: list[str] = []

    def read() -> None:
        try:
            buffer.sample(4)
            got.append("rows")
        except RateLimitError:
            got.append("error")

    def second() -> None:
        assert sampler.entered.acquire(timeout=WAIT_S)
        letting_go = threading.Timer(0.2, sampler.go.release, (2,))
        letting_go.start()
        read()
        letting_go.join()

    run(read, second)
    assert limiter.drift(buffer.storage) >= -4, "both samplers used the same 4 rows of allowance"
    assert sorted(got) == ["error", "rows"]


# -- processes ------------------------------------------------------------------------------------


def _feed(storage: Any, rows: int, pipe: Any) -> None:
    limiter = RateLimiter(1.0, min_size=4, error_buffer=4, timeout_s=WAIT_S)
    buffer = ReplayBuffer(storage, batch_size=1, limiter=limiter)
    pipe.send("started")
    for n in range(rows):
        buffer.add(row(n, 0, end="terminated"))
    pipe.send((storage.tape.inserted, storage.tape.sampled))


def test_processes_wait_for_each_other() -> None:
    context = multiprocessing.get_context("spawn")
    with contig.SharedStorage(1000, example=row(0, 0)) as storage:
        limiter = RateLimiter(1.0, min_size=4, error_buffer=4, timeout_s=WAIT_S)
        buffer = buffer_with(limiter, storage)
        mine, theirs = context.Pipe()
        process = context.Process(target=_feed, args=(storage, 60, theirs), daemon=True)
        process.start()
        assert mine.poll(WAIT_S) and mine.recv() == "started"
        # The writer cannot end before we sample: it may be ahead by 4 + 4 rows at most.
        for _ in range(30):
            buffer.sample(2)
            assert storage.tape.inserted <= storage.tape.sampled + 8
            assert storage.tape.sampled <= storage.tape.inserted
        assert mine.poll(WAIT_S)
        inserted, sampled = mine.recv()
        process.join(WAIT_S)
        assert process.exitcode == 0
        assert (inserted, storage.tape.inserted) == (60, 60)
        assert 0 < sampled <= storage.tape.sampled == 60
