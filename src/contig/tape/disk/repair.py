"""Looks through a whole storage, and sets aside what is damaged; builds an index anew.

A new index is made of what can be read of the old one:

    1. everything that can be read        ->  index.new.sqlite, complete, synced
    2. index.new.sqlite                   ->  index-N.sqlite: from now on it counts
    3. older ones, with -wal and -shm     ->  quarantine/index-<time>/

Killed before 2, the old index is as it was; after it, what 3 left is put aside at the next opening.
"""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..entry import ends_of, steps_of
from . import files
from . import index_tables as tables
from .changes import Changes, IndexBounds, Salts
from .description import form_of, read_description
from .directory import Directory
from .extent_folders import all_but, folder_of, next_number, put_aside, tidy
from .index import DamagedIndexError, DiskIndex, open_index, read_index
from .index_fields import FieldChanges, FieldPages
from .index_pages import complete, unpack, widen
from .index_tables import PLAIN, Form, is_whole
from .sqlite import SUFFIXES, as_os_error, is_damage
from .storage import DiskStorage
from .stored_bytes import UNKNOWN

__all__ = ["Damage", "repair", "verify"]

Array = np.ndarray[Any, Any]

_STEP_BYTES = 8 << 20
_NEW = "index.new.sqlite"
_EVER = 1 << 62


class Damage(NamedTuple):
    """What is not as it was written.

    Attributes:
        trajectories: by `id`, with the reason.
        repaired: how many more a repair set aside before.
        rows_checked: how many.
    """

    trajectories: dict[int, str]
    repaired: int
    rows_checked: int


