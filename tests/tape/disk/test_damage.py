"""Files cut and with a byte changed: opening does not crash, no wrong row is ever served, and what
was set aside is said."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from contig._native import RunFlag
from contig.tape.disk import DiskStorage
from contig.tape.disk.index import DamagedIndexError
from contig.tape.disk.repair import repair
from contig.tape.entry import flags_of, read_entries
from tests.tape.disk import stored

CAPACITY = 56
LARGE = 4096  # bytes; of larger files, some positions
POSITIONS = 1500
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
        self._files = {f.relative_to(whole): f.read_bytes() for f in whole.rglob("*.*")}

    def open(self, name: str, data: bytes, what: str, read_only: bool = False) -> str:
        """What became of a storage one of whose files has other contents."""
        self._reset()
        (self.copy / name).unlink()
        (self.copy / name).write_bytes(data)
        try:
            outcome = self._open(name, read_only)
        except Exception as error:
            error.add_note(f"{name}: {what}{', read only' if read_only else ''}")
            raise
        return outcome

    def _reset(self) -> None:
        """The undamaged files again, and nothing else."""
        (self.copy / "extents").mkdir(parents=True, exist_ok=True)
        if (self.copy / "quarantine").exists():
            shutil.rmtree(self.copy / "quarantine")
        for found in self.copy.rglob("*.*"):
            if found.relative_to(self.copy) not in self._files:
                found.unlink()
        for name, data in self._files.items():
            file = self.copy / name
            if not file.exists() or file.read_bytes() != data:
                file.unlink(missing_ok=True)
                file.write_bytes(data)

    def _open(self, name: str, read_only: bool) -> str:
        try:
            storage = DiskStorage(self.copy, CAPACITY, read_only=read_only)
        except ValueError as error:
            # Only where nothing can be read; it says what to do.
            text = str(error)
            assert str(self.copy) in text, text
            assert "Restore" in text or "--repair" in text or "newer" in text, text
            if not isinstance(error, DamagedIndexError):
                return "refused"
            self._repair()
            return "repaired"
        with storage:
            lost = self._check(storage)
            if not read_only:
                self._append(storage)
            if not lost:
                return "whole"
            return "aside" if storage.quarantined else "unreported"

    def _check(self, storage: DiskStorage) -> int:
        """Rows that are served are right; how many are missing."""
        fields, served = stored.contents(storage)
        tail = storage.tape.snapshot()[1]
        there = {
            tail + int(i): tuple(fields[i, [0, 1, 3]].tolist()) for i in np.flatnonzero(served)
        }
        for seq, now in there.items():
            was = self.rows.get(seq)
            assert was in (None, now), f"row {seq} is {now}, was {was}"
        if storage.schema is not None:
            stored.check_episodes(storage)
        return len(set(self.rows) - set(there))

    def _append(self, storage: DiskStorage) -> None:
        """It can be written to, and what is written stays."""
        storage.default_writer.extend_trajectory(stored.item(99, 0))
        storage.flush()
        head = storage.tape.snapshot()[0]
        batch, gone = storage.gather(np.arange(head - 1, head))
        assert not gone and np.asarray(batch["fields"])[0, 0] == 99

    def _repair(self) -> None:
        """An index that SQLite cannot read: what can be saved is served, no file is thrown away."""
        before = sorted(f.name for f in self.copy.rglob("*.rec"))
        assert any("could not be read" in line for line in repair(self.copy))
        assert sorted(f.name for f in self.copy.rglob("*.rec")) == before
        with DiskStorage(self.copy, CAPACITY) as storage:
            self._check(storage)
            self._append(storage)
        with DiskStorage(self.copy, CAPACITY) as storage:
            newest = storage.read_episode(int(storage.episodes()["id"][-1]))
            assert np.asarray(newest["fields"])[0, 0] == 99


@pytest.fixture
def damaged_closed(closed: Path, fast_path: Path) -> Damage:
    return Damage(closed, fast_path / "copy")


@pytest.fixture
def damaged_logged(logged: Path, fast_path: Path) -> Damage:
    return Damage(logged, fast_path / "copy")


def thinned(every: int) -> pytest.MarkDecorator:
    """Some of the positions here, all of them in the soak."""
    complete = pytest.param(1, marks=pytest.mark.soak, id="complete")
    return pytest.mark.parametrize("every", [pytest.param(every, id="thinned"), complete])


def positions(size: int, every: int, seed: int) -> list[int]:
    chosen = range(size) if size <= LARGE else random.Random(seed).sample(range(size), POSITIONS)
    return sorted(chosen)[::every]


def flipped(data: bytes, at: int, seed: int) -> bytes:
    mask = random.Random(seed * 1_000_003 + at).randrange(1, 256)
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def extents(whole: Path) -> list[str]:
    return sorted(str(f.relative_to(whole)) for f in (whole / "extents").iterdir())


def flip(damage: Damage, name: str, every: int, seed: int = 0) -> Counter[str]:
    data = (damage.whole / name).read_bytes()
    outcomes: Counter[str] = Counter()
    for n, at in enumerate(positions(len(data), every, seed)):
        changed = flipped(data, at, seed)
        what = f"byte {at}: {data[at]} -> {changed[at]}"
        outcomes[damage.open(name, changed, what, read_only=n % 5 == 0)] += 1
    return outcomes


def cut(damage: Damage, name: str, every: int, seed: int = 1) -> Counter[str]:
    data = (damage.whole / name).read_bytes()
    outcomes: Counter[str] = Counter()
    for n, size in enumerate(positions(len(data), every, seed)):
        outcomes[damage.open(name, data[:size], f"cut to {size}", read_only=n % 5 == 0)] += 1
    return outcomes


def some(names: list[str], every: int) -> list[str]:
    return names if every == 1 else [names[0], names[3], names[-1]]


@thinned(31)
def test_rows_flipped(damaged_closed: Damage, every: int) -> None:
    names = extents(damaged_closed.whole)
    assert len(names) >= 7
    for name in some(names, every):
        outcomes = flip(damaged_closed, name, every)
        assert set(outcomes) <= {"aside", "whole"}, outcomes  # whole: padding, or evicted
        assert outcomes["aside"] or name == names[0], outcomes


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
                storage.opened.mirror.quarantine.clear()
        assert stored.contents(storage)[1].all()


@thinned(37)
def test_rows_cut(damaged_closed: Damage, every: int) -> None:
    for name in some(extents(damaged_closed.whole), every):
        outcomes = cut(damaged_closed, name, every)
        assert set(outcomes) <= {"aside", "whole"}, outcomes


def test_layout_flipped(damaged_closed: Damage) -> None:
    outcomes = flip(damaged_closed, "layout.json", 1)
    assert set(outcomes) <= {"refused", "whole"} and outcomes["refused"] > 100, outcomes


def test_layout_cut(damaged_closed: Damage) -> None:
    assert set(cut(damaged_closed, "layout.json", 1)) == {"refused"}


@thinned(2)
def test_index_flipped(damaged_closed: Damage, every: int) -> None:
    outcomes = flip(damaged_closed, "index.sqlite", every)
    assert not outcomes["unreported"] and outcomes["repaired"], outcomes


@pytest.mark.parametrize("table", ("pages", "producers", "bounds", "salts"))
def test_index_values(closed: Path, fast_path: Path, table: str) -> None:
    """Each value of the index changed, in a way that SQLite has nothing against."""
    with DiskStorage(shutil.copytree(closed, fast_path / "undamaged"), CAPACITY) as storage:
        episodes = {int(e["id"]): e for e in storage.episodes()}
        seen = storage.tape.seen(PRODUCER, 0)
    copy = fast_path / "copy"
    db = sqlite3.connect(fast_path / "undamaged" / "index.sqlite")
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    keys = [row[0] for row in db.execute(f"SELECT rowid FROM {table}")]
    db.close()
    for column in [c for c in columns if c != "one"]:
        for key in keys[:: max(len(keys) // 3, 1)]:
            shutil.copytree(closed, copy)
            db = sqlite3.connect(copy / "index.sqlite", isolation_level=None)
            # Of a page, one of its entries is replaced by another.
            other = "substr(entries, 1, length(entries) - 112) || substr(entries, 1, 112)"
            other = f"CAST({other} AS BLOB)"
            value = other if column == "entries" else f"{column} + 1000003"
            db.execute(f"UPDATE {table} SET {column} = {value} WHERE rowid = ?", (key,))
            db.close()
            if table in ("bounds", "salts"):
                with pytest.raises(DamagedIndexError, match="repair"):
                    DiskStorage(copy, CAPACITY)
            else:
                with DiskStorage(copy, CAPACITY) as storage:
                    assert bool(storage.quarantined) == (table == "pages"), (column, key)
                    assert storage.tape.seen(PRODUCER, 0) == (0 if table == "producers" else seen)
                    for e in storage.episodes():
                        if int(e["id"]) not in storage.quarantined:
                            assert e == episodes[int(e["id"])], (column, key)
                    stored.contents(storage)
            shutil.rmtree(copy)


@thinned(11)
def test_index_cut(damaged_closed: Damage, every: int) -> None:
    outcomes = cut(damaged_closed, "index.sqlite", every)
    assert not outcomes["unreported"] and outcomes["repaired"], outcomes
    assert damaged_closed.open("index.sqlite", b"", "empty") == "repaired"


OLDER = {"whole", "aside", "unreported"}  # opened, with rows that are right, or without them


@thinned(5)
def test_log_flipped(damaged_logged: Damage, every: int) -> None:
    """SQLite leaves out what follows a damaged part of its log: what is left is older but right."""
    outcomes = flip(damaged_logged, "index.sqlite-wal", every)
    assert set(outcomes) <= OLDER and outcomes["aside"], outcomes


@thinned(11)
def test_log_cut(damaged_logged: Damage, every: int) -> None:
    outcomes = cut(damaged_logged, "index.sqlite-wal", every)
    assert set(outcomes) <= OLDER and outcomes["aside"], outcomes


@thinned(31)
def test_logged_index_flipped(damaged_logged: Damage, every: int) -> None:
    outcomes = flip(damaged_logged, "index.sqlite", every)
    assert not outcomes["unreported"] and outcomes["whole"], outcomes


@thinned(31)
def test_logged_index_cut(damaged_logged: Damage, every: int) -> None:
    outcomes = cut(damaged_logged, "index.sqlite", every)
    assert not outcomes["unreported"] and outcomes["repaired"], outcomes


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


def damage_entry(path: Path, number: int) -> None:
    """Changes a byte of one entry of an index."""
    at, page = number % 32 * 112 + 40, number // 32
    db = sqlite3.connect(path / "index.sqlite", isolation_level=None)
    (data,) = db.execute("SELECT entries FROM pages WHERE page = ?", (page,)).fetchone()
    changed = data[:at] + bytes([data[at] ^ 7]) + data[at + 1 :]
    db.execute("UPDATE pages SET entries = ? WHERE page = ?", (changed, page))
    db.close()


def lanes(path: Path, ended: bool) -> dict[int, tuple[int, int]]:
    """A storage with three trajectories of two parts each, in turn, and one of a single part; the
    number of the entry of each one's last part and its steps, by id."""
    with DiskStorage(path, 4096, example={"x": np.int64(0), "next": {"done": False}}) as storage:
        writers = [storage.writer() for _ in range(3)]
        for part in range(2):
            for writer in writers:
                done = np.zeros(3, bool)
                done[-1] = ended and part == 1
                writer.extend({"x": np.arange(3), "next": {"done": done}})
        storage.writer().extend({"x": np.arange(2), "next": {"done": np.array([False, True])}})
        storage.flush()
        entries = read_entries(storage.tape)
        assert len(entries) == 7
        return {int(e["ordinal"]): (int(e["number"]), int(e["before"])) for e in entries}


