"""The Roller: steps an environment with a policy and keeps the rows.

    inputs (observation, is_init, hidden) -> policy -> action -> env.step -> one row of every lane

A single environment with a stateless policy takes a shorter road, written for speed; both give the
same rows. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..batch import Batch, stack_batches
from ..errors import LayoutError
from ..keys import DONE, INIT, REWARD, TERMINATED, TRAJ_IDS, TRUNCATED, VERSION
from ..process.heartbeat import Stage
from ..tree import Path, show_path
from .column_blocks import (
    Blocks,
    RowPlan,
    check_nan,
)
from .env import EnvBase, Step
from .ids import TrajectoryIds
from .places import check_apart
from .policy import PolicyRunner
from .random_policy import RandomPolicy
from .single_env_loop import advance_single
from .specs import Array, Spec, as_space, nest, spec_of_space

__all__ = ["Finished", "Roller"]


_OTHER = 1_000_003  # random frames draw other numbers than a random policy


class Finished(NamedTuple):
    """A complete trajectory that waits to be taken: a lane's rows [first, last)."""

    lane: int
    first: int
    last: int


class Roller:
    """Rows of an environment, as they are made.

    Args:
        env: stepped by nobody else.
        policy: how to act.
        rows: per lane and block.
        random_frames: frames whose action is random, at first.
        max_frames_per_traj: cuts longer trajectories, with a reset.
        seed: of lane 0; lane i has ``seed + i``.
        keep_trajectories: collect complete trajectories instead of blocks.
        drop_ahead: rows beyond the goal will be dropped by `restart`: they are no frames.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: PolicyRunner,
        rows: int,
        *,
        random_frames: int = 0,
        max_frames_per_traj: int | None = None,
        seed: int | None = None,
        keep_trajectories: bool = False,
        drop_ahead: bool = False,
    ) -> None:
        self.env, self.policy = env, policy
        self.lanes = env.num_envs
        self.rows = rows
        self.random_left = random_frames  # frames that still get a random action
        self.most = max_frames_per_traj
        self.keep = keep_trajectories
        self._drop_ahead = drop_ahead
        self.seed = seed
        self.goal = np.zeros(self.lanes, np.int64)  # rows each lane was asked for, ever
        self.version = 0
        self.poll: Callable[[], int] | None = None  # the policy's version, made current
        self.enter: Callable[[int], None] | None = None  # told every stage, if anybody watches
        self.ids = TrajectoryIds()
        self.finished: list[Finished] = []
        self.plan: RowPlan | None = None
        self.blocks: Blocks | None = None
        self.obs: list[Array] = []
        self.init = np.ones(self.lanes, bool)
        self.traj = self.ids.many(self.lanes)
        self.start = np.zeros(self.lanes, np.int64)  # row at which each lane's trajectory began
        self.hidden: dict[Path, Array] = {}
        self._random: RandomPolicy | None = None
        self._randomly = 0  # lanes whose action was drawn in this step, the first ones
        self._actions: Spec | None = None
        self._begun = False

    # -- life ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Resets the environment, the first time."""
        if self._begun:
            return
        self._begun = True
        self._say(Stage.RESETTING)
        self.obs = self.env.begin(self.seed)
        self._say(Stage.IDLE)
        self.hidden = self.env.hidden()
        try:
            space = self.env.action_space
            self._actions = None if space is None else spec_of_space(space, "action")
        except LayoutError:
            self._actions = None  # a space without a shape: what the policy returns decides
        if self.random_left:
            seed = None if self.seed is None else self.seed + _OTHER
            self._random = RandomPolicy(self.env.action_space, seed)

    def _say(self, stage: int) -> None:
        if self.enter is not None:
            self.enter(stage)

    def _default(self, path: Path) -> Array:
        value = self.env.primers[path]
        return np.broadcast_to(value, (self.lanes, *value.shape)).copy()

    def restart(self) -> None:
        """A new episode in every lane; open trajectories are cut at the goal first.

        Rows of faster lanes beyond it are dropped: they belong to episodes that go no further.
        """
        if not self._begun or self.blocks is None:
            return
        goal, ahead = self.goal, self.blocks.position > self.goal
        for lane in range(self.lanes):
            self.cut(lane, int(goal[lane]) - 1)
        self.traj[ahead], self.start[ahead] = self.ids.many(int(ahead.sum())), goal[ahead]
        self.finished = [
            f._replace(last=min(f.last, int(goal[f.lane])))
            for f in self.finished
            if f.first < goal[f.lane]
        ]
        self.blocks.position = goal.copy()
        if self.init.all():
            return  # all of them just did
        self._say(Stage.RESETTING)
        self.obs = self.env.begin()
        self._say(Stage.IDLE)
        self.init[:] = True
        self.hidden = self.env.hidden()

    # -- cuts ---------------------------------------------------------------------------------

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
        old, new = batch[TRAJ_IDS][at], self.ids.next()
        for later in range(row + 1, newest + 1):
            start, batch = blocks.block_at(later)
            if batch[TRAJ_IDS][lane, later - start] == old:
                batch[TRAJ_IDS][lane, later - start] = new
        if self.traj[lane] == old:
            if self.keep:
                self.finished.append(Finished(lane, int(self.start[lane]), row + 1))
            self.traj[lane] = new
            self.start[lane] = row + 1

    # -- stepping -----------------------------------------------------------------------------

    def advance(self, rows: int, extra: int = 0) -> None:
        """Steps until every lane has made that many rows more, and the first `extra` one more."""
        self.begin()
        self.goal = self.goal + rows
        self.goal[:extra] += 1
        if self.blocks is None:
            if rows or extra:
                self.step()
        blocks = self.blocks
        if blocks is None:
            return
        blocks.resize(max(rows, 1) if not self.keep else self.rows)
        fast = self.env.single() is not None and not self.hidden
        while (blocks.position < self.goal).any():
            if fast and self.random_left <= 0:
                advance_single(self)
            else:
                self.step()

    def step(self) -> Step:
        """One step of every lane."""
        if self.poll is not None:
            self.version = self.poll()
        inputs = dict(zip(self.env.spec.paths, self.obs))
        inputs[INIT] = self.init
        inputs.update(self.hidden)
        self._say(Stage.FIRST_ACT if self.plan is None else Stage.ACTING)
        outputs = self.act(inputs)
        self._say(Stage.FIRST_STEP if self.plan is None else Stage.STEPPING)
        step = self.env.advance(self.action_tree(outputs))
        self._say(Stage.IDLE)
        stepped = step.stepped
        done = step.terminated | step.truncated
        if stepped is not None:
            done = done & stepped
        truncated, obs = step.truncated, step.obs
        if self.most is not None:
            truncated, obs, done = self._cut_long(step, done)
        if self.plan is None:
            self._fix(inputs, outputs, step)
        assert self.plan is not None and self.blocks is not None
        values = {**inputs}
        for path in self.plan.outputs:
            if path not in outputs:
                raise LayoutError(f"{show_path(path)}: the policy left it out this time")
            values[path] = self.plan.check_output(path, outputs[path])
        surplus = [p for p in outputs if p not in values]
        if surplus:
            raise LayoutError(f"{show_path(surplus[0])}: the policy did not return it at first")
        values.update(zip(self.plan.next_obs, step.next))
        values[REWARD] = self.plan.check_reward(step.reward)
        for path in (*self.plan.next_obs, REWARD):
            check_nan(path, values[path])
        values[TERMINATED], values[TRUNCATED], values[DONE] = step.terminated, truncated, done
        values[TRAJ_IDS] = self.traj
        values[VERSION] = np.full(self.lanes, self.version, np.int64)
        self._count_random(stepped)
        self.blocks.put(values, stepped)
        self._move_on(obs, outputs, done, stepped)
        return step

    def act(self, inputs: dict[Path, Array]) -> dict[Path, Array]:
        """What the policy returns, with a random action while those are asked for."""
        return self.completed(self.policy(inputs))

    def completed(self, outputs: dict[Path, Array]) -> dict[Path, Array]:
        """The policy's outputs, checked, with an action in the dtypes of its space."""
        for path in outputs:
            if path[0] == "next" and path[1:] not in self.hidden:
                raise LayoutError(
                    f"{show_path(path)}: the policy returns a hidden state, but no primer says "
                    f"what {show_path(path[1:])} is at a reset: use "
                    "auto_register_policy_transforms=True, GymEnv(..., policy=policy) or a "
                    "TensorDictPrimer"
                )
        if self.plan is None:
            check_apart({"what the policy returns": outputs})
        self._randomly = min(max(self.random_left, 0), self.lanes)
        if self._randomly:
            outputs = self._with_random(outputs)
        if self._actions is not None:
            tree = nest({p: v for p, v in outputs.items() if p[0] == "action"})["action"]
            checked = self._actions.checked(tree, (self.lanes,))
            outputs.update(zip(self._actions.paths, checked))
        return outputs

    def _with_random(self, outputs: dict[Path, Array]) -> dict[Path, Array]:
        """The policy's outputs, with an action drawn for the first lanes."""
        assert self._random is not None
        drawn = self._random.batch(self.lanes)
        flat = [drawn] if self._actions is None else self._actions.flat(drawn)
        paths: list[Path] = [("action",)] if self._actions is None else self._actions.paths
        actions = dict(zip(paths, flat))
        if self._randomly < self.lanes:
            which = np.arange(self.lanes) < self._randomly
            actions = {p: np.where(wide(which, v), v, outputs[p]) for p, v in actions.items()}
        return {**{p: v for p, v in outputs.items() if p[0] != "action"}, **actions}

    def _count_random(self, stepped: Array | None) -> None:
        """Counts the rows of this step whose action was drawn, before they are put."""
        if not self._randomly:
            return
        assert self.blocks is not None
        rows = np.ones(self.lanes, bool) if stepped is None else stepped
        if self._drop_ahead:
            rows = rows & (self.blocks.position < self.goal)
        self.random_left -= int(np.count_nonzero(rows[: self._randomly]))

    def action_tree(self, outputs: dict[Path, Array]) -> Any:
        if ("action",) in outputs:
            return outputs["action",]
        tree = nest({p: v for p, v in outputs.items() if p[0] == "action"})["action"]
        return as_space(self.env.action_space, tree)

    def _fix(self, inputs: dict[Path, Array], outputs: dict[Path, Array], step: Step) -> None:
        self.plan = RowPlan(inputs, outputs, self.env.spec.paths, step.reward)
        self.blocks = Blocks(self.plan.layout, self.lanes, self.rows)

    def _cut_long(self, step: Step, done: Array) -> tuple[Array, list[Array], Array]:
        assert self.most is not None
        place = np.zeros(self.lanes, np.int64) if self.blocks is None else self.blocks.position
        long = (place - self.start + 1 >= self.most) & ~done
        if step.stepped is not None:
            long &= step.stepped
        if not long.any():
            return step.truncated, step.obs, done
        self._say(Stage.RESETTING)
        fresh = self.env.begin_lanes(long)
        self._say(Stage.IDLE)
        obs = [np.where(wide(long, old), new, old) for old, new in zip(step.obs, fresh)]
        return step.truncated | long, obs, done | long

    def _move_on(
        self, obs: list[Array], outputs: dict[Path, Array], done: Array, stepped: Array | None
    ) -> None:
        assert self.blocks is not None
        self.obs = obs
        went_on = ~done if stepped is None else stepped & ~done
        for path, before in self.hidden.items():
            after = outputs.get(("next", *path))
            if after is not None:
                default = self._default(path)
                self.hidden[path] = np.where(wide(went_on, after), after, default).astype(
                    before.dtype
                )
        if stepped is None:
            self.init = done.copy()
        else:
            self.init = done | (self.init & ~stepped)
        if done.any():
            place = self.blocks.position
            for lane in np.flatnonzero(done):
                self.end(int(lane), int(place[lane]))

    def end(self, lane: int, last: int) -> None:
        """A lane's trajectory ended before row `last`; the next one gets a new id."""
        if self.keep:
            self.finished.append(Finished(lane, int(self.start[lane]), last))
        self.traj[lane] = self.ids.next()
        self.start[lane] = last

    # -- what was made ------------------------------------------------------------------------

    def take_block(self, rows: int) -> Batch:
        """The oldest rows of all lanes, ``[B, rows]``."""
        assert self.blocks is not None
        return self.blocks.take(rows)

    def look(self, lanes: int, first: int, last: int) -> Batch:
        """Rows [first, last) of the first lanes, which stay."""
        assert self.blocks is not None
        return self.blocks.window(lanes, first, last)

    def take_finished(self, count: int) -> Batch:
        """That many complete trajectories, flat, in the order in which they ended."""
        assert self.blocks is not None
        taken, self.finished = self.finished[:count], self.finished[count:]
        out = stack_batches([x for f in taken for x in self.blocks.rows(*f)])
        self.blocks.forget(int(min([*self.start, *(f.first for f in self.finished)])))
        return out


def wide(mask: Array, like: Array) -> Array:
    """A mask of lanes with as many dims as an array."""
    return mask.reshape(mask.shape + (1,) * (like.ndim - 1))
