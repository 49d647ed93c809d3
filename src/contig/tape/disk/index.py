"""The index of a storage on disk: runs, producers and bounds in SQLite.

Every row of its tables has a checksum. One transaction takes in any number of
appends. Other processes see what changed by `revision`.
"""

from __future__ import annotations

import functools
import logging
import os
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
_PRODUCERS = _native.PRODUCERS  # as a tape
_LOG_BYTES = 4 << 20

log = logging.getLogger("contig.disk")

_SCHEMA = f"""
CREATE TABLE runs (
  number INTEGER PRIMARY KEY,
  {", ".join(f"{w} INTEGER NOT NULL" for w in WORDS)},
  crc INTEGER NOT NULL, revision INTEGER NOT NULL
);
CREATE INDEX runs_by_revision ON runs (revision);
CREATE TABLE producers (
  id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, revision INTEGER NOT NULL, crc INTEGER NOT NULL
);
CREATE TABLE bounds (
  one INTEGER PRIMARY KEY CHECK (one = 0), tail INTEGER, index_tail INTEGER, head INTEGER,
  index_head INTEGER, trajectories INTEGER, inserted INTEGER, sampled INTEGER, loads INTEGER,
  revision INTEGER, crc INTEGER
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
        loads: how many times a checkpoint took the place of everything.
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
    loads: int
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
        if not writable and not os.access(path.parent, os.W_OK) and not _has_log(path):
            mode += "&immutable=1"  # SQLite would make a log's index there
        self._db = sqlite3.connect(
            f"file:{_quoted(path)}?mode={mode}",
            uri=True,
            timeout=_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        self.revision = self.loads = 0
        self._deleted_below = -1
        try:
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > FORMAT:
                raise ValueError(
                    f"{path}: format {version}, this contig reads up to {FORMAT}; use a newer one"
                )
            if writable:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA wal_autocheckpoint=0")
                self._db.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
                self._db.execute("PRAGMA synchronous=FULL")
                if version == 0:
                    self._create()
        except UnicodeDecodeError as error:  # of a message of SQLite's that quotes what it found
            self._db.close()
            raise sqlite3.DatabaseError(str(error)) from error
        except BaseException:
            self._db.close()
            raise

    def _create(self) -> None:
        self._db.executescript(
            f"BEGIN; {_SCHEMA} "
            f"INSERT INTO bounds VALUES (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {row_crc(*[0] * 9)}); "
            f"PRAGMA user_version={FORMAT}; COMMIT;"
        )

    def check(self) -> None:
        """Raises sqlite3.DatabaseError unless it can be written to, too."""
        try:
            (found,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            tables = _tables(self._db)
        except UnicodeDecodeError as error:  # of a message of SQLite's that quotes what it found
            raise sqlite3.DatabaseError(str(error)) from error
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        if tables != _expected_tables():
            raise sqlite3.DatabaseError("its tables are not as they should be")

    def set_durable(self, durable: bool) -> None:
        """Whether a commit waits until it is on the disk."""
        self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")

    def write(self, changes: Changes) -> None:
        """One transaction."""
        # Not the same twice, even if this fails when it is through.
        self.revision = revision = self.revision + 1
        rows = (_row(words, revision) for words in changes.entries.values())
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            db.executemany(_UPSERT, rows)
            if changes.producers:
                senders = [_signed(producer) for producer in changes.producers]
                db.executemany(
                    "INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?)",
                    [
                        (p, seq, revision, row_crc(p, seq, revision))
                        for p, seq in zip(senders, changes.producers.values())
                    ],
                )
            if changes.index_tail != self._deleted_below:
                db.execute("DELETE FROM runs WHERE number < ?", (changes.index_tail,))
            bounds = (
                changes.tail,
                changes.index_tail,
                changes.head,
                max(changes.index_tail, *(n + 1 for n in changes.entries), 0),
                changes.trajectories,
                *changes.limiter,
                self.loads,
                revision,
            )
            db.execute(
                "UPDATE bounds SET tail=?, index_tail=?, head=?, index_head=?, trajectories=?, "
                "inserted=?, sampled=?, loads=?, revision=?, crc=?",
                (*bounds, row_crc(*bounds)),
            )
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._deleted_below = changes.index_tail

    def quarantine(self, found: dict[int, str]) -> None:
        """Marks trajectories that are not to be served."""
        self._db.executemany("INSERT OR REPLACE INTO quarantine VALUES (?, ?)", found.items())

    def begin_load(self) -> None:
        """The next transaction lets everything go, and is on the disk when it returns."""
        self.loads += 1
        self.set_durable(True)

    def end_load(self, durable: bool) -> None:
        """Forgets the quarantine of what was let go; then as `set_durable`."""
        self._db.execute("DELETE FROM quarantine")
        self.set_durable(durable)

    @property
    def data_version(self) -> int:
        """Changes when another connection committed something."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def load(self, since: int = -1) -> IndexState:
        """The index, or what changed after a revision."""
        try:
            return self._load(since)
        except UnicodeDecodeError as error:  # of a message of SQLite's that quotes what it found
            raise sqlite3.DatabaseError(str(error)) from error

    def _load(self, since: int) -> IndexState:
        db = self._db
        db.execute("BEGIN")
        try:
            bounds = db.execute("SELECT * FROM bounds").fetchone()
            if bounds is None or not is_whole(bounds[1:]):
                raise sqlite3.DatabaseError("the checksum of its bounds is wrong")
            tail, index_tail, head, index_head, trajectories, *limiter, loads, revision, _ = bounds[
                1:
            ]
            found = db.execute(
                f"SELECT number, {', '.join(WORDS)}, crc FROM runs "
                "WHERE revision > ? AND number >= ? ORDER BY number",
                (since, index_tail),
            ).fetchall()
            producers = self._producers()
            quarantine = dict(db.execute("SELECT ordinal, reason FROM quarantine"))
        finally:
            db.execute("ROLLBACK")
        good = whole_runs(found)
        bad: list[int] = []
        if since < 0:
            entries, bad = _complete(good, tail, head, range(index_tail, index_head))
            # What goes on from an entry that is not there has a hole.
            for ordinal in entries[np.isin(entries[:, 2], bad), 5]:
                quarantine.setdefault(int(ordinal), "a part of it is damaged")
        else:
            entries = np.array(list(good.values()), np.int64).reshape(-1, 16)
            if len(good) < len(found):
                raise sqlite3.DatabaseError("an entry's checksum is wrong")
        self.revision, self.loads = revision, loads
        return IndexState(
            tail,
            index_tail,
            head,
            index_head,
            trajectories,
            (limiter[0], limiter[1]),
            entries,
            producers,
            quarantine,
            bad,
            loads,
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
        query = "SELECT id, seq, revision, crc FROM producers ORDER BY revision"
        found = self._db.execute(query).fetchall()
        good = [row for row in found if is_whole(row)]
        if len(good) < len(found):
            log.error(
                "%s: what %d producers have sent is damaged: items they send again may come twice",
                self.path,
                len(found) - len(good),
            )
        return {row[0] & _WORD: row[1] for row in good[-_PRODUCERS:]}

    def forget_producers(self) -> None:
        """Keeps as many as a tape does, those that sent last."""
        self._db.execute(
            "DELETE FROM producers WHERE revision < "
            "(SELECT revision FROM producers ORDER BY revision DESC LIMIT 1 OFFSET ?)",
            (_PRODUCERS,),
        )


def _tables(db: sqlite3.Connection) -> list[Any]:
    return db.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    ).fetchall()


