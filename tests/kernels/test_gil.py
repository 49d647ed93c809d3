"""Other threads run while a long native call works: it gives the interpreter's lock away."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from contig import Blob, LazyTensorStorage, Ragged, ReplayBuffer, _native

MB = 1 << 20
REPEATS = 50


class OtherThread:
    """Another thread that takes a turn as soon as the interpreter lets it."""

    def __init__(self) -> None:
        self.turns = 0
        self._may_go = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._may_go.acquire()
            self.turns += 1
            self._done.release()

    def runs_during(self, call: Callable[[], object]) -> bool:
        """Whether it had its turn before the call was over, in one of several tries: nobody knows
        when the system wakes a thread, but without the lock it never runs."""
        for _ in range(REPEATS):
            before = self.turns
            self._may_go.release()
            result = call()
            has_run = self.turns > before
            assert self._done.acquire(timeout=60)
            del result
            if has_run:
                return True
        return False


@pytest.fixture
def other() -> Iterator[OtherThread]:
    """Nobody is asked to give the lock away: who does, does it on its own."""
    thread = OtherThread()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield thread
    sys.setswitchinterval(before)


def any_size_buffer() -> ReplayBuffer:
    example = {"points": Ragged(np.float32), "image": Blob()}
    return ReplayBuffer(LazyTensorStorage(16, example=example, blob_bytes=128 * MB))


def test_a_short_call_keeps_the_lock(other: OtherThread) -> None:
    """The measurement itself: what is short, and Python code, let nobody in."""
    assert not other.runs_during(lambda: _native.permute(1, 100, 0, 100))
    assert not other.runs_during(lambda: sum(range(100_000)))


def test_leaves_of_any_size_are_packed_without_it(other: OtherThread) -> None:
    buffer = any_size_buffer()
    values = np.arange(4 * MB, dtype=np.float32)
    rows = {
        "points": Ragged(values, np.array([0, 1 * MB, 2 * MB, 3 * MB, 4 * MB])),
        "image": [bytes([i]) * (4 * MB) for i in range(4)],
    }
    buffer.extend(rows)
    assert other.runs_during(lambda: buffer.extend(rows))
    stored = buffer[-4:]
    assert [stored["image"][i] for i in range(4)] == rows["image"]
    assert np.array_equal(stored["points"].values, values)


def test_a_row_with_a_large_value_is_copied_without_it(other: OtherThread) -> None:
    buffer = any_size_buffer()
    row = {"points": np.arange(4 * MB, dtype=np.float32), "image": b"\x07" * (16 * MB)}
    buffer.add(row)
    assert other.runs_during(lambda: buffer.add(row))
    stored = buffer[-1:]
    assert stored["image"][0] == row["image"]
    assert np.array_equal(stored["points"][0], row["points"])


def numbers(n: int) -> dict[str, Any]:
    """Episodes of one row each."""
    ends = np.ones(n, np.bool_)
    return {"number": np.arange(n), "next": {"done": ends, "terminated": ends}}


@pytest.fixture(scope="module")
def many_runs() -> LazyTensorStorage:
    storage = LazyTensorStorage(200_000)
    ReplayBuffer(storage).extend(numbers(200_000))
    return storage


def test_a_first_look_at_many_runs_is_taken_without_it(
    other: OtherThread, many_runs: LazyTensorStorage
) -> None:
    def first_look() -> Any:
        view = _native.View(many_runs.tape)
        view.refresh()
        return view

    assert other.runs_during(first_look)
    view = first_look()
    assert (view.head, view.trajectories) == (200_000, 200_000)


def test_many_trajectories_are_weighed_without_it(
    other: OtherThread, many_runs: LazyTensorStorage
) -> None:
    views = [_native.View(many_runs.tape)]
    views[0].refresh()
    spec = _native.SliceSpec(1, complete_only=True)
    windows = iter([(0, first, None) for first in range(200_000, 0, -1000)])
    # Each window begins earlier than the one before, so that it is weighed anew.
    assert other.runs_during(lambda: views[0].count(next(windows), spec))


def test_two_threads_may_look_at_once(many_runs: LazyTensorStorage) -> None:
    """They take turns, whoever has the interpreter's lock."""
    view = _native.View(many_runs.tape)
    spec = _native.SliceSpec(1, complete_only=True)
    found: list[int] = []

    def look() -> None:
        for first in range(0, 200_000, 20_000):
            view.refresh()
            found.append(first + view.count((0, first, None), spec))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [200_000] * 40


def test_the_index_is_read_and_shuffled_without_it(
    other: OtherThread, many_runs: LazyTensorStorage
) -> None:
    assert other.runs_during(many_runs.tape.read_index)
    assert other.runs_during(lambda: _native.permute(1, 200_000, 0, 200_000))
    assert sorted(_native.permute(1, 200_000, 0, 200_000)) == list(range(200_000))


def test_priorities_of_many_rows_are_set_without_it(other: OtherThread) -> None:
    n = 400_000
    tree = _native.SumTree(n, np.zeros(_native.SumTree.size(n)))
    assert other.runs_during(lambda: tree.fill(0, n, 1.0))
    leaves, values = np.arange(n), np.full(n, 2.0)
    assert other.runs_during(lambda: tree.update(leaves, values))
    assert tree.total == 2.0 * n
    tree.fill(0, n // 2, 0.0)
    drawn = tree.at(np.random.default_rng(0).random(n))
    assert drawn.min() >= n // 2
    assert other.runs_during(lambda: tree.at(np.full(n, 0.5)))


def test_two_threads_may_change_priorities_at_once() -> None:
    """They take turns, whoever has the interpreter's lock: the sums are those of the leaves."""
    n = 100_000
    tree = _native.SumTree(n, np.zeros(_native.SumTree.size(n)))
    whole = np.arange(n)

    def change(number: int) -> None:
        for turn in range(10):
            tree.fill(0, n, 1.0 + number)
            tree.update(whole, np.full(n, 1.0 + turn))

    threads = [threading.Thread(target=change, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert tree.total == 10.0 * n
    assert tree.least == 10.0


def test_a_view_of_many_runs_is_forgotten_without_it(
    other: OtherThread, many_runs: LazyTensorStorage
) -> None:
    views = [_native.View(many_runs.tape) for _ in range(20)]
    for view in views:
        view.refresh()
    del view

    def forget() -> None:
        if views:
            views.pop()

    assert other.runs_during(forget)
