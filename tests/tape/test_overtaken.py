"""Readers of the index whom writers overtake: what is evicted meanwhile has others in its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage
from contig.tape.episodes import read_episodes

CAPACITY, STEPS = 20, 5


def episode(number: int) -> dict[str, Any]:
    done = np.arange(STEPS) == STEPS - 1
    return {"n": np.full(STEPS, number), "next": {"done": done}}


class Overtaken:
    """A tape's reader, just after whose first calls writers turn the whole ring."""

    def __init__(self, storage: Any, call: str, times: int) -> None:
        self._storage, self._call, self._times = storage, call, times
        self._writer = storage.writer()
        self.written = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._storage.tape, name)
        if name != self._call:
            return real

        def call(*args: Any) -> Any:
            found = real(*args)
            if self._times > 0:
                self._times -= 1
                self.turn()
            return found

        return call

    def turn(self) -> None:
        for _ in range(2 * CAPACITY // STEPS):
            given = {"task": self.written} if self._storage.fields is not None else None
            self._writer.extend(episode(self.written), fields=given)
            self.written += 1


@pytest.mark.parametrize("times", [1, 7])
@pytest.mark.parametrize("call", ["read_index", "fields_of"])
def test_episodes_with_fields(call: str, times: int) -> None:
    with LazyTensorStorage(CAPACITY, fields={"task": 0}) as storage:
        tape = Overtaken(storage, call, times)
        tape.turn()
        found = read_episodes(tape, storage.fields)
        assert len(found) and set(found["task"]) <= set(range(tape.written - 4, tape.written))
        assert (found["id"] == found["task"]).all()


def test_episodes_without_fields() -> None:
    """The bounds are of the moment when all entries had been read."""
    with LazyTensorStorage(CAPACITY) as storage:
        tape = Overtaken(storage, "read_index", 3)
        tape.turn()
        found = read_episodes(tape, None)
        assert len(found) == CAPACITY // STEPS and found["complete"].all()


@pytest.mark.parametrize("fields", [None, {"task": 0}])
def test_entries_that_are_gone_when_they_are_read(fields: Any) -> None:
    """Writers of other processes evict them one by one, while nothing else is done here."""
    with LazyTensorStorage(CAPACITY, fields=fields) as storage:
        tape = Overtaken(storage, "", 0)
        tape.turn()
        real, left = storage.tape.read_index, [5]

        def read_index() -> Any:
            words, head, tail = real()
            left[0] -= 1
            return words[:0] if left[0] >= 0 else words, head, tail

        tape.read_index = read_index
        assert len(read_episodes(tape, storage.fields)) == CAPACITY // STEPS and left[0] == -1


def test_how_many_rows_there_are() -> None:
    """A tail that was loaded long after the head."""
    with LazyTensorStorage(CAPACITY) as storage:
        tape = Overtaken(storage, "", 0)
        tape.turn()
        real, late = storage.tape.snapshot, [3]

        def snapshot() -> Any:
            head = real()[0]
            if late[0]:
                late[0] -= 1
                tape.turn()
            return (head, *real()[1:])

        tape.snapshot, storage.tape, native = snapshot, tape, storage.tape
        assert len(storage) == CAPACITY and late == [0]
        storage.tape = native


def test_an_empty_tape_is_empty() -> None:
    with LazyTensorStorage(CAPACITY, fields={"task": 0}) as storage:
        assert len(read_episodes(storage.tape, storage.fields)) == 0
        storage.writer().extend(episode(0), fields={"task": 1})
        storage.empty()
        assert len(storage.episodes()) == 0
