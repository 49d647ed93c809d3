"""Files cut and with a byte changed: opening does not crash, no wrong row is ever served, and what
was set aside is said."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from contig.tape.disk import DiskStorage
from tests.disk import stored

CAPACITY = 56
LARGE = 4096  # bytes; of larger files, some positions
POSITIONS = 400
PRODUCER, WRITER = 7, 50


def write(path: Path, logged: bool) -> Path:
    """A small storage as a killed process leaves it, with its log (`logged`); or a closed one."""
    storage = DiskStorage(path / "live", CAPACITY, rows_per_extent=8, example=stored.example())
    accept = storage.native_writer(storage.schema)
    size = storage.layout.record_size
    for n in range(12):
        data = stored.frame(storage, PRODUCER, n, 1, 2)
        accept.accept(stored.received(data, size), PRODUCER, 1 << 62)
        storage.default_writer.extend_trajectory(stored.item(WRITER, n))
        storage.flush()
    if logged:
        shutil.copytree(path / "live", path / "whole")
        (path / "whole" / "index.sqlite-shm").unlink()
    storage.close()
    if not logged:
        shutil.copytree(path / "live", path / "whole")
    return path / "whole"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("closed"), logged=False)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("logged"), logged=True)


def rows_in(path: Path) -> dict[int, tuple[int, int]]:
    """Row by seq: (writer, item, pos)."""
    with DiskStorage(path, CAPACITY) as storage:
        fields, served = stored.contents(storage)
        assert served.all() and not storage.quarantined
        tail = storage.tape.snapshot()[1]
        return {tail + i: tuple(row[[0, 1, 3]].tolist()) for i, row in enumerate(fields)}


class Damage:
    """Opens damaged copies of a storage."""

    def __init__(self, whole: Path, copy: Path) -> None:
        self.whole, self.copy = whole, copy
        shutil.copytree(whole, copy.with_name("undamaged"))
        self.rows = rows_in(copy.with_name("undamaged"))
        self.outcomes: Counter[str] = Counter()

    def open(self, name: str, data: bytes, what: str, read_only: bool = False) -> str:
        """What became of a storage one of whose files has other contents."""
        if self.copy.exists():
            shutil.rmtree(self.copy)
        shutil.copytree(self.whole, self.copy)
        (self.copy / name).write_bytes(data)
        try:
            outcome = self._open(name, read_only)
        except Exception as error:
            error.add_note(f"{name}: {what}{', read only' if read_only else ''}")
            raise
        self.outcomes[outcome] += 1
        return outcome

    def _open(self, name: str, read_only: bool) -> str:
        try:
            storage = DiskStorage(self.copy, CAPACITY, read_only=read_only)
        except ValueError as error:
            # Only where nothing can be read; it says what to do.
            text = str(error)
            assert str(self.copy) in text, text
            assert "Restore" in text or "--repair" in text or "newer" in text, text
            return "refused"
        with storage:
            fields, served = stored.contents(storage)
            head, tail, _, _ = storage.tape.snapshot()
            for i in np.flatnonzero(served):
                was = self.rows.get(tail + int(i))
                now = tuple(fields[i, [0, 1, 3]].tolist())
                assert was is None or was == now, f"row {tail + int(i)} is {now}, was {was}"
            if storage.schema is not None:
                stored.check_episodes(storage)
            there = {tail + int(i) for i in np.flatnonzero(served)}
            lost = set(self.rows) - there
            if not lost:
                return "whole"
            if not storage.quarantined:
                return "unreported"
            if not read_only:
                # It can be written to, and what is written stays.
                storage.default_writer.extend_trajectory(stored.item(99, 0))
                storage.flush()
                head = storage.tape.snapshot()[0]
                batch, gone = storage.gather(np.arange(head - 1, head))
                assert not gone and np.asarray(batch["fields"])[0, 0] == 99
            return "aside"


@pytest.fixture
def damaged_closed(closed: Path, tmp_path: Path) -> Damage:
    return Damage(closed, tmp_path / "copy")


@pytest.fixture
def damaged_logged(logged: Path, tmp_path: Path) -> Damage:
    return Damage(logged, tmp_path / "copy")


def positions(size: int, most: int, seed: int) -> list[int]:
    if size <= LARGE:
        return list(range(size))
    return sorted(random.Random(seed).sample(range(size), min(most, size)))


def flipped(data: bytes, at: int, seed: int) -> bytes:
    mask = random.Random(seed * 1_000_003 + at).randrange(1, 256)
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def extents(whole: Path) -> list[str]:
    return sorted(str(f.relative_to(whole)) for f in (whole / "extents").iterdir())


def flip(damage: Damage, name: str, most: int, seed: int = 0, every: int = 1) -> Iterator[str]:
    data = (damage.whole / name).read_bytes()
    for at in positions(len(data), most, seed)[::every]:
        changed = flipped(data, at, seed)
        what = f"byte {at}: {data[at]} -> {changed[at]}"
        yield damage.open(name, changed, what, read_only=at % 5 == 0)


def cut(damage: Damage, name: str, most: int, seed: int = 0, every: int = 1) -> Iterator[str]:
    data = (damage.whole / name).read_bytes()
    for size in positions(len(data), most, seed)[::every]:
        yield damage.open(name, data[:size], f"cut to {size}", read_only=size % 5 == 0)


def test_rows_flipped(damaged_closed: Damage) -> None:
    """An extent in the middle, and the newest: opened with a byte changed."""
    names = extents(damaged_closed.whole)
    assert len(names) >= 7
    for name in (names[3], names[-1]):
        outcomes = Counter(flip(damaged_closed, name, LARGE, every=31))
        assert not outcomes["refused"] and not outcomes["unreported"], outcomes
        assert outcomes["aside"] > 50, outcomes


def test_rows_flipped_while_open(closed: Path, tmp_path: Path) -> None:
    """Every byte of an extent, changed under a storage that has it mapped."""
    shutil.copytree(closed, tmp_path / "copy")
    with DiskStorage(tmp_path / "copy", CAPACITY, read_only=True) as storage:
        name = extents(closed)[3]
        data = (closed / name).read_bytes()
        first = int(Path(name).stem) * stored.EXTENT
        seqs = np.arange(first, first + stored.EXTENT)
        size, stride = storage.layout.record_size, len(data) // stored.EXTENT
        with open(tmp_path / "copy" / name, "r+b", buffering=0) as file:
            for at, value in enumerate(data):
                file.seek(at)
                file.write(flipped(data, at, 1)[at : at + 1])
                _, lost = storage.gather(seqs)
                inside = at % stride < size + 4  # else it is padding
                assert np.any(lost) == inside, f"byte {at}"
                assert bool(storage.quarantined) == inside
                file.seek(at)
                file.write(bytes([value]))
                storage._quarantined, storage._bad_rows = {}, np.zeros((0, 2), np.int64)
        assert stored.contents(storage)[1].all()


def test_rows_cut(damaged_closed: Damage) -> None:
    names = extents(damaged_closed.whole)
    for name in (names[0], names[3], names[-1]):
        outcomes = Counter(cut(damaged_closed, name, LARGE, every=37))
        assert not outcomes["refused"] and not outcomes["unreported"], outcomes


def test_layout_flipped(damaged_closed: Damage) -> None:
    outcomes = Counter(flip(damaged_closed, "layout.json", LARGE))
    assert set(outcomes) <= {"refused", "whole"} and outcomes["refused"] > 100, outcomes
    outcomes = Counter(cut(damaged_closed, "layout.json", LARGE, every=5))
    assert set(outcomes) == {"refused"}, outcomes


def test_index_flipped(damaged_closed: Damage) -> None:
    outcomes = Counter(flip(damaged_closed, "index.sqlite", POSITIONS))
    assert not outcomes["unreported"], outcomes


def test_index_cut(damaged_closed: Damage) -> None:
    outcomes = Counter(cut(damaged_closed, "index.sqlite", POSITIONS // 4))
    assert not outcomes["unreported"], outcomes
    assert damaged_closed.open("index.sqlite", b"", "empty") != "unreported"


def test_log_flipped(damaged_logged: Damage) -> None:
    """SQLite leaves out what follows a damaged part of its log: what is left is older but right."""
    list(flip(damaged_logged, "index.sqlite-wal", POSITIONS))


def test_log_cut(damaged_logged: Damage) -> None:
    list(cut(damaged_logged, "index.sqlite-wal", POSITIONS // 4))


def test_logged_index_flipped(damaged_logged: Damage) -> None:
    list(flip(damaged_logged, "index.sqlite", POSITIONS // 4, every=23))


@pytest.mark.parametrize("name", ("layout.json", "index.sqlite", "lock"))
def test_missing(closed: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(closed, tmp_path / "copy")
    (tmp_path / "copy" / name).unlink()
    if name == "lock":
        assert rows_in(tmp_path / "copy")
        return
    with pytest.raises(ValueError, match=name):
        DiskStorage(tmp_path / "copy", CAPACITY)
    assert (tmp_path / "copy" / "extents").exists()
