"""Batches on their way to a device.

    prefetching thread   draw -> block -> page-locked block -> copy on a side stream -> event
    consumer             its stream waits for the event; the thread does not

Thread-safe.
"""

from __future__ import annotations

from typing import Any

from ..batch import Batch
from ..convert import Arriving, Transfers
from ..forms import block_tensors

__all__ = ["ArrivingBatch"]


class ArrivingBatch(Batch):
    """A batch that is being copied. Its arrays are there at once; `torch` and `to_tensordict` give
    tensors of the device that it was sent to."""

    __slots__ = ("_arriving",)

    def __init__(self, batch: Batch, arriving: Arriving) -> None:
        super().__init__(batch.memory, batch.layout, batch.shape, batch.extras)
        self._arriving = arriving

    @staticmethod
    def sent(batch: Batch, transfers: Transfers, aside: bool = False) -> ArrivingBatch:
        """A batch whose copy has begun.

        Args:
            aside: on another stream than the one that the calling thread computes on.
        """
        return ArrivingBatch(batch, transfers.send(batch.block, aside))

    def _tensors(self, device: Any, pin: bool = False) -> list[Any]:
        return block_tensors(self._ragged, self._arriving.tensor(), self._shape)
