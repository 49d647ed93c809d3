"""Entries of the index as they are stored: packed in pages, each entry with its checksum.

    page p: entries of the numbers [32 p, 32 p + 32), as many as there are; 112 bytes each

A page is one row of a table, and one page of SQLite's.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ... import _native

__all__ = ["KEPT", "PAGE", "complete", "narrow", "pack", "unpack", "widen"]

Array = np.ndarray[Any, Any]

PAGE = 32  # entries
KEPT = 13  # words: the first twelve of an entry, then its number
_BYTES, _STRIDE = KEPT * 8, KEPT * 8 + 8
_PLAIN = np.zeros(0, np.uint64)  # checksums of an entry alone: its number is in it
_UNKNOWN, _CUT = -1, 8


def narrow(words: Array) -> Array:
    """``[n, 16]`` words of entries to the ``[n, 13]`` that are kept."""
    return np.concatenate([words[:, : KEPT - 1], words[:, 15:]], 1)


def widen(kept: Array) -> Array:
    """The way back."""
    words = np.zeros((len(kept), 16), np.int64)
    words[:, : KEPT - 1], words[:, 15] = kept[:, :-1], kept[:, -1]
    return words


def pack(kept: Array) -> list[tuple[int, memoryview]]:
    """Entries, ascending by number, as pages: (page, its bytes)."""
    if not len(kept):
        return []
    records = np.ascontiguousarray(kept, "<i8").reshape(-1).view(np.uint8)
    data = memoryview(_native.encode_rows(records, _BYTES, _STRIDE, 0, _PLAIN)).cast("B")
    pages = kept[:, -1] // PAGE
    starts = np.flatnonzero(np.diff(pages, prepend=pages[0] - 1)).tolist()
    bounds = zip(starts, [*starts[1:], len(kept)])
    return [(int(pages[a]), data[a * _STRIDE : b * _STRIDE]) for a, b in bounds]


def unpack(pages: list[Any]) -> Array:
    """Those of the entries in some pages that are as they were written."""
    good = [p for p in pages if isinstance(p, bytes) and len(p) % _STRIDE == 0]
    stored = np.frombuffer(b"".join(good), np.uint8)
    records, damaged = _native.decode_rows(stored, _BYTES, _STRIDE, 0, _PLAIN)
    kept = np.asarray(memoryview(records)).reshape(-1).view("<i8").reshape(-1, KEPT)
    return np.delete(kept, np.asarray(damaged), 0) if len(damaged) else kept


def complete(
    good: dict[int, Array], tail: int, head: int, numbers: range
) -> tuple[Array, list[int]]:
    """All entries, those that are damaged or missing replaced by stand-ins that share the rows
    between their neighbours; and the numbers of these."""
    out: list[Array] = []
    bad: list[int] = []
    missing: list[int] = []
    end = tail
    for number in (*numbers, -1):
        kept = good.get(number)
        if kept is None and number >= 0:
            missing.append(number)
            continue
        first = head if kept is None else int(kept[0])
        rows = max(first - end, 0)
        for i, lost in enumerate(missing):
            low, high = (end + rows * k // len(missing) for k in (i, i + 1))
            out.append(_stand_in(lost, low, high))
        bad += missing
        missing = []
        if kept is not None:
            out.append(kept)
            end = int(kept[0] + (kept[1] >> 8))
    return np.array(out, np.int64).reshape(-1, KEPT), bad


def _stand_in(number: int, first: int, last: int) -> Array:
    """An entry for rows of which nothing is known but that they lie between others."""
    kept = np.zeros(KEPT, np.int64)
    kept[0], kept[1] = first, (last - first) << 8 | _CUT
    kept[2] = kept[3] = kept[6] = kept[8] = _UNKNOWN
    kept[5] = -(number + 2)  # no trajectory has this number
    kept[10] = time.time_ns()
    kept[-1] = number
    return kept
