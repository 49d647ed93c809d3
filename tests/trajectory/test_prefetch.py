"""Batches drawn ahead: the same ones, in the same order; failures come out; nothing is left."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from contig import ClosedError, EmptyBufferError, TrajectoryReplayBuffer
from tests.trajectory.made import check, drawn, filled, made


def test_the_same_batches() -> None:
    with filled(4, prefetch=3) as ahead:
        assert drawn(ahead, 10) == drawn(filled(4), 10)


def test_another_size() -> None:
    plain = filled(4)
    with filled(4, prefetch=3) as ahead:
        for n in (5, 5, 8, 8, 5, 1):
            assert check(ahead.sample(n), n).tolist() == check(plain.sample(n)).tolist()


def test_sizes_of_several_threads() -> None:
    with filled(4, prefetch=2) as buffer:
        wrong: list[int] = []

        def take(n: int) -> None:
            for _ in range(30):
                if len(buffer.sample(n)["rewards"]) != n:
                    wrong.append(n)

        threads = [threading.Thread(target=take, args=(n,)) for n in (3, 5, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_clear_and_load_throw_away_what_was_drawn(tmp_path: Path) -> None:
    filled(1).save_checkpoint(tmp_path / "saved")
    with filled(4, prefetch=3) as buffer:
        buffer.sample(5)
        buffer.clear()
        with pytest.raises(EmptyBufferError):
            buffer.sample(5)
        buffer.add_trajectories([made(8)])
        assert set(check(buffer.sample(5))[:, 0]) == {8}  # the error has passed
        buffer.load_checkpoint(tmp_path / "saved")
        assert set(check(buffer.sample(5))[:, 0]) == {0}


def test_close_ends_the_thread() -> None:
    before = set(threading.enumerate())
    buffer = filled(2, prefetch=2)
    buffer.sample(3)
    assert set(threading.enumerate()) - before
    buffer.close()
    assert not set(threading.enumerate()) - before
    with pytest.raises(ClosedError):
        buffer.sample(3)


def test_the_traceback_of_a_failure_is_that_of_the_thread() -> None:
    buffer = TrajectoryReplayBuffer(prefetch=1)
    buffer.add_trajectories([made(0)])

    def broken_draw(*args: Any) -> Any:
        raise ZeroDivisionError("deep inside")

    buffer._rows.draw_own = broken_draw  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError, match="deep inside") as raised:
        buffer.sample(2)
    assert any("broken_draw" in str(entry.name) for entry in raised.traceback)
    buffer.close()