@pytest.mark.parametrize("ended", (False, True))
@pytest.mark.parametrize("mended", (False, True))
@pytest.mark.parametrize("which", range(4))
def test_the_last_part_of_a_trajectory(
    tmp_path: Path, which: int, mended: bool, ended: bool
) -> None:
    """The rest of a trajectory whose last part's entry is damaged is not served as the whole of
    it, is never gone on with, and is known as damaged for as long as it is there."""
    path = tmp_path / "store"
    last = lanes(path, ended)
    number = last[which][0]
    damage_entry(path, number)
    if mended:
        repair(path)
    for turn in range(3):
        with DiskStorage(path, 4096) as storage:
            aside = storage.quarantined
            there = {int(e["id"]): e for e in storage.episodes()}
            assert -(number + 2) in aside
            if which == 3:  # it began with that entry: nobody else has lost anything
                assert set(aside) == {-(number + 2)}
            else:
                assert which in aside and not there[which]["complete"]
                entries = read_entries(storage.tape)
                rest = entries[entries["ordinal"] == which]
                assert flags_of(rest[-1]) & int(RunFlag.CUT), "nothing goes on with it"
            whole = [o for o in range(3) if o not in aside]
            assert all(there[o]["steps"] == 6 for o in whole)
            assert not ended or len(whole) == 3 - (which < 3)
            storage.writer().extend({"x": np.arange(2), "next": {"done": np.zeros(2, bool)}})
            assert len(storage.episodes()) == len(there) + 1, turn
