"""The index of a storage on disk: runs, producers and bounds in SQLite.

One transaction takes in any number of appends. Other processes see that something changed by
`data_version`, and ask for the entries from the newest one on that they know.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ... import _native
from ..entry import join
from . import index_tables as tables
from .changes import Changes, IndexState, Salts
from .directory import Directory
from .index_fields import FieldPages
from .index_pages import PAGE, STORED, narrow, pack
from .index_tables import FORMAT, PLAIN, Form, read_bounds, read_state, row_crc
from .sqlite import DamagedContents, as_os_error, connect, deleted, is_damage, keep_log, log_bytes

__all__ = ["DamagedIndexError", "DiskIndex", "open_index", "read_index"]

log = logging.getLogger("contig.disk")

Array = np.ndarray[Any, Any]

_PRODUCERS = _native.PRODUCERS  # as a tape
_LOG_BYTES = 4 << 20
_BOUNDS = (
    "store=?, tail=?, index_tail=?, head=?, index_head=?, trajectories=?, inserted=?, sampled=?"
)
_SET_BOUNDS = {  # by format
    2: f"UPDATE bounds SET {_BOUNDS}, loads=?, revision=?, crc=?",
    FORMAT: f"UPDATE bounds SET {_BOUNDS}, blob_tail=?, blob_head=?, loads=?, revision=?, crc=?",
}
_WRITE_PAGES = 500  # in one statement: each is a chance for others to take the GIL for long


class DamagedIndexError(ValueError):
    """SQLite cannot read a storage's index, or what it reads is not what was written."""


class ForeignIndexError(ValueError):
    """The index is that of another storage."""


