"""The machine of `test_disk_machine`, of trajectories with fields and rows with leaves of any size.

Rows give way to bytes as well; fields are given with appends and set later, of any trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

import contig
from tests.tape.disk import stored
from tests.tape.disk.test_disk_machine import FORM, STRIDE, Storages, _at_once, check, lane
from tests.tape.model import ModelTape, ModelWriter, Row, Track, Whole

__all__ = ["_at_once"]

FIELDS = {"task": np.int32(0), "label": {"score": np.float64(0), "who": np.zeros(3, np.uint8)}}
COLUMNS = ("task", "label.score", "label.who")
RING = 6000  # bytes: some thirty rows


def fields_of(number: int) -> dict[str, Any]:
    """Some or all of them, by a number."""
    who = np.array([number % 251, number // 251 % 251, 7], np.uint8)
    some = [
        {"task": np.int32(number)},
        {"label": {"score": number / 8}},
        {"task": np.int32(-number), "label": {"score": float(number), "who": who}},
    ]
    return some[number % 3]


def over(before: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Given ones, by column, over those before."""
    flat = {
        "task": given.get("task"),
        **{f"label.{k}": v for k, v in given.get("label", {}).items()},
    }
    return {**before, **{k: v for k, v in flat.items() if v is not None}}


class FullTape(ModelTape):
    """A tape whose rows have bytes, and whose trajectories have fields."""

    def __init__(self, capacity: int, *bounds: int | None) -> None:
        super().__init__(capacity, FORM, None, bounds[1] if bounds else None)
        self.max_bytes = None if not bounds or bounds[0] is None else bounds[0] * STRIDE
        self.given: dict[str, Any] = {}

    def append(
        self,
        writer: ModelWriter,
        lanes: list[list[Row]],
        rule: str,
        whole: Whole | None = None,
        envs: Sequence[int] | None = None,
    ) -> list[int]:
        coming = sum(bytes_of(row) for rows in lanes for row in rows)
        room = max(self.head + sum(map(len, lanes)) - self.capacity, 0)
        self.tail = max(self.tail, min(room, self.head))
        while self.bytes_from(self.tail) + coming > RING:
            self.tail += 1
        return super().append(writer, lanes, rule, whole, envs)

    def bytes_from(self, seq: int) -> int:
        return sum(bytes_of(self.row(s)) for s in range(seq, self.head) if s in self.by_seq)

    def retain(self) -> None:
        if self.max_bytes is not None:
            self._keep_from(self.tail)
            while self.tail < self.head - 1 and self._taken() > self.max_bytes:
                self.tail += 1
        super().retain()

    def _taken(self) -> int:
        return (self.head - self.tail) * STRIDE + self.bytes_from(self.tail)

    def _store(
        self, track: Track, seq: int, row: Row, writer: int, end: Whole | None, whole: Whole | None
    ) -> None:
        before = track.trajectory
        linked = before is not None and before.rows[-1][0] >= self.tail
        known: dict[str, Any] = {} if track.steps == 1 else getattr(track, "fields", {})
        if linked:
            known = before.fields  # type: ignore[union-attr]
        super()._store(track, seq, row, writer, end, whole)
        track.fields = over(known, self.given)  # type: ignore[attr-defined]
        track.trajectory.fields = track.fields  # type: ignore[union-attr]


def bytes_of(row: Row) -> int:
    return _bytes[row.uid]


_bytes: dict[int, int] = {}


class FullStorages(Storages):
    def __init__(self) -> None:
        super().__init__()
        self._any_size = stored.any_size()
        self._any_size.__enter__()
        self.changes = 0

    def teardown(self) -> None:
        self._any_size.__exit__(None, None, None)
        super().teardown()

    def tape(self, capacity: int, *bounds: int | None) -> ModelTape:
        return FullTape(capacity, *bounds)

    def options(self) -> dict[str, Any]:
        return {"max_bytes": self.model.max_bytes, "blob_bytes": RING, "fields": FIELDS}

    def given(self, who: int, item: int) -> dict[str, Any]:
        parts = 1 if 10 <= who < stored.SINGLE else 3
        for row, fields in zip(lane(who, item, parts), stored.item(who, item, parts)["fields"]):
            _bytes[row.uid] = stored.bytes_of([fields])
        self.changes += 1
        self.model.given = {} if item % 4 == 0 else fields_of(self.changes)
        return {"fields": self.model.given} if self.model.given else {}

    @rule(picked=st.lists(st.integers(0, 40), min_size=1, max_size=8))
    def set_fields(self, picked: list[int]) -> None:
        """Of trajectories that are there, and of some that are not."""
        assert self.storage is not None
        self.changes += 1
        given = fields_of(self.changes)
        there = self.model.pieces()
        newest = max(there, default=0)
        ids = sorted({newest - n for n in picked if newest >= n})
        assert self.storage.set_fields(ids, given) == sum(id in there for id in ids)
        if any(id in there for id in ids):
            self.model.commit()
        for id in ids:
            if id in there:
                there[id].of.fields = over(there[id].of.fields, given)

    def check(self, storage: contig.Storage, tape: ModelTape) -> None:
        check(storage, tape)
        found = storage.episodes()
        for row, (id, piece) in zip(found, tape.pieces().items()):
            assert row["id"] == id
            for column in COLUMNS:
                expected = piece.of.fields.get(column, np.zeros(3) if "who" in column else 0)
                assert np.array_equal(row[column], expected), (id, column, row[column], expected)


FullStorages.TestCase.settings = settings(
    Storages.TestCase.settings, max_examples=25, stateful_step_count=30
)
TestFullStorages = FullStorages.TestCase


@pytest.mark.soak
def test_soak() -> None:
    many = settings(Storages.TestCase.settings, max_examples=1500, stateful_step_count=50)
    run_state_machine_as_test(FullStorages, settings=many)
