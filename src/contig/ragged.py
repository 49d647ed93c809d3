"""Rows of any length: Ragged (arrays whose first dim varies) and Blob (bytes or text).

A column of such rows is all their values, one row behind another, and where each begins:

    values   [a a a | b | | d d]      [sum of lengths, *inner]
    offsets  [0, 3, 4, 4, 6]          rows + 1, in elements

Without rows, a column is the leaf of an example: ``Ragged(np.int32)``, ``Blob()``. Immutable by
convention; arrays are shared, not copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .convert import as_array, cast, jagged_tensor, numpy_dtype, to_torch

__all__ = ["Blob", "Ragged"]

Array = np.ndarray[Any, Any]


class Ragged:
    """Arrays whose first dim varies from row to row. ``ragged[i]`` is row i's.

    Args:
        values: all rows' values, one behind another, ``[sum, *inner]``; or, for the leaf of an
            example, their dtype.
        offsets: where each row begins, in elements, and where the last one ends, ``[rows + 1]``; or
            the shape of one element, if `values` is a dtype.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Any, offsets: Any = ()) -> None:
        if _is_dtype(values):
            self.values: Array = np.empty((0, *_inner_shape(offsets)), _fixed_dtype(values))
            self.offsets: Array = np.zeros(1, np.int64)
            return
        self.values, self.offsets = as_array(values), as_array(offsets)
        check_offsets(self.offsets, len(self.values) if self.values.ndim else 0)
        self.offsets = np.ascontiguousarray(self.offsets, np.int64)

    @staticmethod
    def of(rows: list[Any]) -> Ragged:
        """A column of arrays, one per row, all of one inner shape and dtype; at least one."""
        arrays = [as_array(row) for row in rows]
        lengths = [len(a) for a in arrays]
        return Ragged(np.concatenate(arrays), np.cumsum([0, *lengths]))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of every row's elements."""
        dtype: np.dtype[Any] = self.values.dtype
        return dtype

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """The shape of one element."""
        return tuple(self.values.shape[1:])

    @property
    def lengths(self) -> Array:
        """Elements of each row, int64."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: Any) -> Any:
        """One row, or a column of those that a slice, numbers or booleans select."""
        if isinstance(row, (int, np.integer)):
            return self._row(*self._bounds(int(row)))
        return self.take(np.arange(len(self))[row])

    def _bounds(self, row: int) -> tuple[int, int]:
        n = len(self)
        if not -n <= row < n:
            raise IndexError(f"row {row} of {n}")
        row %= n
        return int(self.offsets[row]), int(self.offsets[row + 1])

    def _row(self, start: int, stop: int) -> Any:
        return self.values[start:stop]

    def take(self, rows: Array) -> Any:
        """A column of some rows, by number, copied."""
        starts, lengths = self.offsets[:-1][rows], self.lengths[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return self._with(self.values[places], offsets)

    def joined(self, others: list[Any]) -> Any:
        """This column and others like it, one behind another."""
        parts = [x.packed() for x in (self, *others)]
        ends = np.cumsum([0, *(len(x.values) for x in parts[:-1])])
        offsets = [x.offsets[1:] + end for x, end in zip(parts, ends)]
        values = np.concatenate([x.values for x in parts])
        return self._with(values, np.concatenate([np.zeros(1, np.int64), *offsets]))

    def packed(self) -> Any:
        """The same rows, beginning with the first value and ending with the last one."""
        first, last = int(self.offsets[0]), int(self.offsets[-1])
        if first == 0 and last == len(self.values):
            return self
        return self._with(self.values[first:last], self.offsets - first)

    def _with(self, values: Array, offsets: Array) -> Any:
        return Ragged(values, offsets)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def to_padded(self, value: Any = 0, length: int | None = None) -> Array:
        """An array ``[rows, longest, *inner]``, or of another length, filled up with a value.

        Raises:
            ValueError: a row is longer than that, or the rows' dtype has no such value.
        """
        lengths = self.lengths
        longest = int(lengths.max()) if len(lengths) else 0
        to = longest if length is None else length
        if to < longest:
            raise ValueError(f"to_padded: a row has {longest} elements, more than {to}")
        fill = cast(np.asarray(value), self.dtype, ("to_padded", "value"))
        out = np.full((len(self), to, *self.inner_shape), fill, self.dtype)
        whole = self.packed()
        out[np.arange(to) < lengths[:, None]] = whole.values
        return out

    def torch(self, device: Any = None, *, nested: bool = True) -> Any:
        """A jagged nested tensor ``[rows, (varies), *inner]``, over the same memory on the CPU; or
        (values, offsets).
        """
        whole = self.packed()
        values, offsets = to_torch(whole.values), to_torch(whole.offsets)
        if device is not None:
            values, offsets = values.to(device), offsets.to(device)
        return jagged_tensor(values, offsets) if nested else (values, offsets)

    def __eq__(self, other: object) -> bool:
        """Whether all rows are equal, and their dtype and inner shape."""
        if type(other) is not type(self):
            return NotImplemented
        mine, theirs = self.packed(), other.packed()
        return (
            self.dtype == other.dtype
            and self.inner_shape == other.inner_shape
            and np.array_equal(mine.offsets, theirs.offsets)
            and np.array_equal(mine.values, theirs.values)
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return Ragged, (self.values, self.offsets)

    def __repr__(self) -> str:
        inner = "".join(f", {n}" for n in self.inner_shape)
        return f"Ragged({self.dtype.name}[{len(self)}, *{inner}])"


class Blob(Ragged):
    """Bytes, or text, of any length. ``blob[i]`` is row i's bytes, or str if `text`.

    Args:
        values: all rows' bytes, one behind another, uint8; for the leaf of an example nothing.
        offsets: where each row begins, and where the last one ends, ``[rows + 1]``.
        text: whether they are UTF-8, and come out as str.
    """

    __slots__ = ("text",)

    def __init__(self, values: Any = None, offsets: Any = None, *, text: bool = False) -> None:
        self.text = text
        if values is None:
            super().__init__(np.empty(0, np.uint8), np.zeros(1, np.int64))
        else:
            super().__init__(values, offsets)
        if self.values.dtype != np.uint8 or self.values.ndim != 1:
            raise ValueError(
                f"Blob: values of {self.values.dtype} {list(self.values.shape)}, expected uint8 in "
                "one dim: give the bytes"
            )

    @staticmethod
    def of(rows: list[Any], text: bool | None = None) -> Blob:
        """A column of bytes or str, one per row."""
        if text is None:
            text = any(isinstance(row, str) for row in rows)
        pieces = [row.encode() if isinstance(row, str) else bytes(row) for row in rows]
        offsets = np.cumsum([0, *map(len, pieces)])
        return Blob(np.frombuffer(b"".join(pieces), np.uint8), offsets, text=text)

    def _row(self, start: int, stop: int) -> bytes | str:
        raw = self.values[start:stop].tobytes()
        return raw.decode() if self.text else raw

    def _with(self, values: Array, offsets: Array) -> Blob:
        return Blob(values, offsets, text=self.text)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, Blob) and self.text == other.text

    __hash__ = None

    def __reduce__(self) -> Any:
        return _blob, (self.values, self.offsets, self.text)

    def __repr__(self) -> str:
        return f"Blob({len(self)} rows, {'text' if self.text else 'bytes'})"


def _blob(values: Array, offsets: Array, text: bool) -> Blob:
    return Blob(values, offsets, text=text)


def _fixed_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        return numpy_dtype(dtype)
    except TypeError as error:
        raise TypeError(
            f"Ragged: dtype {error}, expected one of numbers or bools; Blob() is for bytes and text"
        ) from None


def _is_dtype(value: Any) -> bool:
    return (
        isinstance(value, (type, np.dtype, str))
        or f"{type(value).__module__}.{type(value).__name__}" == "torch.dtype"
    )


def _inner_shape(shape: Any) -> tuple[int, ...]:
    dims = shape if isinstance(shape, (tuple, list)) else (shape,)
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in dims):
        raise ValueError(f"Ragged: inner shape {shape!r}, expected one as numpy has them: (3,)")
    return tuple(int(n) for n in dims)


def check_offsets(offsets: Array, length: int) -> None:
    """Raises ValueError unless they are offsets of rows of so many values."""
    if offsets.ndim != 1 or len(offsets) < 1 or offsets.dtype.kind not in "iu":
        raise ValueError(
            f"offsets: {offsets.dtype} {list(offsets.shape)}, expected whole numbers, one more "
            "than rows: where each row begins, and where the last one ends"
        )
    if offsets[0] < 0 or offsets[-1] > length or np.any(offsets[1:] < offsets[:-1]):
        raise ValueError(f"offsets: expected ascending numbers from 0 to {length} values at most")
