"""BATCH: rows on their way to a client, as one raw block with its description."""

from __future__ import annotations

from typing import Any

from .. import wire
from ..batch import Batch
from ..wire import Type

__all__ = ["batch_frame"]


def batch_frame(batch: Batch, number: int, most: int) -> list[Any]:
    """The frame that answers request `number`, as parts. Raises ValueError: it has more than `most`
    bytes."""
    nbytes = int(batch.block.nbytes)
    if nbytes > most:
        raise ValueError(
            f"a sample of {len(batch)} rows has {nbytes} bytes, more than a frame may have: "
            f"max_frame is {most}"
        )
    head = {
        "layout": batch.layout.to_json(),
        "shape": list(batch.shape),
        "extras": [list(p) for p in batch.extras],
    }
    return wire.described(head, batch.sealed_block, Type.BATCH, number)