@functools.cache
def _expected_tables() -> list[Any]:
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(_SCHEMA)
        return _tables(db)
    finally:
        db.close()


def is_whole(row: tuple[Any, ...]) -> bool:
    """Whether a row of numbers that ends with its checksum is as it was written."""
    return all(type(v) is int for v in row) and row_crc(*row[:-1]) == row[-1]


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def log_is_long(path: Path) -> bool:
    """Whether an index's write-ahead log should be folded in now."""
    log_file = path.with_name(path.name + "-wal")
    return log_file.exists() and log_file.stat().st_size > _LOG_BYTES


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


def whole_runs(found: Iterable[tuple[Any, ...]]) -> dict[int, np.ndarray[Any, Any]]:
    """Those of the rows read that are as they were written, as words, by number."""
    good: dict[int, np.ndarray[Any, Any]] = {}
    for row in found:
        words = np.zeros(16, np.int64)
        try:
            words[: len(WORDS)] = row[1:-1]
            words[15] = row[0]
        except (TypeError, ValueError, OverflowError):
            continue
        if row[-1] == entry_crc(words):
            good[int(row[0])] = words
    return good


def _complete(
    good: dict[int, np.ndarray[Any, Any]], tail: int, head: int, numbers: range
) -> tuple[np.ndarray[Any, Any], list[int]]:
    """All entries, those that are damaged or missing replaced by stand-ins that share the rows
    between their neighbours; and the numbers of these."""
    out: list[np.ndarray[Any, Any]] = []
    bad: list[int] = []
    missing: list[int] = []
    end = tail
    for number in (*numbers, -1):
        words = good.get(number)
        if words is None and number >= 0:
            missing.append(number)
            continue
        first = head if words is None else int(words[0])
        rows = max(first - end, 0)
        for i, lost in enumerate(missing):
            low, high = (end + rows * k // len(missing) for k in (i, i + 1))
            out.append(_stand_in(lost, low, high))
        bad += missing
        missing = []
        if words is not None:
            out.append(words)
            end = int(words[0] + (words[1] >> 8))
    return np.array(out, np.int64).reshape(-1, 16), bad


def _stand_in(number: int, first: int, last: int) -> np.ndarray[Any, Any]:
    """An entry for rows of which nothing is known but that they lie between others."""
    words = np.zeros(16, np.int64)
    words[0], words[1] = first, (last - first) << 8 | 8
    words[2] = words[3] = -1
    words[5] = -(number + 2)  # no trajectory has this number
    words[6] = words[8] = -1
    words[10] = time.time_ns()
    words[15] = number
    return words


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path.absolute()))
