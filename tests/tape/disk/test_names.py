"""Rows and indexes in the wrong place: a checksum that fits is not enough. And rows of which the
index does not know: they are put aside."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
import contig.tape.disk.following as following
from contig.cli.main import main
from contig.tape.disk import DiskStorage
from contig.tape.disk.repair import repair
from tests.tape.disk import stored
from tests.tape.disk.test_damage import CAPACITY, PRODUCER
from tests.tape.disk.test_environment import image
from tests.tape.disk.test_faults import check, fill, make
from tests.tape.disk.test_repair import rows_of

KEPT = Path(__file__).parent / "kept" / "format-1"


def rows_in(path: Path) -> dict[int, tuple[int, ...]]:
    """What is served, by seq."""
    with DiskStorage(path, 4096, read_only=True) as storage:
        fields, served = stored.contents(storage)
        tail = storage.tape.snapshot()[1]
        return {tail + int(i): tuple(fields[i].tolist()) for i in np.flatnonzero(served)}


def extent(path: Path, number: int) -> Path:
    return path / "extents" / f"{number:08d}.rec"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with make(tmp_path / "store", 4096) as storage:
        fill(storage, 0, 30)
    return tmp_path / "store"


def detected(path: Path, right: dict[int, tuple[int, ...]], extents: set[int]) -> None:
    """No row but the right ones is served, none of those extents; and it is said."""
    now = rows_in(path)
    assert all(right[seq] == row for seq, row in now.items())
    assert not {seq // stored.EXTENT for seq in now} & extents
    assert main(["inspect", str(path), "--verify"]) == 1
    assert main(["inspect", str(path), "--repair"]) == 0
    assert main(["inspect", str(path), "--verify"]) == 0
    again = rows_in(path)
    assert again == now and again


def test_extents_swapped(store: Path) -> None:
    right = rows_in(store)
    extent(store, 1).rename(store / "x")
    extent(store, 3).rename(extent(store, 1))
    (store / "x").rename(extent(store, 3))
    detected(store, right, {1, 3})


def test_an_extent_of_another_store(store: Path, tmp_path: Path) -> None:
    with make(tmp_path / "other", 4096) as storage:
        fill(storage, 500, 30)
    right = rows_in(store)
    shutil.copy(extent(tmp_path / "other", 2), extent(store, 2))
    detected(store, right, {2})


def test_an_extent_of_a_copy_that_went_on(store: Path, tmp_path: Path) -> None:
    """The same store, copied; each copy got other rows for the same seqs."""
    copy = shutil.copytree(store, tmp_path / "copy")
    for path, first in ((store, 30), (copy, 600)):
        with make(path, 4096) as storage:
            fill(storage, first, 10)
    right = rows_in(store)
    newest = max(right) // stored.EXTENT
    shutil.copy(extent(copy, newest - 1), extent(store, newest - 1))
    detected(store, right, {newest - 1})


@pytest.mark.parametrize("rows", (30, 7))
def test_the_index_of_another_store(store: Path, tmp_path: Path, rows: int, capsys: Any) -> None:
    with make(tmp_path / "other", 4096) as storage:
        fill(storage, 500, rows)
    own = (store / "index.sqlite").read_bytes()
    right = rows_in(store)
    shutil.copy(tmp_path / "other" / "index.sqlite", store / "index.sqlite")
    before = image(store)
    for attempt in (DiskStorage, repair, lambda p: DiskStorage(p, read_only=True)):
        with pytest.raises(ValueError, match="another storage"):
            attempt(store)
    for options in ((), ("--verify",), ("--repair",)):
        assert main(["inspect", str(store), *options]) == 2
        assert "another storage" in capsys.readouterr()[1]
    assert image(store) == before
    (store / "index.sqlite").write_bytes(own)
    assert rows_in(store) == right


# -- format 1 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ("killed", "closed"))
def test_format_1(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as it is; written to, its new rows get the checksums of today."""
    monkeypatch.setattr(following, "_POLL_S", 0.0)
    path = shutil.copytree(KEPT / kind, tmp_path / "store")
    before = image(path)
    with DiskStorage(path, CAPACITY, read_only=True) as storage:
        fields, served = stored.contents(storage)
        assert served.all() and not storage.quarantined
        assert storage.tape.snapshot() == (128, 72, 36, 19)
        assert storage.tape.seen(PRODUCER, 0) == 12
        stored.check_episodes(storage)
    assert image(path) == before
    with DiskStorage(path, CAPACITY, read_only=True) as reader:
        with DiskStorage(path, CAPACITY) as storage:
            stored.check_order(*stored.contents(storage), 72)
            assert (stored.contents(storage)[0] == fields).all()
            storage.default_writer.extend_trajectory(stored.item(70, 0))
            storage.flush()
            assert len(reader) == CAPACITY and reader.tape.snapshot()[0] == 129
        now, served = stored.contents(reader)
        assert served.all() and now[-1, 0] == 70
    assert main(["inspect", str(path), "--verify"]) == 0
    with DiskStorage(path, CAPACITY) as storage:
        now, served = stored.contents(storage)
        assert served.all() and (now[:-1] == fields[1:]).all() and now[-1, 0] == 70
        assert storage.tape.seen(PRODUCER, 0) == 12


def test_format_1_is_checked(tmp_path: Path) -> None:
    path = shutil.copytree(KEPT / "closed", tmp_path / "store")
    data = bytearray(extent(path, 11).read_bytes())
    data[700] ^= 1
    extent(path, 11).write_bytes(data)
    assert main(["inspect", str(path), "--verify"]) == 1
    assert main(["inspect", str(path), "--repair"]) == 0
    assert main(["inspect", str(path), "--verify"]) == 0