class DiskIndex:
    """Connections to an index. Not thread-safe: its user holds a lock; `fold` has one of its own.

    Args:
        path: of the SQLite file.
        writable: else it is opened to read, and must exist.
        store: the storage's number, which a new index gets.
        form: what it is of, which layout.json says.
    """

    def __init__(self, path: Path, writable: bool, store: int = 0, form: Form = PLAIN) -> None:
        self.path = path
        mode = "rwc" if writable else "ro"
        if not writable and not os.access(path.parent, os.W_OK) and not log_bytes(path):
            mode += "&immutable=1"  # SQLite would make a log's index there
        self._writable, self.form = writable, form
        self._db = connect(path, mode)
        self._folder: sqlite3.Connection | None = None
        self.revision = self.loads = self.store = 0
        self._deleted_below = -1
        self._open_page = np.zeros(0, STORED)  # entries of the newest page
        self._salts: Salts = ()
        self._fields: FieldPages | None = None
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
                    tables.create(self._db, store, form.format)
                # Opened now: later there may be another directory of this name.
                self._folder = connect(path, "rw")
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
            there = tables.tables_in(self._db)
        except UnicodeDecodeError as error:
            raise DamagedContents(str(error)) from error
        if wrong != "ok":
            raise DamagedContents(wrong)
        version = self._version()
        if there != tables.tables_of(version):
            raise DamagedContents("its tables are not as they should be")
        if version == 1:
            tables.upgrade(self._db)

    def settle_format(self) -> None:
        """Before the first row of a storage: an index that was left without a layout may be of
        another format."""
        bounds = read_bounds(self._db, self._version())
        if self._version() != self.form.format and bounds.index_head == bounds.loads == 0:
            tables.remake(self._db, bounds.store, self.form.format)

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
                if self._field_pages is not None:
                    self._field_pages.clear(db)
                self._put(changes, kept, loads)
        finally:
            self._db.execute(f"PRAGMA synchronous={level}")
            # Asked, as an interrupt may come when it is through.
            if read_bounds(self._db, self._version()).loads == loads:
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
        if changes.fields is not None and self._field_pages is not None:
            self._field_pages.put(db, changes.fields, changes.index_tail, revision)
        bounds: tuple[int, ...] = (
            self.store,
            changes.tail,
            changes.index_tail,
            changes.head,
            changes.index_head,
            changes.trajectories,
            *changes.limiter,
        )
        if self.form.format == FORMAT:
            bounds = (*bounds, changes.blob_tail, changes.blob_head)
        bounds = (*bounds, loads, revision)
        db.execute(_SET_BOUNDS[self.form.format], (*bounds, row_crc(*bounds)))

    @property
    def _field_pages(self) -> FieldPages | None:
        """Where fields are; made when the storage's number is known."""
        if self._fields is None and self.form.field_bytes:
            self._fields = FieldPages(self.form.field_bytes, self.store)
        return self._fields

    def _stored(self, changes: Changes, kept: Array) -> None:
        self._deleted_below = changes.index_tail // PAGE
        self._salts = changes.salts
        if len(kept):
            self._open_page = _last_page(kept)

    def _with_open_page(self, kept: Array) -> Array:
        """Entries to write, with those before them in the first one's page."""
        before = self._open_page
        if len(kept) and len(before):
            numbers, first = before["number"], kept["number"][0]
            if numbers[0] // PAGE == first // PAGE:
                return join([before.compress(numbers < first), kept])
        return kept

    def _delete_pages(self, changes: Changes) -> None:
        if changes.index_tail == changes.index_head:
            self._db.execute("DELETE FROM pages")
        elif changes.index_tail // PAGE != self._deleted_below:
            self._db.execute("DELETE FROM pages WHERE page < ?", (changes.index_tail // PAGE,))
        if self._field_pages is not None:
            self._field_pages.delete_below(self._db, changes.index_tail, changes.index_head)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        except BaseException:
            if self._fields is not None:
                self._fields.forget()
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
        return log_bytes(self.path) > _LOG_BYTES

    # -- reading ------------------------------------------------------------------------------

    @property
    def data_version(self) -> int:
        """Changes when another connection committed something."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def load(self, since: int = -1, known: int = -1) -> IndexState:
        """The index; or what there is from an entry on, unless some of it is damaged: then all.
        `known`: the transaction up to which fields of earlier entries are known."""
        state = read_state(self._db, self.path, self.form, since, known)
        self.revision, self.store = state.revision, state.store
        self.loads, self._salts = state.loads, state.salts
        if state.parts:
            self._open_page = _last_page(state.parts[-1])
        return state

    def read_store(self) -> int:
        """The number of the storage that it belongs to."""
        return read_bounds(self._db, self._version()).store

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
            fd = keep_log(elsewhere if elsewhere.exists() else deleted(self.path))
        try:
            if self._folder is not None:
                self._folder.close()
            self._db.close()
        finally:
            if fd >= 0:
                os.close(fd)


def _insert_pages(db: sqlite3.Connection, pages: list[tuple[int, memoryview]]) -> None:
    for at in range(0, len(pages), _WRITE_PAGES):
        some = pages[at : at + _WRITE_PAGES]
        places = ", ".join(["(?, ?)"] * len(some))
        values = [value for page in some for value in page]
        db.execute(f"INSERT OR REPLACE INTO pages VALUES {places}", values)


def _last_page(kept: Array) -> Array:
    pages = kept["number"] // PAGE
    return kept if pages[0] == pages[-1] else kept.compress(pages == pages[-1])


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def open_index(directory: Directory, writable: bool, store: int, form: Form = PLAIN) -> DiskIndex:
    """The index of a directory; a new one where there are no rows yet.

    Raises:
        DamagedIndexError: it cannot be read, or is gone.
        OSError: something else is in the way.
    """
    path = directory.index
    there = path.exists() and path.stat().st_size > 0
    if not there and directory.row_files():
        raise _damaged_index(path, ValueError("it is missing, but there are files of rows"))
    try:
        index = DiskIndex(path, writable, store, form)
    except sqlite3.Error as error:
        raise _failed(path, error) from error
    if writable and directory.is_moved:  # before SQLite had it open, or since
        index.close(directory.root / path.name)
        directory.check()
    return index


def read_index(index: DiskIndex, writable: bool, store: int) -> IndexState:
    """All of an index; who is going to write to it looks at all of its pages.

    Raises:
        DamagedIndexError: it cannot be read.
        ForeignIndexError: it is of another storage than `store`.
        OSError: something else is in the way.
    """
    try:
        if writable:
            index.check()
        state = index.load()
    except (sqlite3.Error, OverflowError) as error:
        raise _failed(index.path, error) from error
    if index.store != store:
        raise ForeignIndexError(
            f"{index.path} is the index of another storage (number {index.store:x}, expected "
            f"{store:x}, as layout.json says): the rows here are not those that it tells of. Put "
            "this storage's own index back"
        )
    return state


def _failed(path: Path, error: Exception) -> Exception:
    if is_damage(error) or not isinstance(error, sqlite3.Error):
        return _damaged_index(path, error)
    return as_os_error(error, path)


def _damaged_index(path: Path, error: Exception) -> DamagedIndexError:
    return DamagedIndexError(
        f"{path} is damaged ({error}). `contig inspect --repair {path.parent}` builds a new one of "
        "what can be read, and keeps this one"
    )
