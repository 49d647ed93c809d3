"""Bytes of leaves of any size beside packed records: where they are, and parts of them.

A record has the position and the length of each such leaf's bytes. As an append takes them, bytes
are in packed order: row by row, within a row leaf by leaf, without gaps, from position 0 on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Packed", "RecordPlaces"]

Array = np.ndarray[Any, Any]

_PLACE = 16


class Packed(NamedTuple):
    """Records, and the bytes of their leaves of any size in packed order."""

    records: Array
    blobs: Array

    @staticmethod
    def joined(parts: Sequence[Packed], places: RecordPlaces) -> Packed:
        """Several, one behind another."""
        records, at = [np.zeros(0, np.uint8)], 0
        for part in parts:
            records.append(places.moved(part.records, at))
            at += len(part.blobs)
        return Packed(
            np.concatenate(records),
            np.concatenate([np.zeros(0, np.uint8), *(p.blobs for p in parts)]),
        )


class RecordPlaces(NamedTuple):
    """Where records have the places of their leaves of any size.

    Attributes:
        record_size: bytes of a record.
        offsets: of the places in it, ascending; none if all leaves are of fixed size.
    """

    record_size: int
    offsets: tuple[int, ...] = ()

    def of(self, records: Array) -> tuple[Array, Array]:
        """Positions and lengths, int64 ``[n, leaves]``."""
        rows = records.reshape(-1, self.record_size)
        places = np.stack([rows[:, at : at + _PLACE] for at in self.offsets], axis=1)
        words = np.ascontiguousarray(places).view(np.int64)
        return words[..., 0], words[..., 1]

    def moved(self, records: Array, by: int) -> Array:
        """The records with positions so many bytes further on, as a copy."""
        positions, _ = self.of(records)
        return self.placed(records, positions + by)

    def placed(self, records: Array, positions: Array) -> Array:
        """The records with other positions, as a copy."""
        out = np.array(records, np.uint8).reshape(-1, self.record_size)
        for leaf, at in enumerate(self.offsets):
            words = np.ascontiguousarray(positions[:, leaf], np.int64).view(np.uint8)
            out[:, at : at + 8] = words.reshape(-1, 8)
        return out.reshape(-1)

    def row_bytes(self, records: Array) -> Array:
        """How many bytes the leaves of any size of each row have together, int64."""
        return np.asarray(self.of(records)[1].sum(axis=1))

    def pack(self, records: Array, read: Callable[[int, int], Array]) -> Packed:
        """Records of a tape, and their bytes, in packed order.

        Args:
            read: bytes from one position to another.

        Raises:
            ValueError: positions that no tape gives.
        """
        positions, lengths = self.of(records)
        flat, sizes = positions.reshape(-1), lengths.reshape(-1)
        if np.any(sizes < 0) or np.any(flat < 0) or np.any(flat[1:] < (flat + sizes)[:-1]):
            raise ValueError("bytes of leaves of any size that are not in order")
        # Stretches without gaps: a killed append leaves some.
        breaks = np.flatnonzero(flat[1:] != (flat + sizes)[:-1]) + 1
        parts = [np.zeros(0, np.uint8)]
        for stretch in np.split(np.arange(len(flat)), breaks):
            if len(stretch):
                last = stretch[-1]
                parts.append(read(int(flat[stretch[0]]), int(flat[last] + sizes[last])))
        packed = (np.cumsum(sizes) - sizes).reshape(positions.shape)
        return Packed(self.placed(records, packed), np.concatenate(parts))
