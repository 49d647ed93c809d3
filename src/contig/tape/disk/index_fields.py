"""Fields of trajectories as they are stored: packed in pages beside those of the entries.

    page p: records of the entries [S p, S p + S), each with its checksum, S of them in some 3.6 kB

An entry's record is written with the entry, and again when somebody sets it: then only its own
bytes of the page change, so that damage to its neighbours is still found. What was set is also
logged by number: a reader asks for what changed since the transaction that it knows. A row of the
log without numbers, its first, says that nothing is known up to there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import _native

__all__ = ["FieldChanges", "FieldPages", "StoredFields", "merged_fields"]

Array = np.ndarray[Any, Any]

_PAGE_BYTES = 3584  # of records, so that a page is one of SQLite's
_MOST = 32  # records of a page
# Transactions whose changes are logged: at least so many, and one for each so many entries. Who is
# further behind reads everything: so that costs no more than what was written, but for a factor.
_KEPT = 4096
_ENTRIES_PER_TRANSACTION = 8
_READ_PAGES = 256  # at a time


class FieldChanges(NamedTuple):
    """Records of entries that are new, and of others that were set.

    Attributes:
        first: the number of the first new entry.
        fresh: ``[n, F]`` bytes, of it and those behind it.
        numbers: of entries before it.
        records: ``[len(numbers), F]`` bytes, theirs.
    """

    first: int
    fresh: Array
    numbers: Array
    records: Array

    @staticmethod
    def appended(tape: Any, first: int, last: int) -> FieldChanges:
        """Of the new entries [first, last) of a tape."""
        return FieldChanges.all_of(first, tape.fields_of(np.arange(first, last)))

    @staticmethod
    def all_of(first: int, records: Array) -> FieldChanges:
        """Of entries from `first` on."""
        return FieldChanges(first, records, np.zeros(0, np.int64), records[:0])

    @staticmethod
    def given(tape: Any, numbers: Array) -> FieldChanges:
        """Of entries of a tape that somebody set."""
        records = tape.fields_of(numbers)
        return FieldChanges(int(tape.snapshot()[2]), records[:0], numbers, records)


class StoredFields(NamedTuple):
    """What an index says.

    Attributes:
        first: the number of the first entry that was asked for.
        records: ``[n, F]`` bytes, of it and those behind it; zeros where they are damaged.
        bad: numbers of those that are.
        numbers: entries before the first that were set since; None: nobody knows which.
        changed: ``[len(numbers), F]`` bytes, theirs.
    """

    first: int
    records: Array
    bad: list[int]
    numbers: Array | None
    changed: Array

    def of(self, first: int, last: int) -> Array:
        """Records of the entries [first, last)."""
        return self.records[first - self.first : last - self.first]


def merged_fields(changes: Iterable[FieldChanges | None]) -> FieldChanges | None:
    """Some changes, one after another, as one: what was set last counts."""
    known = [one for one in changes if one is not None]
    if len(known) < 2:
        return known[0] if known else None
    parts = [one for one in known if len(one.fresh)]
    first = parts[0].first if parts else max(one.first for one in known)
    fresh = np.concatenate([one.fresh for one in parts] or [known[0].fresh])
    numbers = np.concatenate([one.numbers for one in known])
    records = np.concatenate([one.records for one in known])
    # Of those that were set more than once, the last.
    numbers, last = np.unique(numbers[::-1], return_index=True)
    records = records[::-1][last]
    new = numbers >= first
    fresh[numbers[new] - first] = records[new]
    return FieldChanges(first, fresh, numbers[~new], records[~new])


class FieldPages:
    """The tables `fields` and `changed` of an index.

    Args:
        size: bytes of a record.
        store: the storage's number: a record is right only in it, and in its place.
    """

    def __init__(self, size: int, store: int) -> None:
        self.size = size
        self._stride = -(-(size + 4) // 8) * 8
        self.slots = _MOST
        while self.slots > 1 and self.slots * self._stride > _PAGE_BYTES:
            self.slots //= 2
        self._salts = np.array([0, store or 1], np.uint64)
        self._deleted_below = -1
        self._newest = (-1, b"")  # the page that was written last, if nothing happened since

    # -- writing ------------------------------------------------------------------------------

    def put(self, db: sqlite3.Connection, changes: FieldChanges, tail: int, revision: int) -> None:
        """Within a transaction: what changed. Entries below `tail` are not kept."""
        numbers, records = changes.numbers, changes.records
        if len(numbers):
            kept = numbers >= tail
            numbers, records = numbers[kept], records[kept]
            self._change(db, numbers, records)
        if len(changes.fresh):
            self._append(db, changes.first, changes.fresh)
        if len(numbers):
            said = numbers.astype("<i8").tobytes()
            row = (revision, said, _native.crc32c(said))
            db.execute("INSERT OR REPLACE INTO changed VALUES (?, ?, ?)", row)
        self._shorten(db, changes.first + len(changes.fresh) - tail, revision)

    def _shorten(self, db: sqlite3.Connection, live: int, revision: int) -> None:
        """Forgets what was set long ago, of an index with so many entries."""
        most = max(_KEPT, live // _ENTRIES_PER_TRANSACTION)
        marked, known = _known_after(db, revision)
        upto = max(known, revision - most)
        if upto > 0 and not (marked and upto - known <= most // 8):
            db.execute("DELETE FROM changed WHERE revision <= ?", (upto,))
            db.execute("INSERT INTO changed VALUES (?, ?, ?)", (upto, b"", _native.crc32c(b"")))

    def _change(self, db: sqlite3.Connection, numbers: Array, records: Array) -> None:
        """Records of entries that are there."""
        self.forget()
        for page in np.unique(numbers // self.slots):
            here = np.flatnonzero(numbers // self.slots == page)
            data = self._page(db, int(page))
            for i in here:
                at = int(numbers[i]) % self.slots * self._stride
                data[at : at + self._stride] = self._encoded(int(numbers[i]), records[i])
            self._insert(db, [(int(page), bytes(data))])

    def _append(self, db: sqlite3.Connection, first: int, fresh: Array) -> None:
        """Records of new entries, behind those that their first page has."""
        data = bytes(self._encoded(first, fresh))
        page, before = divmod(first, self.slots)
        if before:
            written, there = self._newest
            known = (there if written == page else self._page(db, page))[: before * self._stride]
            data = bytes(known) + bytes(before * self._stride - len(known)) + data
        nbytes = self.slots * self._stride
        starts = range(0, len(data), nbytes)
        pages = [(page + i, data[at : at + nbytes]) for i, at in enumerate(starts)]
        self._insert(db, pages)
        self._newest = pages[-1]

    def forget(self) -> None:
        """What was written is not, or not as it was: a transaction failed, or pages changed."""
        self._newest = (-1, b"")

    def _encoded(self, first: int, records: Array) -> memoryview:
        flat = np.ascontiguousarray(records).reshape(-1)
        encoded = _native.encode_rows(flat, self.size, self._stride, first, self._salts)
        return memoryview(encoded).cast("B")

    def _page(self, db: sqlite3.Connection, page: int) -> bytearray:
        """What a page has; one that is damaged, as much of it as can be kept."""
        row = db.execute("SELECT records FROM fields WHERE page = ?", (page,)).fetchone()
        known = row[0] if row is not None and isinstance(row[0], bytes) else b""
        data = bytearray(known[: self.slots * self._stride])
        # A slot that is not there reads as zeros, which no checksum fits.
        return data + bytes(-len(data) % self._stride)

    def _insert(self, db: sqlite3.Connection, pages: list[tuple[int, bytes]]) -> None:
        for at in range(0, len(pages), _READ_PAGES):
            some = pages[at : at + _READ_PAGES]
            places = ", ".join(["(?, ?)"] * len(some))
            values = [value for page in some for value in page]
            db.execute(f"INSERT OR REPLACE INTO fields VALUES {places}", values)

    def delete_below(self, db: sqlite3.Connection, tail: int, head: int) -> None:
        """Within a transaction: pages all of whose entries lie below `tail`."""
        page = tail // self.slots
        if tail == head:
            self.forget()
            db.execute("DELETE FROM fields")
        elif page != self._deleted_below:
            db.execute("DELETE FROM fields WHERE page < ?", (page,))
        self._deleted_below = page

    def clear(self, db: sqlite3.Connection) -> None:
        """Within a transaction: everything."""
        self.forget()
        db.execute("DELETE FROM fields")
        db.execute("DELETE FROM changed")

    # -- reading ------------------------------------------------------------------------------

    def read(
        self, db: sqlite3.Connection, first: int, last: int, tail: int, since: int, revision: int
    ) -> StoredFields:
        """Within a transaction: records of the entries [first, last); and those from `tail` on that
        were set after transaction `since`, up to `revision`."""
        records, good = self._read_range(db, first, last)
        bad = [first + int(i) for i in np.flatnonzero(~good)]
        numbers = self._changed(db, since, revision)
        changed = np.zeros((0, self.size), np.uint8)
        if numbers is not None:
            numbers = numbers[(numbers >= tail) & (numbers < first)]
            parts = [self._read_range(db, int(n), int(n) + 1) for n in numbers]
            bad += [int(n) for n, (_, whole) in zip(numbers, parts) if not whole[0]]
            changed = np.concatenate([changed, *(part for part, _ in parts)])
        return StoredFields(first, records, bad, numbers, changed)

    def _read_range(self, db: sqlite3.Connection, first: int, last: int) -> tuple[Array, Array]:
        """Records of some entries, and which of them are as they were written."""
        count = max(last - first, 0)
        out, good = np.zeros((count, self.size), np.uint8), np.zeros(count, bool)
        if count == 0:
            return out, good
        query = "SELECT page, records FROM fields WHERE page >= ? AND page <= ?"
        pages = db.execute(query, (first // self.slots, (last - 1) // self.slots))
        while some := pages.fetchmany(_READ_PAGES):
            for page, data in self._joined(some):
                self._take(page * self.slots, data, first, out, good)
        return out, good

    def _joined(self, pages: list[tuple[Any, Any]]) -> Iterator[tuple[int, bytearray]]:
        """Pages, those that are full with the next ones: they are decoded together."""
        full = self.slots * self._stride
        begin, parts = 0, bytearray()
        for page, data in pages:
            if not isinstance(data, bytes):
                continue
            if not parts or len(parts) % full or page != begin + len(parts) // full:
                yield begin, parts
                begin, parts = page, bytearray()
            parts += data[: min(len(data), full) // self._stride * self._stride]
        yield begin, parts

    def _take(self, number: int, data: bytearray, first: int, out: Array, good: Array) -> None:
        """Those of some records, the first of them entry `number`'s, that were asked for."""
        stored = np.frombuffer(data, np.uint8)
        records, wrong = _native.decode_rows(stored, self.size, self._stride, number, self._salts)
        found = np.asarray(memoryview(records)).reshape(-1, self.size)
        whole = np.ones(len(found), bool)
        whole[np.asarray(wrong, np.int64)] = False
        low = max(first - number, 0)
        high = min(first + len(out) - number, len(found))
        if low < high:
            to = slice(number + low - first, number + high - first)
            good[to] = whole[low:high]
            out[to] = np.where(whole[low:high, None], found[low:high], 0)

    def readable(self, db: sqlite3.Connection, backwards: bool) -> Iterator[tuple[int, Array]]:
        """Records that are as they were written, by number, page by page until one cannot be
        read."""
        order = "DESC" if backwards else "ASC"
        for page, data in db.execute(f"SELECT page, records FROM fields ORDER BY page {order}"):
            if not isinstance(data, bytes):
                continue
            first, count = page * self.slots, min(len(data) // self._stride, self.slots)
            out, good = np.zeros((count, self.size), np.uint8), np.zeros(count, bool)
            self._take(first, bytearray(data[: count * self._stride]), first, out, good)
            yield from ((first + int(i), out[i]) for i in np.flatnonzero(good))

    def _changed(self, db: sqlite3.Connection, since: int, revision: int) -> Array | None:
        """Entries that were set after a transaction, or None if it is too long ago."""
        if since < 0 or since < _known_after(db, revision)[1]:
            return None
        rows = db.execute(
            "SELECT numbers, crc FROM changed WHERE revision > ?", (since,)
        ).fetchall()
        for said, crc in rows:
            if not isinstance(said, bytes) or len(said) % 8 or _native.crc32c(said) != crc:
                return None
        return np.unique(np.frombuffer(b"".join(said for said, _ in rows), "<i8"))


def _known_after(db: sqlite3.Connection, revision: int) -> tuple[bool, int]:
    """Whether the log says since which transaction it knows what was set; and since which it
    does."""
    query = "SELECT revision, length(numbers) FROM changed ORDER BY revision LIMIT 1"
    first = db.execute(query).fetchone()
    if first is not None and first[1] == 0:
        return True, int(first[0])
    return False, revision - _KEPT  # a log that no mark is in yet, or of earlier versions
