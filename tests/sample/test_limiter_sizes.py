"""RateLimiter: whatever sizes batches and appends have, one side or the other may go on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contig
from contig import LazyTensorStorage, RateLimiter, RemoteReplayBuffer, ReplayBuffer
from contig.testing import episode, row
from tests.client.serving import HOST, ROW, serving
from tests.sample.test_limiter import run
from tests.waiting import WAIT_S

RATIOS = st.one_of(st.sampled_from([1.0, 0.25, 4.0, 0.1, 1 / 3, 1e-3, 256.0]), st.floats(1e-3, 1e3))
SIZES = st.integers(1, 600)
STORAGE = LazyTensorStorage(10, example=row(0, 0))


@st.composite
def limiters(draw: Any) -> RateLimiter:
    ratio = draw(RATIOS)
    least = max(1.0, ratio)
    error = draw(st.one_of(st.none(), st.floats(1.0, 50.0).map(lambda x: x * least)))
    return RateLimiter(ratio, draw(st.integers(1, 500)), error, block=False)


def may_sample(limiter: RateLimiter, rows: int) -> bool:
    """Whether it may, without counting it."""
    before = STORAGE.tape.sampled
    may = limiter.take_samples(STORAGE, rows)
    STORAGE.tape.sampled = before
    return may


@settings(max_examples=500, deadline=None)
@given(limiters(), st.integers(0, 10**7), st.floats(-2000, 2000), SIZES, SIZES)
def test_in_any_state(
    limiter: RateLimiter, inserted: int, drift: float, append: int, batch: int
) -> None:
    tape = STORAGE.tape
    tape.inserted = inserted
    tape.sampled = max(int((inserted - limiter.min_size) * limiter.samples_per_insert - drift), 0)
    insert, sample = limiter.can_insert(STORAGE, append), may_sample(limiter, batch)
    assert insert or sample
    assert limiter.room(STORAGE) > 0 or sample  # what a server asks


@settings(max_examples=100, deadline=None)
@given(limiters(), st.lists(SIZES, min_size=1), st.lists(SIZES, min_size=1), st.randoms())
def test_simulated(
    limiter: RateLimiter, appends: list[int], batches: list[int], rng: random.Random
) -> None:
    """Both sides keep to the proportion, within one call or the error buffer."""
    tape, ratio = STORAGE.tape, limiter.samples_per_insert
    tape.inserted = tape.sampled = 0
    most = max(limiter.error_buffer, *(n * ratio for n in appends)) * (1 + 1e-9)
    least = max(limiter.error_buffer, *batches) * (1 + 1e-9)
    for _ in range(200):
        append, batch = rng.choice(appends), rng.choice(batches)
        insert, sample = limiter.can_insert(STORAGE, append), may_sample(limiter, batch)
        assert insert or sample
        if insert and (not sample or rng.random() < 0.5):
            tape.inserted += append
        else:
            tape.sampled += batch
        if tape.inserted >= limiter.min_size:
            assert -least <= limiter.drift(STORAGE) <= most


def alternately(write: Callable[[], Any], read: Callable[[], Any], storage: Any) -> None:
    """A writer and a reader in threads, until both have been let through often enough."""
    counts = [0, 0]

    def loop(who: int, call: Callable[[], Any], others: str) -> Callable[[], None]:
        def run_it() -> None:
            while min(counts) < 20:
                call()
                counts[who] += 1
            # The other one may wait for us, and nobody comes any more.
            setattr(storage.tape, others, 10**9)

        return run_it

    run(loop(0, write, "inserted"), loop(1, read, "sampled"))


# Appends and batches: of an actor's steps, of MultiCollector with 4 and 256, and others.
@pytest.mark.parametrize(
    ("ratio", "append", "batch"),
    [(1.0, 1, 2), (1.0, 2, 2), (1.0, 4, 256), (1.0, 256, 4), (0.1, 64, 3), (8.0, 3, 50)],
)
@pytest.mark.parametrize("how", ["plain", "prefetch", "remote"])
def test_threads(ratio: float, append: int, batch: int, how: str) -> None:
    limiter = RateLimiter(ratio, timeout_s=WAIT_S)
    storage = LazyTensorStorage(2000, example=ROW)
    prefetch = 2 if how == "prefetch" else 0
    with ReplayBuffer(storage, batch_size=batch, limiter=limiter, prefetch=prefetch) as buffer:
        if how != "remote":
            alternately(lambda: buffer.extend(episode(0, append)), buffer.sample, storage)
            return
        with (
            serving(buffer) as server,
            RemoteReplayBuffer(HOST, server.port, batch_size=batch, prefetch=1) as far,
            RemoteReplayBuffer(HOST, server.port) as near,
        ):

            def write() -> None:
                near.extend(episode(0, append))
                near.flush(WAIT_S)

            alternately(write, far.sample, storage)


def test_random_sizes() -> None:
    limiter = RateLimiter(0.7, min_size=30, timeout_s=WAIT_S)
    storage = LazyTensorStorage(5000, example=ROW)
    buffer = ReplayBuffer(storage, limiter=limiter)
    rng, other = random.Random(0), random.Random(1)

    def read() -> None:
        buffer.sample(other.choice([1, 3, 40, 333]))

    def write() -> None:
        buffer.extend(episode(0, rng.choice([1, 2, 17, 400])))

    alternately(write, read, storage)


def test_a_collector() -> None:
    """Workers append 4 rows at a time, the learner takes 256."""
    buffer = ReplayBuffer(LazyTensorStorage(2000), batch_size=256, limiter=RateLimiter(1.0))
    collector = contig.MultiCollector(
        [contig.GymEnv("CartPole-v1")] * 2, frames_per_batch=4, sync=False, replay_buffer=buffer
    )
    collector.start()
    try:
        for _ in range(5):
            assert len(buffer.sample()) == 256
    finally:
        collector.shutdown()
