"""Rows of a checkpoint on their way into a DeviceStorage: each record taken apart.

records    of whole rows, as checkpoints have them
marks      of what is in host memory, with the bytes of leaves of any size
others     columns of what is on the device
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...layout import Layout
from ...tree import Path
from ..packed_bytes import Packed
from ..snapshot import Rows, Snapshot
from .fitting import Parts

__all__ = ["marks_of", "others_of", "put_leaf"]

Array = np.ndarray[Any, Any]


def marks_of(contents: Snapshot, layout: Layout, parts: Parts) -> Packed:
    """What is in host memory of a checkpoint's rows, of this layout.

    Raises:
        ValueError: rows are damaged.
    """
    rows, tail, head = contents.rows, contents.tail, contents.head
    marks = np.zeros((head - tail, parts.marks.record_size), np.uint8)
    blobs, at = [np.zeros(0, np.uint8)], 0
    for first, last in rows.spans(tail, head):
        records, more = _read(rows, first, last, at)
        records = records.reshape(last - first, layout.record_size)
        for leaf in parts.marks.leaves:
            if leaf.path in layout.by_path:
                part = _bytes_of(records, layout, leaf.path)
                marks[first - tail : last - tail, leaf.offset : leaf.offset + leaf.nbytes] = part
        blobs.append(more)
        at += len(more)
    return Packed(marks.reshape(-1), np.concatenate(blobs))


def _read(rows: Rows, first: int, last: int, at: int) -> tuple[Array, Array]:
    """Records, whose leaves of any size are `at` bytes further on; and those bytes."""
    if rows.places is None:
        return rows.read(first, last), np.zeros(0, np.uint8)
    packed = rows.pack(first, last)
    return rows.places.moved(packed.records, at), packed.blobs


def others_of(records: Array, layout: Layout, parts: Parts) -> dict[Path, Array]:
    """What is on the device of some records, as columns."""
    records = records.reshape(-1, layout.record_size)
    return {
        path: np.ascontiguousarray(_bytes_of(records, layout, path))
        .view(place.dtype)
        .reshape(len(records), *place.shape)
        if place.nbytes
        else np.empty((len(records), *place.shape), place.dtype)
        for path, place in parts.others.items()
    }


def put_leaf(records: Array, layout: Layout, path: Path, column: Array) -> None:
    """Writes the bytes ``[n, nbytes]`` of a leaf into records ``[n, record_size]``."""
    leaf = layout.by_path[path]
    records[:, leaf.offset : leaf.offset + leaf.nbytes] = column


def _bytes_of(records: Array, layout: Layout, path: Path) -> Array:
    leaf = layout.by_path[path]
    return records[:, leaf.offset : leaf.offset + leaf.nbytes]
