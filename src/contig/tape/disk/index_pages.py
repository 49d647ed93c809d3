"""Entries of the index as they are stored: packed in pages, each entry with its checksum.

    page p: entries of the numbers [32 p, 32 p + 32), as many as there are; 112 bytes each

A page is one row of a table, and one page of SQLite's.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ... import _native
from ..entry import ENTRY, NONE, ends_of, flags_of

__all__ = ["PAGE", "STORED", "complete", "narrow", "pack", "unpack", "widen"]

Array = np.ndarray[Any, Any]

PAGE = 32  # entries
STORED = np.dtype([(name, ENTRY[name]) for name in ENTRY.names or () if name != "unused"])
_BYTES, _STRIDE = STORED.itemsize, STORED.itemsize + 8
_WORDS, _KEPT = ENTRY.itemsize // 8, STORED.itemsize // 8  # the last of either is the number
_PLAIN = np.zeros(0, np.uint64)  # checksums of an entry alone: its number is in it


def narrow(entries: Array) -> Array:
    """Entries (`ENTRY`) as they are kept (`STORED`)."""
    words = entries.view(np.int64).reshape(-1, _WORDS)
    return np.concatenate([words[:, : _KEPT - 1], words[:, -1:]], 1).reshape(-1).view(STORED)


def widen(kept: Array) -> Array:
    """The way back."""
    words = np.zeros((len(kept), _WORDS), np.int64)
    stored = kept.view(np.int64).reshape(-1, _KEPT)
    words[:, : _KEPT - 1], words[:, -1] = stored[:, :-1], stored[:, -1]
    return words.reshape(-1).view(ENTRY)


def pack(kept: Array) -> list[tuple[int, memoryview]]:
    """Entries, ascending by number, as pages: (page, its bytes)."""
    if not len(kept):
        return []
    data = memoryview(_native.encode_rows(kept.view(np.uint8), _BYTES, _STRIDE, 0, _PLAIN)).cast(
        "B"
    )
    pages = kept["number"] // PAGE
    if pages[0] == pages[-1]:  # of nearly all appends
        return [(int(pages[0]), data)]
    starts = np.flatnonzero(np.diff(pages, prepend=pages[0] - 1)).tolist()
    bounds = zip(starts, [*starts[1:], len(kept)])
    return [(int(pages[a]), data[a * _STRIDE : b * _STRIDE]) for a, b in bounds]


def unpack(pages: list[Any]) -> Array:
    """Those of the entries in some pages that are as they were written."""
    good = [p for p in pages if isinstance(p, bytes) and len(p) % _STRIDE == 0]
    stored = np.frombuffer(b"".join(good), np.uint8)
    records, damaged = _native.decode_rows(stored, _BYTES, _STRIDE, 0, _PLAIN)
    kept = np.asarray(memoryview(records)).reshape(-1).view(STORED)
    return np.delete(kept, np.asarray(damaged)) if len(damaged) else kept


def complete(
    good: dict[int, Any], tail: int, head: int, numbers: range, trajectories: int
) -> tuple[Array, list[int], dict[int, str]]:
    """Returns all entries, those that are damaged or missing replaced by stand-ins that share the
    rows between their neighbours; the numbers of these; and the trajectories of which a part may
    be in them, with the reason. Of these, the open ones are cut: nothing goes on with them.

    Args:
        good: entries that can be read, by number.
        tail, head: the rows there are.
        numbers: of the entries that there should be.
        trajectories: how many ever began.
    """
    out: list[Any] = []
    bad: list[int] = []
    missing: list[int] = []
    end = tail
    for number in (*numbers, -1):
        kept = good.get(number)
        if kept is None and number >= 0:
            missing.append(number)
            continue
        first = head if kept is None else int(kept["first"])
        rows = max(first - end, 0)
        for i, lost in enumerate(missing):
            low, high = (end + rows * k // len(missing) for k in (i, i + 1))
            out.append(_stand_in(lost, low, high))
        bad += missing
        missing = []
        if kept is not None:
            out.append(kept)
            end = int(ends_of(kept))
    entries = np.array(out, STORED)
    holes = {int(o): "a part of it is damaged" for o in entries["ordinal"][_goes_on(entries, bad)]}
    cut = _perhaps_cut(entries, bad, trajectories)
    entries["steps_flags"][cut] |= int(_native.RunFlag.CUT)
    ends = {int(o): "its last part may be damaged" for o in entries["ordinal"][cut]}
    return entries, bad, {**ends, **holes}


def _goes_on(entries: Array, bad: list[int]) -> Array:
    """A mask of the entries that go on from one that could not be read."""
    return np.isin(entries["prev"], bad)


def _perhaps_cut(entries: Array, bad: list[int], trajectories: int) -> Array:
    """Places of the newest entries of trajectories that may go on in one that could not be read.

    Trajectories are numbered as they begin. If as many began between two known ones as there are
    entries that cannot be read, each of these began one, and none of them went on with another.
    """
    ordinals, lost = entries["ordinal"], np.isin(entries["number"], bad)
    begun = np.maximum.accumulate(np.where(lost, NONE, ordinals))  # the newest trajectory so far
    starts = np.flatnonzero(~lost & (np.diff(begun, prepend=NONE) > 0))
    upto = -1  # the last place of an entry that may have gone on with something
    places = np.flatnonzero(lost)
    between = np.searchsorted(starts, places)
    for region in np.unique(between):
        here = places[between == region]
        after = int(ordinals[starts[region]]) if region < len(starts) else trajectories
        before = int(begun[here[0]])
        if before < 0 or after - before - 1 != len(here):
            upto = int(here[-1])
    newest = {int(ordinal): at for at, ordinal in enumerate(ordinals) if ordinal >= 0}
    flags = flags_of(entries)
    ended = _native.RunFlag.TERMINATED | _native.RunFlag.TRUNCATED | _native.RunFlag.CUT
    open_ones = [at for at in newest.values() if at < upto and not flags[at] & int(ended)]
    return np.array(open_ones, np.int64)


def _stand_in(number: int, first: int, last: int) -> Any:
    """An entry for rows of which nothing is known but that they lie between others."""
    kept = np.zeros(1, STORED)[0]
    kept["first"] = first
    kept["steps_flags"] = (last - first) << _native.FLAG_BITS | _native.RunFlag.CUT
    kept["prev"] = kept["jump"] = NONE
    kept["version"] = kept["traj_id"] = -1
    kept["ordinal"] = -(number + 2)  # no trajectory has this number
    kept["time_ns"] = time.time_ns()
    kept["number"] = number
    return kept
