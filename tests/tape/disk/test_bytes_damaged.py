"""Bytes of leaves of any size, changed, cut and lost: exactly their trajectories are set aside."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import ReplayBuffer
from contig.cli.main import main
from contig.tape.disk import DiskStorage
from contig.tape.disk.repair import repair, verify
from tests.tape.disk import stored
from tests.tape.disk.test_damage import flipped, thinned

CAPACITY, RING = 56, 1 << 15
WRITER = 50


@pytest.fixture(autouse=True)
def _any_size() -> Iterator[None]:
    with stored.any_size():
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed storage with several files of bytes, of trajectories that begin in any of them."""
    path = tmp_path_factory.mktemp("bytes") / "whole"
    with stored.any_size(), opened(path, example=stored.example()) as storage:
        for n in range(24):
            storage.default_writer.extend_trajectory(stored.item(WRITER, n))
        assert stored.contents(storage)[1].all()
    return path


def opened(path: Path, **options: Any) -> DiskStorage:
    return DiskStorage(path, CAPACITY, rows_per_extent=8, blob_bytes=RING, **options)


def files_of(path: Path) -> list[Path]:
    return sorted((path / "extents").glob("*.bin"))


class Owners:
    """Whose bytes are where: (first position, behind the last, trajectory) of each row."""

    def __init__(self, path: Path) -> None:
        with opened(path, read_only=True) as storage:
            fields, _ = stored.contents(storage)
            tail = int(storage.tape.snapshot()[1])
            begins = [storage.tape.stored_begin(tail + i) for i in range(len(fields))]
            spans = [(b, b + stored.bytes_of([f])) for b, f in zip(begins, fields)]
            rows = {}
            for id in storage.episodes()["id"]:
                for seq in storage._episodes.rows_of(int(id)).seqs:
                    rows[int(seq)] = int(id)
            self.spans = [(*span, rows[tail + i]) for i, span in enumerate(spans)]
            self.file_bytes = storage.opened.bytes.files.rows

    def of(self, first: int, last: int) -> set[int]:
        """Those with bytes among the positions [first, last)."""
        return {o for a, b, o in self.spans if a < last and first < b}

    def of_file(self, path: Path, at: int = 0, last: int | None = None) -> set[int]:
        start = int(path.stem) * self.file_bytes
        return self.of(start + at, start + (self.file_bytes if last is None else last))


@thinned(37)
def test_every_byte_changed_while_open(whole: Path, tmp_path: Path, every: int) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    owners = Owners(copy)
    for file in (files_of(copy)[1], files_of(copy)[-1]):
        data = file.read_bytes()
        with opened(copy, read_only=True) as storage, open(file, "r+b", buffering=0) as raw:
            seqs = np.arange(*storage.tape.snapshot()[1::-1])
            for at in range(0, len(data), every):
                raw.seek(at)
                raw.write(flipped(data, at, 1)[at : at + 1])
                stored.contents(storage)
                expected = owners.of_file(file, at, at + 1)
                assert set(storage.quarantined) == expected, f"byte {at} of {file.name}"
                _, lost = storage.gather(seqs)
                assert np.any(lost) == bool(expected)
                raw.seek(at)
                raw.write(data[at : at + 1])
                storage.opened.mirror.quarantine.clear()


def check_aside(copy: Path, expected: set[int], read_only: bool, what: str) -> None:
    """Opened, it serves all but these; it can be written to, repaired, and looked at."""
    with opened(copy, read_only=read_only) as storage:
        stored.contents(storage)
        assert set(storage.quarantined) == expected, what
        stored.check_episodes(storage)
        buffer = ReplayBuffer(storage, batch_size=64, seed=0)
        batch = buffer.sample()
        stored.check_batch(batch)
        if not read_only:
            storage.default_writer.extend_trajectory(stored.item(99, 0))
            storage.flush()
            fields, served = stored.contents(storage)
            assert served[-1] and fields[-1, 0] == 99


