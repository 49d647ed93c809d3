"""Batches drawn ahead: failures, stale verdicts, and calls that must not hang."""

from __future__ import annotations

import threading
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import (
    ClosedError,
    EmptyBufferError,
    FifoSampler,
    NothingEligibleError,
    RandomSampler,
    RateLimiter,
    ReplayBuffer,
)
from contig.sample import Draw, Index, Request, Rng
from contig.testing import World, episode
from tests.replay.checkpoint.buffers import filled, images
from tests.waiting import Task, until


class Faulty(RandomSampler):
    """Fails in some of its draws."""

    def __init__(self, *failing: int) -> None:
        super().__init__()
        self.failing, self.draws = failing, 0

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        self.draws += 1
        if self.draws in self.failing:
            raise ZeroDivisionError(f"draw {self.draws} is broken")
        return super().draw(index, rng, request)


class Gated(RandomSampler):
    """Stops in its draws until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        self.entered.release()
        assert self.go.acquire(timeout=60)
        return super().draw(index, rng, request)


def buffer_with(sampler: Any, prefetch: int = 2, **options: Any) -> ReplayBuffer:
    world = filled()
    return ReplayBuffer(world.storage, sampler, batch_size=4, prefetch=prefetch, seed=0, **options)


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 4])
def test_failure_is_raised_in_its_turn_with_its_traceback(prefetch: int) -> None:
    buffer = buffer_with(Faulty(3), prefetch)
    expected = images(buffer_with(Faulty(), 0), 4)
    assert images(buffer, 2) == expected[:2]
    with pytest.raises(ZeroDivisionError, match="draw 3 is broken") as caught:
        buffer.sample()
    lines = "".join(traceback.format_tb(caught.value.__traceback__))
    assert "in draw" in lines and "raise ZeroDivisionError" in lines
    # The next call draws again; nothing was lost.
    assert images(buffer, 2) == expected[2:]
    buffer.close()


def test_every_failure_is_raised() -> None:
    buffer = buffer_with(Faulty(1, 2, 4), 3)
    outcomes: list[Any] = []
    for _ in range(6):
        try:
            outcomes.append(len(buffer.sample()))
        except ZeroDivisionError as error:
            outcomes.append(str(error))
    assert outcomes == ["draw 1 is broken", "draw 2 is broken", 4, "draw 4 is broken", 4, 4]
    buffer.close()


def test_failure_of_a_transform_is_raised() -> None:
    class Broken:
        def on_sample(self, batch: Any) -> Any:
            raise LookupError("no such statistics")

    buffer = buffer_with(RandomSampler(), 2, transform=Broken())
    for _ in range(3):
        with pytest.raises(LookupError, match="no such statistics"):
            buffer.sample()
    buffer.close()


def test_failure_outside_the_draw_is_raised_too() -> None:
    class Markless(RandomSampler):
        def mark(self) -> Any:
            raise ZeroDivisionError("no mark")

    buffer = buffer_with(Markless())
    call = Task(buffer.sample)
    assert call.ends(3), "sample() waits for a thread that has died"
    assert isinstance(call.error, ZeroDivisionError)


def test_empty_buffer_says_so_and_recovers() -> None:
    buffer = ReplayBuffer(contig.LazyTensorStorage(50), batch_size=4, prefetch=3, seed=0)
    for _ in range(3):
        with pytest.raises(EmptyBufferError):
            buffer.sample()
    buffer.extend(episode(0, 9))
    assert len(buffer.sample()) == 4
    buffer.close()


class Watched(FifoSampler):
    """Says when it found nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.empty_handed = 0

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        found = super().draw(index, rng, request)
        self.empty_handed += found is None
        return found


def test_rows_that_came_after_the_thread_looked_are_found() -> None:
    # The thread ran dry while it drew ahead. That is no error of this sample.
    world = World(contig.LazyTensorStorage(50))
    world.extend(4)
    sampler = Watched()
    buffer = ReplayBuffer(world.storage, sampler, batch_size=4, prefetch=2, seed=0)
    assert buffer.sample()["index"].tolist() == [0, 1, 2, 3]
    until(lambda: sampler.empty_handed >= 2, "the thread has run dry")
    world.extend(4)
    assert buffer.sample()["index"].tolist() == [4, 5, 6, 7]
    with pytest.raises(NothingEligibleError):
        buffer.sample()
    buffer.close()


# -- emptying and closing -------------------------------------------------------------------------


