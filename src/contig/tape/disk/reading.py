"""An index as it is read: whole entries, stand-ins for those that are damaged."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from . import tables
from .changes import IndexState, Salts
from .entries import complete, unpack
from .failures import DamagedContents
from .tables import FORMAT, is_whole

__all__ = ["Found", "read_bounds", "read_state"]

log = logging.getLogger("contig.disk")

Array = np.ndarray[Any, Any]

_WORD = 2**64 - 1
_PRODUCERS = _native.PRODUCERS  # as a tape
_READ_PAGES = 256  # at a time: small pieces of memory are given back sooner


class Found(NamedTuple):
    """An index, and what only who writes to it needs: the newest revision, the storage's number."""

    state: IndexState
    revision: int
    store: int


def read_state(db: sqlite3.Connection, path: Path, since: int = -1) -> Found:
    """The index; or what there is from an entry on, unless some of it is damaged: then all."""
    db.execute("BEGIN")
    try:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        store, *bounds = read_bounds(db, version)
        tail, index_tail, head, index_head, trajectories, *limiter, loads, revision = bounds
        producers, lost = _producers(db, path)
        reasons = db.execute("SELECT * FROM quarantine").fetchall()
        salts = _read_salts(db, version)
        first = max(index_tail, since)
        parts = _parts(db, version, first, index_head)
    except UnicodeDecodeError as error:
        raise DamagedContents(str(error)) from error
    finally:
        db.execute("ROLLBACK")
    bad: list[int] = []
    quarantine = {int(row[0]): str(row[1]) for row in reasons}
    if not _without_gaps(parts, first, index_head):
        if first > index_tail:
            return read_state(db, path)
        good = {int(kept["number"]): kept for part in parts for kept in part}
        numbers = range(index_tail, index_head)
        entries, bad = complete(good, tail, head, numbers)
        # What goes on from an entry that is not there has a hole.
        for ordinal in entries["ordinal"][np.isin(entries["prev"], bad)]:
            quarantine.setdefault(int(ordinal), "a part of it is damaged")
        parts = [entries]
    state = IndexState(
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
    return Found(state, revision, store)


def read_bounds(db: sqlite3.Connection, version: int) -> list[int]:
    """Of format 1, too: those have no `store`."""
    row = db.execute("SELECT * FROM bounds").fetchone()
    if row is None or not is_whole(row[1:]):
        raise DamagedContents("the checksum of its bounds is wrong")
    return [0, *row[1:-1]] if version < FORMAT else list(row[1:-1])


def _read_salts(db: sqlite3.Connection, version: int) -> Salts:
    if version < FORMAT:
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
    pages = tables.pages(db, version, first, last)
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
    return {row[0] & _WORD: row[1] for row in good[-_PRODUCERS:]}, len(found) - len(good)


def _take(pages: Iterable[tuple[Any]], n: int) -> list[Any]:
    """The next so many of them."""
    return [page for _, (page,) in zip(range(n), pages)]


def _without_gaps(parts: list[Array], first: int, last: int) -> bool:
    at = first
    for part in parts:
        if part[0]["number"] != at or not (np.diff(part["number"]) == 1).all():
            return False
        at += len(part)
    return at == max(last, first)
