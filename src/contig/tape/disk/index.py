"""The index of a storage on disk: runs, producers and bounds in SQLite.

Every row of its tables has a checksum. One transaction takes in any number of
appends. Other processes see what changed by `revision`.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import _native

__all__ = ["FORMAT", "Changes", "DiskIndex", "IndexState", "fold_log"]

FORMAT = 1
# native/tape_format.h, struct Entry: the words that are kept; the last is the entry's number.
WORDS = (
    "first", "steps_flags", "prev", "jump", "before", "ordinal", "version", "ret",
    "traj_id", "writer", "time_ns", "depth",
)  # fmt: skip
_TIMEOUT_S = 30.0
_WORD = 2**64 - 1

log = logging.getLogger("contig.disk")

_SCHEMA = f"""
CREATE TABLE runs (
  number INTEGER PRIMARY KEY,
  {", ".join(f"{w} INTEGER NOT NULL" for w in WORDS)},
  crc INTEGER NOT NULL, revision INTEGER NOT NULL
);
CREATE INDEX runs_by_revision ON runs (revision);
CREATE TABLE producers (id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE bounds (
  one INTEGER PRIMARY KEY CHECK (one = 0), tail INTEGER, index_tail INTEGER, head INTEGER,
  trajectories INTEGER, inserted INTEGER, sampled INTEGER, revision INTEGER, crc INTEGER
);
CREATE TABLE quarantine (ordinal INTEGER PRIMARY KEY, reason TEXT NOT NULL);
"""

_UPSERT = (
    f"INSERT OR REPLACE INTO runs (number, {', '.join(WORDS)}, crc, revision) "
    f"VALUES ({', '.join('?' * (len(WORDS) + 3))})"
)


class Changes(NamedTuple):
    """What one or more appends changed.

    Attributes:
        entries: by number, 16 words each.
        producers: items taken in, by producer.
        tail, index_tail, head, trajectories: the tape's bounds afterwards.
        limiter: rows inserted and sampled, as the rate limiter counts them.
    """

    entries: dict[int, np.ndarray[Any, Any]]
    producers: dict[int, int]
    tail: int
    index_tail: int
    head: int
    trajectories: int
    limiter: tuple[int, int]

    def and_then(self, later: Changes) -> Changes:
        """Both together."""
        return later._replace(
            entries={**self.entries, **later.entries},
            producers={**self.producers, **later.producers},
        )


class IndexState(NamedTuple):
    """An index as it was read.

    Attributes:
        entries: ``[n, 16]`` words, numbers ascending without gaps.
        bad: numbers of entries that could not be read, with a stand-in among `entries`.
        quarantine: trajectories that are not to be served, with the reason.
    """

    tail: int
    index_tail: int
    head: int
    index_head: int
    trajectories: int
    limiter: tuple[int, int]
    entries: np.ndarray[Any, Any]
    producers: dict[int, int]
    quarantine: dict[int, str]
    bad: list[int]
    revision: int


def row_crc(*values: int) -> int:
    """The checksum of a row of numbers."""
    return _native.crc32c(np.array(values, np.int64).tobytes())


def entry_crc(words: np.ndarray[Any, Any]) -> int:
    """The checksum of an entry's words and number."""
    kept = np.concatenate([words[: len(WORDS)], words[15:]]).astype(np.int64)
    return _native.crc32c(kept.tobytes())


class DiskIndex:
    """A connection to an index. Not thread-safe: its user holds a lock.

    Args:
        path: of the SQLite file.
        writable: else it is opened to read, and must exist.
    """

    def __init__(self, path: Path, writable: bool) -> None:
        self.path = path
        mode = "rwc" if writable else "ro"
        self._db = sqlite3.connect(
            f"file:{_quoted(path)}?mode={mode}",
            uri=True,
            timeout=_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        self.revision = 0
        try:
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > FORMAT:
                raise ValueError(
                    f"{path}: format {version}, this contig reads up to {FORMAT}; use a newer one"
                )
            if writable:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA wal_autocheckpoint=0")
                self._db.execute("PRAGMA synchronous=NORMAL")
                if version == 0:
                    self._create()
        except BaseException:
            self._db.close()
            raise

    def _create(self) -> None:
        self._db.executescript(
            f"BEGIN; {_SCHEMA} "
            f"INSERT INTO bounds VALUES (0, 0, 0, 0, 0, 0, 0, 0, {row_crc(*[0] * 7)}); "
            f"PRAGMA user_version={FORMAT}; COMMIT;"
        )

    def set_durable(self, durable: bool) -> None:
        """Whether a commit waits until it is on the disk."""
        self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")

    def write(self, changes: Changes) -> None:
        """One transaction."""
        revision = self.revision + 1
        rows = (_row(words, revision) for words in changes.entries.values())
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            db.executemany(_UPSERT, rows)
            senders = [_signed(producer) for producer in changes.producers]
            db.executemany(
                "INSERT OR REPLACE INTO producers VALUES (?, ?, ?)",
                [(p, seq, row_crc(p, seq)) for p, seq in zip(senders, changes.producers.values())],
            )
            db.execute("DELETE FROM runs WHERE number < ?", (changes.index_tail,))
            bounds = (
                changes.tail,
                changes.index_tail,
                changes.head,
                changes.trajectories,
                *changes.limiter,
                revision,
            )
            db.execute(
                "UPDATE bounds SET tail=?, index_tail=?, head=?, trajectories=?, inserted=?, "
                "sampled=?, revision=?, crc=?",
                (*bounds, row_crc(*bounds)),
            )
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self.revision = revision

    def quarantine(self, found: dict[int, str]) -> None:
        """Marks trajectories that are not to be served."""
        self._db.executemany("INSERT OR REPLACE INTO quarantine VALUES (?, ?)", found.items())

    @property
    def data_version(self) -> int:
        """Changes when another connection committed something."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def load(self, since: int = -1) -> IndexState:
        """The index, or what changed after a revision."""
        db = self._db
        db.execute("BEGIN")
        try:
            bounds = db.execute("SELECT * FROM bounds").fetchone()
            if bounds is None or not _whole(bounds[1:]):
                raise sqlite3.DatabaseError("the checksum of its bounds is wrong")
            _, tail, index_tail, head, trajectories, inserted, sampled, revision, _ = bounds
            found = db.execute(
                f"SELECT number, {', '.join(WORDS)}, crc FROM runs "
                "WHERE revision > ? AND number >= ? ORDER BY number",
                (since, index_tail),
            ).fetchall()
            producers = self._producers()
            quarantine = dict(db.execute("SELECT ordinal, reason FROM quarantine"))
        finally:
            db.execute("ROLLBACK")
        entries, bad = _entries(found, index_tail if since < 0 else None)
        index_head = int(entries[-1, 15]) + 1 if len(entries) else index_tail
        self.revision = revision
        return IndexState(
            tail,
            index_tail,
            head,
            index_head,
            trajectories,
            (inserted, sampled),
            entries,
            producers,
            quarantine,
            bad,
            revision,
        )

    def backup(self, path: Path) -> None:
        """A copy of the index as it is committed now."""
        copy = sqlite3.connect(path)
        try:
            self._db.backup(copy)
        finally:
            copy.close()

    def close(self) -> None:
        self._db.close()

    def _producers(self) -> dict[int, int]:
        found = self._db.execute("SELECT id, seq, crc FROM producers").fetchall()
        good = [row for row in found if _whole(row)]
        if len(good) < len(found):
            log.error(
                "%s: what %d producers have sent is damaged: items they send again may come twice",
                self.path,
                len(found) - len(good),
            )
        return {row[0] & _WORD: row[1] for row in good}


def _whole(row: tuple[Any, ...]) -> bool:
    """Whether a row of numbers that ends with its checksum is as it was written."""
    return all(type(v) is int for v in row) and row_crc(*row[:-1]) == row[-1]


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def fold_log(path: Path) -> None:
    """Moves what is in the write-ahead log into the file; nobody is waited for."""
    db = sqlite3.connect(path, timeout=_TIMEOUT_S, isolation_level=None)
    try:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    finally:
        db.close()


def _row(words: np.ndarray[Any, Any], revision: int) -> tuple[int, ...]:
    values = words.astype(np.int64)
    kept = [int(v) for v in values[: len(WORDS)]]
    return (int(values[15]), *kept, entry_crc(values), revision)


def _entries(
    found: Iterable[tuple[int, ...]], first_number: int | None
) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Rows as words, checked; what is damaged or missing gets a stand-in that covers its rows."""
    rows = list(found)
    bad: list[int] = []
    good: dict[int, np.ndarray[Any, Any]] = {}
    for row in rows:
        words = np.zeros(16, np.int64)
        try:
            words[: len(WORDS)] = row[1:-1]
            words[15] = row[0]
            whole = row[-1] == entry_crc(words)
        except (TypeError, ValueError, OverflowError):
            whole = False
        if whole:
            good[int(row[0])] = words
    if not good:
        return np.zeros((0, 16), np.int64), bad
    start = min(good) if first_number is None else first_number
    out = []
    for number in range(start, max(good) + 1):
        if number in good:
            out.append(good[number])
            continue
        if first_number is None:
            continue
        bad.append(number)
        out.append(_stand_in(number, good))
    return np.array(out).reshape(-1, 16), bad


def _stand_in(number: int, good: dict[int, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """An entry for rows of which nothing is known but that they lie between others."""
    before = max((n for n in good if n < number), default=None)
    after = min(n for n in good if n > number)
    missing = after - (number if before is None else before)
    words = np.zeros(16, np.int64)
    end = int(good[after][0])
    first = end - missing if before is None else int(good[before][0] + (good[before][1] >> 8))
    mine = number - (number if before is None else before + 1)
    share = max(end - first, 0)
    gap = missing if before is None else after - before - 1
    low = first + share * mine // gap
    high = first + share * (mine + 1) // gap
    words[0], words[1] = low, max(high - low, 0) << 8 | 8
    words[2] = words[3] = -1
    words[5] = -(number + 2)  # no trajectory has this number
    words[6] = words[8] = -1
    words[10] = time.time_ns()
    words[15] = number
    return words


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path.absolute()))
