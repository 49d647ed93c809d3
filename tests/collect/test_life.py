"""start, pause, resume, updates and shutdown in every order."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import Collector, LazyTensorStorage, MultiCollector, RateLimiter, ReplayBuffer
from tests.collect.envs import Steps, check_storage, make_steps
from tests.collect.policies import Weighted
from tests.waiting import WAIT_S, until

CALLS = ("start", "pause", "resume", "update", "shutdown")


class Life:
    """A collector beside what is known of it after each call."""

    def __init__(self, make: Any) -> None:
        self.buffer = ReplayBuffer(LazyTensorStorage(3000), batch_size=8)
        self.policy = Weighted(size=100)
        self.collector = make(self.policy, self.buffer)
        self.started = self.paused = self.closed = False
        self.version = 0

    def rows(self) -> int:
        return int(self.buffer.stats().rows_written)

    def call(self, name: str) -> None:
        getattr(self, name)()
        self.check()

    def start(self) -> None:
        if self.closed:
            with pytest.raises(RuntimeError, match="shut down"):
                self.collector.start()
            return
        self.collector.start()
        self.started = True

    def pause(self) -> None:
        self.collector.pause()
        self.paused = True

    def resume(self) -> None:
        self.collector.resume()
        self.paused = False

    def update(self) -> None:
        if self.closed:
            with pytest.raises(RuntimeError, match="shut down"):
                self.collector.update_policy_weights_()
            return
        self.version += 1
        other = Weighted(self.version, size=100)
        self.collector.update_policy_weights_(other)

    def shutdown(self) -> None:
        self.collector.async_shutdown()
        self.closed = True

    def check(self) -> None:
        """Rows come if it runs, and none come if it does not."""
        assert self.collector.policy_version == self.version
        before = self.rows()
        if self.started and not self.paused and not self.closed:
            until(lambda: self.rows() > before)
        else:
            time.sleep(0.001)
            assert self.rows() == before and (self.started or before == 0)

    def end(self) -> None:
        self.collector.async_shutdown()
        for call in (self.collector.start, lambda: next(iter(self.collector))):
            with pytest.raises(RuntimeError, match="shut down"):
                call()
        rows = self.buffer[:] if self.rows() else None
        if rows is not None:  # each was made by the version that it says, whole
            np.testing.assert_array_equal(rows["weight"], rows["collector", "policy_version"])
        check_storage(self.buffer.storage, anywhere=True)


def single(policy: Any, buffer: Any) -> Any:
    return Collector(Steps(), policy, frames_per_batch=5, replay_buffer=buffer, seed=0)


def multi(policy: Any, buffer: Any) -> Any:
    return MultiCollector(
        [make_steps], policy, frames_per_batch=5, replay_buffer=buffer, sync=False, seed=0
    )


def test_every_order_of_three_calls() -> None:
    for calls in itertools.product(CALLS, repeat=3):
        life = Life(single)
        for name in calls:
            life.call(name)
        life.end()


@settings(max_examples=25)
@given(st.lists(st.sampled_from(CALLS[:-1]), min_size=4, max_size=10))
def test_long_orders(calls: list[str]) -> None:
    life = Life(single)
    for name in calls:
        life.call(name)
    life.end()


def test_worker_processes_in_every_order_of_two_calls() -> None:
    life = Life(multi)
    names = CALLS[:-1]
    # A walk on which every pair of calls follows each other.
    for name in (x for pair in itertools.product(names, repeat=2) for x in pair):
        life.call(name)
    life.end()


@pytest.mark.parametrize("calls", [(), ("pause", "start"), ("start",), ("start", "pause")])
def test_worker_processes_are_shut_down_in_every_state(calls: tuple[str, ...]) -> None:
    life = Life(multi)
    for name in calls:
        life.call(name)
    life.call("shutdown")
    for name in CALLS:
        life.call(name)
    life.end()


@pytest.mark.parametrize("make", [single, multi])
def test_iteration_and_the_background_do_not_mix(make: Any) -> None:
    life = Life(make)
    turns = iter(life.collector)
    next(turns)
    life.collector.pause()
    rows = life.rows()
    with pytest.raises(RuntimeError, match="paused"):
        next(turns)
    assert life.rows() == rows
    life.collector.resume()
    next(iter(life.collector))
    life.collector.start()
    with pytest.raises(RuntimeError, match="was started"):
        next(iter(life.collector))
    life.started = True
    life.check()
    life.end()


@pytest.mark.parametrize("kind", [Collector, MultiCollector])
def test_a_pause_while_a_limiter_holds_writers_back(kind: Any) -> None:
    buffer = ReplayBuffer(
        LazyTensorStorage(1000),
        batch_size=10,
        limiter=RateLimiter(1.0, min_size=10, error_buffer=20),
    )
    env: Any = Steps() if kind is Collector else [make_steps] * 2
    collector = kind(env, frames_per_batch=20, replay_buffer=buffer, seed=0)
    collector.start()
    buffer.sample()

    def full() -> bool:  # nothing comes any more: writers wait
        before = buffer.stats().rows_written
        time.sleep(0.1)
        return bool(buffer.stats().rows_written == before)

    until(full)
    collector.pause()
    rows = buffer.stats().rows_written
    for _ in range(3):
        buffer.sample()
        if buffer.limiter.drift(buffer.storage) < 0:
            break
    time.sleep(0.05)  # there is room now, and still nobody writes
    assert buffer.stats().rows_written == rows
    collector.resume()
    until(lambda: buffer.stats().rows_written > rows)
    collector.async_shutdown()


def test_weights_given_while_the_thread_acts_are_never_torn() -> None:
    policy = Weighted()
    buffer = ReplayBuffer(LazyTensorStorage(5000), batch_size=8)
    collector = Collector(Steps(), policy, frames_per_batch=20, replay_buffer=buffer, seed=0)
    collector.start()
    for version in range(1, 60):
        collector.update_policy_weights_(Weighted(version))
        time.sleep(0.001)
    until(lambda: len(buffer) and buffer[-1:]["weight"][0] == 59)
    collector.async_shutdown()
    rows = buffer[:]
    np.testing.assert_array_equal(rows["weight"], rows["collector", "policy_version"])


def test_shut_down_from_another_thread_while_iterating() -> None:
    for make in (single, multi):
        life = Life(make)
        ended: list[BaseException] = []

        def iterate(collector: Any = life.collector, ended: Any = ended) -> None:
            try:
                for _ in collector:
                    pass
            except RuntimeError as error:
                ended.append(error)

        thread = threading.Thread(target=iterate)
        thread.start()
        until(lambda life=life: life.rows() > 0)
        life.collector.async_shutdown()
        thread.join(WAIT_S)
        assert not thread.is_alive() and "shut down" in str(ended[0])