def verify(storage: DiskStorage, on_rows: Callable[[int, int], object] | None = None) -> Damage:
    """Reads every row and compares its checksum. Rows evicted meanwhile are left out.

    Args:
        storage: to be looked at.
        on_rows: called with (done, total) after each stretch of rows.
    """
    head, tail, _, _ = storage.tape.snapshot()
    found = dict(storage.quarantined)
    each = storage.tape.record_size + storage.blob_bytes // max(head - tail, 1)
    step = max(_STEP_BYTES // max(each, 1), 1)
    for low in range(tail, head, step):
        for ordinal in storage.damaged(low, min(low + step, head)):
            found.setdefault(ordinal, "a row's checksum is wrong")
        if on_rows is not None:
            on_rows(min(low + step, head) - tail, head - tail)
    news = {o: reason for o, reason in found.items() if o not in storage.repaired}
    return Damage(news, len(found) - len(news), head - tail)


def repair(path: Path, on_rows: Callable[[int, int], object] | None = None) -> list[str]:
    """Sets aside what is damaged, for good; what was done, line by line.

    Killed at any time, it leaves what it found, or what it was to leave. `on_rows` as in `verify`.

    Raises:
        BlockingIOError: another process writes here.
        ValueError: it cannot be repaired.
        OSError: something else is in the way: no room, no permission, and the like.
    """
    done = []
    directory = Directory(path, make=False)
    try:
        directory.check_storage(rows=False)
        directory.lock()
        described = read_description(directory)
        assert described is not None
        store, form = int(described.get("store", 0)), form_of(described)
        why = _unreadable(directory, store, form)
        if why is not None:
            saved = rebuild(directory, described)
            done.append(
                f"the index could not be read ({why}): {saved.runs:,} runs of {saved.rows:,} rows "
                f"were saved, the old one is in {saved.aside}"
            )
    finally:
        directory.close()
    with DiskStorage(path) as storage:
        count = storage.clear_beyond()
        if count:
            done.append(
                f"{count:,} rows of which the index does not know are in {path / 'quarantine'}"
            )
        found = verify(storage, on_rows).trajectories
        storage.quarantine(found, repaired=True)
        storage.flush()
        done += [f"episode {o} is set aside: {r}" for o, r in found.items()]
    return done or ["nothing is damaged"]


def _unreadable(directory: Directory, store: int, form: Form) -> str | None:
    """Why an index has to be built anew, or None."""
    try:
        index = open_index(directory, True, store, form)
        try:
            state = read_index(index, True, store)
        finally:
            index.close()
    except DamagedIndexError as error:
        return str(error.__cause__ or error)
    if state.bad:
        return f"{len(state.bad):,} of its entries are damaged"
    if state.fields is not None and state.fields.bad:
        return f"fields of {len(state.fields.bad):,} of its entries are damaged"
    return "what producers have sent is damaged" if state.lost_producers else None


# -- a new index -----------------------------------------------------------------------------------


class Rebuilt(NamedTuple):
    """What became of an index.

    Attributes:
        runs: that could be read.
        rows: of these runs.
        aside: where the old index is now.
    """

    runs: int
    rows: int
    aside: Path


class _Found(NamedTuple):
    """What an index still says."""

    entries: dict[int, Any]
    producers: dict[int, int]
    bounds: IndexBounds | None
    salts: Salts
    quarantine: dict[int, tuple[str, bool]]
    fields: dict[int, Array]


def rebuild(directory: Directory, described: dict[str, Any]) -> Rebuilt:
    """Replaces an index. The caller holds the directory's lock.

    Args:
        directory: where it is.
        described: what layout.json says.

    Raises:
        OSError: the disk is full, or the like; the old index is as it was.
    """
    store, form = int(described.get("store", 0)), form_of(described)
    old = directory.index
    pages = FieldPages(form.field_bytes, store) if form.field_bytes else None
    found = _read(old, pages)
    changes = _changes(found, form)
    loads = _settle_folders(directory, found)
    for suffix in SUFFIXES:  # of a repair that was killed
        files.unlink(directory.root / (_NEW + suffix))
    new = directory.path / _NEW
    index = DiskIndex(new, True, store, form)
    try:
        index.store = store
        index.loads = loads
        index.write(changes)
        for repaired in (False, True):
            chosen = {o: r for o, (r, done) in found.quarantine.items() if done == repaired}
            index.quarantine(chosen, repaired)
        index.settle()
    except sqlite3.Error as error:
        raise as_os_error(error, new) from error
    finally:
        index.close()
    files.sync(directory.root / _NEW)
    generation = int(old.stem.partition("-")[2] or 0) + 1
    files.rename(directory.root / _NEW, directory.root / f"index-{generation}.sqlite")
    files.fsync_dir(directory.root)
    rows = sum(int(steps_of(kept)) for kept in found.entries.values())
    aside = directory.put_old_indexes_aside()
    return Rebuilt(len(found.entries), rows, aside or directory.path / "quarantine")


def _settle_folders(directory: Directory, found: _Found) -> int:
    """How many loads the new index counts, so that the folder that counted still does. If that
    cannot be told, it is the newest, and the others are put aside, not deleted."""
    root = directory.root / "extents"
    if found.bounds is not None:
        tidy(directory, found.bounds.loads)
        return found.bounds.loads + 1
    loads = next_number(root, 0)
    put_aside(directory, all_but(root, folder_of(root, loads)))
    return loads


def _changes(found: _Found, form: Form) -> Changes:
    """All that is known, with stand-ins for entries that are not."""
    numbers = sorted(found.entries)
    first = numbers[0] if numbers else 0
    last = numbers[-1] + 1 if numbers else 0
    tail = int(found.entries[first]["first"]) if numbers else 0
    head = int(ends_of(found.entries[last - 1])) if numbers else 0
    trajectories = max((int(kept["ordinal"]) + 1 for kept in found.entries.values()), default=0)
    limiter, blobs = (head, 0), (0, UNKNOWN)
    if found.bounds is not None:
        _, tail, first, head, last, trajectories, *_ = found.bounds
        limiter = (found.bounds.inserted, found.bounds.sampled)
        blobs = (found.bounds.blob_tail, found.bounds.blob_head)
    kept, bad, damaged = complete(found.entries, tail, head, range(first, last), trajectories)
    for number in bad:
        found.quarantine.setdefault(
            -(number + 2), (f"entry {number} of the index was damaged", True)
        )
    for ordinal, reason in damaged.items():
        found.quarantine.setdefault(ordinal, (reason, True))
    fields = _saved_fields(found, kept, form.field_bytes) if form.field_bytes else None
    return Changes(
        entries=widen(kept),
        producers=found.producers,
        tail=tail,
        index_tail=first,
        head=head,
        index_head=last,
        trajectories=trajectories,
        limiter=limiter,
        salts=found.salts,
        blob_tail=blobs[0],
        blob_head=blobs[1],
        fields=fields,
    )


def _saved_fields(found: _Found, kept: Array, size: int) -> FieldChanges:
    """Those of all entries; what cannot be read is zeros, and its trajectories are set aside."""
    nothing = np.zeros(size, np.uint8)
    newest = {int(entry["ordinal"]): int(entry["number"]) for entry in kept}
    for ordinal, number in newest.items():
        if number not in found.fields:
            found.quarantine.setdefault(ordinal, ("its fields were damaged", True))
    records = [found.fields.get(int(number), nothing) for number in kept["number"]]
    first = int(kept["number"][0]) if len(kept) else 0
    return FieldChanges.all_of(first, np.array(records, np.uint8).reshape(-1, size))


def _read(path: Path, fields: FieldPages | None) -> _Found:
    """What can be read of an index, of a copy: reading may change the log's files."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "index.sqlite"
        for suffix in SUFFIXES[:2]:
            if files.exists(path.with_name(path.name + suffix)):
                files.copy(path.with_name(path.name + suffix), copy.with_name(copy.name + suffix))
        db = sqlite3.connect(copy)
        try:
            return _read_tables(db, path, fields)
        finally:
            db.close()


def _read_tables(db: sqlite3.Connection, path: Path, fields: FieldPages | None) -> _Found:
    def rows(query: str) -> list[tuple[Any, ...]]:
        return list(_until_damage(lambda: db.execute(query), path))

    version = PLAIN.format if rows("SELECT page FROM pages LIMIT 1") else 1
    entries: dict[int, Any] = {}
    for backwards in (False, True):  # from both ends, as far as that goes
        pages = functools.partial(tables.read_pages, db, version, 0, _EVER, backwards)
        stored = _until_damage(pages, path)
        for (page,) in stored:
            for kept in unpack([page]):
                entries[int(kept["number"])] = kept
    bounds = [row[1:] for row in rows("SELECT * FROM bounds") if is_whole(row[1:])]
    whole = tables.bounds_of(bounds[0][:-1]) if bounds else None
    salts = [row[:2] for row in rows("SELECT first, salt, crc FROM salts") if is_whole(row)]
    aside = {
        row[0]: (str(row[1]), bool(row[2]) if len(row) > 2 else False)
        for row in rows("SELECT * FROM quarantine")
        if isinstance(row[0], int)
    }
    senders = rows("SELECT id, seq, revision, crc FROM producers")
    producers = {row[0] & (2**64 - 1): row[1] for row in senders if is_whole(row)}
    if whole is not None:
        live = range(whole.index_tail, whole.index_head)
        entries = {n: kept for n, kept in entries.items() if n in live}
    records: dict[int, Array] = {}
    for backwards in () if fields is None else (False, True):
        assert fields is not None
        found = functools.partial(fields.readable, db, backwards)
        records.update(_until_damage(found, path))
    return _Found(entries, producers, whole, tuple(sorted(salts)), aside, records)


def _until_damage(query: Any, path: Path) -> Iterator[tuple[Any, ...]]:
    """What a query gives until it meets damage. Whatever else is in the way is an error."""
    try:
        yield from query()
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        if not is_damage(error):
            assert isinstance(error, sqlite3.Error)
            raise as_os_error(error, path) from error
