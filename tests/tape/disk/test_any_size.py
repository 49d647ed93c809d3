"""Leaves of any size on disk: what is kept, what is refused, and their files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
import contig.tape.disk.following as following
from contig import ReplayBuffer
from contig.tape.disk import DiskStorage
from contig.tape.disk.extents import blob_file_bytes
from tests.tape.disk import stored
from tests.waiting import until

WRITER = 50


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(following, "_POLL_S", 0.0)
    with stored.any_size():
        yield


def make(path: Path, capacity: int | None = 256, **options: Any) -> DiskStorage:
    options = {"example": stored.example(), **options}
    return DiskStorage(path, capacity, rows_per_extent=stored.EXTENT, **options)


def fill(storage: DiskStorage, count: int, first: int = 0) -> None:
    for n in range(first, first + count):
        storage.default_writer.extend_trajectory(stored.item(WRITER, n))


def kept(storage: DiskStorage) -> Any:
    storage.poll()
    fields, served = stored.contents(storage)
    assert served.all() and not storage.quarantined
    stored.check_episodes(storage)
    return fields


def files_of(path: Path) -> list[str]:
    return sorted(f.name for f in (path / "extents").rglob("*.bin"))


def newest(fields: Any, nbytes: int, stride: int = 0) -> int:
    """How many of the newest rows have at most so many bytes."""
    total, count = 0, 0
    for row in fields[::-1]:
        total += stored.bytes_of([row]) + stride
        if total > nbytes:
            break
        count += 1
    return count


def appended(before: Any, rows: Any, ring: int) -> Any:
    """What is there then: of the rows, the newest that fit; if that is all, those before, too."""
    fit = newest(rows, ring)
    if fit < len(rows):
        return rows[len(rows) - fit :]
    room = ring - stored.bytes_of(rows)
    return np.concatenate([before[len(before) - newest(before, room) :], rows])


def all_rows(count: int) -> Any:
    return np.concatenate([stored.item(WRITER, n)["fields"] for n in range(count)])


@pytest.mark.parametrize("ring", (700, 3000, 20_000))
def test_rows_give_way_to_bytes(tmp_path: Path, ring: int) -> None:
    """As few as must: the newest rows whose bytes fit are there after every append, when it is
    opened again, and for a reader; files without bytes of them go."""
    with make(tmp_path, blob_bytes=ring) as storage:
        assert storage.blob_ring == ring
        with DiskStorage(tmp_path, 256, read_only=True) as reader:
            expected = np.zeros((0, 6), np.int64)
            for n in range(40):
                fill(storage, 1, n)
                expected = appended(expected, stored.item(WRITER, n)["fields"], ring)
                fields = kept(storage)
                np.testing.assert_array_equal(fields, expected)
                assert storage.blob_bytes == stored.bytes_of(fields) <= ring
                storage.flush()
                np.testing.assert_array_equal(kept(reader), fields)
        size, tail = blob_file_bytes(ring), storage.tape.stored_begin(storage.tape.snapshot()[1])
        until(lambda: files_of(tmp_path)[0] >= f"{tail // size:08d}.bin")
    with make(tmp_path, blob_bytes=ring) as storage:
        np.testing.assert_array_equal(kept(storage), fields)
    with make(tmp_path, blob_bytes=ring // 2 + 700) as storage:  # fewer than are stored
        assert len(kept(storage)) == newest(fields, ring // 2 + 700)
        fill(storage, 3, 40)
        kept(storage)
    with DiskStorage(tmp_path, 256, read_only=True, blob_bytes=800) as reader:
        assert stored.bytes_of(kept(reader)) <= 800


@pytest.mark.parametrize("most", (3000, 12_000))
def test_max_bytes_counts_them(tmp_path: Path, most: int) -> None:
    with make(tmp_path, max_bytes=most) as storage:
        for n in range(30):
            fill(storage, 1, n)
            assert len(kept(storage)) == max(newest(all_rows(n + 1), most, 512), 1)
        storage.flush()
        tail = storage.tape.stored_begin(storage.tape.snapshot()[1])
        until(lambda: len(files_of(tmp_path)) <= (storage.tape.blob_head - tail) // 4096 + 2)


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    with make(tmp_path, blob_bytes=1000) as storage:
        fill(storage, 10)
        storage.flush()
        before, fields, files = storage.tape.snapshot(), kept(storage), files_of(tmp_path)
        large = stored.first_row(stored.item(WRITER, 0))
        large["blob"] = bytes(1001)
        with pytest.raises(ValueError, match=r"blob.*1001.*room for 1000.*blob_bytes="):
            storage.default_writer.add(large)
        with pytest.raises(contig.LayoutError):
            storage.default_writer.add({**large, "blob": 5})
        storage.flush()
        assert storage.tape.snapshot() == before
        # A file of bytes that were evicted before goes some time.
        assert set(files[-1:]) <= set(files_of(tmp_path)) <= set(files)
        np.testing.assert_array_equal(kept(storage), fields)
        fill(storage, 1, 10)
        assert kept(storage)[-1, 1] == 10


def test_more_than_fits_at_once(tmp_path: Path) -> None:
    """The leading rows of an append whose bytes do not fit get no seq."""
    many = stored.rows_of(all_rows(30), np.zeros(len(all_rows(30)), bool))
    with make(tmp_path, blob_bytes=4000) as storage:
        fill(storage, 2)
        head = storage.tape.snapshot()[0]
        seqs = storage.default_writer.extend_trajectory(many)
        count = newest(all_rows(30), 4000)
        expected = appended(all_rows(2), all_rows(30), 4000)
        np.testing.assert_array_equal(stored.contents(storage)[0], expected)
        assert storage.tape.snapshot()[0] == head + count
        assert list(seqs[-count:]) == list(range(head, head + count))
    with make(tmp_path, blob_bytes=4000) as storage:
        np.testing.assert_array_equal(stored.contents(storage)[0], expected)


def test_rows_without_any_bytes(tmp_path: Path) -> None:
    example = {"x": contig.Blob(), "next": {"done": False, "reward": np.float32(0)}}
    row = {"x": b"", "next": {"done": True, "reward": np.float32(1)}}
    with DiskStorage(tmp_path, 16, rows_per_extent=8, blob_bytes=1, example=example) as storage:
        for _ in range(40):
            storage.default_writer.add(row)
        storage.default_writer.add({**row, "x": b"z"})
        storage.flush()
        assert storage.blob_bytes == 1
    with DiskStorage(tmp_path, 16) as storage:
        batch, lost = storage.gather(np.arange(*storage.tape.snapshot()[1::-1]))
        assert not np.any(lost) and [*batch["x"]] == [b""] * 15 + [b"z"]


@pytest.mark.parametrize("codec", (None, "zstd"))
def test_checkpoints(tmp_path: Path, codec: str | None) -> None:
    """Linked and copied, into storages on disk and in memory, also with files of another size."""
    if codec is not None:
        pytest.importorskip("zstandard")
    codecs = None if codec is None else {"words": codec}
    with make(tmp_path / "one", blob_bytes=20_000, codecs=codecs) as storage:
        buffer = ReplayBuffer(storage, batch_size=8)
        fill(storage, 20)
        buffer.save(tmp_path / "saved")
        then = kept(storage)
        links = [os.stat(f).st_nlink for f in (tmp_path / "saved" / "extents").glob("*.bin")]
        assert len(links) > 2 and sorted(links)[1:] == [2] * (len(links) - 1), "not linked"
        fill(storage, 10, 20)
        buffer.load(tmp_path / "saved")
        np.testing.assert_array_equal(kept(storage), then)
        fill(storage, 3, 20)
        kept(storage)
    with make(tmp_path / "one", blob_bytes=20_000) as storage:
        assert kept(storage)[-1, 1] == 22
    with contig.LazyTensorStorage(256) as memory:
        ReplayBuffer(memory, batch_size=8).load(tmp_path / "saved")
        np.testing.assert_array_equal(stored.contents(memory)[0], then)
        ReplayBuffer(memory, batch_size=8).save(tmp_path / "memory")
    for name, ring in (("saved", 20_000), ("saved", 1 << 20), ("memory", 1 << 20)):
        path = tmp_path / f"{name}-{ring}"
        options = {"rows_per_extent": stored.EXTENT, "blob_bytes": ring}
        with DiskStorage(path, 256, **options) as storage:
            ReplayBuffer(storage, batch_size=8).load(tmp_path / name)
            np.testing.assert_array_equal(kept(storage), then)
            fill(storage, 3, 20)
            now = kept(storage)
        with DiskStorage(path, 256, **options) as storage:
            np.testing.assert_array_equal(kept(storage), now)


def test_a_checkpoint_that_is_damaged_changes_nothing(tmp_path: Path) -> None:
    with make(tmp_path / "one", blob_bytes=20_000) as storage:
        buffer = ReplayBuffer(storage, batch_size=8)
        fill(storage, 20)
        buffer.save(tmp_path / "saved")
        then = kept(storage)
        names = files_of(tmp_path / "saved")
        for number, name in enumerate((names[1], names[-1])):
            copy = Path(shutil.copytree(tmp_path / "saved", tmp_path / str(number)))
            (copy / "extents" / name).unlink()
            with pytest.raises(contig.LayoutError, match="missing|cannot be loaded"):
                buffer.load(copy)
            np.testing.assert_array_equal(kept(storage), then)
        last = tmp_path / "0" / "extents" / names[-1]
        shutil.copy(tmp_path / "saved" / "extents" / names[1], tmp_path / "0" / "extents")
        data = bytearray(last.read_bytes())
        data[-1] ^= 1
        last.unlink()
        last.write_bytes(data)
        with pytest.raises(contig.LayoutError, match="damaged"):
            buffer.load(tmp_path / "0")
        np.testing.assert_array_equal(kept(storage), then)
        assert not [f for f in (tmp_path / "one" / "extents").iterdir() if f.is_dir()]
