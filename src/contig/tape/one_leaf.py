"""Some leaves of some rows, without the rest of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import CodecError, EmptyBufferError
from ..layout import round_column
from ..tree import Path
from .device import DeviceStorage
from .storage import Storage

__all__ = ["read_leaf", "read_leaves"]

Array = np.ndarray[Any, Any]


def read_leaf(storage: Storage, seqs: Array, path: Path) -> tuple[Array, Array | None]:
    """A leaf of rows by seq, ``[n, ...]``, in memory of its own; a tensor, if it is on a device. It
    does not count as a sample.

    Returns:
        (column, lost): lost is None, or a mask of the rows that were evicted meanwhile, are
        damaged or cannot be decoded.
    """
    (column,), lost = read_leaves(storage, seqs, (path,))
    return column, lost


def read_leaves(
    storage: Storage, seqs: Array, paths: tuple[Path, ...]
) -> tuple[list[Array], Array | None]:
    """The same of several leaves, each row visited once: a column for each path."""
    storage.check_open()
    schema = storage.schema
    if schema is None:
        raise EmptyBufferError("nothing has been written to this storage yet")
    if isinstance(storage, DeviceStorage):
        return storage.read_columns(seqs, paths)
    leaves = [schema.layout.by_path[path] for path in paths]
    if any(leaf.variable for leaf in leaves):  # encoded, for one: as the whole row is read
        try:
            batch, below = storage.gather(seqs)
        except CodecError:
            batch, below = storage.gather(seqs, aside=True)
        lost = (below if np.ndim(below) else seqs < below) if np.any(below) else None
        return [batch[path] for path in paths], lost
    block, below, damaged = schema.some(storage.tape, paths).gather(seqs)
    columns, at = [], 0
    for leaf in leaves:
        columns.append(np.ndarray((len(seqs), *leaf.shape), leaf.dtype, block, at))
        at += round_column(len(seqs) * leaf.nbytes)
    if not below and damaged is None:
        return columns, None
    lost = seqs < below
    if damaged is not None:
        lost[damaged] = True
    return columns, lost
