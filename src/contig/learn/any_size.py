"""Columns of rows of different lengths in whatever form rows have them, and some of their rows.

    a Batch, dicts     Ragged, Blob
    torch's dicts      jagged nested tensors, Blob
    a TensorDict       jagged nested tensors, NonTensorStacks of bytes or text

They are flat, whatever the batch dims are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..convert import as_array, jagged_tensor, non_tensors, text_of
from ..ragged import Blob, Ragged
from ..tree import Path, show_path
from .steps import Array, is_tensor

__all__ = ["AnySize", "is_plain"]


def is_plain(value: Any) -> bool:
    """Whether it is an array or a tensor of equal rows."""
    return isinstance(value, np.ndarray) or (
        is_tensor(value) and not getattr(value, "is_nested", False)
    )


@dataclass(frozen=True, eq=False)
class AnySize:
    """One such column.

    Attributes:
        rows: its rows; of a nested tensor, the numbers of their elements.
        tensor: a nested tensor's elements.
        stack: whether it is a TensorDict's.
    """

    rows: Any
    tensor: Any = None
    stack: bool = False

    @staticmethod
    def of(value: Any, path: Path) -> AnySize | None:
        """A leaf as such a column; None if it is none.

        Raises:
            ValueError: an object in a TensorDict that is neither bytes nor text.
        """
        if isinstance(value, Ragged):
            return AnySize(value)
        if getattr(type(value), "_is_non_tensor", False):
            return AnySize(Blob.of(_flat(text_of(value, path), len(value.batch_size))), stack=True)
        if not getattr(value, "is_nested", False):
            return None
        import torch

        parts = value.unbind()
        offsets = np.cumsum([0, *(len(x) for x in parts)])
        tensor = torch.cat(parts) if parts else value.values()
        return AnySize(Ragged(np.arange(offsets[-1]), offsets), tensor)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Array) -> AnySize:
        """Some rows by number, in any dims; -1 is an empty one."""
        none = Ragged(self.rows.values[:0], np.zeros(2, np.int64))
        return replace(self, rows=self.rows.joined([none]).take(rows.reshape(-1)))

    def followed_by(self, other: AnySize) -> AnySize:
        """These rows, and others of the same leaf."""
        if self.tensor is None:
            return replace(self, rows=self.rows.joined([other.rows]))
        import torch

        moved = Ragged(other.rows.values + len(self.tensor), other.rows.offsets)
        return AnySize(self.rows.joined([moved]), torch.cat([self.tensor, other.tensor]))

    def column(self, path: Path, shape: tuple[int, ...], tensordict: bool) -> Any:
        """In the form that it had, for rows of these batch dims.

        Raises:
            ValueError: a TensorDict cannot have it with these.
        """
        assert len(self) == math.prod(shape)
        if self.stack:
            return _stack(list(self.rows), shape)
        if tensordict and len(shape) != 1:
            name = path[0] if len(path) == 1 else path
            raise ValueError(
                f"{show_path(path)}: rows of different lengths are flat in a TensorDict, and these "
                f"become {list(shape)}; leave it out: data.exclude({name!r}), or give a Batch"
            )
        if self.tensor is None:
            return self.rows
        import torch

        places, offsets = (
            torch.from_numpy(as_array(x)) for x in (self.rows.values, self.rows.offsets)
        )
        device = self.tensor.device
        return jagged_tensor(self.tensor.index_select(0, places.to(device)), offsets.to(device))


def _flat(rows: Any, dims: int) -> list[Any]:
    for _ in range(dims - 1):
        rows = [row for part in rows for row in part]
    return list(rows)


def _stack(rows: list[Any], shape: tuple[int, ...]) -> Any:
    if len(shape) < 2 or not rows:
        return non_tensors(rows)
    from tensordict import NonTensorStack

    size = len(rows) // shape[0]
    return NonTensorStack(
        *(_stack(rows[at : at + size], shape[1:]) for at in range(0, len(rows), size))
    )
