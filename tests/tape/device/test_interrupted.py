"""Who fails or is interrupted between the tape and the device: no row is of two."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DeviceStorage, ReplayBuffer
from contig.replay.saved_rows import saved_rows
from contig.tape import device
from contig.tape.snapshot import Rows
from tests.reference.any_size import EXAMPLE, Row, check, columns

torch = pytest.importorskip("torch")

WHERE = str(Path(device.__file__).parent)
KNOWN = {uid: Row(uid, uid % 7, uid % 3, uid % 2, uid % 5 == 4) for uid in range(400)}


def rows(first: int, n: int = 5) -> Any:
    return columns([KNOWN[uid] for uid in range(first, first + n)])


def there(storage: DeviceStorage) -> list[int]:
    """The rows that are stored, every leaf of them looked at."""
    return check(ReplayBuffer(storage, output="numpy")[:], KNOWN) if len(storage) else []


@contextmanager
def interrupted(at: int) -> Any:
    """Control-C at the n-th line that runs in the code of these storages."""
    left = at

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(WHERE):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: left <= 0
    finally:
        sys.settrace(before)


def at_every_line(work: Callable[[Callable[[Any], bool]], None]) -> int:
    """Runs it, interrupted one line later each time, until it is not any more; how often it was."""
    for at in range(1, 2000):
        hit = False

        def run(part: Any, at: int = at) -> bool:
            nonlocal hit
            with suppress(KeyboardInterrupt), interrupted(at) as came:
                part()
            hit = came()
            return hit

        work(run)
        if not hit:
            return at
    raise AssertionError("it never ends")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("verb", ["extend", "add_step", "extend_trajectory", "add"])
def test_an_append(verb: str, late: bool) -> None:
    def work(run: Any) -> None:
        with DeviceStorage(12, "cpu", example=EXAMPLE, late=late) as storage:
            writer = storage.writer()
            for first in (0, 5, 10):  # the ring is full
                writer.extend(rows(first))
            given = KNOWN[20].tree() if verb == "add" else rows(20)
            run(lambda: getattr(writer, verb)(given))
            found = there(storage)
            assert set(found) <= {*range(15), *range(20, 25)}
            storage.flush()
            assert set(there(storage)) <= {*range(15), *range(20, 25)}
            writer.extend(rows(30))
            storage.flush()
            assert there(storage)[-5:] == list(range(30, 35))

    assert at_every_line(work) > 20


def test_a_load(tmp_path: Path) -> None:
    with DeviceStorage(12, "cpu", example=EXAMPLE) as one:
        one.writer().extend(rows(100, 10))
        ReplayBuffer(one).save(tmp_path / "saved")

    def work(run: Any) -> None:
        with DeviceStorage(12, "cpu", example=EXAMPLE) as storage:
            buffer = ReplayBuffer(storage, output="numpy", batch_size=4, seed=0)
            buffer.extend(rows(0, 12))
            run(lambda: buffer.load(tmp_path / "saved"))
            assert there(storage) in (list(range(12)), list(range(100, 110)), [])
            buffer.extend(rows(30))
            assert there(storage)[-5:] == list(range(30, 35))
            check(buffer.sample(), KNOWN)

    assert at_every_line(work) > 20


class Failing(Rows):
    """Rows that can be looked at once, and are gone when they are taken in."""

    def __init__(self, rows: Rows) -> None:
        self.record_size, self.places, self.mapped = rows.record_size, rows.places, rows.mapped
        self._rows = rows
        self.pack = rows.pack  # type: ignore[method-assign]
        self.reads = 0

    def read(self, first: int, last: int) -> Any:
        self.reads += 1
        if self.reads > 1:
            raise OSError("the file is gone")
        return self._rows.read(first, last)


def test_a_checkpoint_that_goes_while_it_is_read(tmp_path: Path) -> None:
    with DeviceStorage(12, "cpu", example=EXAMPLE) as one:
        one.writer().extend(rows(100, 10))
        ReplayBuffer(one).save(tmp_path / "saved")
    with DeviceStorage(12, "cpu", example=EXAMPLE) as storage:
        storage.writer().extend(rows(0, 12))
        with saved_rows(tmp_path / "saved") as saved:
            contents = saved.contents._replace(rows=Failing(saved.contents.rows))
            with pytest.raises(OSError, match="is gone"):
                storage.restore(contents, (10, 0), saved.layout)
        assert there(storage) == [] and storage.restored == 1
        storage.writer().extend(rows(30))
        assert there(storage)[-5:] == list(range(30, 35))
        assert np.array_equal(storage.episodes()["steps"], [5])
