"""Items: what TorchRL's buffers are made of. An item is a row here.

Data with more batch dims than the storage has (``[B, T]`` into ``ndim=1``) is items of the rest of
its shape, as in TorchRL: B of them, and samples of n are ``[n, T]``.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import is_tensor_collection

from .rows import as_rows

__all__ = ["Items"]


class Items:
    """From TensorDicts to rows, and back.

    Args:
        ndim: batch dims of the storage's data.

    Attributes:
        shape: batch dims of an item; ``()``: it is one step.
    """

    def __init__(self, ndim: int) -> None:
        self._ndim = ndim
        self.shape: tuple[int, ...] = ()

    def rows_of(self, data: Any) -> Any:
        """Data with the storage's batch dims.

        Raises:
            ValueError: items of another shape than before.
        """
        if not is_tensor_collection(data) or data.ndim <= self._ndim:
            return as_rows(data, self._ndim)
        self._note(tuple(data.batch_size)[self._ndim :])
        rows = data.copy()  # its batch size only: tensors are the same
        rows.auto_batch_size_(batch_dims=self._ndim)
        return rows

    def row_of(self, data: Any) -> Any:
        """One item."""
        if not is_tensor_collection(data) or not data.ndim:
            return as_rows(data, 0)
        self._note(tuple(data.batch_size))
        return data.to_dict(convert_tensors=False)

    def _note(self, shape: tuple[int, ...]) -> None:
        if self.shape not in ((), shape):
            raise ValueError(
                f"items of shape {list(shape)}, before they were {list(self.shape)}; extend with "
                "equal shapes, or with data.reshape(-1) for rows of single steps"
            )
        self.shape = shape

    def widened(self, td: Any) -> Any:
        """A sample with an item's batch dims; what samplers added has them, too."""
        if not self.shape:
            return td
        shape = torch.Size((*td.batch_size, *self.shape))
        for key, value in list(td.items(True, True)):
            if tuple(value.shape[: len(shape)]) != shape:
                wide = value.reshape(*value.shape, *(1,) * len(self.shape)).expand(shape)
                td.set(key, wide.contiguous())
        td.batch_size = shape
        return td
