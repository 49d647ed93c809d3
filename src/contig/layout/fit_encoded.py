"""Values of a leaf with a codec fitted to it: a column of encoded rows, or an error that says what
differs.

    arrays    [*batch, *leaf.shape]: checked, cast and encoded
    bytes     that somebody else encoded: of one row, or a Blob, a list or an object array of them;
              what they say is checked, and they are stored as they are
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..codecs import check_encoded, codec_of, encode_rows
from ..convert import as_array, cast
from ..errors import LayoutError
from ..ragged import Blob
from ..tree import show_path
from .fit_ragged import fit_ragged
from .leaf import BLOB, Leaf

__all__ = ["Encoded", "check_shape", "encoded_rows", "fit_encoded"]

Array = np.ndarray[Any, Any]
_BYTES = (bytes, bytearray, memoryview)


class Encoded(Blob):
    """Rows that were encoded here: they need no check.

    Args:
        column: of them.
        batch: dims that they had; None: it was flat already.
    """

    __slots__ = ("batch",)

    def __init__(self, column: Blob, batch: tuple[int, ...] | None) -> None:
        super().__init__(column.values, column.offsets)
        self.batch = batch


def fit_encoded(leaf: Leaf, value: Any, batch_ndim: int) -> tuple[Blob, tuple[int, ...] | None]:
    """The encoded rows, and their batch dims; None: they are flat, and only say how many there are.

    Raises:
        LayoutError: another shape, or bytes that are none of the codec.
        ValueError: a value that cannot be cast.
    """
    if isinstance(value, Encoded):
        return value, value.batch
    codec = codec_of(leaf.codec)
    given = encoded_rows(leaf, value, batch_ndim)
    if given is not None:
        column, batch = given
        for row in column:
            check_encoded(codec, row, leaf.shape, leaf.dtype, leaf.path)
        return column, batch
    try:
        array = as_array(value, leaf.path)
    except ValueError as error:
        raise LayoutError(
            f"{show_path(leaf.path)}: no array ({error}), expected {leaf.describe()} for each row, "
            "or their encoded bytes"
        ) from None
    check_shape(leaf, array, batch_ndim)
    rows = np.ascontiguousarray(cast(array, leaf.dtype, leaf.path)).reshape(-1, *leaf.shape)
    return Blob.of(encode_rows(codec, rows), text=False), array.shape[:batch_ndim]


def encoded_rows(
    leaf: Leaf, value: Any, batch_ndim: int
) -> tuple[Blob, tuple[int, ...] | None] | None:
    """Rows that come as bytes, and their batch dims as of `fit_encoded`; None: they are arrays."""
    if not _is_encoded(leaf, value, batch_ndim):
        return None
    blob = leaf._replace(kind=BLOB, shape=(), dtype=np.dtype(np.uint8), codec=None)
    column, batch = fit_ragged(blob, value, batch_ndim)
    assert isinstance(column, Blob)
    return column, batch


def _is_encoded(leaf: Leaf, value: Any, batch_ndim: int) -> bool:
    if isinstance(value, Blob):
        return True
    if batch_ndim == 0:
        if isinstance(value, np.ndarray):  # as HDF5 has bytes
            return value.dtype == np.uint8 and value.ndim == 1 and len(leaf.shape) != 1
        return isinstance(value, _BYTES)
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "OS"
    while isinstance(value, (list, tuple)) and len(value):
        value = value[0]
    return isinstance(value, _BYTES)


def check_shape(leaf: Leaf, array: Array, batch_ndim: int) -> None:
    """Raises LayoutError unless an array is ``[*batch, *leaf.shape]``."""
    if array.shape[batch_ndim:] != leaf.shape or array.ndim < batch_ndim:
        dims = ["n"] * batch_ndim + [str(n) for n in leaf.shape]
        raise LayoutError(
            f"{show_path(leaf.path)}: shape {list(array.shape)}, expected "
            f"[{', '.join(dims)}]; nothing is broadcast: reshape the data"
        )
