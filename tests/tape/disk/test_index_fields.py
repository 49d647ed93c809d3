"""Fields of trajectories in the index: written with entries, set later, read whole or since."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig.tape.disk.index_fields as index_fields
from contig.tape.disk.changes import Changes, merged
from contig.tape.disk.index import DiskIndex
from contig.tape.disk.index_fields import FieldChanges, FieldPages
from contig.tape.disk.index_tables import Form
from contig.tape.entry import ENTRY

STORE = 0x1234
SIZES = (1, 4, 24, 100, 108, 2000, 4096)

Array = np.ndarray[Any, Any]


def record(number: int, version: int, size: int) -> Array:
    """All bytes say whose they are."""
    return np.random.default_rng([number, version]).integers(0, 256, size, np.uint8)


def records(numbers: Any, version: int, size: int) -> Array:
    out = [record(int(n), version, size) for n in numbers]
    return np.array(out, np.uint8).reshape(-1, size)


def appended(first: int, count: int, tail: int, fields: FieldChanges | None) -> Changes:
    """Entries of one row each."""
    entries = np.zeros(count, ENTRY)
    entries["number"] = entries["first"] = np.arange(first, first + count)
    entries["steps_flags"] = 1 << 8
    head = first + count
    return Changes(entries, {}, tail, tail, head, head, head, (0, 0), ((0, 7),), 0, 0, fields)


def fresh(first: int, count: int, size: int) -> FieldChanges:
    none = np.zeros(0, np.int64)
    new = records(range(first, first + count), 0, size)
    return FieldChanges(first, new, none, np.zeros((0, size), np.uint8))


def were_set(numbers: list[int], version: int, head: int, size: int) -> FieldChanges:
    nothing = np.zeros((0, size), np.uint8)
    return FieldChanges(head, nothing, np.array(numbers), records(numbers, version, size))


class Model:
    """An index that is written to, what it should say, and one who follows it."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.index = DiskIndex(path, True, STORE, Form(3, size))
        self.index.set_durable(False)
        self.index.load()
        self.reader = DiskIndex(path, False, STORE, Form(3, size))
        self.said: dict[int, Array] = {}
        self.known: dict[int, Array] = {}
        self.tail = self.head = 0
        self.revision = -1

    def append(self, count: int) -> Changes:
        new = fresh(self.head, count, self.size)
        changes = appended(self.head, count, self.tail, new)
        self.said.update(zip(range(self.head, self.head + count), new.fresh))
        self.head += count
        return changes

    def set(self, numbers: list[int], version: int) -> Changes:
        fields = were_set(numbers, version, self.head, self.size)
        self.said.update(zip(numbers, fields.records))
        return appended(self.head, 0, self.tail, fields)

    def retire(self, tail: int) -> None:
        self.tail = tail
        self.said = {n: r for n, r in self.said.items() if n >= tail}

    def check(self) -> None:
        found = self.index.load().fields
        assert found is not None and not found.bad
        assert found.first == self.tail
        np.testing.assert_array_equal(found.records, self.of(self.said))

    def follow(self) -> bool:
        """Whether it was told what changed, and did not have to read all."""
        state = self.reader.load(max(self.known, default=-1) + 1, self.revision)
        found = state.fields
        assert found is not None and not found.bad
        self.revision = state.revision
        told = found.numbers is not None
        if not told:
            found = self.reader.load().fields
            assert found is not None
        self.known.update(zip(range(found.first, self.head), found.records))
        self.known.update(zip(() if found.numbers is None else found.numbers, found.changed))
        self.known = {n: r for n, r in self.known.items() if n >= self.tail}
        np.testing.assert_array_equal(self.of(self.known), self.of(self.said))
        return told

    def of(self, said: dict[int, Array]) -> Array:
        return np.array([said[n] for n in sorted(said)], np.uint8).reshape(-1, self.size)

    def close(self) -> None:
        self.index.close()
        self.reader.close()


@pytest.mark.parametrize("size", SIZES)
def test_random_changes(fast_path: Path, size: int) -> None:
    model = Model(fast_path / "index.sqlite", size)
    chosen = np.random.default_rng(size)
    model.index.write(model.append(1))
    model.follow()
    told = 0
    for version in range(1, 60):
        changes = []
        for _ in range(chosen.integers(1, 4)):
            if chosen.random() < 0.6:
                changes.append(model.append(int(chosen.choice([1, 2, 40, 300]))))
            if chosen.random() < 0.6:
                count = min(int(chosen.integers(1, 30)), model.head - model.tail)
                live = np.arange(model.tail, model.head)
                numbers = chosen.choice(live, count, replace=False)
                changes.append(model.set([int(n) for n in numbers], version))
        if changes:
            if chosen.random() < 0.3:
                model.retire(int(chosen.integers(model.tail, model.head)))
            changes.append(appended(model.head, 0, model.tail, None))
            model.index.write(merged(changes))
        model.check()
        if chosen.random() < 0.7:
            told += model.follow()
    assert told > 10
    model.close()
    with sqlite3.connect(model.path) as db:
        slots = FieldPages(size, STORE).slots
        (first,) = db.execute("SELECT min(page) FROM fields").fetchone()
        assert first == model.tail // slots, "pages of evicted entries are still there"
    db.close()


