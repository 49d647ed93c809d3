"""What native code throws arrives as an exception of contig's, or as Python's own for the same."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import _native

NATIVE = Path(__file__).resolve().parents[2] / "native"
PAGE = 4096


def region_of(descriptor_mode: int, tmp_path: Path) -> None:
    """Maps a file by a descriptor of that mode."""
    (tmp_path / "file").write_bytes(bytes(PAGE))
    fd = os.open(tmp_path / "file", descriptor_mode)
    try:
        _native.Region(2 * PAGE).map(0, fd, PAGE)
    finally:
        os.close(fd)


def test_a_file_that_cannot_be_mapped(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="cannot map 4096 bytes of a file") as raised:
        region_of(os.O_WRONLY, tmp_path)
    assert raised.value.errno == errno.EACCES
    with pytest.raises(OSError, match="cannot map 4096 bytes of a file") as raised:
        _native.Region(2 * PAGE).map(0, -1, PAGE)
    assert raised.value.errno == errno.EBADF
    with pytest.raises(OSError, match="cannot map .* bytes of shared memory") as raised:
        _native.map_file(-1, 0, 1)
    assert raised.value.errno == errno.EBADF


def test_memory_that_cannot_be_had() -> None:
    with pytest.raises(contig.StorageFull, match="cannot map .*raise `ulimit -v`") as raised:
        _native.Region(1 << 60)
    assert raised.value.errno == errno.ENOMEM
    with pytest.raises(MemoryError):
        _native.Block(1 << 62)


@pytest.mark.parametrize(
    ("kind", "call"),
    (
        (IndexError, lambda: _native.Region(PAGE).map(2 * PAGE, 0, 1)),
        (ValueError, lambda: _native.multinomial(np.zeros(4, np.uint64), [], 1)),
        (TypeError, lambda: _native.ColumnArrays([("shape", "dtype", "offset")])),
    ),
)
def test_arguments(kind: type[Exception], call: Callable[[], Any]) -> None:
    with pytest.raises(kind):
        call()


def test_a_closed_storage() -> None:
    storage = contig.LazyTensorStorage(8, example={"x": np.float32(0)})
    writer = storage.writer()
    writer.add({"x": np.float32(1)})
    storage.tape.close()  # as another thread does it, between a look and the append
    with pytest.raises(contig.ClosedError):
        writer.add({"x": np.float32(1)})
    storage.close()


def test_a_state_in_which_nothing_can_go_on() -> None:
    memory = np.zeros(_native.Board.bytes_for(8, 2) + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :][: _native.Board.bytes_for(8, 2)]
    _native.Board.format(memory, 8, b"{}")
    board = _native.Board(memory)
    board.publish(1, np.zeros(8, np.uint8))
    memory.view(np.uint64)[8] = 2**63 + 12345
    with pytest.raises(contig.StateError, match="overwritten"):
        board.read()


# As native/bind/errors.cpp translates them: what is not here arrives as a StateError.
KNOWN = {
    "Busy", "Closed", "Damaged", "NoSpace", "Overload", "std::bad_alloc", "std::invalid_argument",
    "std::length_error", "std::out_of_range", "nb::python_error", "nb::type_error",
    "nb::value_error",
}  # fmt: skip
STATE = {"std::logic_error", "std::runtime_error"}


def test_every_throw_is_of_a_kind_that_is_translated() -> None:
    """Failed calls of the system go through `throw_system_error`, which keeps the number."""
    found = 0
    for path in sorted(NATIVE.rglob("*.*")):
        if "tests" in path.parts or path.suffix not in (".cpp", ".h"):
            continue
        for thrown in re.finditer(r"\bthrow (?!;)([\w:]+)\(?([^;]*);", path.read_text()):
            found += 1
            where = f"{path.relative_to(NATIVE)}: throw {thrown[1]}"
            assert thrown[1] in KNOWN | STATE or path.name == "errors.h", where
            if thrown[1] in STATE:
                assert "errno" not in thrown[2] and "platform" not in thrown[2], where
    assert found > 100


def test_a_lock_that_its_thread_has_already() -> None:
    storage = contig.LazyTensorStorage(8, example={"x": np.float32(0)})
    storage.tape.acquire()
    try:
        told: list[BaseException] = []

        def other() -> None:
            storage.tape.lock_timeout_s = 0.01
            try:
                storage.tape.clear()
            except Exception as error:
                told.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert isinstance(told[0], contig.TapeBusy), told
    finally:
        storage.tape.release()
        storage.close()