@thinned(301)
@pytest.mark.parametrize("how", ("flip", "cut"))
def test_files_changed(whole: Path, fast_path: Path, how: str, every: int) -> None:
    owners = Owners(Path(shutil.copytree(whole, fast_path / "first")))
    for number, file in enumerate(files_of(whole)[1:3]):
        data = file.read_bytes()
        for n, at in enumerate(range(number, len(data), every)):
            copy = Path(shutil.copytree(whole, fast_path / f"{how}-{number}-{at}"))
            there = copy / "extents" / file.name
            there.unlink()
            there.write_bytes(flipped(data, at, 2) if how == "flip" else data[:at])
            lost = owners.of_file(file, at, at + 1 if how == "flip" else None)
            if how == "cut":  # what is not there reads as zeros, which some bytes are
                zeros = len(data) - len(data.rstrip(b"\0"))
                assert zeros < 4
                lost = owners.of_file(file, at, len(data) - zeros)
            check_aside(copy, lost, n % 5 == 0, f"{how} at {at}")
            shutil.rmtree(copy)


def test_a_file_is_missing(whole: Path, fast_path: Path, capsys: Any) -> None:
    owners = Owners(Path(shutil.copytree(whole, fast_path / "first")))
    for number, file in enumerate(files_of(whole)):
        copy = Path(shutil.copytree(whole, fast_path / str(number)))
        (copy / "extents" / file.name).unlink()
        expected = owners.of_file(file)
        with opened(copy, read_only=True) as storage:
            # Known when it is opened, before anybody reads.
            assert set(storage.quarantined) == expected
            assert all("missing" in reason for reason in storage.quarantined.values())
            assert set(verify(storage).trajectories) == expected
        assert main(["inspect", str(copy), "--verify"]) == (1 if expected else 0)
        said = repair(copy)
        assert len([line for line in said if "set aside" in line]) == len(expected)
        assert main(["inspect", str(copy), "--verify"]) == 0
        capsys.readouterr()
        check_aside(copy, expected, False, file.name)


def test_the_index_is_lost(whole: Path, fast_path: Path) -> None:
    """What comes after a repair overwrites nothing of what was there."""
    copy = Path(shutil.copytree(whole, fast_path / "copy"))
    data = bytearray((copy / "index.sqlite").read_bytes())
    data[:3000] = b"\xa7" * 3000
    (copy / "index.sqlite").write_bytes(data)
    before = {f.name: f.read_bytes() for f in copy.rglob("*.bin")}
    assert any("could not be read" in line for line in repair(copy))
    with opened(copy) as storage:
        for n in range(5):
            storage.default_writer.extend_trajectory(stored.item(99, n))
        fields, served = stored.contents(storage)
        assert served.all() and (fields[:, 0] == 99).all()
    after = {f.name: f.read_bytes() for f in copy.rglob("*.bin")}
    assert all(after[name] == content for name, content in before.items()), "in use, or aside"


def test_bounds_that_are_lost(whole: Path, fast_path: Path) -> None:
    """Entries can be read, but not where the bytes end: rows are served, new ones come behind."""
    copy = Path(shutil.copytree(whole, fast_path / "copy"))
    with opened(copy, read_only=True) as storage:
        fields, _ = stored.contents(storage)
    db = sqlite3.connect(copy / "index.sqlite")
    db.execute("UPDATE bounds SET crc = crc + 1")
    db.commit()
    db.close()
    assert any("could not be read" in line for line in repair(copy))
    with opened(copy) as storage:
        for n in range(3):
            storage.default_writer.extend_trajectory(stored.item(99, n))
        now, served = stored.contents(storage)
        assert served.all()  # what was let go before is said to be missing
        ours = now[now[:, 0] != 99]
        np.testing.assert_array_equal(ours, fields[len(fields) - len(ours) :])
        assert len(ours)
    with opened(copy) as storage:
        assert stored.contents(storage)[1].all()
    assert os.path.exists(copy / "quarantine")


def test_rows_that_are_set_aside_are_named(whole: Path, fast_path: Path) -> None:
    copy = Path(shutil.copytree(whole, fast_path / "copy"))
    files_of(copy)[0].unlink()
    with opened(copy, read_only=True) as storage:
        aside = set(storage.quarantined)
        episodes = storage.episodes()
        assert 0 < len(aside) < len(episodes)
        buffer = ReplayBuffer(storage)
        with pytest.raises(IndexError, match="are damaged and set aside: `contig inspect`"):
            buffer[:]
        for episode in episodes:
            if episode["id"] not in aside:
                assert len(storage.read_episode(episode["id"])) == episode["steps"]
                continue
            with pytest.raises(IndexError, match=f"rows {episode['first']}[, ].* set aside"):
                buffer[[episode["first"]]]
            with pytest.raises(KeyError, match="is damaged and set aside"):
                storage.read_episode(episode["id"])
