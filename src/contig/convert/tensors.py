"""Arrays as torch has them, over the same memory where that is possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .arrays import as_array

__all__ = ["jagged_parts", "jagged_tensor", "to_torch", "to_torch_all"]


class _Writable:
    """A read-only array's memory, as numpy asks for it, said to be writable."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array  # kept
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """A tensor over the same memory, or over a copy if torch cannot read it where it is. Torch has
    no read-only tensors: do not write to those."""
    import torch

    if not _readable(array):
        array = array.copy()

    # One of ml_dtypes, which numpy calls neither built in nor a structure: by its bits.
    foreign = array.dtype.isbuiltin == 2
    plain = array.view(f"i{array.dtype.itemsize}") if foreign else array
    if not plain.flags.writeable:
        plain = np.asarray(_Writable(plain))  # or torch would warn
    tensor = torch.from_numpy(plain)
    return tensor.view(getattr(torch, array.dtype.name)) if foreign else tensor


def _readable(array: np.ndarray[Any, Any]) -> bool:
    """Returns whether torch can read an array where it is.

    It takes each number, complex ones whole, for aligned to its size and ends the process where
    that is not so, and it refuses some strides.
    """
    size = array.dtype.itemsize
    if array.dtype.kind == "c" and array.__array_interface__["data"][0] % size:
        return False
    # Of one row too, whose stride means nothing to numpy: it may be that of a packed record.
    return array.flags.aligned and all(n >= 0 and n % size == 0 for n in array.strides)


def to_torch_all(arrays: Iterable[np.ndarray[Any, Any]]) -> list[Any]:
    """`to_torch` of each; faster than one by one."""
    from torch import from_numpy

    return [
        from_numpy(a) if a.flags.writeable and a.dtype.isbuiltin == 1 else to_torch(a)
        for a in arrays
    ]


def jagged_tensor(values: Any, offsets: Any) -> Any:
    """A nested tensor with the jagged layout over two tensors."""
    import torch

    return torch.nested.nested_tensor_from_jagged(values, offsets)


def jagged_parts(value: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """Values and offsets of a nested tensor, one row behind another; None of anything else, also of
    one whose rows differ in more than their first dim."""
    if not getattr(value, "is_nested", False):
        return None
    # The dim that varies has no number; it may be another than the first of a row.
    jagged = str(value.layout) == "torch.jagged" and not isinstance(value.shape[1], int)
    if jagged and value.lengths() is None:
        return as_array(value.values()), as_array(value.offsets())
    rows = [as_array(row) for row in value.unbind()]  # of another layout, or with gaps between rows
    if not rows or rows[0].ndim == 0 or any(x.shape[1:] != rows[0].shape[1:] for x in rows):
        return None
    return np.concatenate(rows), np.cumsum([0, *map(len, rows)])
