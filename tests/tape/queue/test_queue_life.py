"""How queues come and go: names, waiting, closing, and what outlives them."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import ClosedError, Layout, LayoutError, SharedStorage, _native
from contig.tape.queue import BatchQueue
from contig.weights.board import WeightsBoard
from tests.processes import files_of
from tests.waiting import WAIT_S, Task, until

LAYOUT = Layout({"x": np.zeros(2, np.int64)})


def item(value: int) -> dict[str, Any]:
    return {"x": np.full(2, value, np.int64)}


def full_queue() -> BatchQueue:
    queue = BatchQueue.create(LAYOUT, 2, 2)
    for value in range(4):
        queue.submit(item(value), timeout=0)
    return queue


# -- names -----------------------------------------------------------------------------------------


def test_names(name: str) -> None:
    with pytest.raises(FileNotFoundError):
        BatchQueue.attach(name)
    queue = BatchQueue.create(LAYOUT, 3, 2, name)
    with pytest.raises(FileExistsError):
        BatchQueue.create(LAYOUT, 3, 2, name)
    other = BatchQueue.attach(name)
    assert other.layout == LAYOUT
    assert (other.batch_size, other.num_buffers, other.record_size) == (3, 2, 16)
    for value in range(3):
        other.submit(item(value))
    queue.close()
    batch = other.take()
    assert batch is not None and batch["x"][:, 0].tolist() == [0, 1, 2]
    other.close()
    assert not Path(f"/dev/shm/contig-{name}").exists()
    assert batch["x"][:, 1].tolist() == [0, 1, 2], "batches outlive the name"


@pytest.mark.parametrize(("size", "buffers"), [(0, 2), (1, 1), (-1, 2), (1, 0), (4, -3)], ids=str)
def test_sizes_that_make_no_queue(size: int, buffers: int, name: str) -> None:
    with pytest.raises(ValueError, match="at least"):
        BatchQueue.create(LAYOUT, size, buffers, name)
    assert not Path(f"/dev/shm/contig-{name}").exists()


@pytest.mark.parametrize("other", ["board", "storage"])
def test_what_is_no_queue_is_let_go_of(other: str, name: str) -> None:
    """Or this process would keep somebody else's name alive."""
    owner: Any = (
        WeightsBoard.create({"w": 1.0}, name)
        if other == "board"
        else SharedStorage(8, name=name, example={"w": 1.0})
    )
    before = files_of(name)
    assert before
    for _ in range(3):
        with pytest.raises(ValueError, match="queue"):
            BatchQueue.attach(name)
    gc.collect()
    assert files_of(name) == before
    owner.close()
    assert not Path(f"/dev/shm/contig-{name}").exists()


def test_what_is_no_board_is_let_go_of(name: str) -> None:
    owner = BatchQueue.create(LAYOUT, 2, 2, name)
    before = files_of(name)
    assert before
    with pytest.raises(ValueError, match="board"):
        WeightsBoard.attach(name)
    gc.collect()
    assert files_of(name) == before
    owner.close()
    assert not Path(f"/dev/shm/contig-{name}").exists()


# -- waiting ---------------------------------------------------------------------------------------


def test_a_full_queue_lets_nothing_in() -> None:
    queue = full_queue()
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match="room"):
            queue.submit(item(9), timeout=timeout)
    with pytest.raises(LayoutError):
        queue.submit({"x": np.zeros(3)}, timeout=0)
    queue.take(copy=True)
    queue.submit(item(4), timeout=0)
    assert [b["x"][:, 0].tolist() for b in iter(lambda: queue.take(True, True), None)] == [
        [2, 3],
        [4],
    ]


def test_whoever_waits_for_room_gets_it() -> None:
    queue = full_queue()
    thread = Task(lambda: queue.submit(item(4), timeout=WAIT_S))
    time.sleep(0.02)
    assert thread.is_alive()
    batch = queue.take()
    time.sleep(0.02)
    assert thread.is_alive(), "it was let in though the batch is held"
    del batch
    assert thread.result() is None


