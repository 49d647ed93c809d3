"""Published weights: whole versions, growing, whatever becomes of the publisher.

No torch here: this directory runs under the address sanitizer.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import LayoutError, _native
from contig.weights.board import WeightsBoard
from tests.tape.queue import workers
from tests.tape.queue.workers import weights, weights_example, weights_wrong
from tests.waiting import WAIT_S, until
from tests.zygote import Zygote

EXAMPLE = weights_example(700)


def newest(board: WeightsBoard) -> int:
    return -1 if board.newest is None else board.newest


# -- the native board ------------------------------------------------------------------------------


@given(sizes=st.integers(1, 300), schema=st.binary(max_size=40), n=st.integers(0, 9))
def test_a_record_comes_back_as_it_was(sizes: int, schema: bytes, n: int) -> None:
    room = np.zeros(_native.Board.bytes_for(sizes, len(schema)) + 128, np.uint8)
    start = -room.ctypes.data % 64
    memory = room[start : len(room) - 128 + start]
    guard = room[len(room) - 128 + start :]
    guard[:] = 0x5C
    _native.Board.format(memory, sizes, schema)
    board, other = _native.Board(memory), _native.Board(memory)
    assert other.schema == schema
    assert other.read() is None and other.newest is None
    rng = np.random.default_rng(sizes)
    for version in range(-3, n):
        record = rng.integers(0, 256, sizes, dtype=np.uint8)
        word = other.word
        board.publish(version, record)
        assert other.word != word and other.newest == version
        read = other.read()
        assert read is not None
        assert read[0] == version and bytes(read[1])[:sizes] == record.tobytes()
    assert (guard == 0x5C).all(), "it wrote behind its memory"


def test_what_was_read_is_the_readers_own() -> None:
    board = WeightsBoard.create(EXAMPLE)
    found = []
    for version in range(8):
        board.publish(version, weights(version, EXAMPLE))
        found.append(board.read())
    for version, one in enumerate(found):
        assert one is not None and one.version == version
        assert weights_wrong(version, one.tree) == ""
        one.tree["layer"]["kernel"][:] = -1
    last = board.read()
    assert last is not None and weights_wrong(7, last.tree) == ""
    board.close()
    assert last.tree["step"] == 7, "arrays outlive the board"


def test_nothing_published_yet() -> None:
    board = WeightsBoard.create(EXAMPLE)
    assert board.newest is None
    assert board.read() is None
    assert board.read(timeout_s=0.01) is None
    board.publish(0, EXAMPLE)
    found = board.read()
    assert found is not None and found.version == 0
    assert board.read(newer_than=0) is None
    board.close()


def test_versions_must_grow() -> None:
    board = WeightsBoard.create(EXAMPLE)
    board.publish(5, weights(5, EXAMPLE))
    for version in (5, 4, -1):
        with pytest.raises(ValueError, match="grow"):
            board.publish(version, weights(9, EXAMPLE))
    found = board.read()
    assert found is not None and found.version == 5 and weights_wrong(5, found.tree) == ""
    board.publish(2**62, weights(3, EXAMPLE))
    assert board.newest == 2**62
    board.close()


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"step": np.int64(1)},
        {**EXAMPLE, "more": 1.0},
        {**EXAMPLE, "step": np.zeros(1, np.int64)},
        {**EXAMPLE, "step": "text"},
        {**EXAMPLE, "layer": {"bias": np.zeros(3, np.uint8), "kernel": np.zeros(701)}},
        {**EXAMPLE, "layer": {"bias": np.zeros(3, np.uint8), "kernel": None}},
        {**EXAMPLE, "layer": [np.zeros(3, np.uint8), np.zeros(700)]},
        [EXAMPLE],
        None,
    ],
    ids=["none", "missing", "more", "shape", "text", "larger", "None", "list", "in a list", "null"],
)
def test_another_layout_is_refused(tree: Any) -> None:
    board = WeightsBoard.create(EXAMPLE)
    board.publish(1, weights(1, EXAMPLE))
    with pytest.raises((LayoutError, ValueError, TypeError)):
        board.publish(2, tree)
    found = board.read()
    assert found is not None and found.version == 1 and weights_wrong(1, found.tree) == ""
    board.publish(2, weights(2, EXAMPLE))
    board.close()


def test_names(name: str) -> None:
    with pytest.raises(FileNotFoundError):
        WeightsBoard.attach(name)
    board = WeightsBoard.create(EXAMPLE, name)
    with pytest.raises(FileExistsError):
        WeightsBoard.create(EXAMPLE, name)
    other = WeightsBoard.attach(name)
    assert other.layout == board.layout
    board.publish(3, weights(3, EXAMPLE))
    assert other.newest == 3
    board.close()
    found = other.read()
    assert found is not None and weights_wrong(3, found.tree) == ""
    other.close()
    assert not Path(f"/dev/shm/contig-{name}").exists()


def test_a_reader_is_woken() -> None:
    board = WeightsBoard.create(EXAMPLE)
    board.publish(0, weights(0, EXAMPLE))
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(board.read(newer_than=0, timeout_s=WAIT_S))
    )
    thread.start()
    time.sleep(0.02)
    board.publish(1, weights(1, EXAMPLE))
    thread.join(WAIT_S)
    assert found and found[0].version == 1
    board.close()


# -- processes -------------------------------------------------------------------------------------


def test_never_torn(zygote: Zygote, name: str, tmp_path: Path) -> None:
    """One publishes as fast as it can, three read."""
    stop = tmp_path / "stop"
    board = WeightsBoard.create(EXAMPLE, name)
    begun = [tmp_path / f"begun-{reader}" for reader in range(3)]
    readers = [
        zygote.start(
            workers.read_weights, name=name, stop=str(stop), wait=reader == 2, begun=str(path)
        )
        for reader, path in enumerate(begun)
    ]
    publisher = zygote.start(workers.publish, name=name, stop=str(stop))
    until(lambda: newest(board) >= 3000 and all(path.exists() for path in begun))
    stop.touch()
    published = publisher.result(WAIT_S)
    assert published["versions"] >= 3000 and board.newest == published["newest"]
    for reader in readers:
        result = reader.result(WAIT_S)
        assert result["wrong"] == "" and result["reads"] > 0, result
    found = board.read()
    assert found is not None and found.version == published["newest"]
    assert weights_wrong(found.version, found.tree) == ""
    board.close()


def test_killed_publishers(zygote: Zygote, name: str, tmp_path: Path) -> None:
    """Readers, old and new, find a whole version, and the next publisher goes on."""
    stop = tmp_path / "stop"
    board = WeightsBoard.create(weights_example(20_000), name)
    begun = tmp_path / "begun"
    reader = zygote.start(
        workers.read_weights, name=name, stop=str(stop), wait=False, begun=str(begun)
    )
    draw = random.Random(1)
    last = -1
    for _ in range(30):
        publisher = zygote.start(workers.publish, name=name, stop=str(stop))
        until(lambda before=last: newest(board) > before)
        time.sleep(draw.random() * 0.004)
        assert publisher.alive(), publisher.result(1)
        publisher.kill()
        fresh = WeightsBoard.attach(name)
        for other in (board, fresh):
            found = other.read()
            assert found is not None and found.version > last
            assert weights_wrong(found.version, found.tree) == ""
        fresh.close()
        last = found.version
    until(begun.exists)
    stop.touch()
    result = reader.result(WAIT_S)
    assert result["wrong"] == "" and result["reads"] > 0
    board.close()


# Where the words of a board are: native/queue/weights.h.
PUBLISHED, SEQUENCES = 64, (128, 192, 256)


def test_a_word_that_was_overwritten(zygote: Zygote, name: str) -> None:
    """Readers are told so, and the next publish mends it; nobody spins."""
    for number, (at, value) in enumerate(
        (at, value) for at in (PUBLISHED, *SEQUENCES) for value in (0, 1, 3, 2**63 + 5, 2**64 - 1)
    ):
        mine = f"{name}-{number}"
        board = WeightsBoard.create(EXAMPLE, mine)
        for version in range(4):  # the newest is in the second copy
            board.publish(version, weights(version, EXAMPLE))
        with open(f"/dev/shm/contig-{mine}", "r+b") as file:
            file.seek(at)
            file.write(value.to_bytes(8, "little"))
        found = zygote.start(workers.read_weights_once, name=mine).result(WAIT_S)
        if at in (SEQUENCES[0], SEQUENCES[2]):  # of older ones, which nobody reads
            assert found == {"told": "", "version": 3}
        elif (at, value) in ((PUBLISHED, 0), (PUBLISHED, 3)):  # as it was once
            assert found == {"told": "", "version": None if value == 0 else 2}
        else:
            assert "was overwritten: publish again" in found["told"], (at, value)
        board.publish(9, weights(9, EXAMPLE))
        found = zygote.start(workers.read_weights_once, name=mine).result(WAIT_S)
        assert found == {"told": "", "version": 9}, (at, value)
        board.close()
