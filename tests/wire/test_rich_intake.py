"""Frames with fields and bytes into tapes in memory and on disk: whole, in part, sent again in
other frames; against a list of what each item says.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage, Layout, LazyTensorStorage, _native
from contig.layout import Layout as TableLayout
from contig.server.item_shape import ItemShape
from contig.tape.fields import fields_layout
from tests.wire import shaped
from tests.wire.naive import Run
from tests.wire.shaped import HAS_FIELDS, Parts, Shape

PRODUCER = 77
MANY = 1 << 62
ROW = Layout({"a_data": b"", "n": np.int64(0), "text": ""})
FIELDS = fields_layout({"task": np.int32(0), "word": np.zeros(5, np.uint8)})
SHAPE = Shape(ROW.record_size, FIELDS.record_size, 2, (), ((0, 1, 0), (24, 1, 1)))


class Item:
    """One run: rows of a trajectory, told by flags, or of some lanes."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self.lanes = rng.choice([0, 0, 2, 3])
        rows = (self.lanes or 1) * rng.randint(1, 3)
        self.rows = [(number * 100 + i, rng.randrange(40), rng.randrange(4)) for i in range(rows)]
        count = 1 if not self.lanes else rng.choice([1, self.lanes])
        self.given = [self._given(rng) for _ in range(count)] if rng.random() < 0.6 else []

    @staticmethod
    def _given(rng: random.Random) -> tuple[int, int, bytes]:
        return rng.randrange(4), rng.randrange(1 << 30), rng.randbytes(5)

    def add_to(self, parts: Parts) -> Parts:
        flags = 16 if self.lanes else 1 | 2
        told = (flags | HAS_FIELDS * bool(self.given), 5, -1, self.lanes, len(self.given))
        parts.runs.append(Run(len(self.rows), *told))
        places = {leaf.path[0]: leaf.offset for leaf in FIELDS.leaves}
        for mask, task, word in self.given:
            record = bytearray(SHAPE.given - 8)
            struct.pack_into("<i", record, places["task"], task)
            record[places["word"] : places["word"] + 5] = word
            parts.said.append(struct.pack("<Q", mask) + bytes(record))
        data = parts.data
        for n, size, letters in self.rows:
            blob, text = bytes([n % 251]) * size, f"{n}∂" * letters
            record = struct.pack("<QQqQQ", len(data), size, n, len(data) + size, len(text.encode()))
            data += blob + text.encode()
            parts.records.append(bytearray(record))
        return parts._replace(data=data)

    def expected(self) -> list[tuple[list[int], int, bytes]]:
        """Of each of its trajectories: the rows, and the fields."""
        lanes = self.lanes or 1
        each = len(self.rows) // lanes
        out = []
        for lane in range(lanes):
            numbers = [n for n, _, _ in self.rows[lane * each : (lane + 1) * each]]
            mask, task, word = (0, 0, bytes(5))
            if self.given:
                mask, task, word = self.given[lane if len(self.given) > 1 else 0]
            first, second = (FIELDS.number[("task",)], FIELDS.number[("word",)])
            has = (mask >> first & 1, mask >> second & 1)
            out.append((numbers, task if has[0] else 0, word if has[1] else bytes(5)))
        return out


def frame_of(items: list[Item], first: int) -> bytes:
    parts = Parts([], [], [], b"")
    for item in items:
        parts = item.add_to(parts)
    return parts.sealed(first)


