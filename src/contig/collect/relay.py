"""Relay: batches that workers send back, where only the collector can do something with them."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from .. import _native
from ..batch import Batch, stack_batches
from ..layout import Layout
from .column_blocks import join_batches

__all__ = ["Relay", "batch_parts"]


def batch_parts(batch: Batch) -> tuple[dict[str, Any], Any]:
    """A batch as a message's content and bytes."""
    extras = [list(path) for path in batch.extras]
    about = {"layout": batch.layout.to_json(), "shape": list(batch.shape), "extras": extras}
    return about, batch.sealed_block


def _batch_of(content: dict[str, Any], raw: bytearray) -> Batch:
    block = _native.Block(len(raw))
    memoryview(block)[:] = raw
    extras = frozenset(tuple(path) for path in content["extras"])
    return Batch(block, Layout.from_json(content["layout"]), tuple(content["shape"]), extras)


class Relay:
    """Batches that came back and were not given out yet: of stretches, or whole trajectories.

    Args:
        trajs_per_batch: as the collector has it.
        join: how batches of several workers become one, see `join_batches`; None: they do not.
    """

    def __init__(self, trajs_per_batch: int | None, join: str | int | None) -> None:
        self._trajs, self._join = trajs_per_batch, join
        self._batches: dict[int, list[Batch]] = {}  # by worker
        self._whole: deque[Batch] = deque()  # complete trajectories

    def receive(self, worker: int, content: dict[str, Any], raw: bytearray) -> int:
        """Takes in what a worker sent; its rows."""
        batch = _batch_of(content, raw)
        self._batches.setdefault(worker, []).append(batch)
        return int(np.prod(batch.shape, dtype=np.int64))

    def drop_stretch(self, worker: int) -> None:
        """A worker's stretch is collected again; complete trajectories stay."""
        if self._trajs is None:
            self._batches.pop(worker, None)

    @property
    def has_trajectories(self) -> bool:
        """Whether there are as many complete ones as a batch has."""
        return self._trajs is not None and len(self._whole) >= self._trajs

    def take(self, workers: list[int]) -> list[Batch]:
        """What the stretches of some workers make: one batch to give out, several, or none yet."""
        batches = [b for worker in workers for b in self._batches.pop(worker, [])]
        if self._trajs is not None:
            self._whole.extend(batches)
            if not self.has_trajectories:
                return []
            return [stack_batches([self._whole.popleft() for _ in range(self._trajs)])]
        if self._join is None or not batches:
            return batches
        return [join_batches(batches, self._join)]

    def take_rest(self) -> list[Batch]:
        """Complete trajectories that are fewer than a batch has."""
        rest = list(self._whole)
        self._whole.clear()
        return rest
