"""The table of producers of a tape, in memory and on disk: who is remembered, and who gives way."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from contig import DiskStorage, LazyTensorStorage, _native
from contig._native import Received
from tests.wire.test_values import frame

ROW = {"n": np.int64(0), "next": {"done": False}}
MOST = _native.PRODUCERS


class Sending:
    """Items of one row for a storage, of any producer."""

    def __init__(self, storage: Any) -> None:
        self.tape = storage.tape
        self._writer = storage.native_writer(storage.schema)
        self._size = storage.layout.record_size

    def send(self, producer: int, number: int, following: int = 0) -> tuple[int, int, int, bool]:
        run = struct.pack("<IIqqII", 1, 1 | 2, producer, -1, 0, 0)
        sent = frame(run + bytes(self._size), 1, 1, number)
        receiver = _native.Receiver(4096, 1 << 20)
        receiver.room()[: len(sent)] = sent
        receiver.received(len(sent))
        assert receiver.next() == Received.READY and receiver.check_items(self._size, True)
        if hasattr(self._writer, "accept"):
            answer: Any = self._writer.accept(receiver, producer, 1 << 62, following)
        else:
            answer = _native.accept_runs(self._writer, receiver, producer, 1 << 62, following)
        return answer  # type: ignore[no-any-return]


def test_of_those_that_left_the_longest_idle_one_gives_way() -> None:
    storage = LazyTensorStorage(1000, example=ROW)
    sending = Sending(storage)
    for producer in range(1, MOST + 1):
        assert sending.send(producer, 0) == (1, 1, 1, False)
        if producer > 2:  # those stay connected
            storage.tape.leave(producer)
    for producer in range(MOST + 1, MOST + 101):
        assert storage.tape.seen(producer, 7) == 7  # asking takes no place
        assert sending.send(producer, 7) == (8, 1, 1, False)
        storage.tape.leave(producer)
    for producer in (1, 2, 103, MOST, MOST + 100):
        assert sending.send(producer, 0)[1] == 0, producer  # known: sent again, and dropped
    assert storage.tape.seen(3, 50) == 50 and storage.tape.seen(102, 50) == 50
    # One that is not known goes on where its connection knows it to be.
    assert sending.send(3, 0, following=1) == (1, 0, 0, False)
    assert sending.send(3, 1, following=1) == (2, 1, 1, False)
    storage.close()


def test_a_storage_on_disk_remembers_as_many(tmp_path: Path) -> None:
    producers = 5000  # more than used to be
    with DiskStorage(tmp_path, 20_000, example=ROW) as storage:
        sending = Sending(storage)
        for producer in range(1, producers + 1):
            assert sending.send(producer, 0) == (1, 1, 1, False)
    with DiskStorage(tmp_path) as storage:
        sending = Sending(storage)
        assert all(storage.tape.seen(p, 99) == 1 for p in range(1, producers + 1))
        assert sending.send(1, 0) == (1, 0, 0, False)
        assert len(storage) == producers
