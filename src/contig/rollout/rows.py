"""Rows of a rollout's tensors: those that are filled, in order of time, and some by number.

On the host one thread copies them: torch's threads wait for one another, which takes longer than
the copying where other processes keep a core busy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = ["FilledRows", "clear_rows", "take_rows"]

Tensor = torch.Tensor

# Floats as integers of their size: numpy lacks some of them.
_AS_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class FilledRows(NamedTuple):
    """Which rows are filled: `rows` of them, in time order from row `first` on, in a circle."""

    first: int
    rows: int

    def ordered(self, tensor: Tensor) -> Tensor:
        """The filled rows in time order; a view unless they go around."""
        if self.first == 0:
            return tensor[: self.rows]
        return torch.cat((tensor[self.first : self.rows], tensor[: self.first]))

    def scatter(self, target: Tensor, rows: Tensor) -> None:
        """Writes rows in time order to where they belong."""
        behind = self.rows - self.first
        target[self.first : self.rows] = rows[:behind]
        target[: self.first] = rows[behind:]


def take_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """A new tensor of some rows; numbers are not checked."""
    source = _on_host(tensor)
    if source is None:
        return tensor.index_select(0, rows)
    out = torch.empty((len(rows), *tensor.shape[1:]), dtype=tensor.dtype)
    np.take(source, rows.numpy(), 0, _on_host(out), "clip")
    return out


def clear_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Sets some rows to zero, in place."""
    target = _on_host(tensor)
    if target is None:
        return tensor.index_fill_(0, rows, 0)
    target[rows.numpy()] = 0
    return tensor


def _on_host(tensor: Tensor) -> Any:
    """The tensor's memory as an array, if it is one piece of the host's; else None."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_complex():
        return None
    plain = tensor.detach()
    if tensor.is_floating_point():
        plain = plain.view(_AS_INTEGER[tensor.element_size()])
    return plain.numpy()
