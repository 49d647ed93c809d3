"""Observations that are stored once, changed, cut and lost: exactly the trajectories that have them
are set aside. The same tests as for leaves of any size."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.tape.disk.test_bytes_damaged as damaged
from contig.tape.disk import DiskStorage
from contig.tape.disk.repair import repair
from tests.tape.disk import stored
from tests.tape.disk.test_damage import thinned

SLOT = 8 * stored.OBS_WORDS
LOCAL = 50


@pytest.fixture(autouse=True)
def _shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(damaged, "Owners", Owners)
    with stored.shared():
        yield


class Owners(damaged.Owners):
    """Whose observations are where: each row refers to two, which the row before may have too."""

    def __init__(self, path: Path) -> None:
        with damaged.opened(path, read_only=True) as storage:
            self.file_bytes = storage.opened.bytes.files.rows
            rows = {}
            for id in storage.episodes()["id"]:
                for seq in storage._episodes.rows_of(int(id)).seqs:
                    rows[int(seq)] = int(id)
            folder, stride = storage.opened.extents.folder, storage.opened.extents.stride
            self.spans = []
            for seq, id in rows.items():
                data = (folder / f"{seq // stored.EXTENT:08d}.rec").read_bytes()
                for slot in np.frombuffer(data, np.uint32, 2, seq % stored.EXTENT * stride):
                    self.spans.append((int(slot) * SLOT, (int(slot) + 1) * SLOT, id))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed storage with several files of observations; trajectories are of several appends."""
    path = tmp_path_factory.mktemp("shared") / "whole"
    with stored.shared(), damaged.opened(path, example=stored.example()) as storage:
        for n in range(20):
            storage.default_writer.extend(stored.item(damaged.WRITER, n, 3))
        assert stored.contents(storage)[1].all()
        assert storage.schema.sharing is not None
    return path


@thinned(37)
def test_every_byte_changed_while_open(whole: Path, tmp_path: Path, every: int) -> None:
    damaged.test_every_byte_changed_while_open(whole, tmp_path, every)


@thinned(301)
@pytest.mark.parametrize("how", ("flip", "cut"))
def test_files_changed(whole: Path, fast_path: Path, how: str, every: int) -> None:
    damaged.test_files_changed(whole, fast_path, how, every)


def test_a_file_is_missing(whole: Path, fast_path: Path, capsys: Any) -> None:
    damaged.test_a_file_is_missing(whole, fast_path, capsys)


def test_the_index_is_lost(whole: Path, fast_path: Path) -> None:
    copy = Path(shutil.copytree(whole, fast_path / "copy"))
    data = bytearray((copy / "index.sqlite").read_bytes())
    data[:3000] = b"\xa7" * 3000
    (copy / "index.sqlite").write_bytes(data)
    before = {f.read_bytes() for f in copy.rglob("*.bin")}
    assert any("could not be read" in line for line in repair(copy))
    with damaged.opened(copy) as storage:
        for n in range(5):
            storage.default_writer.extend_trajectory(stored.item(99, n))
        fields, served = stored.contents(storage)
        assert served.all() and (fields[:, 0] == 99).all()
    assert before <= {f.read_bytes() for f in copy.rglob("*.bin")}, "in use, or aside"


def test_bounds_that_are_lost(whole: Path, fast_path: Path) -> None:
    copy = Path(shutil.copytree(whole, fast_path / "copy"))
    with damaged.opened(copy, read_only=True) as storage:
        fields, _ = stored.contents(storage)
    db = sqlite3.connect(copy / "index.sqlite")
    db.execute("UPDATE bounds SET crc = crc + 1")
    db.commit()
    db.close()
    assert any("could not be read" in line for line in repair(copy))
    for n in range(3):
        with damaged.opened(copy) as storage:
            storage.default_writer.extend_trajectory(stored.item(99, n))
            now, served = stored.contents(storage)
            # Of the oldest, rows that were let go before are said to be missing.
            assert served[now[:, 4] != fields[0, 4]].all() and served[now[:, 0] == 99].all()
            ours = now[served & (now[:, 0] != 99)]
            np.testing.assert_array_equal(ours, fields[len(fields) - len(ours) :])
            assert len(ours) > 20


def test_rows_that_are_set_aside_are_named(
    whole: Path, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_of = damaged.files_of  # the first has what rows may have referred to that are gone
    monkeypatch.setattr(damaged, "files_of", lambda path: files_of(path)[1:])
    damaged.test_rows_that_are_set_aside_are_named(whole, fast_path)


def test_a_file_is_cut_while_it_is_appended_to(whole: Path, fast_path: Path) -> None:
    """What a row would have referred to cannot be read: it has its own."""
    copy = Path(shutil.copytree(whole, fast_path / "copy"))
    with damaged.opened(copy) as storage:
        writer = storage.writer()
        writer.extend(stored.item(LOCAL, 0, 3))
        storage.flush()
        before = int(storage.tape.blob_head)
        newest = max(damaged.files_of(copy))
        data = newest.read_bytes()
        newest.write_bytes(b"")  # cut, the same file
        writer.extend(stored.item(LOCAL, 1, 3))
        n = len(stored.item(LOCAL, 1, 3)["fields"])
        assert int(storage.tape.blob_head) - before == (n + 1) * SLOT
        with open(newest, "r+b") as file:  # what was there before
            there = file.read()
            file.seek(0)
            at = before % storage.opened.bytes.files.rows
            file.write(data[:at] + there[at:])
        fields, served = stored.contents(storage)
        assert served[fields[:, 0] == LOCAL].all()


def test_swapped_observations(whole: Path, fast_path: Path) -> None:
    """Of the right length, in the wrong place."""
    copy = Path(shutil.copytree(whole, fast_path / "copy"))
    owners = Owners(copy)
    file = damaged.files_of(copy)[1]
    start = int(file.stem) * owners.file_bytes
    first = -(-start // SLOT) * SLOT - start
    data = bytearray(file.read_bytes())
    a, b = slice(first, first + SLOT), slice(first + 9 * SLOT, first + 10 * SLOT)
    data[a], data[b] = data[b], data[a]
    file.write_bytes(data)
    expected = owners.of_file(file, a.start, a.stop) | owners.of_file(file, b.start, b.stop)
    with DiskStorage(copy, damaged.CAPACITY, read_only=True) as storage:
        stored.contents(storage)
        assert set(storage.quarantined) == expected and expected
