"""SB3's arrays of a buffer (`buffer.rewards`, ...): here they are leaves of a tape's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

__all__ = ["Column"]

Array = np.ndarray[Any, Any]


class Column(NDArrayOperatorsMixin):
    """Looks like an array ``[buffer_size, n_envs, ...]``, zeros where nothing was written. Rows are
    read when they are asked for, and are copies.

    Args:
        read: a function from slots (``step * n_envs + env``, int64 [n]) to values ``[n, ...]``.
        assign: called with (column, key, value) by an assignment; None: it is refused.
        shape, dtype: of the whole.
    """

    def __init__(
        self,
        read: Callable[[Array], Array],
        assign: Callable[[Column, Any, Any], None] | None,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self._read, self._assign = read, assign
        self.shape, self.dtype = shape, dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Of the array that this stands for."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def slots(self) -> Array:
        """Which row each place is, ``[buffer_size, n_envs]``."""
        return np.arange(self.shape[0] * self.shape[1]).reshape(self.shape[:2])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (int, np.integer)):
            if not -len(self) <= key < len(self):
                raise IndexError(f"step {key} of {len(self)}")
            return self._at(np.arange(self.shape[1]) + key % len(self) * self.shape[1])
        keys = key if isinstance(key, tuple) else (key,)
        if any(k is None or k is Ellipsis for k in keys):
            return np.asarray(self)[key]
        rows = self._at(self.slots[keys[:2]])
        kept = rows.ndim - len(self.shape[2:])
        return rows[(*(slice(None),) * kept, *keys[2:])] if keys[2:] else rows

    def _at(self, slots: Any) -> Any:
        at = np.asarray(slots, np.int64)
        rows = self._read(at.reshape(-1)).astype(self.dtype, copy=False)
        out = rows.reshape((*at.shape, *self.shape[2:]))
        return out if out.ndim else out[()]

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._assign is None:
            raise TypeError(
                "rows of a contig buffer are not changed once they are written, so that whoever "
                "samples sees whole rows: change a batch when it is sampled, or add other rows. "
                "np.asarray(...) is a copy that can be written to"
            )
        self._assign(self, key, value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("rows are on a tape: as an array they are always a copy")
        whole = self._at(self.slots)
        return np.asarray(whole if dtype is None else whole.astype(dtype, copy=False))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (np.asarray(x) if isinstance(x, Column) else x for x in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)  # what else arrays can do

    def __repr__(self) -> str:
        return f"Column(shape={self.shape}, dtype={self.dtype})"
