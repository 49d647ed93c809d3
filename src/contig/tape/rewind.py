"""The newest rows of a tape, taken back by the one who wrote them, to be written anew."""

from __future__ import annotations

import numpy as np

from ..batch import Batch
from .entry import ends_of, read_entries
from .memory import LazyTensorStorage

__all__ = ["take_back"]


def take_back(storage: LazyTensorStorage, first: int) -> Batch:
    """Takes rows from a seq on off the tape, and returns them. The next append gets that seq.

    Costs as much as those rows and the index, whatever is stored. Nobody else may read or write
    meanwhile; writers from before go on with nothing.

    Raises:
        ValueError: rows of one run lie on both sides, so that what is left would be another run; or
            the storage has fields or leaves of any size, which are not kept apart by row.
    """
    tape, schema = storage.tape, storage.schema
    if schema is not None and (schema.fields is not None or schema.layout.variable):
        raise ValueError("rows with fields or with leaves of any size cannot be taken back")
    head, tail, _, _ = tape.snapshot()
    first = max(first, tail)
    entries = read_entries(tape)
    kept = entries.compress(entries["first"] < first) if first > tail else entries[:0]
    if len(kept) and int(ends_of(kept).max()) > first:
        raise ValueError(f"row {first} is in the middle of a run; take it back from its first row")
    rows, _ = storage.gather(np.arange(first, head))
    start = int(kept[0]["number"]) if len(kept) else 0
    words = np.ascontiguousarray(kept).view(np.uint64)
    bounds = (start, start + len(kept), int(tape.trajectories))
    tape.restore_stored(tail, first, words, *bounds)
    return rows  # type: ignore[no-any-return]