def test_who_is_far_behind_reads_all(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_fields, "_KEPT", 5)
    model = Model(fast_path / "index.sqlite", 8)
    model.index.write(model.append(100))
    model.follow()
    for far, told in ((4, True), (12, True), (15, False), (30, False), (1, True)):
        for n in range(far):  # 12 is an eighth of the entries
            model.index.write(model.set([n], far))
        assert model.follow() == told
    with sqlite3.connect(model.path) as db:
        assert 12 < db.execute("SELECT count(*) FROM changed").fetchone()[0] <= 15
    db.close()
    model.close()


def test_a_log_of_an_earlier_version(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no mark, and what was set before so many transactions may be missing in it."""
    monkeypatch.setattr(index_fields, "_KEPT", 5)
    model = Model(fast_path / "index.sqlite", 8)
    model.index.write(model.append(400))
    model.follow()
    for n in range(20):
        model.index.write(model.set([n], 1))
    with sqlite3.connect(model.path) as db:
        newest = db.execute("SELECT max(revision) FROM changed").fetchone()[0]
        db.execute("DELETE FROM changed WHERE revision <= ?", (newest - 5,))
    db.close()
    assert not model.follow()
    for n in range(30):
        model.index.write(model.set([n], 2))
    assert model.follow()
    model.close()


@pytest.mark.parametrize("size", (4, 300))
def test_every_byte_of_a_page(fast_path: Path, size: int) -> None:
    """A byte that is changed costs the records that it is of, and setting others heals none."""
    model = Model(fast_path / "index.sqlite", size)
    model.index.write(model.append(20))
    pages = FieldPages(size, STORE)
    db = sqlite3.connect(model.path)
    (whole,) = db.execute("SELECT records FROM fields WHERE page = 0").fetchone()
    count = min(20, pages.slots)
    stride = len(whole) // count
    for at in range(0, len(whole), 1 if size < 10 else 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        db.execute("UPDATE fields SET records = ? WHERE page = 0", (bytes(damaged),))
        db.commit()
        found = model.index.load().fields
        inside = at % stride < size + 4  # else it is padding
        assert found.bad == ([at // stride] if inside else [])
        assert not inside or not found.records[at // stride].any()
        other = (at // stride + 1) % count
        model.index.write(model.set([other], at))
        found = model.index.load().fields
        assert found.bad == ([at // stride] if inside else [])
        model.index.write(model.set([at // stride], at))  # it is given anew
        model.check()
        (whole,) = db.execute("SELECT records FROM fields WHERE page = 0").fetchone()
    for size_now in range(len(whole)):
        db.execute("UPDATE fields SET records = ? WHERE page = 0", (whole[:size_now],))
        db.commit()
        assert model.index.load().fields.bad == list(range(size_now // stride, count))
    db.execute("UPDATE fields SET records = 'text' WHERE page = 0")
    db.commit()
    assert model.index.load().fields.bad == list(range(count))
    db.execute("DELETE FROM fields WHERE page = 0")
    db.commit()
    assert model.index.load().fields.bad == list(range(count))
    db.close()
    model.close()


def test_records_of_another_place_or_storage(fast_path: Path) -> None:
    model = Model(fast_path / "index.sqlite", 300)
    model.index.write(model.append(40))
    slots = FieldPages(300, STORE).slots
    db = sqlite3.connect(model.path)
    db.execute(
        "UPDATE fields SET records = (SELECT records FROM fields WHERE page = 1) WHERE page = 0"
    )
    db.commit()
    assert model.index.load().fields.bad == list(range(slots))
    db.close()
    model.close()
    other = FieldPages(300, STORE + 1)
    db = sqlite3.connect(model.path)
    assert other.read(db, 0, 40, 0, -1, 0).bad == list(range(40))
    db.close()


def test_a_log_that_is_damaged_is_not_believed(fast_path: Path) -> None:
    model = Model(fast_path / "index.sqlite", 16)
    model.index.write(model.append(10))
    model.follow()
    model.index.write(model.set([3, 4], 1))
    db = sqlite3.connect(model.path)
    db.execute("UPDATE changed SET crc = crc + 1")
    db.commit()
    db.close()
    assert not model.follow()
    model.close()


def test_an_index_without_fields_is_of_format_2(fast_path: Path) -> None:
    index = DiskIndex(fast_path / "index.sqlite", True, STORE)
    index.load()
    index.write(appended(0, 3, 0, None))
    index.close()
    db = sqlite3.connect(fast_path / "index.sqlite")
    assert db.execute("PRAGMA user_version").fetchone() == (2,)
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    assert names == {"pages", "producers", "bounds", "salts", "quarantine"}
    db.close()


def test_a_page_of_a_transaction_that_failed_is_not_gone_on_with(tmp_path: Path) -> None:
    """What it changed in the newest page is not there: the next append reads what is."""
    model = Model(tmp_path / "index.sqlite", 24)
    model.index.write(model.append(3))
    said, head = dict(model.said), model.head
    failing = merged([model.set([1], 9), model.append(2)])._replace(limiter=(2**70, 0))
    with pytest.raises(OverflowError):  # when its fields are written
        model.index.write(failing)
    model.said, model.head = said, head
    model.index.write(model.append(1))
    fields = model.index.load().fields
    assert fields is not None and not fields.bad
    for number, record_there in model.said.items():
        assert np.array_equal(fields.of(number, number + 1)[0], record_there), number
