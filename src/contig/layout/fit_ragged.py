"""Values of leaves of any size fitted to a leaf: a column of rows, or an error that says what
differs.

    one row    an array [k, *inner]; bytes; text
    many       a Ragged or Blob, a jagged nested tensor, (values, offsets), a list of rows (of
               lists, for lanes), an object array of rows, an array [*batch, k, *inner] whose rows
               are equally long
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..convert import as_array, cast, jagged_parts
from ..errors import LayoutError
from ..ragged import Blob, Ragged
from ..tree import show_path
from .leaf import RAGGED, TEXT, Leaf, ShapeDtype

__all__ = ["as_column", "columns_in", "fit_ragged", "is_column", "pair_of"]

Array = np.ndarray[Any, Any]


def is_column(node: Any) -> bool:
    """Whether a container is a column of bytes or text, or stands for a leaf."""
    if isinstance(node, ShapeDtype):  # a tuple, but not to be walked into
        return True
    if type(node) is list and node:
        first = node[0]
        return is_column(first) if type(first) is list else isinstance(first, (bytes, str))
    return False


def as_column(value: Any) -> Any:
    """A column whose leaf can be told from it: a list of bytes or text as a Blob, a nested tensor
    as a Ragged; anything else as it is."""
    if isinstance(value, list):
        while isinstance(value, list):
            value = value[0]
        return Blob(text=isinstance(value, str))
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU" and value.size:
        first = value.reshape(-1)[0]
        return Blob(text=isinstance(first, str)) if isinstance(first, (bytes, str)) else value
    parts = jagged_parts(value)
    return value if parts is None else Ragged(*parts)


def columns_in(tree: Any, leaves: Iterable[Leaf], batch_ndim: int) -> Any:
    """Nested dicts whose leaves of any size are columns, whatever they were given as; anything
    else, and what is missing, as it is."""
    if not isinstance(tree, dict):
        return tree
    out = dict(tree)
    for leaf in leaves:
        node = out
        for key in leaf.path[:-1]:
            if not isinstance(node.get(key), dict):
                break
            node[key] = below = dict(node[key])  # the caller's stays as it is
            node = below
        else:
            if leaf.path and leaf.path[-1] in node:
                column, _ = fit_ragged(leaf, node[leaf.path[-1]], batch_ndim)
                node[leaf.path[-1]] = column
    return out


def fit_ragged(leaf: Leaf, value: Any, batch_ndim: int) -> tuple[Ragged, tuple[int, ...] | None]:
    """A contiguous column, checked and cast, and its batch dims; None: it is flat, and only knows
    how many rows there are.

    Raises:
        LayoutError: another inner shape, or something that is no rows.
        ValueError: a value that cannot be cast, or bytes that are not UTF-8.
    """
    if batch_ndim == 0 and not isinstance(value, Ragged):
        return _column(leaf, [value]), ()
    parts = jagged_parts(value) or (pair_of(value) if leaf.kind == RAGGED else None)
    if parts is not None:
        value = Ragged(*parts)
    if isinstance(value, Ragged):
        if batch_ndim == 0 and len(value) != 1:
            raise LayoutError(f"{show_path(leaf.path)}: {len(value)} rows, expected one")
        return _whole(leaf, value), () if batch_ndim == 0 else None
    if not isinstance(value, (list, tuple)):
        value = as_array(value, leaf.path)
        if value.dtype.kind not in "OSU" and leaf.kind == RAGGED:
            return _equal_rows(leaf, value, batch_ndim)
        if value.dtype.kind not in "OSU" or value.ndim < batch_ndim:
            raise LayoutError(
                f"{show_path(leaf.path)}: {value.dtype} {list(value.shape)}, expected a column of "
                f"{_wanted(leaf)}: give a list of them"
            )
    rows, batch = _flat(leaf, value, batch_ndim)
    return _column(leaf, rows), batch


def pair_of(value: Any) -> tuple[Array, Array] | None:
    """Values and offsets in a tuple, as batches of jax have them; None of anything else."""
    if type(value) is not tuple or len(value) != 2 or not all(hasattr(x, "dtype") for x in value):
        return None
    values, offsets = as_array(value[0]), as_array(value[1])
    whole = values.ndim >= 1 and offsets.ndim == 1 and len(offsets) and offsets.dtype.kind in "iu"
    if not whole or offsets[0] != 0 or offsets[-1] != len(values) or np.any(np.diff(offsets) < 0):
        return None
    return values, offsets


def _wanted(leaf: Leaf) -> str:
    if leaf.kind == RAGGED:
        return "arrays [" + ", ".join(["n", *map(str, leaf.shape)]) + f"] of {leaf.dtype.name}"
    return "str" if leaf.kind == TEXT else "bytes"


def _flat(leaf: Leaf, value: Any, batch_ndim: int) -> tuple[list[Any], tuple[int, ...]]:
    """Rows of lists in lists, in their order, and how many there are of each."""
    rows, batch = list(value), tuple([len(value)])
    for _ in range(batch_ndim - 1):
        for lane in rows:
            if isinstance(lane, (str, bytes)) or not hasattr(lane, "__len__"):
                what = type(lane).__name__
                raise LayoutError(
                    f"{show_path(leaf.path)}: {what} for a lane, expected a list of {_wanted(leaf)}"
                )
        lanes = {len(lane) for lane in rows}
        if len(lanes) > 1:
            raise LayoutError(
                f"{show_path(leaf.path)}: lanes of {sorted(lanes)} rows; all lanes are equally long"
            )
        batch = (*batch, *lanes) if lanes else (*batch, 0)
        rows = [row for lane in rows for row in lane]
    return rows, batch


def _column(leaf: Leaf, rows: list[Any]) -> Ragged:
    if leaf.kind != RAGGED:
        pieces = [_bytes_of(leaf, row, i, len(rows)) for i, row in enumerate(rows)]
        values = np.frombuffer(b"".join(pieces), np.uint8)
        offsets = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        return Blob(values, offsets, text=leaf.kind == TEXT)
    arrays = [_array_of(leaf, row) for row in rows]
    offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
    empty = np.empty((0, *leaf.shape), leaf.dtype)
    values = arrays[0] if len(arrays) == 1 else np.concatenate([empty, *arrays])
    return Ragged(np.ascontiguousarray(values), offsets)


def _array_of(leaf: Leaf, row: Any) -> Array:
    try:
        array = as_array(row, leaf.path)
    except ValueError as error:
        raise LayoutError(
            f"{show_path(leaf.path)}: a row that is no array ({error}), expected {_wanted(leaf)}"
        ) from None
    if array.size == 0 and array.ndim == 1:  # an empty list has no inner shape
        return np.empty((0, *leaf.shape), leaf.dtype)
    if array.ndim == 0 or array.shape[1:] != leaf.shape:
        raise LayoutError(
            f"{show_path(leaf.path)}: a row of shape {list(array.shape)}, expected {_wanted(leaf)};"
            " nothing is broadcast: reshape the data"
        )
    return cast(array, leaf.dtype, leaf.path)


def _bytes_of(leaf: Leaf, row: Any, number: int, rows: int) -> bytes:
    where = show_path(leaf.path) + (f", row {number}" if rows > 1 else "")
    if isinstance(row, str):
        if leaf.kind != TEXT:
            raise LayoutError(
                f"{where}: a str, expected bytes; encode it, or give the storage an example with "
                "Blob(text=True)"
            )
        try:
            return row.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{where}: text that is not UTF-8: {error}; clean it first") from None
    if isinstance(row, np.ndarray) and (row.dtype != np.uint8 or row.ndim != 1):
        raise LayoutError(
            f"{where}: {row.dtype} {list(row.shape)}, expected {_wanted(leaf)}; use .tobytes(), or "
            "a Ragged leaf for arrays"
        )
    if not isinstance(row, (bytes, bytearray, memoryview, np.ndarray)):
        raise LayoutError(f"{where}: a {type(row).__name__}, expected {_wanted(leaf)}")
    raw = bytes(row)
    if leaf.kind == TEXT:
        _check_text(where, raw)
    return raw


def _check_text(where: str, raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: bytes that are not UTF-8: {error}; give a str, or store bytes: Blob()"
        ) from None


def _is_text(values: Array, offsets: Array) -> bool:
    """Whether bytes are UTF-8, and no row begins within a character."""
    try:
        values.tobytes().decode()
    except UnicodeDecodeError:
        return False
    starts = offsets[:-1][offsets[:-1] < len(values)]
    return not np.any(values[starts] & 0xC0 == 0x80)


def _whole(leaf: Leaf, value: Ragged) -> Ragged:
    """A column that is one already."""
    value = value.packed()
    if (leaf.kind == RAGGED) == isinstance(value, Blob) or value.inner_shape != leaf.shape:
        raise LayoutError(
            f"{show_path(leaf.path)}: {value!r}, expected a column of {_wanted(leaf)}"
        )
    values = np.ascontiguousarray(cast(value.values, leaf.dtype, leaf.path))
    if not isinstance(value, Blob):
        return Ragged(values, value.offsets)
    if leaf.kind == TEXT and not _is_text(values, value.offsets):
        raw = Blob(values, value.offsets)
        for i in range(len(raw)):
            _check_text(f"{show_path(leaf.path)}, row {i}", raw[i])
    if value.text and leaf.kind != TEXT:
        raise LayoutError(f"{show_path(leaf.path)}: text, expected bytes; encode it")
    return Blob(values, value.offsets, text=leaf.kind == TEXT)


def _equal_rows(leaf: Leaf, array: Array, batch_ndim: int) -> tuple[Ragged, tuple[int, ...]]:
    if array.shape[batch_ndim + 1 :] != leaf.shape or array.ndim <= batch_ndim:
        dims = ["n"] * batch_ndim + ["length"] + [str(n) for n in leaf.shape]
        raise LayoutError(
            f"{show_path(leaf.path)}: shape {list(array.shape)}, expected [{', '.join(dims)}], or "
            "a list of rows"
        )
    batch, length = array.shape[:batch_ndim], array.shape[batch_ndim]
    values = cast(array, leaf.dtype, leaf.path).reshape(-1, *leaf.shape)
    offsets = np.arange(math.prod(batch) + 1, dtype=np.int64) * length
    return Ragged(np.ascontiguousarray(values), offsets), batch
