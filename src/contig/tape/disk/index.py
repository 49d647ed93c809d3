"""The index of a storage on disk: runs, producers and bounds in SQLite.

One transaction takes in any number of appends. Other processes see that something changed by
`data_version`, and ask for the entries from the newest one on that they know.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ... import _native
from . import tables
from .changes import Changes, IndexState, Salts
from .entries import KEPT, PAGE, complete, narrow, pack, unpack
from .failures import DamagedContents
from .tables import FORMAT, is_whole, row_crc

__all__ = ["FORMAT", "DiskIndex", "fold_log"]

if sys.platform == "linux":
    import fcntl

log = logging.getLogger("contig.disk")

Array = np.ndarray[Any, Any]

_TIMEOUT_S = 30.0
_WORD = 2**64 - 1
_PRODUCERS = _native.PRODUCERS  # as a tape
_LOG_BYTES = 4 << 20
_READ_PAGES = 256  # at a time: small pieces of memory are given back sooner
_WRITE_PAGES = 500  # in one statement: each is a chance for others to take the GIL for long
_SHARED_BYTES = (0x40000002, 510)  # of a file, which SQLite locks while it reads


class DiskIndex:
    """Connections to an index. Not thread-safe: its user holds a lock; `fold` has one of its own.

    Args:
        path: of the SQLite file.
        writable: else it is opened to read, and must exist.
        store: the storage's number, which a new index gets.
    """

    def __init__(self, path: Path, writable: bool, store: int = 0) -> None:
        self.path = path
        mode = "rwc" if writable else "ro"
        if not writable and not os.access(path.parent, os.W_OK) and not _has_log(path):
            mode += "&immutable=1"  # SQLite would make a log's index there
        self._writable = writable
        self._db = _connect(path, mode)
        self._folder: sqlite3.Connection | None = None
        self.revision = self.loads = self.store = 0
        self._deleted_below = -1
        self._open_page = np.zeros((0, KEPT), np.int64)  # entries of the newest page
        self._salts: Salts = ()
        try:
            version = self._version()
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
                    tables.create(self._db, store)
                # Opened now: later there may be another directory of this name.
                self._folder = _connect(path, "rw")
                self._folder.execute("PRAGMA user_version").fetchone()
        except UnicodeDecodeError as error:  # of a message of SQLite's that quotes what it found
            self.close()
            raise DamagedContents(str(error)) from error
        except BaseException:
            self.close()
            raise

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def check(self) -> None:
        """Raises sqlite3.DatabaseError unless it can be written to, too; makes it one of today's
        format."""
        try:
            (wrong,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            there = tables.found(self._db)
        except UnicodeDecodeError as error:
            raise DamagedContents(str(error)) from error
        if wrong != "ok":
            raise DamagedContents(wrong)
        version = self._version()
        if there != tables.expected(version):
            raise DamagedContents("its tables are not as they should be")
        if version < FORMAT:
            tables.upgrade(self._db)

    def set_durable(self, durable: bool) -> None:
        """Whether a commit waits until it is on the disk."""
        self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")

    # -- writing ------------------------------------------------------------------------------

    def write(self, changes: Changes) -> None:
        """One transaction."""
        kept = self._with_open_page(narrow(changes.entries))
        # Not the same twice, even if this fails when it is through.
        self.revision += 1
        with self._transaction():
            self._put(changes, kept, self.loads)
            self._delete_pages(changes)
        self._stored(changes, kept)

    def replace(self, changes: Changes, loads: int) -> None:
        """One transaction, on the disk when it returns: this in place of everything but what
        producers have sent. If it raises and `loads` is what it was, nothing was changed."""
        kept = narrow(changes.entries)
        self.revision += 1
        (level,) = self._db.execute("PRAGMA synchronous").fetchone()
        self.set_durable(True)
        try:
            with self._transaction() as db:
                db.execute("DELETE FROM pages")
                db.execute("DELETE FROM quarantine")
                self._put(changes, kept, loads)
        finally:
            self._db.execute(f"PRAGMA synchronous={level}")
            # Asked, as an interrupt may come when it is through.
            if self._bounds(self._version())[-2] == loads:
                self.loads = loads
                self._open_page = self._open_page[:0]
                self._stored(changes, kept)

    def _put(self, changes: Changes, kept: Array, loads: int) -> None:
        db, revision = self._db, self.revision
        _insert_pages(db, pack(kept))
        if changes.producers:
            senders = [_signed(producer) for producer in changes.producers]
            db.executemany(
                "INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?)",
                [
                    (p, seq, revision, row_crc(p, seq, revision))
                    for p, seq in zip(senders, changes.producers.values())
                ],
            )
        if changes.salts != self._salts:
            db.execute("DELETE FROM salts")
            rows = [(first, salt, row_crc(first, salt)) for first, salt in changes.salts]
            db.executemany("INSERT INTO salts VALUES (?, ?, ?)", rows)
        bounds = (
            self.store,
            changes.tail,
            changes.index_tail,
            changes.head,
            changes.index_head,
            changes.trajectories,
            *changes.limiter,
            loads,
            revision,
        )
        db.execute(
            "UPDATE bounds SET store=?, tail=?, index_tail=?, head=?, index_head=?, "
            "trajectories=?, inserted=?, sampled=?, loads=?, revision=?, crc=?",
            (*bounds, row_crc(*bounds)),
        )

    def _stored(self, changes: Changes, kept: Array) -> None:
        self._deleted_below = changes.index_tail // PAGE
        self._salts = changes.salts
        if len(kept):
            self._open_page = kept[kept[:, -1] // PAGE == kept[-1, -1] // PAGE]

    def _with_open_page(self, kept: Array) -> Array:
        """Entries to write, with those before them in the first one's page."""
        before = self._open_page
        if len(kept) and len(before) and before[0, -1] // PAGE == kept[0, -1] // PAGE:
            return np.concatenate([before[before[:, -1] < kept[0, -1]], kept])
        return kept

    def _delete_pages(self, changes: Changes) -> None:
        if changes.index_tail == changes.index_head:
            self._db.execute("DELETE FROM pages")
        elif changes.index_tail // PAGE != self._deleted_below:
            self._db.execute("DELETE FROM pages WHERE page < ?", (changes.index_tail // PAGE,))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def quarantine(self, found: dict[int, str], repaired: bool = False) -> None:
        """Marks trajectories that are not to be served."""
        with self._transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?)",
                [(ordinal, reason, int(repaired)) for ordinal, reason in found.items()],
            )

    def forget_producers(self) -> None:
        """Keeps as many as a tape does, those that sent last."""
        self._db.execute(
            "DELETE FROM producers WHERE revision < "
            "(SELECT revision FROM producers ORDER BY revision DESC LIMIT 1 OFFSET ?)",
            (_PRODUCERS,),
        )

    def settle(self) -> None:
        """Makes it one file, without a log."""
        assert self._folder is not None
        self._folder.close()
        self._folder = None
        self._db.execute("PRAGMA journal_mode=DELETE").fetchone()

    def fold(self) -> None:
        """Moves what is in the write-ahead log into the file; nobody is waited for."""
        assert self._folder is not None
        self._folder.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    @property
    def log_is_long(self) -> bool:
        """Whether the write-ahead log should be folded in now."""
        log_file = self.path.with_name(self.path.name + "-wal")
        return log_file.exists() and log_file.stat().st_size > _LOG_BYTES

    # -- reading ------------------------------------------------------------------------------

    @property
    def data_version(self) -> int:
        """Changes when another connection committed something."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def load(self, since: int = -1) -> IndexState:
        """The index; or what there is from an entry on, unless some of it is damaged: then all."""
        db = self._db
        db.execute("BEGIN")
        try:
            version = self._version()
            store, *bounds = self._bounds(version)
            tail, index_tail, head, index_head, trajectories, *limiter, loads, revision = bounds
            producers, lost = self._producers()
            reasons = db.execute("SELECT * FROM quarantine").fetchall()
            salts = self._read_salts(version)
            first = max(index_tail, since)
            parts = self._parts(version, first, index_head)
        except UnicodeDecodeError as error:
            raise DamagedContents(str(error)) from error
        finally:
            db.execute("ROLLBACK")
        bad: list[int] = []
        quarantine = {int(row[0]): str(row[1]) for row in reasons}
        if not _without_gaps(parts, first, index_head):
            if first > index_tail:
                return self.load()
            good = {int(kept[-1]): kept for part in parts for kept in part}
            numbers = range(index_tail, index_head)
            entries, bad = complete(good, tail, head, numbers)
            # What goes on from an entry that is not there has a hole.
            for ordinal in entries[np.isin(entries[:, 2], bad), 5]:
                quarantine.setdefault(int(ordinal), "a part of it is damaged")
            parts = [entries]
        self.revision, self.loads, self.store, self._salts = revision, loads, store, salts
        if parts:
            last = parts[-1]
            self._open_page = last[last[:, -1] // PAGE == last[-1, -1] // PAGE].copy()
        return IndexState(
            tail,
            index_tail,
            head,
            index_head,
            trajectories,
            (limiter[0], limiter[1]),
            parts,
            producers,
            lost,
            quarantine,
            {int(row[0]) for row in reasons if len(row) > 2 and row[2]},
            bad,
            loads,
            salts,
        )

    def read_store(self) -> int:
        """The number of the storage that it belongs to."""
        return self._bounds(self._version())[0]

    def _bounds(self, version: int) -> list[int]:
        """Of format 1, too: those have no `store`."""
        row = self._db.execute("SELECT * FROM bounds").fetchone()
        if row is None or not is_whole(row[1:]):
            raise DamagedContents("the checksum of its bounds is wrong")
        return [0, *row[1:-1]] if version < FORMAT else list(row[1:-1])

    def _read_salts(self, version: int) -> Salts:
        if version < FORMAT:
            return ()
        rows = self._db.execute("SELECT first, salt, crc FROM salts ORDER BY first").fetchall()
        if not all(is_whole(row) for row in rows):
            raise DamagedContents("the checksum of a salt is wrong")
        return tuple((first, salt) for first, salt, _ in rows)

    def _parts(self, version: int, first: int, last: int) -> list[Array]:
        """Whole entries of the numbers [first, last)."""
        if last <= first:
            return []
        parts = []
        pages = tables.pages(self._db, version, first, last)
        while some := _take(pages, _READ_PAGES):
            kept = unpack(some)
            parts.append(kept[(kept[:, -1] >= first) & (kept[:, -1] < last)])
        return [part for part in parts if len(part)]

    def _producers(self) -> tuple[dict[int, int], int]:
        query = "SELECT id, seq, revision, crc FROM producers ORDER BY revision"
        found = self._db.execute(query).fetchall()
        good = [row for row in found if is_whole(row)]
        if len(good) < len(found):
            log.error(
                "%s: what %d producers have sent is damaged: items they send again may come twice",
                self.path,
                len(found) - len(good),
            )
        return {row[0] & _WORD: row[1] for row in good[-_PRODUCERS:]}, len(found) - len(good)

    def backup(self, path: Path) -> None:
        """A copy of the index as it is committed now."""
        copy = sqlite3.connect(path)
        try:
            self._db.backup(copy)
        finally:
            copy.close()

    # -- life ---------------------------------------------------------------------------------

    def close(self, elsewhere: Path | None = None) -> None:
        """Lets go of the index.

        Args:
            elsewhere: where it is now, if its directory was moved: SQLite deletes its log by name
                when the last connection goes, which then is another one's.
        """
        fd = -1
        if elsewhere is not None:
            fd = _keep_log(elsewhere if elsewhere.exists() else _deleted(self.path))
        try:
            if self._folder is not None:
                self._folder.close()
            self._db.close()
        finally:
            if fd >= 0:
                os.close(fd)


def fold_log(index: DiskIndex) -> None:
    """Moves what is in an index's log into its file."""
    index.fold()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    from urllib.parse import quote

    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _insert_pages(db: sqlite3.Connection, pages: list[tuple[int, memoryview]]) -> None:
    for at in range(0, len(pages), _WRITE_PAGES):
        some = pages[at : at + _WRITE_PAGES]
        places = ", ".join(["(?, ?)"] * len(some))
        values = [value for page in some for value in page]
        db.execute(f"INSERT OR REPLACE INTO pages VALUES {places}", values)


def _take(pages: Iterable[tuple[Any]], n: int) -> list[Any]:
    """The next so many of them."""
    return [page for _, (page,) in zip(range(n), pages)]


def _without_gaps(parts: list[Array], first: int, last: int) -> bool:
    at = first
    for part in parts:
        if part[0, -1] != at or not (np.diff(part[:, -1]) == 1).all():
            return False
        at += len(part)
    return at == max(last, first)


def _deleted(path: Path) -> Path:
    """A way to a file that is open here and has no name any more."""
    for fd in Path("/proc/self/fd").iterdir():
        if fd.is_symlink() and os.readlink(fd) == f"{path} (deleted)":
            return fd
    return path


def _keep_log(path: Path) -> int:
    """Locks a file as a reader does that is another process: nobody deletes its log."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    if sys.platform == "linux":
        start, length = _SHARED_BYTES
        request = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, start, length, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
    return fd


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0