class Side:
    """A tape and the writer of its producer."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        storage.publish(ROW, FIELDS)
        assert storage.schema is not None and storage.layout == TableLayout.from_json(ROW.to_json())
        self.shape = ItemShape.of({"layout": ROW.to_json(), "fields": FIELDS.to_json()})
        self.writer = storage.native_writer(storage.schema)
        self.seen = 0

    def take(self, sent: bytes, most_rows: int = MANY, times: int = 1) -> bool:
        """A frame, at most so many rows at a time and no more often; whether all of it is in."""
        receiver = _native.Receiver(max(len(sent), 64), 1 << 20)
        self.shape.tell(receiver)
        receiver.feed(sent)
        assert receiver.next() == 1 and receiver.check_items(ROW.record_size, True)
        end = receiver.number + receiver.runs
        for _ in range(times):
            if hasattr(self.writer, "accept"):
                answer = self.writer.accept(receiver, PRODUCER, most_rows, self.seen)
            else:
                answer = _native.accept_runs(self.writer, receiver, PRODUCER, most_rows, self.seen)
            seen, _, _, gap = answer
            assert not gap
            self.seen = max(self.seen, seen)
        return self.seen >= end

    def check(self, items: list[Item]) -> None:
        expected = [one for item in items[: self.seen] for one in item.expected()]
        table = self.storage.episodes()
        got = []
        for entry in table:
            batch = self.storage.read_episode(int(entry["id"]))
            numbers = batch["n"].tolist()
            got.append((numbers, int(entry["task"]), bytes(entry["word"])))
            for i, n in enumerate(numbers):
                item = items[n // 100].rows[n % 100]
                assert batch["a_data"][i] == bytes([n % 251]) * item[1]
                assert batch["text"][i] == f"{n}∂" * item[2]
        assert got == expected


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_parts_and_resends(kind: str, tmp_path: Path) -> None:
    """Frames are taken in in part, given up, and what is not in comes again in other frames."""
    for seed in range(40 if kind == "memory" else 4):
        rng = random.Random(seed)
        storage: Any = (
            LazyTensorStorage(5000, blob_bytes=1 << 20)
            if kind == "memory"
            else DiskStorage(tmp_path / f"{seed}", fields=FIELDS)
        )
        side, items = Side(storage), [Item(rng, n) for n in range(40)]
        again = 0
        while side.seen < len(items):
            first = max(side.seen - rng.choice([0, 0, 1, 3]), 0)
            last = min(first + rng.randint(1, 6), len(items))
            again += first < side.seen
            side.take(frame_of(items[first:last], first), rng.choice([1, 2, 4, MANY]), 1)
        assert again > 0
        side.check(items)
        storage.close()
        if kind == "disk":
            side.storage = DiskStorage(tmp_path / f"{seed}")
            side.check(items)
            side.storage.close()


def test_a_frame_is_refused_whole() -> None:
    """Whatever part of it is wrong, nothing of it is in."""
    side, rng = Side(LazyTensorStorage(1000, blob_bytes=1 << 20)), random.Random(0)
    items = [Item(rng, n) for n in range(3)]
    assert side.take(frame_of(items, 0))
    refused = 0
    for _ in range(300):
        sent = shaped.spoiled(rng, SHAPE, 3)
        receiver = _native.Receiver(max(len(sent), 64), 1 << 20)
        side.shape.tell(receiver)
        receiver.feed(sent)
        if receiver.next() != 1 or not receiver.check_items(ROW.record_size, True):
            refused += 1
            with pytest.raises(ValueError, match="no whole frame"):
                _native.accept_runs(side.writer, receiver, PRODUCER, MANY, 3)
    assert refused > 100
    side.check(items)
    side.storage.close()


def test_rows_larger_than_the_ring() -> None:
    """The table refuses them, and the producer's number is as before."""
    side = Side(LazyTensorStorage(1000, blob_bytes=64))
    item = Item(random.Random(0), 0)
    item.lanes, item.given, item.rows = 0, [], [(0, 60, 0), (1, 65, 0)]
    with pytest.raises(ValueError, match=r"65 bytes.*nothing was written"):
        side.take(frame_of([item], 0))
    assert side.storage.tape.seen(PRODUCER, 0) == 0 and len(side.storage.episodes()) == 0
    item.rows = [(n, 30, 0) for n in range(5)]  # the last of which fit
    assert side.take(frame_of([item], 0)) and side.storage.tape.snapshot()[0] == 2
    (entry,) = side.storage.episodes()
    assert side.storage.read_episode(int(entry["id"]))["n"].tolist() == [3, 4]
    side.storage.close()
