"""Lanes: where each lane of an environment is, with its rows and its trajectory.

The Roller and the SingleEnvLoop move them; the Batcher takes what they made.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..batch import Batch, stack_batches
from ..keys import DONE, TRAJ_IDS, TRUNCATED
from ..tree import Path
from .column_blocks import Blocks, RowPlan
from .specs import Array
from .stepping import SteppedEnv

__all__ = ["Finished", "Lanes"]

_COUNTER_BITS = 24


class _TrajectoryIds:
    """63-bit numbers that nobody else gives, in any worker, restart or machine.

    A random part, then a counter. Not thread-safe.
    """

    def __init__(self) -> None:
        self._base = self._count = 0
        self._renew()

    def _renew(self) -> None:
        self._base = secrets.randbits(63 - _COUNTER_BITS) << _COUNTER_BITS
        self._count = 0

    def next(self) -> int:
        if self._count >> _COUNTER_BITS:
            self._renew()
        number = self._base | self._count
        self._count += 1
        return number

    def many(self, n: int) -> Array:
        return np.array([self.next() for _ in range(n)], np.int64)


class Finished(NamedTuple):
    """A complete trajectory that waits to be taken: a lane's rows [first, last)."""

    lane: int
    first: int
    last: int


class Lanes:
    """The lanes of an environment. Not thread-safe.

    Args:
        env: theirs.
        keep_trajectories: complete trajectories are taken, not blocks of rows.

    Attributes:
        goal: rows each lane was asked for, ever.
        version: of the policy.
        poll: makes the policy's newest weights current and returns their version, or None.
        enter: told every stage, if anybody watches.
        plan, blocks: what rows are, and the rows; None before the first step.
        obs, init, hidden: what the policy reads next.
        start: the row at which each lane's trajectory began.
        finished: complete trajectories.
    """

    def __init__(self, env: SteppedEnv, keep_trajectories: bool) -> None:
        self.env, self.count = env, env.num_envs
        self.keep = keep_trajectories
        self.goal = np.zeros(self.count, np.int64)
        self.version = 0
        self.poll: Callable[[], int] | None = None
        self.enter: Callable[[int], None] | None = None
        self.plan: RowPlan | None = None
        self.blocks: Blocks | None = None
        self.obs: list[Array] = []
        self.init = np.ones(self.count, bool)
        self.hidden: dict[Path, Array] = {}
        self._ids = _TrajectoryIds()
        self.traj = self._ids.many(self.count)
        self.start = np.zeros(self.count, np.int64)
        self.finished: list[Finished] = []

    @property
    def together(self) -> bool:
        """Whether all of them are at the same row."""
        assert self.blocks is not None
        place = self.blocks.position
        return self.count == 1 or bool((place == place[0]).all())

    def say(self, stage: int) -> None:
        """Says what comes now."""
        if self.enter is not None:
            self.enter(stage)

    def end(self, lane: int, last: int) -> None:
        """A lane's trajectory ended before row `last`; the next one gets a new id."""
        if self.keep:
            self.finished.append(Finished(lane, int(self.start[lane]), last))
        self.traj[lane] = self._ids.next()
        self.start[lane] = last

    def cut(self, lane: int, row: int | None = None) -> None:
        """Ends a lane's trajectory at a row (the newest one if None) as truncated, if it is open.

        Rows of the same trajectory after it, and those to come, get a new id.
        """
        blocks = self.blocks
        if blocks is None:
            return
        newest = int(blocks.position[lane]) - 1
        row = newest if row is None else row
        if row < blocks.first:
            return  # it was taken
        start, batch = blocks.block_at(row)
        at = (lane, row - start)
        if batch[DONE][at]:
            return
        batch[DONE][at] = batch[TRUNCATED][at] = True
        old, new = batch[TRAJ_IDS][at], self._ids.next()
        for later in range(row + 1, newest + 1):
            start, batch = blocks.block_at(later)
            if batch[TRAJ_IDS][lane, later - start] == old:
                batch[TRAJ_IDS][lane, later - start] = new
        if self.traj[lane] == old:
            if self.keep:
                self.finished.append(Finished(lane, int(self.start[lane]), row + 1))
            self.traj[lane] = new
            self.start[lane] = row + 1

    def cut_at_goal(self) -> None:
        """Ends the trajectories that are open at the goal; rows of faster lanes beyond it go.

        They belong to episodes that go no further.
        """
        assert self.blocks is not None
        goal, ahead = self.goal, self.blocks.position > self.goal
        for lane in range(self.count):
            self.cut(lane, int(goal[lane]) - 1)
        self.traj[ahead], self.start[ahead] = self._ids.many(int(ahead.sum())), goal[ahead]
        self.finished = [
            f._replace(last=min(f.last, int(goal[f.lane])))
            for f in self.finished
            if f.first < goal[f.lane]
        ]
        self.blocks.position = goal.copy()

    def take_finished(self, count: int) -> Batch:
        """That many complete trajectories, flat, in the order in which they ended."""
        assert self.blocks is not None
        taken, self.finished = self.finished[:count], self.finished[count:]
        out = stack_batches(
            [
                self.blocks.copied(slice(f.lane, f.lane + 1), f.first, f.last).reshape(-1)
                for f in taken
            ]
        )
        self.blocks.forget(int(min([*self.start, *(f.first for f in self.finished)])))
        return out
