"""Tape.wait and notify: the one way to wait for another thread or process."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage
from contig.errors import TapeBusy
from tests.waiting import WAIT_S, Task


def wait_in_a_thread(tape: Any, wake: Callable[[], None], timeout_s: float = WAIT_S) -> bool:
    """Waits on the current word; calls `wake` until the wait is over. What the wait returned."""
    seen = tape.wake_word
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(tape.wait(seen, timeout_s)))
    thread.start()
    give_up = time.monotonic() + WAIT_S
    while thread.is_alive() and time.monotonic() < give_up:
        wake()
        thread.join(0.01)
    assert answers, "the waiting thread was not woken"
    return answers[0]


def test_a_word_that_has_changed_does_not_wait() -> None:
    with LazyTensorStorage(4, example={"x": 0.0}) as storage:
        seen = storage.tape.wake_word
        storage.tape.notify()
        assert storage.tape.wake_word != seen
        assert storage.tape.wait(seen, WAIT_S)


def test_a_word_that_stays_gives_false_after_the_timeout() -> None:
    with LazyTensorStorage(4, example={"x": 0.0}) as storage:
        for timeout_s in (0.0, 0.001, 0.01):
            assert not storage.tape.wait(storage.tape.wake_word, timeout_s)


def test_no_timeout_but_nan_is_too_long_to_wait() -> None:
    with LazyTensorStorage(4, example={"x": 0.0}) as storage:
        for timeout_s in (math.inf, 1e300, 2.0**63, 1e10):
            assert wait_in_a_thread(storage.tape, storage.tape.notify, timeout_s)
        for timeout_s in (math.nan, -1.0, -math.inf):
            assert not storage.tape.wait(storage.tape.wake_word, timeout_s)


def test_the_lock_is_waited_for_as_long_as_it_takes() -> None:
    with LazyTensorStorage(4, example={"x": 0.0}) as storage:
        storage.tape.lock_timeout_s = math.inf
        storage.tape.acquire()
        waiting = Task(storage.default_writer.extend, {"x": np.zeros(2, np.float32)})
        assert not waiting.ends(0.05)
        storage.tape.release()
        waiting.result()
        assert len(storage) == 2


def test_only_who_holds_the_lock_releases_it() -> None:
    with LazyTensorStorage(4, example={"x": 0.0}) as storage:
        storage.tape.lock_timeout_s = 0.01
        storage.tape.acquire()
        with pytest.raises(RuntimeError, match="does not hold the storage's lock"):
            Task(storage.tape.release).result()
        with pytest.raises(TapeBusy, match=str(os.getpid())):  # it is still held, and known by whom
            Task(storage.writer().extend, {"x": np.zeros(2, np.float32)}).result()
        storage.tape.release()
        with pytest.raises(RuntimeError, match="does not hold the storage's lock"):
            storage.tape.release()
        storage.default_writer.extend({"x": np.zeros(2, np.float32)})
        assert len(storage) == 2


def test_notify_wakes() -> None:
    with LazyTensorStorage(4, example={"x": 0.0}) as storage:
        assert wait_in_a_thread(storage.tape, storage.tape.notify)


def test_an_append_wakes() -> None:
    with LazyTensorStorage(4, example={"x": 0.0}) as storage:
        writer = storage.writer()
        assert wait_in_a_thread(storage.tape, lambda: writer.add({"x": 1.0}) and None)


def test_counting_samples_wakes_who_waits_for_them() -> None:
    with LazyTensorStorage(4, example={"x": 0.0}) as storage:
        assert wait_in_a_thread(storage.tape, lambda: storage.tape.add_sampled(1))
        assert storage.tape.sampled > 0


def test_every_append_changes_the_word() -> None:
    # Or a reader that looked, saw nothing and then waits would sleep through it.
    with LazyTensorStorage(4, example={"x": 0.0}) as storage:
        words = [storage.tape.wake_word]
        for i in range(5):
            storage.default_writer.extend({"x": np.full(3, i, np.float32)})
            words.append(storage.tape.wake_word)
        assert len(set(words)) == 6


def test_many_waiters_are_all_woken() -> None:
    with LazyTensorStorage(4, example={"x": 0.0}) as storage:
        seen, answers = storage.tape.wake_word, []
        threads = [
            threading.Thread(target=lambda: answers.append(storage.tape.wait(seen, WAIT_S)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        storage.tape.notify()
        for thread in threads:
            thread.join(WAIT_S)
        assert answers == [True] * 8
