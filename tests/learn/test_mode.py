"""The recurrent mode belongs to a context."""

from __future__ import annotations

import asyncio
import threading

import pytest

from contig import recurrent_mode_state, set_recurrent_mode


def test_blocks_nest_and_end() -> None:
    assert recurrent_mode_state() == "sequential"
    with set_recurrent_mode("recurrent"):
        assert recurrent_mode_state() == "recurrent"
        with set_recurrent_mode(False):
            assert recurrent_mode_state() == "sequential"
            with set_recurrent_mode(True):
                assert recurrent_mode_state() == "recurrent"
        with pytest.raises(RuntimeError):
            with set_recurrent_mode("sequential"):
                raise RuntimeError
        assert recurrent_mode_state() == "recurrent"
    assert recurrent_mode_state() == "sequential"


def test_a_decorated_function() -> None:
    @set_recurrent_mode("recurrent")
    def depth(n: int) -> list[str]:
        return [recurrent_mode_state(), *(depth(n - 1) if n else [])]

    assert depth(2) == ["recurrent"] * 3
    assert recurrent_mode_state() == "sequential"


def test_one_block_object_used_again_and_inside_itself() -> None:
    block = set_recurrent_mode("recurrent")
    with block, set_recurrent_mode(False), block:
        assert recurrent_mode_state() == "recurrent"
    assert recurrent_mode_state() == "sequential"


def test_threads_do_not_see_one_another() -> None:
    block = set_recurrent_mode("recurrent")  # shared
    meet = threading.Barrier(4)
    seen: list[tuple[int, str, str, str]] = []

    def work(number: int) -> None:
        for _ in range(50):
            before = recurrent_mode_state()
            meet.wait()
            if number % 2:
                with block:
                    meet.wait()
                    inside = recurrent_mode_state()
                    meet.wait()
            else:
                meet.wait()
                inside = recurrent_mode_state()
                meet.wait()
            seen.append((number % 2, before, inside, recurrent_mode_state()))

    with set_recurrent_mode("recurrent"):  # a new thread begins outside
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert len(seen) == 200
    for odd, before, inside, after in seen:
        assert before == after == "sequential"
        assert inside == ("recurrent" if odd else "sequential")


def test_tasks_do_not_see_one_another() -> None:
    async def task(mode: bool) -> list[str]:
        out = []
        with set_recurrent_mode(mode):
            for _ in range(5):
                await asyncio.sleep(0)
                out.append(recurrent_mode_state())
        return [*out, recurrent_mode_state()]

    async def both() -> list[list[str]]:
        return list(await asyncio.gather(task(True), task(False)))

    assert asyncio.run(both()) == [["recurrent"] * 5 + ["sequential"], ["sequential"] * 6]


def test_another_mode_raises() -> None:
    with pytest.raises(ValueError, match='expected "recurrent"'):
        set_recurrent_mode("fast")  # type: ignore[arg-type]
