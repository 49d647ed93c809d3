"""The queue's, the wire's and the board's native handles, used as they must not be: they raise, and
never crash, hang, or read elsewhere. And what a full table of producers does.

``python -m tests.kernels.test_queue`` runs the cases, each in a process of its own (see misuse).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contig import _native
from contig._native import Received
from tests.attempts import attempt_all, expect_raised, outcomes
from tests.kernels import misuse
from tests.kernels.misuse import FAR, b, i, read_only
from tests.waiting import Task

HUGE = 2**63
ITEMS = 4
HEADER = struct.Struct("<4sBBHQIIQI")  # and behind it its own crc32c
# Words of a queue's header, and of a board's.
QUEUE_WORDS = ("magic", "format", "record_size", "batch_size", "num_slots", "n_columns", "total")
QUEUE_WORDS += ("block_bytes", "slots", "producers", "columns", "schema", "schema_bytes", "blocks")
BOARD_WORDS = (
    "magic",
    "format",
    "record_size",
    "stride",
    "schema",
    "schema_bytes",
    "total",
    "data",
)

# Other queues and boards, but whole ones.
HARMLESS = {("record_size", FAR), ("record_size", 2**64 - 1), ("schema_bytes", 0)}


# -- handles ---------------------------------------------------------------------------------------


def memory(n: int, off: int = 0) -> Any:
    """n bytes at a multiple of 64, as any mapping is; or not."""
    whole = b(n + 128)
    start = -whole.ctypes.data % 64 + off
    return whole[start : start + n]


SHAPE = (8, 4, 2, 64)  # records of 8 bytes, batches of 4, 2 slots, blocks of 64
COLUMNS = i(0, 8, 0)


def queue_memory(batch: int = SHAPE[1]) -> Any:
    shape = (SHAPE[0], batch, *SHAPE[2:])
    m = memory(_native.Queue.bytes_for(*shape, COLUMNS, 2))
    _native.Queue.format(m, *shape, COLUMNS, b"{}")
    return m


def queue(batch: int = SHAPE[1]) -> Any:
    return _native.Queue(queue_memory(batch))


def words(m: Any) -> Any:
    return m[: len(m) // 8 * 8].view(np.uint64)


def use_queue(m: Any) -> None:
    """Everything a queue does, over whatever memory this is."""
    q = _native.Queue(m)
    assert len(q.schema) < 1 << 16 and q.shape
    for producer in range(3):
        for first in range(5):
            q.accept_records(b(min(q.shape[0], 64) * 3), producer, first)
        q.seen(7, 7)
        while (taken := q.take(producer == 1, True)) is not None:
            bytes(taken[0])
    q.counters()


def damaged_queue(word: int, value: int, use: bool = False) -> None:
    m = queue_memory()
    words(m)[word] = value
    if use:
        use_queue(m)
    _native.Queue(m)


def board_memory() -> Any:
    m = memory(_native.Board.bytes_for(24, 2))
    _native.Board.format(m, 24, b"{}")
    return m


def damaged_board(word: int, value: int) -> None:
    m = board_memory()
    words(m)[word] = value
    _native.Board(m)


def frame(payload: bytes, rows: int, runs: int = 0, kind: int = ITEMS) -> bytes:
    crc = _native.crc32c(payload)
    head = HEADER.pack(b"cFrm", kind, 0, 0, 0, runs, rows, len(payload), crc)
    return head + struct.pack("<I", _native.crc32c(head)) + payload


def run_of(rows: int, lanes: int = 0) -> bytes:
    return struct.pack("<IIqqII", rows, 0, -1, -1, lanes, 0)


def receiver(data: bytes = b"") -> Any:
    r = _native.Receiver(4096, 1 << 20)
    r.feed(data)
    r.next()
    return r


def accept_frame(data: bytes, producer: int = 1) -> Any:
    r = receiver(data)
    r.check_items(8, False)
    return queue().accept_frame(r, producer)


def accept_runs(data: bytes) -> Any:
    r = receiver(data)
    r.check_items(16, True)
    return _native.accept_runs(misuse.writer(misuse.storage()), r, 1, 2**32)


def accept_unchecked(data: bytes) -> Any:
    """Right or not, nobody asked."""
    return queue().accept_frame(receiver(data), 1)


def accept_what_was_skipped() -> None:
    r = _native.Receiver(1 << 20, 1 << 20)
    r.feed(frame(bytes(8 * 100_000), 100_000))
    assert r.next() == Received.READY and r.check_items(8, False)
    r.skip(8 * 100_000)
    queue().accept_frame(r, 1)


def received_far() -> None:
    """Told of more bytes than there are: it must not believe that."""
    r = receiver()
    r.feed(bytes(100))
    r.skip(50)
    r.received(2**64 - 60)
    assert r.held <= r.size
    r.skip(r.held + 1)


def bad_frame() -> bytes:
    good = bytearray(frame(bytes(8), 1))
    good[-1] ^= 1
    return bytes(good)


def builder(record_size: int = 8, frame_bytes: int = 1 << 10) -> Any:
    return _native.FrameBuilder(record_size, False, 0, frame_bytes)


def mixed_frame() -> None:
    """Records and runs in one frame: whatever comes of it is no memory of others."""
    o = builder()
    o.add_records(b(8))
    o.add_run(b(8), 0, -1, -1, 0, True)
    while (taken := o.take(True)) is not None:
        assert len(bytes(taken)) == 16 and len(taken.head) in (40, 72)
    o.add_records(b(9))


def plan(size: int) -> Any:
    return _native.Plan({"a": 0}, [("f", 4, 0, 4, ())], [], size)


# -- the cases -------------------------------------------------------------------------------------

CASES: dict[str, Callable[[], Any]] = {
    # Queue: making one
    "queue of no record": lambda: _native.Queue.bytes_for(0, 4, 2, 64, COLUMNS, 2),
    "queue of no batch": lambda: _native.Queue.bytes_for(8, 0, 2, 64, COLUMNS, 2),
    "queue of no slots": lambda: _native.Queue.bytes_for(8, 4, 0, 64, COLUMNS, 2),
    "queue of half a column": lambda: _native.Queue.bytes_for(8, 4, 2, 64, i(0, 8), 2),
    "queue with a leaf past the record": lambda: _native.Queue.bytes_for(
        8, 4, 2, 64, i(FAR, 8, 0), 2
    ),
    "queue with a leaf that ends past the record": lambda: _native.Queue.bytes_for(
        8, 4, 2, 64, i(4, 8, 0), 2
    ),
    "queue with a negative offset": lambda: _native.Queue.bytes_for(8, 4, 2, 64, i(-8, 8, 0), 2),
    "queue with a column past its block": lambda: _native.Queue.bytes_for(
        8, 4, 2, 64, i(0, 8, FAR), 2
    ),
    "queue with a column that ends past its block": lambda: _native.Queue.bytes_for(
        8, 9, 2, 64, i(0, 8, 0), 2
    ),
    "queue with a column before its block": lambda: _native.Queue.bytes_for(
        8, 4, 2, 64, i(0, 8, -64), 2
    ),
    "queue of so many items that bytes overflow": lambda: _native.Queue.bytes_for(
        8, 2**62, 2, 64, COLUMNS, 2
    ),
    "queue of so many slots that bytes overflow": lambda: _native.Queue.bytes_for(
        8, 4, 2**60, 64, COLUMNS, 2
    ),
    "queue of such blocks that bytes overflow": lambda: _native.Queue.bytes_for(
        8, 4, 4, 2**62, COLUMNS, 2
    ),
    "queue of such a schema that bytes overflow": lambda: _native.Queue.bytes_for(
        8, 4, 2, 64, COLUMNS, 2**64 - 4096
    ),
    "format so many slots that bytes overflow": lambda: _native.Queue.format(
        memory(1 << 20), 8, 4, 2**59, 64, COLUMNS, b"{}"
    ),
    "format a queue into too little": lambda: _native.Queue.format(
        memory(_native.Queue.bytes_for(*SHAPE, COLUMNS, 2) - 1), *SHAPE, COLUMNS, b"{}"
    ),
    "format a queue into nothing": lambda: _native.Queue.format(b(0), *SHAPE, COLUMNS, b"{}"),
    "format a queue into another dtype": lambda: _native.Queue.format(
        np.zeros(1 << 20, np.int8), *SHAPE, COLUMNS, b"{}"
    ),
    "format a queue into read-only memory": lambda: _native.Queue.format(
        read_only(memory(1 << 20)), *SHAPE, COLUMNS, b"{}"
    ),
    "format a queue into memory with gaps": lambda: _native.Queue.format(
        b(1 << 20)[::2], *SHAPE, COLUMNS, b"{}"
    ),
    "format a queue into unaligned memory": lambda: _native.Queue.format(
        memory(1 << 20, off=4), *SHAPE, COLUMNS, b"{}"
    ),
    # Queue: attaching to one
    "queue over nothing": lambda: _native.Queue(b(0)),
    "queue over memory that is none": lambda: _native.Queue(memory(1 << 16)),
    "queue over less than its header": lambda: _native.Queue(queue_memory()[:64]),
    "queue over a byte too little": lambda: _native.Queue(queue_memory()[:-1]),
    "queue over a board": lambda: _native.Queue(board_memory()),
    "queue over read-only memory": lambda: _native.Queue(read_only(queue_memory())),
    "queue over a list": lambda: _native.Queue([1, 2, 3]),
    # Queue: using one
    "accept no records": lambda: queue().accept_records(b(0), 1, 0),
    "accept half a record": lambda: queue().accept_records(b(12), 1, 0),
    "accept records of another dtype": lambda: queue().accept_records(np.zeros(8, np.int8), 1, 0),
    "accept records of two dimensions": lambda: queue().accept_records(b(8).reshape(2, 4), 1, 0),
    "accept records with gaps": lambda: queue().accept_records(b(16)[::2], 1, 0),
    "accept of a negative producer": lambda: queue().accept_records(b(8), -1, 0),
    "accept of the producer that nobody can be": lambda: queue().accept_records(b(8), 2**64 - 1, 0),
    "accept from item -1 on": lambda: queue().accept_records(b(8), 1, -1),
    "accept from item 2^64 on": lambda: queue().accept_records(b(8), 1, 2**64),
    "submit with a plan of other records": lambda: queue().submit(plan(4), {"a": 1.0}),
    "submit without a plan": lambda: queue().submit(None, {"a": 1.0}),
    "ask for what producer 0 sent": lambda: queue().seen(0, 7),
    "skip items of producer 0": lambda: queue().skip(0, 7),
    "skip items of the producer that nobody can be": lambda: queue().skip(2**64 - 1, 7),
    "ask for the producer that nobody can be": lambda: queue().seen(2**64 - 1, 7),
    "note in a histogram there is not": lambda: queue().note("nothing", 1),
    "read a histogram there is not": lambda: queue().histogram("nothing"),
    "take without saying how": lambda: queue().take(),
    # Frames
    "accept a frame of nothing": lambda: queue().accept_frame(receiver(), 1),
    "accept a frame with more rows than it has": lambda: accept_frame(frame(bytes(8), 1 << 20)),
    "accept a frame with fewer rows than it has": lambda: accept_frame(frame(bytes(80), 1)),
    "accept a frame of no rows": lambda: accept_frame(frame(bytes(8), 0)),
    "accept a frame of half a record": lambda: accept_frame(frame(bytes(12), 1)),
    "accept a frame of runs": lambda: accept_frame(frame(run_of(1) + bytes(8), 1, runs=1)),
    "accept a frame of another type": lambda: accept_frame(frame(bytes(8), 1, kind=3)),
    "accept a frame that is not there yet": lambda: accept_frame(frame(bytes(80), 10)[:-1]),
    "accept a header alone": lambda: accept_frame(frame(bytes(80), 10)[:40]),
    "accept a frame whose check sum is wrong": lambda: accept_frame(bad_frame()),
    "accept what is no frame": lambda: accept_frame(bytes(100)),
    "accept a frame from nobody's receiver": lambda: queue().accept_frame(None, 1),
    "accept a frame that nobody checked": lambda: accept_unchecked(frame(bytes(8), 1 << 20)),
    "accept a frame that was skipped": accept_what_was_skipped,
    "accept runs of nothing": lambda: accept_runs(b""),
    "accept runs with more rows than there are": lambda: accept_runs(
        frame(run_of(1 << 20) + bytes(16), 1 << 20, runs=1)
    ),
    "accept runs of other rows than the frame's": lambda: accept_runs(
        frame(run_of(9) + bytes(16), 1, runs=1)
    ),
    "accept runs of no rows": lambda: accept_runs(frame(run_of(0) + bytes(16), 1, runs=1)),
    "accept a frame without runs as runs": lambda: accept_runs(frame(bytes(16), 1)),
    "accept runs that are not there yet": lambda: accept_runs(
        frame(run_of(1) + bytes(16), 1, runs=1)[:-1]
    ),
    "receiver smaller than a header": lambda: _native.Receiver(39, 1 << 20),
    "receiver of too many bytes": lambda: _native.Receiver(HUGE, HUGE),
    "receiver fed more than it has room for": lambda: receiver(bytes(4097)),
    "receiver told of more than it has room for": received_far,
    "receiver that skips more than it holds": lambda: receiver(bytes(100)).skip(101),
    "receiver resized to too much": lambda: receiver().resize(HUGE),
    "payload of no frame": lambda: receiver().payload(),
    "payload of half a frame": lambda: receiver(frame(bytes(80), 10)[:-1]).payload(),
    "pop of no frame": lambda: receiver().pop(),
    "pop of half a frame": lambda: receiver(frame(bytes(80), 10)[:-1]).pop(),
    "header of parts that have no bytes": lambda: _native.make_header(ITEMS, 0, [1, 2]),
    # FrameBuilder
    "builder of no record": lambda: builder(0).add_records(b(8)),
    "builder of frames too large": lambda: builder(8, HUGE).add_records(b(8)),
    "builder: half a record": lambda: builder().add_records(b(12)),
    "builder: no record": lambda: builder().add_records(b(0)),
    "builder: a run of half a record": lambda: builder().add_run(b(12), 0, -1, -1, 0, True),
    "builder: a run of no rows": lambda: builder().add_run(b(0), 0, -1, -1, 0, True),
    "builder: records, then a run": mixed_frame,
    "builder: a plan of other records": lambda: builder().pack(plan(4), {"a": 1.0}),
    "builder: a row of other records": lambda: builder().pack_row(
        plan(4), {"a": 1.0}, 0, -1, -1, 0
    ),
    # Board
    "board of such a record that bytes overflow": lambda: _native.Board.bytes_for(2**64 - 1, 2),
    "board of such a schema that bytes overflow": lambda: _native.Board.bytes_for(8, 2**64 - 4096),
    "format a board of such a record that bytes overflow": lambda: _native.Board.format(
        memory(1 << 16), 2**64 - 1, b"{}"
    ),
    "format a board into too little": lambda: _native.Board.format(
        memory(_native.Board.bytes_for(24, 2) - 1), 24, b"{}"
    ),
    "format a board into unaligned memory": lambda: _native.Board.format(
        memory(1 << 16, off=4), 24, b"{}"
    ),
    "format a board into read-only memory": lambda: _native.Board.format(
        read_only(memory(1 << 16)), 24, b"{}"
    ),
    "board over nothing": lambda: _native.Board(b(0)),
    "board over memory that is none": lambda: _native.Board(memory(1 << 16)),
    "board over less than its header": lambda: _native.Board(board_memory()[:64]),
    "board over a byte too little": lambda: _native.Board(board_memory()[:-1]),
    "board over a queue": lambda: _native.Board(queue_memory()),
    "publish a smaller record": lambda: _native.Board(board_memory()).publish(1, b(23)),
    "publish a larger record": lambda: _native.Board(board_memory()).publish(1, b(25)),
    "publish another dtype": lambda: _native.Board(board_memory()).publish(1, np.zeros(24, "i1")),
    "publish with gaps": lambda: _native.Board(board_memory()).publish(1, b(48)[::2]),
    "publish version 2^63": lambda: _native.Board(board_memory()).publish(2**63, b(24)),
}
CASES |= {
    f"queue whose {name} is {value}": lambda word=word, value=value: damaged_queue(word, value)
    for word, name in enumerate(QUEUE_WORDS)
    for value in (0, FAR, 2**64 - 1)
    if (name, value) not in HARMLESS
}
CASES |= {
    f"board whose {name} is {value}": lambda word=word, value=value: damaged_board(word, value)
    for word, name in enumerate(BOARD_WORDS)
    for value in (0, FAR, 2**64 - 1)
    if (name, value) not in HARMLESS
}


def column_word(which: int) -> int:
    return int(words(queue_memory())[QUEUE_WORDS.index("columns")]) // 8 + which


CASES |= {
    f"queue with a column whose {name} is {value}": lambda which=which, value=value: damaged_queue(
        column_word(which), value
    )
    for which, name in enumerate(("offset", "size", "start"))
    for value in (FAR, 2**64 - 1, 2**64 - 8)
}


def survive(where: str, word: int) -> None:
    """Sets a word to all sorts of values: nothing follows, or an error."""
    first = int(words(queue_memory())[QUEUE_WORDS.index("slots")]) // 8 if where == "slots" else 0
    for value in (0, 1, 3, FAR, 2**63, 2**64 - 1):
        try:
            damaged_queue(first + word, value, use=True)
        except (ValueError, RuntimeError, MemoryError):
            pass


SURVIVED: dict[str, Callable[[], Any]] = {
    f"queue with another word {word} of its {where}": lambda where=where, word=word: survive(
        where, word
    )
    for where, span in (("header", (*range(14), *range(22, 64))), ("slots", range(8)))
    for word in span  # not the lock's
}


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return outcomes("tests.kernels.test_queue")


@pytest.mark.parametrize("case", CASES)
def test_raises(case: str, found: dict[str, str]) -> None:
    expect_raised(found[case])


@pytest.mark.parametrize("case", SURVIVED)
def test_survives(case: str, found: dict[str, str]) -> None:
    assert found[case] == "returned"


# -- what is no misuse -----------------------------------------------------------------------------


def numbers(first: int, n: int) -> Any:
    return np.arange(first, first + n, dtype=np.int64).view(np.uint8)


def take_all(q: Any) -> list[int]:
    out: list[int] = []
    while (taken := q.take(True, True)) is not None:
        out += np.frombuffer(taken[0], np.int64)[: taken[1]].tolist()
    return out


def test_read_only_records_are_accepted() -> None:
    q = queue()
    assert q.accept_records(read_only(numbers(0, 3)), 1, 0) == (3, 3, False, False)
    assert take_all(q) == [0, 1, 2]


def test_a_frame_is_accepted_once() -> None:
    q, r = queue(), receiver(frame(bytes(numbers(5, 3)), 3))
    assert r.check_items(8, False)
    assert q.accept_frame(r, 9) == (3, 3, False, False)
    assert q.accept_frame(r, 9) == (3, 0, False, False)
    assert take_all(q) == [5, 6, 7]
    assert q.counters()["duplicates"] == 3


def test_a_pinned_block_is_read_only_and_outlives_its_queue() -> None:
    q = queue()
    q.accept_records(numbers(0, 4), 0, 0)
    block, rows, copied = q.take(False, False)
    assert (rows, copied) == (4, False)
    array = np.frombuffer(block, np.int64)
    assert not array.flags.writeable
    with pytest.raises(TypeError):
        memoryview(block)[0] = 1
    del q, block
    assert array[:4].tolist() == [0, 1, 2, 3]


def test_item_numbers_up_to_the_last() -> None:
    """They never get there; if they did, nothing would break."""
    q, last = queue(1), 2**64 - 1
    assert q.accept_records(numbers(0, 1), 3, last - 1) == (last, 1, False, False)
    assert q.accept_records(numbers(0, 1), 3, last - 1) == (last, 0, False, False)
    assert q.seen(3, 0) == last
    assert q.accept_records(numbers(9, 1), 4, 2**63) == (2**63 + 1, 1, False, False)
    assert q.accept_records(numbers(9, 1), 4, last) == (2**63 + 1, 0, True, False)
    assert take_all(q) == [0, 9]


def test_a_full_table_drops_the_longest_idle_producer() -> None:
    q, most = queue(1), _native.PRODUCERS

    def send(producer: int, first: int) -> tuple[int, int, bool, bool]:
        answer: tuple[int, int, bool, bool] = q.accept_records(
            numbers(producer, 1), producer, first
        )
        q.leave(producer)
        take_all(q)
        return answer

    for producer in range(1, most + 1):
        assert send(producer, 0) == (1, 1, False, False)
    for producer in (1, 2, 3, 5):  # not 4: it is the longest idle one now
        assert send(producer, 1) == (2, 1, False, False)
    assert send(most + 7, 7) == (8, 1, False, False)
    # Everybody else is known as before.
    assert send(1, 1) == (2, 0, False, False)
    assert send(1, 3) == (2, 0, True, False)
    for producer in range(7, most + 1, 97):
        assert send(producer, 0) == (1, 0, False, False)
    # It comes back and says where it is; nobody can know better. 6 goes instead.
    assert q.seen(4, 1) == 1
    assert send(4, 1) == (2, 1, False, False)
    assert send(4, 0) == (2, 0, False, False)
    assert q.seen(6, 40) == 40
    assert send(most + 7, 7) == (8, 0, False, False)


def test_who_is_connected_is_not_forgotten() -> None:
    """However long it is idle, and whether or not it has sent since it came back."""
    q, most = queue(1), _native.PRODUCERS
    for producer in range(1, most + 1):
        q.accept_records(numbers(0, 1), producer, 0)
        if producer != 1:
            q.leave(producer)
        take_all(q)
    assert q.seen(2, 0) == 1  # it comes back
    for producer in range(most + 1, 2 * most - 1):
        q.accept_records(numbers(0, 1), producer, 0)
        q.leave(producer)
        take_all(q)
    assert q.seen(1, 99) == q.seen(2, 99) == 1
    assert q.seen(3, 99) == 99
    q.leave_all()  # another process serves the queue
    assert q.seen(1, 99) == q.seen(2, 99) == 1


def test_a_producer_that_finds_no_place_leaves_the_queue_as_it_was() -> None:
    q, most = queue(1), _native.PRODUCERS
    for producer in range(1, most + 1):  # all of them stay connected
        q.accept_records(numbers(0, 1), producer, 0)
        take_all(q)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        r = receiver(frame(numbers(7, 1).tobytes(), 1))
        assert r.check_items(8, False)
        with pytest.raises(RuntimeError, match="producers are connected"):
            q.take_frames(r, ours.fileno(), most + 1, 0, 0.0)
    q.lock_timeout_s = 0.5
    assert Task(q.seen, 1, 0).result() == 1  # nobody holds the lock
    q.leave(1)
    assert q.accept_frame(r, most + 1) == (1, 1, False, False)
    assert take_all(q) == [7]


def test_asking_takes_no_place() -> None:
    """Clients that only connect drive nobody out."""
    q, most = queue(1), _native.PRODUCERS
    q.accept_records(numbers(0, 1), 1, 0)
    q.leave(1)
    for producer in range(2, most + 100):
        assert q.seen(producer, 5) == 5
        q.skip(producer, 7)
        q.leave(producer)
    assert q.seen(1, 99) == 1


if __name__ == "__main__":
    attempt_all(CASES | SURVIVED)
