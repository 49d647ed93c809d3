"""Repairs: killed at every step they leave no less than they found, and when they are through,
nothing is damaged any more."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from contig.cli.main import main
from contig.tape.disk import DiskStorage
from contig.tape.disk.repair import repair
from tests.tape.disk import stored
from tests.tape.disk.test_faults import fill, make
from tests.tape.disk.victim import killed_at


def _flip(path: Path, at: int, n: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + n] = bytes(b ^ 0x5A for b in data[at : at + n])
    path.write_bytes(data)


def _start(path: Path) -> None:
    _flip(path / "index.sqlite", 0, 3000)


def _page(path: Path) -> None:
    """A page of SQLite's, with entries."""
    size = (path / "index.sqlite").stat().st_size
    _flip(path / "index.sqlite", size - 4096, 4096)


def _entry(path: Path) -> None:
    """An entry, in a way that SQLite has nothing against."""
    db = sqlite3.connect(path / "index.sqlite", isolation_level=None)
    db.execute(
        "UPDATE pages SET entries = CAST(zeroblob(112) || substr(entries, 113) AS BLOB) "
        "WHERE page = (SELECT max(page) FROM pages)"
    )
    db.close()


def _producer(path: Path) -> None:
    db = sqlite3.connect(path / "index.sqlite", isolation_level=None)
    db.execute("UPDATE producers SET seq = seq + 1")
    db.close()


def _row(path: Path) -> None:
    _flip(path / "extents" / "00000002.rec", 100)


def _missing(path: Path) -> None:
    (path / "extents" / "00000003.rec").unlink()


def _bounds(path: Path) -> None:
    db = sqlite3.connect(path / "index.sqlite", isolation_level=None)
    db.execute("UPDATE bounds SET head = head + 3")
    db.close()


DAMAGE: dict[str, Callable[[Path], None]] = {
    f.__name__[1:]: f for f in (_start, _page, _entry, _producer, _row, _missing, _bounds)
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 items."""
    path = tmp_path_factory.mktemp("repair")
    with make(path / "live", 4096) as storage:
        accept = storage.native_writer(storage.schema)
        assert storage.layout is not None
        size = storage.layout.record_size
        for n in range(24):
            fill(storage, n, 1)
            data = stored.frame(storage, 7, n, 1, 2)
            accept.accept(stored.received(data, size), 7, 1 << 62)
        storage.flush()
    return path / "live"


def rows_of(path: Path) -> dict[str, set[bytes]]:
    """All rows in files, wherever they are now, by their file's name."""
    out: dict[str, set[bytes]] = {}
    for file in path.rglob("*.rec"):
        data = file.read_bytes()
        rows = {data[i : i + 512] for i in range(0, len(data), 512)} - {bytes(512)}
        out.setdefault(file.name, set()).update(rows)
    return out


def indexes_of(path: Path) -> set[bytes]:
    return {f.read_bytes() for f in path.rglob("index*.sqlite")}


def served(path: Path) -> int:
    with DiskStorage(path, 4096, read_only=True) as storage:
        _, there = stored.contents(storage)
        stored.check_episodes(storage)
        return int(there.sum())


def inspect(path: Path, *options: str) -> int:
    return main(["inspect", str(path), *options])


@pytest.mark.parametrize("kind", DAMAGE)
def test_heals(whole: Path, tmp_path: Path, kind: str) -> None:
    path = shutil.copytree(whole, tmp_path / "store")
    DAMAGE[kind](path)
    complains = inspect(path, "--verify")
    assert complains or kind == "producer"
    assert inspect(path, "--repair") == 0
    assert inspect(path, "--verify") == 0
    assert repair(path) == ["nothing is damaged"]
    with make(path, 4096) as storage:  # it goes on
        head = storage.tape.snapshot()[0]
        fill(storage, 99, 3)
        storage.flush()
    with make(path, 4096) as storage:
        assert storage.tape.snapshot()[0] > head
        fields, there = stored.contents(storage)
        assert there[head:].all() and set(fields[head:, 1]) == {99, 100, 101}
        stored.check_episodes(storage)
    assert inspect(path, "--verify") == 0


@pytest.mark.parametrize(
    "every", (pytest.param(3, id="thinned"), pytest.param(1, marks=pytest.mark.soak, id="complete"))
)
@pytest.mark.parametrize("kind", ("start", "page", "entry", "row"))
def test_killed(whole: Path, fast_path: Path, kind: str, every: int) -> None:
    damaged = shutil.copytree(whole, fast_path / "damaged")
    DAMAGE[kind](damaged)
    rows, index = rows_of(damaged), (damaged / "index.sqlite").read_bytes()
    done = shutil.copytree(damaged, fast_path / "done")
    repair(done)
    expected, at = served(done), 0
    path = fast_path / "store"
    while True:
        at += every
        shutil.copytree(damaged, path)
        killed = killed_at(at, lambda: path, repair)
        assert rows_of(path) == rows, at
        if kind in ("start", "page"):
            assert index in indexes_of(path), at
        repair(path)
        assert rows_of(path) == rows, at
        assert served(path) == expected, at
        assert inspect(path, "--verify") == 0
        shutil.rmtree(path)
        if not killed:
            break
    assert at > 3 * every or kind == "row"  # which is one transaction
