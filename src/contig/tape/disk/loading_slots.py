"""Rows of a checkpoint on their way into files in which observations are stored once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ..snapshot import Snapshot
from .changes import Salts
from .linked_rows import LinkedRows
from .stored_slots import StoredSlots

__all__ = ["SlotPiece", "SlotPieces"]

_PIECE_BYTES = 16 << 20


class SlotPiece(NamedTuple):
    """Rows as they are going to be in files, the first with this seq; and the bytes of observations
    that are new with them, from a position on."""

    first: int
    rows: Any
    blobs: Any
    base: int


class SlotPieces:
    """What has to be copied.

    Args:
        contents: the checkpoint.
        first: the first row to be copied.
        slots: how the rows are going to be stored.
        stride: bytes from one row to the next.
        salts: of the rows then.
    """

    def __init__(
        self, contents: Snapshot, first: int, slots: StoredSlots, stride: int, salts: Salts
    ) -> None:
        self._contents, self._first, self._slots, self._stride = contents, first, slots, stride
        self._salts = np.array(salts, np.int64).reshape(-1).view(np.uint64)

    def check(self) -> None:
        """Raises ValueError if one of them is damaged."""
        for first, last in self._spans():
            self._contents.rows.read(first, last)

    def resealed(self, rows: LinkedRows) -> Iterator[SlotPiece]:
        """Rows whose observations are linked: they stay what they are, but for their checksums."""
        nothing = np.zeros(0, np.uint8)
        for part in rows.slot_parts(self._first, self._contents.head):
            of = (self._slots.form, self._stride, part.first)
            sealed, damaged = _native.reseal_slots(
                part.stored, *of, rows.sums(), self._salts, part.blobs, part.base
            )
            rows.refuse(part.first, damaged)
            yield SlotPiece(part.first, np.asarray(memoryview(sealed)), nothing, 0)

    def encoded(self) -> Iterator[SlotPiece]:
        """Rows from anywhere: what is the same in the same trajectory is stored once."""
        encoder = _native.SlotEncoder(
            self._slots.form,
            self._slots.layout.record_size,
            self._stride,
            self._slots.reach,
        )
        for first, last in self._spans():
            records, base = self._contents.rows.read(first, last), int(encoder.head)
            rows, blobs = encoder.encode(
                records, self._contents.parts(first, last), first, self._salts
            )
            there = np.asarray(memoryview(rows)), np.asarray(memoryview(blobs))
            yield SlotPiece(first, *there, base)

    def _spans(self) -> Iterator[tuple[int, int]]:
        head = self._contents.head
        step = max(_PIECE_BYTES // self._slots.layout.record_size, 1)
        for first in range(self._first, head, step):
            yield first, min(first + step, head)
