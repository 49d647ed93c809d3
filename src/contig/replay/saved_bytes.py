"""Bytes of leaves of any size in a checkpoint: one file, by their positions on the tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..layout import Layout
from ..tape import Storage
from ..tape.disk import files
from ..tape.packed_bytes import RecordPlaces

__all__ = ["BYTES_FILE", "read_bytes", "save_bytes"]

Array = np.ndarray[Any, Any]

BYTES_FILE = "blobs.bin"
_CHUNK_BYTES = 16 << 20


def save_bytes(
    storage: Storage, head: int, tails: list[int], write: Callable[[str, Iterator[Any]], None]
) -> int:
    """Writes the bytes of rows below `head` and returns the position of the first of them.

    Args:
        tails: below which seqs rows were evicted so far; what is evicted meanwhile is added.
        write: a file, piece by piece.
    """
    start, end = _bounds(storage, head, tails)

    def pieces() -> Iterator[Any]:
        step = max(min(_CHUNK_BYTES, storage.blob_ring), 1)
        for at in range(start, end, step):
            piece = np.empty(min(step, end - at), np.uint8)
            tails.append(int(storage.tape.read_blobs(at, piece)))
            yield piece.data

    write(BYTES_FILE, pieces())
    return start


def _bounds(storage: Storage, head: int, tails: list[int]) -> tuple[int, int]:
    """Positions of the bytes of rows that are still there."""
    records_are = storage.records
    assert records_are is not None
    places = RecordPlaces(records_are.record_size, records_are.blob_offsets)
    while max(tails) < head:
        ends = np.array([max(tails), head - 1], np.int64)
        records = np.empty(2 * places.record_size, np.uint8)
        lost = int(storage.tape.gather_records(ends, records))
        if not lost:
            positions, lengths = places.of(records)
            return int(positions[0, 0]), int(positions[1, -1] + lengths[1, -1])
        tails.append(lost)
    return 0, 0


def read_bytes(path: Path, meta: dict[str, Any], layout: Layout) -> tuple[Array, RecordPlaces, int]:
    """The bytes of a checkpoint, mapped; where its records have their places; and the position of
    the first byte.

    Raises:
        ValueError: they are not what the checkpoint says.
    """
    first, (size, _) = meta["blob_first"], meta["files"][BYTES_FILE]
    if not (isinstance(first, int) and 0 <= first < 2**63):
        raise ValueError(f"its bytes begin at {first!r}")
    mapped: Any = files.mapped(path / BYTES_FILE) if size else np.zeros(0, np.uint8)
    places = RecordPlaces(layout.record_size, layout.blob_offsets)
    return np.asarray(mapped), places, first
