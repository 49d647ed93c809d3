"""Batcher: batches of one environment's rows."""

from __future__ import annotations

import numpy as np

from ..batch import Batch
from ..keys import REWARD
from ..tree import Path
from .collection import CollectionSpec
from .column_blocks import check_nan
from .env import EnvBase
from .roller import Roller

__all__ = ["Batcher"]


class Batcher:
    """Collects batches of one environment: blocks of frames, or complete trajectories.

    Args:
        env: stepped by nobody else.
        rows: per lane and block.
        spec: what to collect.

    Attributes:
        lanes: of the environment.
    """

    def __init__(self, env: EnvBase, rows: int, spec: CollectionSpec) -> None:
        self._roller = Roller(env, rows, spec)
        self.lanes = self._roller.lanes
        self._count = spec.trajs_per_batch
        self._cut, self._reset = spec.set_truncated, spec.reset_at_each_iter
        self._checked: list[Path] = []
        self._given = 0  # rows of trajectories

    def advance(self, frames: int) -> None:
        """Makes that many rows of all lanes together."""
        lanes = self.lanes
        self._roller.advance(*divmod(frames, lanes.count))
        if self._reset:
            self._roller.restart()
        if self._cut:
            for lane in range(lanes.count):
                lanes.cut(lane, None if self._count is not None else int(lanes.goal[lane]) - 1)

    def blocks(self, frames: int) -> list[Batch]:
        """The rows of all lanes, ``[B, T]``, or ``[T]`` of a single environment.

        If the frames are no multiple of B, which they may be at the end only, a last step of the
        first lanes follows.
        """
        lanes, blocks = self.lanes, self.lanes.blocks
        assert blocks is not None
        rows, extra = divmod(frames, lanes.count)
        if not extra:
            batch = self._without_nan(blocks.take(rows))
            return [batch if lanes.env.batch_shape else batch.reshape(rows)]
        first = blocks.first
        out = [blocks.copied(slice(None), first, first + rows)] if rows else []
        out.append(blocks.copied(slice(extra), first + rows, first + rows + 1))
        return [self._without_nan(batch) for batch in out]

    def trajectories(self, fewer: bool = False) -> Batch | None:
        """`trajs_per_batch` complete trajectories, flat; None if there are not as many.

        Args:
            fewer: fewer will do, at the end.
        """
        assert self._count is not None
        # Rows of faster lanes beyond what was asked for are not there yet.
        lanes = self.lanes
        within = sum(f.last <= lanes.goal[f.lane] for f in lanes.finished)
        lanes.finished.sort(key=lambda f: f.last > lanes.goal[f.lane])
        if within < self._count and not (fewer and within):
            return None
        batch = self._without_nan(lanes.take_finished(min(within, self._count)))
        self._given += len(batch)
        return batch

    def _without_nan(self, batch: Batch) -> Batch:
        if not self._checked:
            assert self.lanes.plan is not None
            self._checked = [*self.lanes.plan.next_obs, REWARD, *self.lanes.env.spec.paths]
        for path in self._checked:
            check_nan(path, batch[path])
        return batch

    @property
    def unfinished(self) -> tuple[int, int]:
        """Trajectories begun and not given out, and their rows among those asked for."""
        lanes = self.lanes
        if lanes.blocks is None:
            return 0, 0
        begun = lanes.start < np.minimum(lanes.blocks.position, lanes.goal)
        left = sum(int(f.first < lanes.goal[f.lane]) for f in lanes.finished)
        return int(np.count_nonzero(begun)) + left, int(lanes.goal.sum()) - self._given
