"""Items with fields and bytes of any size: what is refused, and what a client makes of calls."""

from __future__ import annotations

import random
import struct
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native
from tests.wire import shaped
from tests.wire.naive import runs_of
from tests.wire.shaped import HAS_FIELDS, SHAPES, Shape

LANE = 16 | 32


def compare(rng: random.Random, frames: int) -> Counter[str]:
    """Good and spoiled frames against the naive check; how many had which verdict."""
    ends: Counter[str] = Counter()
    for number in range(frames):
        shape = rng.choice(SHAPES)
        good = rng.random() < 0.3
        sent = (
            shaped.items(rng, shape).sealed(number) if good else shaped.spoiled(rng, shape, number)
        )
        receiver = shaped.received(shape, sent)
        expected = shaped.verdict(shape, receiver.runs, receiver.rows, sent[40:])
        assert receiver.check_items(shape.record_size, True) == (expected == "none"), sent
        assert receiver.refusal == expected
        assert not good or expected == "none"
        ends[expected] += 1
    return ends


def test_frames_of_items() -> None:
    ends = compare(random.Random(0), 12_000)
    assert set(ends) == {"none", "shape", "value"} and min(ends.values()) > 300


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_frames_of_items_soak() -> None:
    for seed in range(20):
        compare(random.Random(f"items {seed}"), 100_000)


@given(st.binary(max_size=40) | st.text(max_size=12).map(str.encode))
def test_text_is_utf8_as_python_says_it(text: bytes) -> None:
    shape = Shape(16, variable=((0, 1, shaped.TEXT),))
    record = bytearray(struct.pack("<QQ", 0, len(text)))
    parts = shaped.Parts([shaped.Run(1, 1, 0, -1, 0)], [], [record], text)
    receiver = shaped.received(shape, parts.sealed(0))
    try:
        text.decode()
        fits = True
    except UnicodeDecodeError:
        fits = False
    assert receiver.check_items(16, True) == fits


# -- what a client makes of calls -----------------------------------------------------------------

FIELDS = Shape(24, 5, 2, (), ((8, 1, shaped.ANY),))


class Call:
    """One run as a caller adds it: rows with bytes, perhaps fields."""

    def __init__(self, n: int, rows: int, sizes: list[int], fields: int | None, lanes: int) -> None:
        records, data = b"", b""
        for row in range(rows):
            size = sizes[row % len(sizes)]
            records += struct.pack("<QQQ", n << 8 | row, len(data), size)
            data += bytes([(7 * n + row) % 251]) * size
        self.records = np.frombuffer(records, np.uint8)
        self.data = np.frombuffer(data, np.uint8)
        self.lanes, self.n = lanes, n
        self.fields = None
        if fields is not None:
            said = struct.pack("<Q5s", 1 + fields % 3, bytes([fields] * 5)).ljust(16, b"\0")
            self.fields = np.frombuffer(said, np.uint8).reshape(1, -1)

    def add(self, box: Any) -> None:
        flags, traj_id = (LANE, -1) if self.lanes else (0, 3)
        told = (flags, traj_id, -1, self.lanes, True)
        box.add_run(self.records, *told, self.fields, self.data if len(self.data) else None)

    def rows(self) -> list[tuple[Any, ...]]:
        """Of each row: the run it may be part of, its number, its bytes, its fields."""
        said = b"" if self.fields is None else self.fields.tobytes()
        return [
            (self.lanes, number, bytes(self.data[at : at + size]), said)
            for number, at, size in struct.iter_unpack("<QQQ", self.records.tobytes())
        ]


def rows_in(payload: bytes, runs: int, rows: int) -> list[tuple[Any, ...]]:
    """The same of a frame's rows."""
    table = runs_of(payload, runs)
    at, said = 32 * runs, []
    for run in table:
        has = bool(run.flags & HAS_FIELDS)
        said.append(payload[at : at + 16] if has else b"")
        at += 16 * has
    data = payload[at + 24 * rows :]
    out = []
    for run, fields in zip(table, said):
        for _ in range(run.rows):
            number, position, size = struct.unpack_from("<QQQ", payload, at)
            out.append((run.lanes, number, data[position : position + size], fields))
            at += 24
    return out


calls = st.tuples(
    st.integers(1, 3),
    st.lists(st.sampled_from([0, 1, 5, 60]), min_size=1, max_size=3),
    st.sampled_from([None, None, 1, 1, 2]),
    st.sampled_from([0, 1]),
)


@given(
    frame_bytes=st.integers(1, 400),
    made=st.lists(st.one_of(calls, st.sampled_from(["take", "full"])), max_size=40),
)
def test_what_was_added_comes_out(frame_bytes: int, made: list[Any]) -> None:
    box = _native.FrameBuilder(24, False, 0, frame_bytes)
    box.set_variable(np.array([8], np.int64))
    sent: list[tuple[Any, ...]] = []
    frames: list[Any] = []
    most = 1
    for n, what in enumerate(made):
        if isinstance(what, str):
            frames.append(box.take(what == "take"))
            continue
        call = Call(n, *what)
        call.add(box)
        most = max(most, 32 + 16 + len(call.records) + len(call.data))
        sent += call.rows()
    while (last := box.take(True)) is not None:
        frames.append(last)
    got, items = [], 0
    for frame in filter(None, frames):
        whole = frame.head + bytes(frame) + frame.bytes
        receiver = shaped.received(FIELDS, whole)
        assert receiver.check_items(24, True) and receiver.number == items
        assert frame.nbytes == len(whole) and len(whole) - 40 <= max(frame_bytes, most)
        items += frame.items
        got += rows_in(whole[40:], receiver.runs, receiver.rows)
    assert got == sent and items == box.next


def test_what_grows() -> None:
    """Rows of one lane, each with these fields: how many are in each run."""

    def runs(*fields: int | None) -> list[int]:
        box = _native.FrameBuilder(24, False, 0, 10_000)
        box.set_variable(np.array([8], np.int64))
        for n, one in enumerate(fields):
            Call(n, 1, [3], one, 1).add(box)
        frame = box.take(True)
        return [run.rows for run in runs_of(frame.head[40:], frame.items)]

    assert runs(None, None, None) == [3]
    assert runs(1, 1, 1) == [3]
    assert runs(1, 2, 2) == [1, 2]
    assert runs(None, 1) == [1, 1] and runs(1, None) == [1, 1]  # of one trajectory, or of the next
    assert runs(1, 1, None, None, 1) == [2, 2, 1]


def test_misuse() -> None:
    box = _native.FrameBuilder(24, False, 0, 10_000)
    record, said = np.zeros(24, np.uint8), np.zeros((2, 16), np.uint8)
    with pytest.raises(ValueError, match="each lane"):
        box.add_run(record, LANE, -1, -1, 1, True, said)
    with pytest.raises(ValueError, match="each lane"):
        box.add_run(record, 0, 0, -1, 0, True, said[:0])
    with pytest.raises(ValueError, match="past the record"):
        box.set_variable(np.array([9], np.int64))
    assert box.next == 0 and box.take(True) is None
    receiver = _native.Receiver(64, 64)
    for leaves in ([0, 1], [0, 1, 3], [-1, 1, 0], [8, 1, 0, 0, 1, 0], [0, 1, 0, 15, 1, 0]):
        with pytest.raises(ValueError, match="variable leaves"):
            receiver.set_variable(np.array(leaves, np.int64))
    for size, leaves, bools in ((0, 1, []), (8, 65, []), (4097, 1, []), (8, 1, [8, 1])):
        with pytest.raises(ValueError, match="set_fields"):
            receiver.set_fields(size, leaves, np.array(bools, np.int64))
