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
    """A tensor over the same memory. Torch has no read-only tensors: do not write to those."""
    import torch

    # One of ml_dtypes, which numpy calls neither built in nor a structure: by its bits.
    foreign = array.dtype.isbuiltin == 2
    plain = array.view(f"i{array.dtype.itemsize}") if foreign else array
    if not plain.flags.writeable:
        plain = np.asarray(_Writable(plain))  # or torch would warn
    tensor = torch.from_numpy(plain)
    return tensor.view(getattr(torch, array.dtype.name)) if foreign else tensor


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
    """Values and offsets of a jagged nested tensor, one row behind another; None of anything
    else."""
    if not getattr(value, "is_nested", False) or not hasattr(value, "offsets"):
        return None
    if str(value.layout) != "torch.jagged" or value.lengths() is not None:
        return None  # of another form, or with gaps between rows
    return as_array(value.values()), as_array(value.offsets())
