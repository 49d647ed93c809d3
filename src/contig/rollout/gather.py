"""Rows of a tensor by number."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["take_rows"]

Tensor = torch.Tensor

# Dtypes that numpy has none of, as integers of their size.
_AS_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def take_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """A new tensor of some rows; numbers are not checked.

    On the host one thread copies them: torch's threads wait for one another, which takes longer
    than the copying where other processes keep a core busy.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_complex():
        return tensor.index_select(0, rows)
    out = torch.empty((len(rows), *tensor.shape[1:]), dtype=tensor.dtype)
    source, target = tensor.detach(), out
    if tensor.dtype.is_floating_point:
        integer = _AS_INTEGER[tensor.element_size()]
        source, target = source.view(integer), out.view(integer)
    np.take(source.numpy(), rows.numpy(), 0, target.numpy(), "clip")
    return out
