"""What is in the SQLite file of an index: its tables, read, made, and upgraded.

Every row of numbers ends with its checksum. Damaged entries are replaced by stand-ins when they are
read. An index of format 1 is read as it is; the first writer gives it the tables of format 2.

    format 2   rows of one size
    format 3   trajectories with fields, or leaves of any size: two more tables, and bounds of bytes

What needs no format 3 is of format 2, which contig 0.2 reads.
"""

from __future__ import annotations

import functools
import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from .changes import IndexBounds, IndexState, Salts
from .index_fields import FieldPages
from .index_pages import PAGE, STORED, complete, pack, unpack
from .sqlite import DamagedContents

__all__ = [
    "FORMAT",
    "PLAIN",
    "Form",
    "bounds_of",
    "create",
    "is_whole",
    "read_bounds",
    "read_pages",
    "read_state",
    "remake",
    "row_crc",
    "tables_in",
    "tables_of",
    "upgrade",
]

log = logging.getLogger("contig.disk")

Array = np.ndarray[Any, Any]

FORMAT = 3
_AT_ONCE = 4096  # rows of format 1
_WORD = 2**64 - 1
_MOST_PRODUCERS = _native.PRODUCERS  # as a tape
_READ_PAGES = 256  # at a time: small pieces of memory are given back sooner

_PRODUCERS = (
    "CREATE TABLE producers (\n"
    "  id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, revision INTEGER NOT NULL, "
    "crc INTEGER NOT NULL\n);"
)

_SCHEMA = f"""
CREATE TABLE pages (page INTEGER PRIMARY KEY, entries BLOB NOT NULL);
{_PRODUCERS}
CREATE TABLE bounds (
  one INTEGER PRIMARY KEY CHECK (one = 0), store INTEGER, tail INTEGER, index_tail INTEGER,
  head INTEGER, index_head INTEGER, trajectories INTEGER, inserted INTEGER, sampled INTEGER,
  loads INTEGER, revision INTEGER, crc INTEGER
);
CREATE TABLE salts (first INTEGER PRIMARY KEY, salt INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE quarantine (
  ordinal INTEGER PRIMARY KEY, reason TEXT NOT NULL, repaired INTEGER NOT NULL
);
"""

_SCHEMA_3 = f"""
{_SCHEMA.replace("sampled INTEGER,", "sampled INTEGER, blob_tail INTEGER, blob_head INTEGER,")}
CREATE TABLE fields (page INTEGER PRIMARY KEY, records BLOB NOT NULL);
CREATE TABLE changed (revision INTEGER PRIMARY KEY, numbers BLOB NOT NULL, crc INTEGER NOT NULL);
"""

_WORDS = (STORED.names or ())[:-1]  # all but the number: a column each in format 1

_SCHEMA_1 = f"""
CREATE TABLE runs (
  number INTEGER PRIMARY KEY,
  {", ".join(f"{w} INTEGER NOT NULL" for w in _WORDS)},
  crc INTEGER NOT NULL, revision INTEGER NOT NULL
);
CREATE INDEX runs_by_revision ON runs (revision);
{_PRODUCERS}
CREATE TABLE bounds (
  one INTEGER PRIMARY KEY CHECK (one = 0), tail INTEGER, index_tail INTEGER, head INTEGER,
  index_head INTEGER, trajectories INTEGER, inserted INTEGER, sampled INTEGER, loads INTEGER,
  revision INTEGER, crc INTEGER
);
CREATE TABLE quarantine (ordinal INTEGER PRIMARY KEY, reason TEXT NOT NULL);
"""


class Form(NamedTuple):
    """What an index is of.

    Attributes:
        format: 2 or 3.
        field_bytes: of the fields of a trajectory; 0: it has none.
    """

    format: int
    field_bytes: int


PLAIN = Form(2, 0)


def row_crc(*values: int) -> int:
    """The checksum of a row of numbers."""
    return _native.crc32c(np.array(values, np.int64).tobytes())


def is_whole(row: tuple[Any, ...]) -> bool:
    """Whether a row of numbers that ends with its checksum is as it was written."""
    return all(type(v) is int for v in row) and row_crc(*row[:-1]) == row[-1]


def create(db: sqlite3.Connection, store: int, version: int) -> None:
    """An empty index, in one transaction."""
    db.executescript(f"BEGIN; {_made(store, version)} COMMIT;")


