"""Leaves with codecs, from the ring of bytes into their columns of a batch.

    gather    the other leaves into their columns; the column of a coded leaf is left as it is
    fill      the encoded rows into a block of their own, and from there, decoded, into the column

A row never changes while it is stored, so that two gathers of one seq are of one row, or it is lost
to at least one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..arguments import whole_numbers
from ..codecs import Codec, codec_of, decode_rows
from ..errors import CodecError
from ..keys import STEPS
from ..layout import Leaf, round_column
from ..ragged import Blob
from ..tree import as_path, show_path
from .folding import FoldedSteps

__all__ = ["Coded", "Decoder", "Undecodable", "stored_bytes"]

log = logging.getLogger("contig.codecs")

Array = np.ndarray[Any, Any]


class Coded(NamedTuple):
    """A leaf with a codec: as it is stored, and the number of its column in a batch.

    Attributes:
        of_last: it comes from the last row of a group that is folded.
    """

    leaf: Leaf
    number: int
    of_last: bool


class Decoder:
    """Fills the columns of coded leaves of batches of one layout. Thread-safe."""

    def __init__(self, tape: Any, coded: Sequence[Coded]) -> None:
        parts = ([x for x in coded if x.of_last is of_last] for of_last in (False, True))
        self._parts = [_Part(tape, part) for part in parts if part]

    def fill(
        self,
        batch: Any,
        seqs: Array,
        steps: FoldedSteps | None,
        lost: int,
        damaged: Array | None = None,
        first: int = 0,
        aside: Array | None = None,
    ) -> int:
        """Decodes the rows of a batch that were not lost.

        Args:
            batch: flat, gathered.
            seqs: its rows, or some of them, from `first` on.
            steps: rows that were folded into one.
            lost: the seq below which rows were evicted, or 0.
            damaged: places of bad rows among `seqs`, or among the rows of `steps`.
            aside: bool, one per row: rows that cannot be decoded are marked here, and are zeros.

        Returns:
            `lost`, or what it has come to meanwhile.

        Raises:
            CodecError: a row that is neither lost nor damaged cannot be decoded, and there is no
                `aside`.
        """
        n = len(seqs)
        if n == 0:
            return lost
        gathered = []
        for part in self._parts:
            rows = seqs
            if part.of_last and steps is not None:
                rows = _last_rows(steps, batch[STEPS][first : first + n])
            blocks, tail = part.gather(rows)
            lost = max(lost, tail)
            gathered.append((part, rows, blocks))
        bad = _bad_rows(n, steps, damaged)
        for part, rows, blocks in gathered:
            good = None
            if lost or bad is not None:
                good = np.flatnonzero((rows >= lost) & (seqs >= lost) & ~_none(bad, n))
            for coded, codec, (values, offsets) in zip(part.coded, part.codecs, blocks):
                column = batch[coded.leaf.path][first : first + n]
                if aside is None:
                    _decode(codec, coded.leaf, values, offsets, column, good)
                else:
                    _decode_some(codec, coded.leaf, values, offsets, column, good, aside)
        return lost


class Undecodable:
    """Rows of a storage that were drawn and could not be decoded, by seq. Thread-safe."""

    def __init__(self) -> None:
        self._seqs: frozenset[int] = frozenset()

    def found(self, seqs: Array, tail: int) -> None:
        """Takes in rows, and says so of each of them once; those below `tail` are forgotten."""
        new = frozenset(seqs.tolist()) - self._seqs
        if not new:
            return
        self._seqs = frozenset(x for x in self._seqs | new if x >= tail)
        some = ", ".join(str(x) for x in sorted(new)[:8]) + (", ..." if len(new) > 8 else "")
        log.warning("%d rows cannot be decoded, and samples go without them: %s", len(new), some)

    def count(self, tail: int) -> int:
        return sum(x >= tail for x in self._seqs)


class _Part:
    """Leaves that come from the same rows."""

    def __init__(self, tape: Any, coded: list[Coded]) -> None:
        self.coded = coded
        self.codecs = [codec_of(x.leaf.codec) for x in coded]
        self.of_last = coded[0].of_last
        places = [(i, x.leaf.offset, 1) for i, x in enumerate(coded)]
        self._gatherer = _native.Gatherer(
            tape,
            np.full(len(coded), 8, np.int64),
            np.empty(0, np.int64),
            -1,
            np.array(places, np.int64).ravel(),
        )

    def gather(self, seqs: Array) -> tuple[list[tuple[Array, Array]], int]:
        """(values, offsets) of each leaf; and the tail, if rows were lost."""
        block, lost, _ = self._gatherer.gather(np.ascontiguousarray(seqs))
        whole: Array = np.frombuffer(block, np.uint8)  # type: ignore[call-overload]
        size = 8 * (len(seqs) + 1)
        at, out = round_column(size) * len(self.coded), []
        for i in range(len(self.coded)):
            start = round_column(size) * i
            offsets = whole[start : start + size].view(np.int64)
            nbytes = int(offsets[-1])
            out.append((whole[at : at + nbytes], offsets))
            at += round_column(nbytes)
        return out, int(lost)


def _last_rows(steps: FoldedSteps, counts: Array) -> Array:
    """The last row of each group that counts."""
    ends = np.cumsum(steps.lengths)
    # What is said of a lost group is not to be trusted.
    counts = np.clip(counts, 1, steps.lengths)
    rows: Array = steps.rows[ends - steps.lengths + counts - 1]
    return rows


def _bad_rows(n: int, steps: FoldedSteps | None, damaged: Array | None) -> Array | None:
    """Which rows of a batch are damaged; None if none is."""
    if damaged is None or not len(damaged):
        return None
    places = damaged
    if steps is not None:
        places = np.searchsorted(np.cumsum(steps.lengths), damaged, side="right")
    out = np.zeros(n, bool)
    out[places] = True
    return out


def _none(bad: Array | None, n: int) -> Array:
    return np.zeros(n, bool) if bad is None else bad


def _decode(
    codec: Codec, leaf: Leaf, values: Array, offsets: Array, column: Array, good: Array | None
) -> None:
    if good is None:
        decode_rows(codec, values, offsets, column, leaf.path)
        return
    column[...] = 0
    for i in good.tolist():
        ends = offsets[i : i + 2]
        decode_rows(codec, values, ends, column[i : i + 1], leaf.path)


def _decode_some(
    codec: Codec,
    leaf: Leaf,
    values: Array,
    offsets: Array,
    column: Array,
    good: Array | None,
    aside: Array,
) -> None:
    """The same, row by row; those that cannot be decoded are marked."""
    column[...] = 0
    for i in range(len(column)) if good is None else good.tolist():
        try:
            decode_rows(codec, values, offsets[i : i + 2], column[i : i + 1], leaf.path)
        except CodecError:
            aside[i] = True
    column[aside] = 0


def stored_bytes(storage: Any, key: Any, seqs: Any) -> Blob:
    """What is stored of some rows of a leaf with a codec, as it is: for whoever writes it to a file
    of its own.

    Args:
        storage: any storage.
        key: the leaf.
        seqs: the rows.

    Raises:
        KeyError: there is no such leaf, or it has no codec.
        IndexError: some rows are not stored, or not any more.
    """
    path = as_path(key)
    leaf = storage.records.by_path.get(path)
    if leaf is None or leaf.codec is None:
        raise KeyError(f"no leaf {show_path(path)} with a codec whose rows are encoded one by one")
    rows = whole_numbers("rows by seq", np.atleast_1d(np.asarray(seqs)))
    head, tail, _, _ = storage.tape.snapshot()
    if len(rows) and (int(rows.min()) < tail or int(rows.max()) >= head):
        raise IndexError(f"rows {tail} to {head - 1} are stored, asked for {seqs!r}")
    part = _Part(storage.tape, [Coded(leaf, 0, False)])
    ((values, offsets),), lost = part.gather(rows)
    if lost:
        raise IndexError(f"rows below {lost} were evicted while they were read")
    return Blob(values, offsets)