@pytest.mark.parametrize("kind", ("disk", "memory"))
def test_checkpoints_of_format_1(tmp_path: Path, kind: str) -> None:
    storage: Any = contig.LazyTensorStorage(CAPACITY)
    if kind == "disk":
        storage = DiskStorage(tmp_path / "store", CAPACITY, rows_per_extent=8)
    with storage:
        buffer = contig.ReplayBuffer(storage, contig.RandomSampler(), batch_size=4, seed=0)
        buffer.load(shutil.copytree(KEPT / "checkpoint", tmp_path / "checkpoint"))
        assert storage.tape.snapshot() == (128, 72, 36, 19)
        stored.check_order(*stored.contents(storage), 72)
        storage.default_writer.extend_trajectory(stored.item(70, 0))
        buffer.save(tmp_path / "again")
    if kind == "disk":
        assert main(["inspect", str(tmp_path / "store"), "--verify"]) == 0
    with DiskStorage(tmp_path / "third", CAPACITY, rows_per_extent=8) as storage:
        buffer = contig.ReplayBuffer(storage, contig.RandomSampler(), batch_size=4, seed=0)
        buffer.load(tmp_path / "again")
        fields, served = stored.contents(storage)
        assert served.all() and fields[-1, 0] == 70
    assert main(["inspect", str(tmp_path / "third"), "--verify"]) == 0


# -- rows that nobody knows of ---------------------------------------------------------------------


def go_on(path: Path, before: dict[str, set[bytes]], caplog: Any, capsys: Any) -> None:
    """Some rows are not in the index any more; others get their seqs, and they are put aside."""
    assert main(["inspect", str(path), "--verify"]) == 0
    assert "rows are not in the index" in capsys.readouterr()[1]
    caplog.clear()
    with make(path, 4096) as storage:
        head = storage.tape.snapshot()[0]
        known = rows_of(path)
        assert known == before
        fill(storage, 900, 20)
        assert any("put aside" in line for line in caplog.messages)
        fields, served = stored.contents(storage)
        assert served.all() and (fields[head:, 1] >= 900).all()
    after = rows_of(path)
    assert all(rows <= after[name] for name, rows in before.items()), "rows are gone"
    assert len(list((path / "quarantine").iterdir())) == 1
    caplog.clear()
    with make(path, 4096) as storage:
        fields, served = stored.contents(storage)
        assert served.all() and fields[-1, 1] == 919
        fill(storage, 920, 1)
    assert not any("put aside" in line for line in caplog.messages)
    assert len(list((path / "quarantine").iterdir())) == 1


def test_an_older_index(store: Path, caplog: Any, capsys: Any) -> None:
    older = (store / "index.sqlite").read_bytes()
    for first in (30, 60):
        with make(store, 4096) as storage:
            fill(storage, first, 30)
    (store / "index.sqlite").write_bytes(older)
    go_on(store, rows_of(store), caplog, capsys)


def test_an_older_index_and_a_load(store: Path, tmp_path: Path) -> None:
    """A checkpoint takes the place of everything, but not of what nobody knows of."""
    older = (store / "index.sqlite").read_bytes()
    with make(store, 4096) as storage:
        contig.ReplayBuffer(storage, contig.RandomSampler(), batch_size=4).save(tmp_path / "saved")
        fill(storage, 30, 30)
        head = len(storage)
    (store / "index.sqlite").write_bytes(older)
    with make(store, 4096) as storage:
        lost = range(len(storage), head)
        contig.ReplayBuffer(storage, contig.RandomSampler(), batch_size=4).load(tmp_path / "saved")
    (aside,) = (store / "quarantine").iterdir()
    kept = sum(len(rows) for rows in rows_of(aside).values())
    assert kept == len(lost) > 100


def test_a_damaged_log(tmp_path: Path, caplog: Any, capsys: Any) -> None:
    """SQLite takes it for the end of the log."""
    path = tmp_path / "store"
    with make(tmp_path / "live", 4096) as storage:
        for n in range(30):
            fill(storage, n, 1)
            storage.flush()
        shutil.copytree(tmp_path / "live", path)
    (path / "index.sqlite-shm").unlink()
    log = path / "index.sqlite-wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0x40
    log.write_bytes(data)
    go_on(path, rows_of(path), caplog, capsys)


def test_an_append_that_failed_is_not_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contig.tape.disk import files

    with make(tmp_path / "store", 4096) as storage:
        fill(storage, 0, 5)
        pwrite = files.pwrite

        def torn(fd: int, data: Any, offset: int) -> int:
            pwrite(fd, data[: len(data) // 2], offset)
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(files, "pwrite", torn)
            with pytest.raises(contig.StorageFull):
                fill(storage, 5, 1)
        fill(storage, 5, 5)
        check(storage, 9)
    assert not (tmp_path / "store" / "quarantine").exists()


def test_index_values_name_the_store(store: Path) -> None:
    """Not even with its checksum put right."""
    db = sqlite3.connect(store / "index.sqlite", isolation_level=None)
    from contig.tape.disk.index_tables import row_crc

    row = db.execute("SELECT * FROM bounds").fetchone()
    bounds = (row[1] + 1, *row[2:-1])
    db.execute("UPDATE bounds SET store = ?, crc = ?", (bounds[0], row_crc(*bounds)))
    db.close()
    with pytest.raises(ValueError, match="another storage"):
        DiskStorage(store)