def remake(db: sqlite3.Connection, store: int, version: int) -> None:
    """The same in place of an index of another format that was never used."""
    names = [row[1] for row in tables_in(db) if row[0] == "table"]
    gone = " ".join(f"DROP TABLE {name};" for name in names)
    db.executescript(f"BEGIN IMMEDIATE; {gone} {_made(store, version)} COMMIT;")


def _made(store: int, version: int) -> str:
    bounds = (store, *[0] * (11 if version == FORMAT else 9))
    return (
        f"{_schema(version)} INSERT INTO bounds VALUES (0, {', '.join(map(str, bounds))}, "
        f"{row_crc(*bounds)}); PRAGMA user_version={version};"
    )


def _schema(version: int) -> str:
    return {1: _SCHEMA_1, 2: _SCHEMA, FORMAT: _SCHEMA_3}[version]


def tables_in(db: sqlite3.Connection) -> list[Any]:
    """The tables of an index."""
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    return db.execute(query).fetchall()


@functools.cache
def tables_of(version: int) -> list[Any]:
    """The tables that an index of a format has."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(_schema(version))
        return tables_in(db)
    finally:
        db.close()


def read_pages(
    db: sqlite3.Connection, version: int, first: int, last: int, backwards: bool = False
) -> Any:
    """Packed entries, page by page, of those that have entries of the numbers [first, last)."""
    order = "DESC" if backwards else "ASC"
    if version > 1:
        query = "SELECT entries FROM pages WHERE page >= ? AND page <= ? ORDER BY page "
        return db.execute(query + order, (first // PAGE, (last - 1) // PAGE))
    query = f"SELECT {', '.join(_WORDS)}, number, crc FROM runs WHERE number >= ? AND number < ?"
    return _packed(db.execute(f"{query} ORDER BY number {order}", (first, last)))


def _entries_of(runs: list[tuple[Any, ...]]) -> Array:
    """Those rows of format 1 that are whole."""
    words = [row[: len(_WORDS) + 1] for row in runs if is_whole(row)]
    return np.array(words, np.int64).reshape(-1).view(STORED)


def _packed(runs: Any) -> Any:
    """Rows of format 1 as pages; those that are damaged are left out."""
    while some := [row for _, row in zip(range(_AT_ONCE), runs)]:
        for _, page in pack(_entries_of(some)):
            yield (bytes(page),)


def upgrade(db: sqlite3.Connection) -> None:
    """Replaces the tables of format 1, in one transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        runs = db.execute(
            f"SELECT {', '.join(_WORDS)}, number, crc FROM runs ORDER BY number"
        ).fetchall()
        kept = _entries_of(runs)
        bounds = db.execute("SELECT * FROM bounds").fetchone()
        aside = db.execute("SELECT ordinal, reason FROM quarantine").fetchall()
        for table in ("runs", "bounds", "quarantine"):
            db.execute(f"DROP TABLE {table}")
        for statement in _SCHEMA.replace(_PRODUCERS, "").split(";"):
            if statement.strip():
                db.execute(statement)
        db.executemany("INSERT INTO pages VALUES (?, ?)", pack(kept))
        now = (0, *bounds[1:-1])
        # Bounds that were damaged stay so: their checksum is wrong.
        crc = row_crc(*now) if is_whole(bounds[1:]) else -1
        db.execute(f"INSERT INTO bounds VALUES (0, {', '.join('?' * 11)})", (*now, crc))
        db.executemany("INSERT INTO quarantine VALUES (?, ?, 0)", aside)
        db.execute(f"PRAGMA user_version={PLAIN.format}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


# -- reading ---------------------------------------------------------------------------------------


def read_state(
    db: sqlite3.Connection, path: Path, form: Form, since: int = -1, known: int = -1
) -> IndexState:
    """The index; or what there is from an entry on, unless some of it is damaged: then all.

    Args:
        form: of the index.
        since: the entry.
        known: the transaction (`revision`) up to which fields of earlier entries are known.
    """
    db.execute("BEGIN")
    try:
        # Of this transaction: asked before or after it, it would be that of another state.
        data_version = int(db.execute("PRAGMA data_version").fetchone()[0])
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version not in (1, form.format):
            raise DamagedContents(f"it is of format {version}, expected {form.format}")
        bounds = read_bounds(db, version)
        index_tail, index_head = bounds.index_tail, bounds.index_head
        producers, lost = _producers(db, path)
        reasons = db.execute("SELECT * FROM quarantine").fetchall()
        salts = _read_salts(db, version)
        first = max(index_tail, since)
        parts = _parts(db, version, first, index_head)
        fields = None
        if form.field_bytes and version == FORMAT:
            pages = FieldPages(form.field_bytes, bounds.store)
            fields = pages.read(db, first, index_head, index_tail, known, bounds.revision)
    except UnicodeDecodeError as error:
        raise DamagedContents(str(error)) from error
    finally:
        db.execute("ROLLBACK")
    bad: list[int] = []
    damaged: dict[int, str] = {}
    quarantine = {int(row[0]): str(row[1]) for row in reasons}
    if not _without_gaps(parts, first, index_head):
        if first > index_tail:
            return read_state(db, path, form)
        good = {int(kept["number"]): kept for part in parts for kept in part}
        numbers = range(index_tail, index_head)
        of = (bounds.tail, bounds.head, numbers, bounds.trajectories)
        entries, bad, damaged = complete(good, *of)
        parts = [entries]
    return IndexState(
        bounds.tail,
        index_tail,
        bounds.head,
        index_head,
        bounds.trajectories,
        (bounds.inserted, bounds.sampled),
        parts,
        producers,
        lost,
        quarantine,
        {int(row[0]) for row in reasons if len(row) > 2 and row[2]},
        bad,
        damaged,
        bounds.loads,
        salts,
        bounds.revision,
        bounds.store,
        data_version,
        bounds.blob_tail,
        bounds.blob_head,
        fields,
    )


def read_bounds(db: sqlite3.Connection, version: int) -> IndexBounds:
    """Of older formats, too."""
    row = db.execute("SELECT * FROM bounds").fetchone()
    if row is None or not is_whole(row[1:]):
        raise DamagedContents("the checksum of its bounds is wrong")
    return bounds_of(row[1:-1])


def bounds_of(numbers: tuple[int, ...]) -> IndexBounds:
    """Bounds as they were stored: those of format 1 have no `store`, and only those of format 3 are
    of bytes, too."""
    if len(numbers) == 9:
        numbers = (0, *numbers)
    if len(numbers) == 10:
        numbers = (*numbers[:8], 0, 0, *numbers[8:])
    if len(numbers) != len(IndexBounds._fields):
        raise DamagedContents(f"its bounds are {len(numbers)} numbers")
    return IndexBounds(*numbers)


def _read_salts(db: sqlite3.Connection, version: int) -> Salts:
    if version == 1:
        return ()
    rows = db.execute("SELECT first, salt, crc FROM salts ORDER BY first").fetchall()
    if not all(is_whole(row) for row in rows):
        raise DamagedContents("the checksum of a salt is wrong")
    return tuple((first, salt) for first, salt, _ in rows)


def _parts(db: sqlite3.Connection, version: int, first: int, last: int) -> list[Array]:
    """Whole entries of the numbers [first, last)."""
    if last <= first:
        return []
    parts = []
    pages = read_pages(db, version, first, last)
    while some := _take(pages, _READ_PAGES):
        kept = unpack(some)
        numbers = kept["number"]
        parts.append(kept.compress((numbers >= first) & (numbers < last)))
    return [part for part in parts if len(part)]


def _producers(db: sqlite3.Connection, path: Path) -> tuple[dict[int, int], int]:
    query = "SELECT id, seq, revision, crc FROM producers ORDER BY revision"
    found = db.execute(query).fetchall()
    good = [row for row in found if is_whole(row)]
    if len(good) < len(found):
        log.error(
            "%s: what %d producers have sent is damaged: items they send again may come twice",
            path,
            len(found) - len(good),
        )
    return {row[0] & _WORD: row[1] for row in good[-_MOST_PRODUCERS:]}, len(found) - len(good)


def _take(pages: Iterable[tuple[Any]], n: int) -> list[Any]:
    """The next `n` of them."""
    return [page for _, (page,) in zip(range(n), pages)]


def _without_gaps(parts: list[Array], first: int, last: int) -> bool:
    at = first
    for part in parts:
        if part[0]["number"] != at or not (np.diff(part["number"]) == 1).all():
            return False
        at += len(part)
    return at == max(last, first)
