"""Fields of trajectories on disk: with the rows or not at all, set later, followed, damaged."""

from __future__ import annotations

import json
import mmap
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
import contig.tape.disk.following as following
from contig import LayoutError, ReplayBuffer, StorageFull
from contig.cli.main import main
from contig.tape.disk import DiskStorage
from contig.tape.disk.repair import repair
from tests.tape.disk import stored
from tests.tape.disk.test_damage import thinned
from tests.tape.disk.test_faults import Faults, _works, faults  # noqa: F401  a fixture
from tests.tape.disk.victim import killed_at
from tests.waiting import until

KEPT = Path(__file__).parent / "kept" / "format-2"
WRITER = 50
FIELDS = {"task": np.int32(0), "judge": {"score": np.float64(0), "votes": np.zeros(4, np.int16)}}


def make(path: Path, **options: Any) -> DiskStorage:
    options = {"capacity": 64, "example": stored.example(), "fields": FIELDS, **options}
    return DiskStorage(path, rows_per_extent=stored.EXTENT, **options)


def value(number: int) -> dict[str, Any]:
    """All fields, which repeat a number."""
    votes = np.full(4, number, np.int16)
    return {"task": np.int32(number), "judge": {"score": float(number), "votes": votes}}


def numbers(storage: contig.Storage) -> dict[int, int]:
    """What fields of each trajectory repeat; they must not be of two."""
    out = {}
    for e in storage.episodes():
        all_of = {int(e["task"]), int(e["judge.score"]), *e["judge.votes"].tolist()}
        assert len(all_of) == 1, f"trajectory {e['id']} has parts of {all_of}"
        out[int(e["id"])] = all_of.pop()
    return out


@pytest.fixture(autouse=True)
def _polls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_POLL_S", 0.0)


def fill(storage: DiskStorage, count: int, first: int = 0) -> None:
    for n in range(first, first + count):
        storage.default_writer.extend_trajectory(stored.item(WRITER, n), fields=value(n))


def test_stay_and_are_followed(tmp_path: Path) -> None:
    with make(tmp_path) as storage, DiskStorage(tmp_path, 64, read_only=True) as reader:
        fill(storage, 6)
        storage.flush()
        assert numbers(reader) == numbers(storage) == {n: n for n in range(6)}
        assert storage.set_fields([1, 4, 700], value(100)) == 2
        assert storage.set_fields(2, value(200)) == 1
        assert storage.set_fields([], value(1)) == 0
        storage.flush()
        expected = {0: 0, 1: 100, 2: 200, 3: 3, 4: 100, 5: 5}
        assert numbers(reader) == numbers(storage) == expected
        for n in range(40):  # older ones go; so do their pages
            fill(storage, 1, 6 + n)
            storage.set_fields(storage.episodes()["id"][::2], value(n))
            storage.flush()
            reader.poll()
            assert numbers(reader) == numbers(storage)
        assert storage.set_fields([0, 1], value(9)) == 0
        with pytest.raises(PermissionError):
            reader.set_fields([40], value(1))
        expected = numbers(storage)
    with make(tmp_path) as storage:
        assert numbers(storage) == expected


def test_a_reader_that_is_far_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contig.tape.disk.index_fields._KEPT", 4)
    with make(tmp_path) as storage, DiskStorage(tmp_path, 64, read_only=True) as reader:
        fill(storage, 8)
        storage.flush()
        assert numbers(reader) == numbers(storage)
        for turns in (3, 4, 5, 20):
            for n in range(turns):
                storage.set_fields([n % 8], value(turns * 100 + n))
                storage.flush()
            reader.poll()
            assert numbers(reader) == numbers(storage)


def test_of_a_trajectory_that_goes_on(tmp_path: Path) -> None:
    """Several runs: what is set in between is what later runs begin with."""
    with make(tmp_path) as storage:
        one, other = storage.writer(), storage.writer()
        for n in range(6):
            one.extend(stored.item(WRITER, n, 6), fields=value(n) if n % 2 == 0 else None)
            other.extend(stored.item(WRITER + 1, n, 6))
            assert numbers(storage) == {0: n if n % 2 == 0 else 50 + n - 1, 1: 0}
            storage.set_fields(0, value(50 + n))
        storage.flush()
    with make(tmp_path) as storage:
        assert numbers(storage) == {0: 55, 1: 0}


