"""The tables of an index: those of today, and how those of format 1 are read and replaced.

Every row of numbers ends with its checksum.
"""

from __future__ import annotations

import functools
import sqlite3
from typing import Any

import numpy as np

from ... import _native
from .entries import PAGE, STORED, pack

__all__ = ["FORMAT", "create", "expected", "found", "is_whole", "pages", "row_crc", "upgrade"]

Array = np.ndarray[Any, Any]

FORMAT = 2
_AT_ONCE = 4096  # rows of format 1

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


def row_crc(*values: int) -> int:
    """The checksum of a row of numbers."""
    return _native.crc32c(np.array(values, np.int64).tobytes())


def is_whole(row: tuple[Any, ...]) -> bool:
    """Whether a row of numbers that ends with its checksum is as it was written."""
    return all(type(v) is int for v in row) and row_crc(*row[:-1]) == row[-1]


def create(db: sqlite3.Connection, store: int) -> None:
    """An empty index, in one transaction."""
    bounds = (store, *[0] * 9)
    db.executescript(
        f"BEGIN; {_SCHEMA} INSERT INTO bounds VALUES (0, {', '.join(map(str, bounds))}, "
        f"{row_crc(*bounds)}); PRAGMA user_version={FORMAT}; COMMIT;"
    )


def found(db: sqlite3.Connection) -> list[Any]:
    """The tables that there are."""
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    return db.execute(query).fetchall()


@functools.cache
def expected(version: int) -> list[Any]:
    """The tables that there should be."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(_SCHEMA if version == FORMAT else _SCHEMA_1)
        return found(db)
    finally:
        db.close()


def pages(
    db: sqlite3.Connection, version: int, first: int, last: int, backwards: bool = False
) -> Any:
    """Packed entries, page by page, of those that have entries of the numbers [first, last)."""
    order = "DESC" if backwards else "ASC"
    if version == FORMAT:
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
        db.execute(f"PRAGMA user_version={FORMAT}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