def test_whoever_waits_for_a_batch_gets_it() -> None:
    queue = BatchQueue.create(LAYOUT, 2, 2)
    word = queue.native.data_word

    def wait() -> bool:
        until(lambda: queue.native.wait_data(word, WAIT_S), "a batch is there")
        return queue.take() is not None

    thread = Task(wait)
    queue.submit(item(0))
    time.sleep(0.02)
    assert thread.is_alive(), "woken for half a batch"
    queue.submit(item(1))
    assert thread.result() is True


def test_closing_ends_waits() -> None:
    queue = full_queue()
    room, data = queue.native.space_word, queue.native.data_word
    threads = [
        Task(queue.native.wait_space, room, WAIT_S),
        Task(queue.native.wait_data, data, WAIT_S),
    ]
    time.sleep(0.02)
    queue.native.close()
    assert [thread.result() for thread in threads] == [True, True]


def test_nobody_waits_for_room_in_a_closed_queue() -> None:
    """There will be none."""
    queue = full_queue()
    thread = Task(queue.submit, item(4))
    time.sleep(0.02)
    assert thread.is_alive()
    queue.native.close()
    with pytest.raises(ClosedError):
        thread.result()
    with pytest.raises(ClosedError):
        queue.submit(item(5), timeout=0)
    # What is in it can be taken.
    assert [b["x"][0, 0] for b in iter(lambda: queue.take(True, True), None)] == [0, 2]


# -- batches ---------------------------------------------------------------------------------------


def test_batches_outlive_their_queue() -> None:
    queue = full_queue()
    first, second = queue.take(), queue.take()
    assert first is not None and second is not None
    x, native = first["x"], queue.native
    queue.close()
    del queue, first, native
    gc.collect()
    assert x[:, 0].tolist() == [0, 1] and second["x"][:, 1].tolist() == [2, 3]


def test_any_view_keeps_its_batch() -> None:
    queue = full_queue()
    batch = queue.take()
    assert batch is not None
    view = batch.tree()["x"][1:, ::-1].T
    del batch
    rest = queue.take(copy=True)
    assert rest is not None
    for value in range(4, 6):
        queue.submit(item(value), timeout=0)
    with pytest.raises(TimeoutError):
        queue.submit(item(6), timeout=0)
    assert view.tolist() == [[1], [1]]
    del view
    queue.submit(item(6), timeout=0)


def test_a_batch_before_it_is_full_costs_no_item() -> None:
    """Items that come after it start the next batch, wherever the first one is by then."""
    queue = BatchQueue.create(LAYOUT, 4, 2)
    found, kept = [], None
    for value in range(30):
        queue.submit(item(value), timeout=0)
        if value % 5 in (1, 4):
            kept = queue.take(partial=True)
            assert kept is not None
            found += kept["x"][:, 0].tolist()
    assert found == list(range(30))
    assert kept is not None and kept["x"].shape == (3, 2)


@pytest.mark.parametrize("word", ["published", "sequence"])
def test_weights_whose_memory_was_overwritten(word: str) -> None:
    """A reader says so instead of looking for ever, with the interpreter's lock held."""
    memory = np.zeros(_native.Board.bytes_for(8, 2) + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :][: _native.Board.bytes_for(8, 2)]
    _native.Board.format(memory, 8, b"{}")
    board = _native.Board(memory)
    for version in range(5):
        board.publish(version, np.frombuffer(np.int64(version).tobytes(), np.uint8))
    words = memory.view(np.uint64)
    assert words[8] == 5
    if word == "published":
        words[8] = 2**63 + 12345
    else:
        words[16 + 8 * (5 % 3)] = 3
    for read in (lambda: board.newest, board.read):
        with pytest.raises(RuntimeError, match="overwritten"):
            read()
    board.publish(9, np.frombuffer(np.int64(9).tobytes(), np.uint8))
    assert board.newest == 9