def test_of_a_trajectory_whose_rows_are_evicted(tmp_path: Path) -> None:
    """What was set is in the index with the rows that come later, also for who opens it then."""
    with make(tmp_path) as storage, DiskStorage(tmp_path, 64, read_only=True) as reader:
        one = storage.writer()
        one.extend(stored.item(WRITER, 0, 6), fields={"task": 3})
        storage.set_fields(0, value(7))
        fill(storage, 20, 10)
        assert 0 not in numbers(storage)
        one.extend(stored.item(WRITER, 1, 6))
        storage.flush()
        ours = int(storage.episodes()["id"][-1])
        assert numbers(storage)[ours] == 7
        reader.poll()
        assert numbers(reader)[ours] == 7
        storage.set_fields(ours, value(8))
    with make(tmp_path) as storage:
        assert numbers(storage)[ours] == 8


# -- kills -----------------------------------------------------------------------------------------


def steps(storage: DiskStorage, said: mmap.mmap) -> Iterator[None]:
    """What a process does that is killed; it says how far it is sure to have come."""
    for n in range(3):
        fill(storage, 1, n)
        storage.set_fields(range(n + 1), value(100 * (n + 1)))
        storage.flush()
        said[:4] = struct.pack("i", n + 1)
    storage.set_fields([0, 2], value(7))
    fill(storage, 1, 3)
    storage.set_fields([3], value(8))
    storage.flush()
    said[:4] = struct.pack("i", 4)
    yield


# After so many flushes; in between, a part of what comes next may be there, in its order.
STATES: list[dict[int, int]] = [
    {},
    {0: 0}, {0: 100},
    {0: 100, 1: 1}, {0: 200, 1: 200},
    {0: 200, 1: 200, 2: 2}, {0: 300, 1: 300, 2: 300},
    {0: 7, 1: 300, 2: 7}, {0: 7, 1: 300, 2: 7, 3: 3}, {0: 7, 1: 300, 2: 7, 3: 8},
]  # fmt: skip
SURE = [0, 2, 4, 6, 9]


@thinned(7)
@pytest.mark.parametrize("durability", ("committed", "durable"))
def test_killed_at_every_event(fast_path: Path, durability: str, every: int) -> None:
    """Each call's changes are there for all of its trajectories, or for none."""
    reached = set()
    for at in range(1, 1000, every):
        path = fast_path / str(at)
        said = mmap.mmap(-1, 4)

        def call(storage: DiskStorage, said: mmap.mmap = said) -> None:
            list(steps(storage, said))

        def opened(path: Path = path) -> DiskStorage:
            return make(path, durability=durability)

        if not killed_at(at, opened, call):
            break
        (sure,) = struct.unpack("i", said[:4])
        with make(path) as storage:
            found = numbers(storage)
            assert found in STATES[SURE[sure] :], f"event {at}: {found} after {sure} flushes"
            reached.add(STATES.index(found))
            stored.check_episodes(storage)
            fill(storage, 1, 9)
            storage.set_fields(storage.episodes()["id"], value(77))
        with make(path) as storage:
            assert set(numbers(storage).values()) == {77}
        shutil.rmtree(path)
    else:
        raise AssertionError("there is no end of events")
    assert reached & {1, 3, 5} or reached >= {0, 2, 4, 6}


# -- failures --------------------------------------------------------------------------------------