def test_empty_throws_away_what_was_drawn_ahead() -> None:
    world = filled()
    buffer = ReplayBuffer(world.storage, batch_size=4, prefetch=4, seed=0)
    buffer.sample()
    buffer.empty()
    with pytest.raises(EmptyBufferError):
        buffer.sample()
    new = set(buffer.extend(episode(900, 5)).tolist())
    for _ in range(8):
        assert set(buffer.sample()["index"].tolist()) <= new
    buffer.close()


def test_close_ends_the_thread() -> None:
    before = set(threading.enumerate())
    buffer = buffer_with(RandomSampler(), 2)
    buffer.sample()
    buffer.close()
    buffer.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ClosedError):
        buffer.sample()


@pytest.mark.parametrize("what", ["empty", "save", "close"])
def test_nobody_waits_for_ever_when_another_thread_drains(tmp_path: Path, what: str) -> None:
    # A sampler waits for a batch while another thread empties, saves or closes the buffer.
    for turn in range(12):
        sampler = Gated()
        buffer = buffer_with(sampler, 1)
        sampling = Task(buffer.sample)
        assert sampler.entered.acquire(timeout=60)
        other = Task(partial(getattr(buffer, what), *([tmp_path / str(turn)] * (what == "save"))))
        for _ in range(8):
            sampler.go.release()
        assert other.ends(30), f"{what}() hangs"
        assert other.error is None
        assert sampling.ends(3), f"sample() hangs after {what}() in another thread"
        if sampling.error is None:
            assert len(sampling.result()) == 4
        else:
            assert isinstance(sampling.error, (EmptyBufferError, ClosedError, RuntimeError))


@pytest.mark.parametrize("what", ["empty", "save", "close"])
def test_a_thread_that_the_limiter_holds_does_not_hold_others(tmp_path: Path, what: str) -> None:
    # It draws ahead of the writers, so the limiter makes it wait. Others need not.
    limiter = RateLimiter(1.0, min_size=1, error_buffer=4, timeout_s=20)
    buffer = ReplayBuffer(
        contig.LazyTensorStorage(100), batch_size=4, limiter=limiter, prefetch=3, seed=0
    )
    buffer.extend(episode(0, 5))
    buffer.sample()
    call = Task(
        {"empty": buffer.empty, "save": lambda: buffer.save(tmp_path / "a"), "close": buffer.close}[
            what
        ]
    )
    assert call.ends(3), f"{what}() waits for the limiter"
    assert call.error is None


class Impatient(RateLimiter):
    """Counts how often it gave up."""

    gave_up = 0

    def await_sample(self, *args: Any, **options: Any) -> None:
        try:
            super().await_sample(*args, **options)
        except contig.RateLimitError:
            self.gave_up += 1
            raise


def test_rows_that_came_after_the_thread_gave_up_waiting_are_sampled() -> None:
    limiter = Impatient(1.0, min_size=1, error_buffer=4, timeout_s=0.05)
    world = World(contig.LazyTensorStorage(100))
    world.extend(5)
    buffer = ReplayBuffer(world.storage, batch_size=4, limiter=limiter, prefetch=2, seed=0)
    for _ in range(2):
        buffer.sample()
    until(lambda: limiter.gave_up > 0, "the thread gave up")
    world.extend(20)
    assert len(buffer.sample()) == 4
    buffer.close()


def test_another_batch_size_passes_by_the_prefetcher() -> None:
    buffer = buffer_with(RandomSampler(), 2)
    assert len(buffer.sample()) == 4
    assert len(buffer.sample(7)) == 7
    assert len(buffer.sample(4)) == 4
    buffer.close()


def test_prefetch_is_a_number_of_batches() -> None:
    with pytest.raises(ValueError, match="prefetch"):
        buffer_with(RandomSampler(), -1)


def test_samples_from_several_threads() -> None:
    world = filled()
    buffer = ReplayBuffer(world.storage, batch_size=4, prefetch=3, seed=0)
    got: list[Any] = []

    def read() -> None:
        for _ in range(20):
            got.append(buffer.sample()["index"].tolist())

    threads = [threading.Thread(target=read) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    alone = ReplayBuffer(world.storage, batch_size=4, seed=0)
    expected = [alone.sample()["index"].tolist() for _ in range(60)]
    assert sorted(got) == sorted(expected)
    assert np.shape(got) == (60, 4)
    buffer.close()
