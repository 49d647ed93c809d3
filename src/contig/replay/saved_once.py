"""Rows of a checkpoint whose observations are stored once: as they lie on the tape, in two files.

records.bin   rows: references to slots, and the leaves that stay in them
slots.bin     observations, of stacks single frames, in the order in which rows refer to them
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..layout import Layout
from ..tape import PackedRows, Rows, Storage
from ..tape.compact_rows import CompactRows, stored_places
from ..tape.disk import files
from ..tape.packed_bytes import RecordPlaces
from ..tape.sharing import Sharing
from .saved_bytes import read_bytes
from .state_files import FilesWithSums

__all__ = ["RECORDS_FILE", "SLOTS_FILE", "mapped", "read_once", "save_once"]

Array = np.ndarray[Any, Any]

RECORDS_FILE = "records.bin"
SLOTS_FILE = "slots.bin"
_CHUNK_BYTES = 16 << 20


def save_once(
    storage: Storage, first: int, head: int, tails: list[int], out: FilesWithSums
) -> Sharing | None:
    """Writes rows [first, head), and says which leaves are stored once; None: none is, and nothing
    was written.

    Args:
        tails: below which seqs rows were evicted so far; what is evicted meanwhile is added.
    """
    copying, schema = storage.rows_once(), storage.schema
    if copying is None or schema is None or schema.shared_form is None:
        return None
    size, step = int(schema.shared_form.row_bytes), _rows_at_once(schema.layout)
    with out.file(RECORDS_FILE) as records, out.file(SLOTS_FILE) as slots:
        for at in range(first, head, step):
            rows = np.empty((min(at + step, head) - at) * size, np.uint8)
            new, gone = copying.copy(at, rows)
            tails.append(min(int(gone), head))
            records.write(rows.data)
            slots.write(memoryview(new))
    return schema.sharing


def _rows_at_once(layout: Layout) -> int:
    return max(_CHUNK_BYTES // layout.record_size, 1)


def read_once(path: Path, meta: dict[str, Any], layout: Layout) -> Rows:
    """The rows, mapped: only what is wanted of them is read.

    Raises:
        ValueError: the files are not those of such rows.
    """
    sharing = Sharing.from_json(meta["shared"])
    form, first, rows = sharing.native(layout), meta["file_first"], meta["head"]
    sizes = [int(meta["files"][name][0]) for name in (RECORDS_FILE, SLOTS_FILE)]
    if sizes[0] != (rows - first) * int(form.row_bytes):
        raise ValueError(f"{RECORDS_FILE} does not have the rows it should have")
    if sizes[1] % int(form.slot_bytes):
        raise ValueError(f"{SLOTS_FILE} ends within an observation")
    blobs: tuple[Array, RecordPlaces, int] | None = None
    places = stored_places(layout, form)
    if places is not None:
        there, _, position = read_bytes(path, meta, layout)
        blobs = (there, places, position)
    stored, slots = (
        mapped(path / name, size) for name, size in zip((RECORDS_FILE, SLOTS_FILE), sizes)
    )
    return CompactRows(
        PackedRows(stored, first, int(form.row_bytes), blobs), slots, layout, sharing
    )


def mapped(path: Path, size: int) -> Array:
    """A file of so many bytes; nothing has no mapping."""
    return np.asarray(files.mapped(path)) if size else np.zeros(0, np.uint8)
