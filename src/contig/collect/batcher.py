"""Batcher: batches of one environment's rows."""

from __future__ import annotations

import numpy as np

from ..batch import Batch
from ..keys import REWARD
from ..tree import Path
from .column_blocks import check_nan
from .roller import Roller

__all__ = ["Batcher"]


class Batcher:
    """Collects batches of one environment: blocks of frames, or complete trajectories.

    Args:
        roller: makes the rows.
        trajs_per_batch: trajectories per batch; None: blocks.
        set_truncated: cut trajectories at the end of each stretch.
        reset_at_each_iter: and reset.
    """

    def __init__(
        self,
        roller: Roller,
        trajs_per_batch: int | None,
        set_truncated: bool,
        reset_at_each_iter: bool,
    ) -> None:
        self.roller = roller
        self._count = trajs_per_batch
        self._cut, self._reset = set_truncated, reset_at_each_iter
        self._checked: list[Path] = []
        self._given = 0  # rows of trajectories

    def advance(self, frames: int) -> None:
        """Makes that many rows of all lanes together."""
        roller = self.roller
        roller.advance(*divmod(frames, roller.lanes))
        if self._reset:
            roller.restart()
        if self._cut:
            for lane in range(roller.lanes):
                roller.cut(lane, None if self._count is not None else int(roller.goal[lane]) - 1)

    def blocks(self, frames: int) -> list[Batch]:
        """The rows of all lanes, ``[B, T]``, or ``[T]`` of a single environment.

        If the frames are no multiple of B, which they may be at the end only, a last step of the
        first lanes follows.
        """
        roller = self.roller
        rows, extra = divmod(frames, roller.lanes)
        if not extra:
            batch = self.check(roller.take_block(rows))
            return [batch if roller.env.batch_shape else batch.reshape(rows)]
        assert roller.blocks is not None
        first = roller.blocks.first
        out = [roller.look(roller.lanes, first, first + rows)] if rows else []
        out.append(roller.look(extra, first + rows, first + rows + 1))
        return [self.check(batch) for batch in out]

    def trajectories(self, fewer: bool = False) -> Batch | None:
        """`trajs_per_batch` complete trajectories, flat; None if there are not as many.

        Args:
            fewer: fewer will do, at the end.
        """
        assert self._count is not None
        # Rows of faster lanes beyond what was asked for are not there yet.
        roller = self.roller
        within = sum(f.last <= roller.goal[f.lane] for f in roller.finished)
        roller.finished.sort(key=lambda f: f.last > roller.goal[f.lane])
        if within < self._count and not (fewer and within):
            return None
        batch = self.check(roller.take_finished(min(within, self._count)))
        self._given += len(batch)
        return batch

    def check(self, batch: Batch) -> Batch:
        if not self._checked:
            assert self.roller.plan is not None
            self._checked = [*self.roller.plan.next_obs, REWARD, *self.roller.env.spec.paths]
        for path in self._checked:
            check_nan(path, batch[path])
        return batch

    @property
    def unfinished(self) -> tuple[int, int]:
        """Trajectories begun and not given out, and their rows among those asked for."""
        roller = self.roller
        if roller.blocks is None:
            return 0, 0
        begun = roller.start < np.minimum(roller.blocks.position, roller.goal)
        left = sum(int(f.first < roller.goal[f.lane]) for f in roller.finished)
        return int(np.count_nonzero(begun)) + left, int(roller.goal.sum()) - self._given