def test_the_index_cannot_be_written(tmp_path: Path, faults: Faults) -> None:  # noqa: F811
    """What was set is kept in memory, said at the next call, and written when there is room."""
    with make(tmp_path) as storage:
        fill(storage, 4)
        storage.flush()
        faults.arm_index(sqlite3.OperationalError("database or disk is full"))
        storage.set_fields([1, 2], value(30))
        until(lambda: faults.calls > 0)
        with pytest.raises(StorageFull):
            storage.flush()
        with pytest.raises(StorageFull):
            storage.set_fields([3], value(31))
        assert numbers(storage) == {0: 0, 1: 30, 2: 30, 3: 3}
        faults.repair()
        until(lambda: _works(storage.flush))
    with make(tmp_path) as storage:
        assert numbers(storage) == {0: 0, 1: 30, 2: 30, 3: 3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fields") / "whole"
    with make(path) as storage:
        fill(storage, 9)
        storage.set_fields([2], value(22))
    return path


def page_of(path: Path) -> bytes:
    with sqlite3.connect(path / "index.sqlite") as db:
        (page,) = db.execute("SELECT records FROM fields").fetchone()
    db.close()
    return bytes(page)


def put_page(path: Path, data: bytes) -> None:
    with sqlite3.connect(path / "index.sqlite") as db:
        db.execute("UPDATE fields SET records = ?", (data,))
    db.close()


@pytest.mark.parametrize("how", ("flip", "cut"))
def test_damaged(whole: Path, fast_path: Path, how: str) -> None:
    """Exactly the trajectories concerned are set aside, by who reads and by who writes."""
    page = page_of(Path(shutil.copytree(whole, fast_path / "first")))
    with make(fast_path / "first") as storage:
        count, right = len(storage.episodes()), numbers(storage)
        live = storage.tape.snapshot()[3]
        assert storage.fields is not None
        stride, size = len(page) // count, storage.fields.record_size
    for at in range(0, len(page), 5):
        copy = Path(shutil.copytree(whole, fast_path / str(at)))
        changed = bytearray(page)
        changed[at] ^= 0x20
        put_page(copy, bytes(changed) if how == "flip" else page[:at])
        lost = {live + at // stride} if at % stride < size + 4 else set()
        if how == "cut":
            lost = set(range(live + at // stride, live + count))
        read_only = at % 2 == 0
        with DiskStorage(copy, 64, read_only=read_only) as storage:
            assert set(storage.quarantined) == lost, f"{how} at {at}"
            assert all("fields" in reason for reason in storage.quarantined.values())
            there = numbers(storage)
            assert all(there[o] == n for o, n in right.items() if o not in lost)
            served = stored.contents(storage)[1]
            assert served.all() == (not lost) and (served.any() or len(lost) == count)
            if not read_only:
                fill(storage, 1, 40)
                storage.flush()
        shutil.rmtree(copy)


def test_damage_is_repaired(whole: Path, tmp_path: Path, capsys: Any) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    page = bytearray(page_of(copy))
    page[4] ^= 1
    put_page(copy, bytes(page))
    assert main(["inspect", str(copy), "--verify"]) == 1
    assert "its fields are damaged" in capsys.readouterr().err
    said = repair(copy)
    assert any("fields of 1 of its entries" in line for line in said), said
    assert main(["inspect", str(copy), "--verify"]) == 0
    with make(copy) as storage:
        assert set(storage.quarantined) == set(storage.repaired) and len(storage.repaired) == 1
        (aside,) = storage.quarantined
        assert {o: n for o, n in numbers(storage).items() if o != aside} == {
            n: 22 if n == 2 else n for n in range(9) if n != aside
        }
        storage.set_fields([2], value(5))
    with make(copy) as storage:
        assert numbers(storage)[2] == 5


# -- checkpoints -----------------------------------------------------------------------------------


def buffer_of(storage: contig.Storage) -> ReplayBuffer:
    return ReplayBuffer(storage, contig.RandomSampler(), batch_size=4, seed=0)


def test_checkpoints(tmp_path: Path) -> None:
    with make(tmp_path / "one") as storage, DiskStorage(tmp_path / "one", read_only=True) as reader:
        buffer = buffer_of(storage)
        fill(storage, 8)
        storage.set_fields([3, 5], value(70))
        buffer.save(tmp_path / "saved")
        then = numbers(storage)
        storage.set_fields([3, 4], value(80))
        fill(storage, 2, 8)
        storage.flush()
        assert numbers(reader) == numbers(storage)
        buffer.load(tmp_path / "saved")
        assert numbers(storage) == numbers(reader) == then
        storage.set_fields([0], value(3))
        then[0] = 3
        storage.flush()
        assert numbers(reader) == then
    with make(tmp_path / "one") as storage:
        assert numbers(storage) == then
        buffer_of(storage).save(tmp_path / "saved")
    with contig.LazyTensorStorage(64) as memory:
        buffer_of(memory).load(tmp_path / "saved")
        assert numbers(memory) == then
        buffer_of(memory).save(tmp_path / "memory")
    for kept in ("saved", "memory"):  # into a storage that has no layout yet
        with DiskStorage(tmp_path / f"new-{kept}", 64, rows_per_extent=8) as storage:
            buffer_of(storage).load(tmp_path / kept)
            assert numbers(storage) == then
        with make(tmp_path / f"new-{kept}") as storage:
            assert numbers(storage) == then


def test_a_checkpoint_without_fields(tmp_path: Path) -> None:
    with make(tmp_path / "one") as storage:
        fill(storage, 3)
        buffer_of(storage).load(KEPT / "checkpoint")
        assert set(numbers(storage).values()) == {0}
        storage.set_fields([int(storage.episodes()["id"][0])], value(4))
        then = numbers(storage)
    with make(tmp_path / "one") as storage:
        assert numbers(storage) == then
        buffer_of(storage).save(tmp_path / "saved")
    with make(tmp_path / "two", fields=None) as storage:
        fields, _ = stored.contents(storage)
        with pytest.raises(LayoutError, match="fields"):
            buffer_of(storage).load(tmp_path / "saved")
        assert not len(fields)


# -- formats ---------------------------------------------------------------------------------------


def formats(path: Path) -> tuple[int, int]:
    db = sqlite3.connect(path / "index.sqlite")
    (index,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    return int(json.loads((path / "layout.json").read_text())["format"]), int(index)


def test_only_who_needs_it_gets_the_new_format(tmp_path: Path) -> None:
    with make(tmp_path / "fields") as storage:
        fill(storage, 2)
    assert formats(tmp_path / "fields") == (3, 3)
    with make(tmp_path / "plain", fields=None) as storage:
        storage.default_writer.extend_trajectory(stored.item(WRITER, 0))
    assert formats(tmp_path / "plain") == (2, 2)
    with stored.any_size(), make(tmp_path / "sizes", fields=None) as storage:
        storage.default_writer.extend_trajectory(stored.item(WRITER, 0))
    assert formats(tmp_path / "sizes") == (3, 3)


@pytest.mark.parametrize("kind", ("closed", "killed", "loaded"))
def test_format_2(tmp_path: Path, kind: str) -> None:
    """Opened to read, written to, and followed; it stays what it is."""
    path = Path(shutil.copytree(KEPT / kind, tmp_path / "store"))
    with DiskStorage(path, 56, read_only=True) as reader:
        fields, served = stored.contents(reader)
        assert served.all() and not reader.quarantined and len(fields) == 56
        stored.check_episodes(reader)
        with DiskStorage(path, 56) as storage:
            np.testing.assert_array_equal(stored.contents(storage)[0], fields)
            storage.default_writer.extend_trajectory(stored.item(99, 0))
            storage.flush()
            now, served = stored.contents_while_written(reader)
            assert now[-1, 0] == 99
            with pytest.raises(LayoutError, match="no fields of trajectories"):
                storage.set_fields([1], {"task": 1})
    assert formats(path) == (2, 2)
    with pytest.raises(LayoutError, match="fields="):
        DiskStorage(path, 56, fields=FIELDS)
    assert main(["inspect", str(path), "--verify"]) == 0


@pytest.mark.parametrize("kind", ("checkpoint", "memory"))
def test_checkpoints_of_format_2(tmp_path: Path, kind: str) -> None:
    with DiskStorage(tmp_path / "store", 56, rows_per_extent=8) as storage:
        buffer_of(storage).load(KEPT / kind)
        fields, served = stored.contents(storage)
        assert served.all() and len(fields) == 56
        stored.check_episodes(storage)
    assert formats(tmp_path / "store") == (2, 2)


@pytest.mark.parametrize("first", (False, True))
def test_an_index_that_was_left_without_a_layout(tmp_path: Path, first: bool) -> None:
    """Of the other format: the storage was to be another one."""
    with make(tmp_path, fields=FIELDS if first else None):
        pass
    (tmp_path / "layout.json").unlink()
    with make(tmp_path, fields=None if first else FIELDS) as storage:
        storage.default_writer.extend_trajectory(stored.item(WRITER, 0))
        if not first:
            storage.set_fields([0], value(6))
    assert formats(tmp_path) == ((2, 2) if first else (3, 3))
    with DiskStorage(tmp_path, 64) as storage:
        assert stored.contents(storage)[1].all()
        assert first or numbers(storage) == {0: 6}


@pytest.mark.parametrize("write", ("rows", "fields", "nothing"))
def test_what_a_smaller_capacity_has_no_room_for(tmp_path: Path, write: str) -> None:
    """It is not shown, and gone for good as soon as anything is written."""
    with make(tmp_path) as storage:
        fill(storage, 10)
        rows = len(storage)
    with make(tmp_path, capacity=rows // 2) as storage:
        assert len(storage) == rows // 2
        if write == "rows":
            fill(storage, 1, 10)
        elif write == "fields":
            last = storage.episodes()["id"][-1:]
            assert storage.set_fields(last, value(77)) == 1
    with make(tmp_path) as storage:
        assert (len(storage) == rows) == (write == "nothing")
