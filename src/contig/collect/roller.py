"""The Roller: steps an environment with a policy and keeps the rows.

    inputs (observation, is_init, hidden) -> policy -> action -> env.step -> one row of every lane

A single environment with a stateless policy takes a shorter way, written for speed; both give the
same rows. Not thread-safe.
"""

from __future__ import annotations

import numpy as np

from ..batch import Batch
from ..errors import LayoutError
from ..keys import DONE, INIT, REWARD, TERMINATED, TRAJ_IDS, TRUNCATED, VERSION
from ..process.heartbeat import Stage
from ..tree import Path, show_path
from .actor import Actor
from .collection import CollectionSpec
from .column_blocks import Blocks, RowPlan, check_nan
from .lanes import Lanes
from .policy import PolicyRunner
from .primers import register_primers
from .single_env_loop import SingleEnvLoop
from .specs import Array
from .stepping import Step, SteppedEnv, wide

__all__ = ["Roller", "first_rows", "rollout"]


class Roller:
    """Rows of an environment, as they are made.

    Args:
        env: stepped by nobody else.
        rows: per lane and block.
        spec: how to act, and how long trajectories may be.

    Attributes:
        lanes: where they are, with what they made.
    """

    def __init__(self, env: SteppedEnv, rows: int, spec: CollectionSpec) -> None:
        if spec.register_primers and spec.policy is not None:
            register_primers(env, spec.policy)
        self.lanes = Lanes(env, keep_trajectories=spec.trajs_per_batch is not None)
        self._policy = PolicyRunner(
            spec.policy, env.action_space, spec.device, spec.seed, spec.exploration_type
        )
        self._actor: Actor | None = None  # once the environment was reset
        self._env, self._rows, self._spec = env, rows, spec
        self._most = spec.max_frames_per_traj
        self._fields = spec.fields
        if spec.fields is not None:
            env.keep_infos()

    # -- life ---------------------------------------------------------------------------------

    def _begin(self) -> Actor:
        """Resets the environment, the first time."""
        if self._actor is None:
            self._reset(self._spec.seed)
            spec = self._spec
            self._actor = Actor(self._policy, self._env, spec.init_random_frames, spec.seed)
        return self._actor

    def _reset(self, seed: int | None) -> None:
        lanes = self.lanes
        lanes.say(Stage.RESETTING)
        lanes.obs = self._env.begin(seed)
        lanes.say(Stage.IDLE)
        lanes.hidden = self._env.hidden()

    def restart(self) -> None:
        """A new episode in every lane; open trajectories are cut at the goal first."""
        lanes = self.lanes
        if lanes.blocks is None:
            return
        lanes.cut_at_goal()
        if lanes.init.all():
            return  # all of them just did
        self._reset(None)
        lanes.init[:] = True

    # -- stepping -----------------------------------------------------------------------------

    def advance(self, rows: int, extra: int = 0) -> None:
        """Steps until every lane has made that many rows more, and the first `extra` one more."""
        actor, lanes = self._begin(), self.lanes
        lanes.goal = lanes.goal + rows
        lanes.goal[:extra] += 1
        if lanes.blocks is None and (rows or extra):
            self.step()
        blocks = lanes.blocks
        if blocks is None:
            return
        blocks.block_rows = self._rows if lanes.keep else max(rows, 1)
        alone = self._env.single() is not None and not lanes.hidden
        loop = None
        if not lanes.hidden and self._most is None and self._fields is None:
            loop = self._env.loop(self._spec.policy)
        while (blocks.position < lanes.goal).any():
            if alone and actor.random_left <= 0:
                SingleEnvLoop(lanes, actor, self._most, self._fields).run()
            elif loop is not None and actor.random_left <= 0 and lanes.together:
                loop(lanes, actor).run()
            else:
                self.step()

    def step(self) -> Step:
        """One step of every lane."""
        actor, lanes = self._begin(), self.lanes
        if lanes.poll is not None:
            lanes.version = lanes.poll()
        inputs = dict(zip(self._env.spec.paths, lanes.obs))
        inputs[INIT] = lanes.init
        inputs.update(lanes.hidden)
        lanes.say(Stage.FIRST_ACT if lanes.plan is None else Stage.ACTING)
        outputs = actor.completed(self._policy(inputs), lanes.hidden)
        lanes.say(Stage.FIRST_STEP if lanes.plan is None else Stage.STEPPING)
        step = self._env.advance(actor.action_tree(outputs))
        lanes.say(Stage.IDLE)
        done = step.terminated | step.truncated
        if step.stepped is not None:
            done = done & step.stepped
        truncated, obs = step.truncated, step.obs
        if self._most is not None:
            truncated, obs, done = self._cut_long(step, done, self._most)
        if lanes.plan is None or lanes.blocks is None:
            fields = {} if self._fields is None else self._fields.leaves
            plan = RowPlan(inputs, outputs, self._env.spec.paths, step.reward, fields)
            lanes.plan, extras = plan, plan.fields
            lanes.blocks = Blocks(plan.layout, lanes.count, self._rows, extras)
        values = _row_values(lanes.plan, inputs, outputs, step)
        values[TRUNCATED], values[DONE] = truncated, done
        if self._fields is not None:
            values.update(self._field_values(step))
        values[TRAJ_IDS] = lanes.traj
        values[VERSION] = np.full(lanes.count, lanes.version, np.int64)
        self._count_random(actor, lanes.blocks, step.stepped)
        lanes.blocks.put(values, step.stepped)
        self._move_on(obs, outputs, done, step.stepped)
        return step

    def _field_values(self, step: Step) -> dict[Path, Array]:
        """What infos say of episodes that the environment ended, ``[B, ...]`` by path; zeros of the
        others, those that the collector cuts among them."""
        assert self._fields is not None
        ended = step.terminated | step.truncated
        if step.stepped is not None:
            ended = ended & step.stepped
        leaves = self._fields.leaves
        out = {p: np.zeros((len(ended), *x.shape), x.dtype) for p, x in leaves.items()}
        for lane in np.flatnonzero(ended):
            info = None if step.infos is None else step.infos[int(lane)]
            for path, value in self._fields.of({} if info is None else info).items():
                out[path][lane] = value
        return out

    def _count_random(self, actor: Actor, blocks: Blocks, stepped: Array | None) -> None:
        """Counts the rows of this step whose action was drawn, before they are put."""
        if not actor.drawn:
            return
        rows = np.ones(self.lanes.count, bool) if stepped is None else stepped
        if (
            self._spec.reset_at_each_iter
        ):  # rows beyond the goal will be dropped: they are no frames
            rows = rows & (blocks.position < self.lanes.goal)
        actor.random_left -= int(np.count_nonzero(rows[: actor.drawn]))

    def _cut_long(self, step: Step, done: Array, most: int) -> tuple[Array, list[Array], Array]:
        lanes = self.lanes
        place = np.zeros(lanes.count, np.int64) if lanes.blocks is None else lanes.blocks.position
        long = (place - lanes.start + 1 >= most) & ~done
        if step.stepped is not None:
            long &= step.stepped
        if not long.any():
            return step.truncated, step.obs, done
        lanes.say(Stage.RESETTING)
        fresh = self._env.begin_lanes(long)
        lanes.say(Stage.IDLE)
        obs = [np.where(wide(long, old), new, old) for old, new in zip(step.obs, fresh)]
        return step.truncated | long, obs, done | long

    def _move_on(
        self, obs: list[Array], outputs: dict[Path, Array], done: Array, stepped: Array | None
    ) -> None:
        lanes = self.lanes
        assert lanes.blocks is not None
        lanes.obs = obs
        went_on = ~done if stepped is None else stepped & ~done
        for path, before in lanes.hidden.items():
            after = outputs.get(("next", *path))
            if after is not None:
                value = self._env.primers[path]
                default = np.broadcast_to(value, (lanes.count, *value.shape))
                kept = np.where(wide(went_on, after), after, default)
                lanes.hidden[path] = kept.astype(before.dtype)
        lanes.init = done.copy() if stepped is None else done | (lanes.init & ~stepped)
        if done.any():
            place = lanes.blocks.position
            for lane in np.flatnonzero(done):
                lanes.end(int(lane), int(place[lane]))


def _row_values(
    plan: RowPlan, inputs: dict[Path, Array], outputs: dict[Path, Array], step: Step
) -> dict[Path, Array]:
    """What a step gave, by the paths of a row, checked."""
    values = {**inputs}
    for path in plan.outputs:
        if path not in outputs:
            raise LayoutError(f"{show_path(path)}: the policy left it out this time")
        values[path] = plan.check_output(path, outputs[path])
    surplus = [p for p in outputs if p not in values]
    if surplus:
        raise LayoutError(f"{show_path(surplus[0])}: the policy did not return it at first")
    values.update(zip(plan.next_obs, step.next))
    values[REWARD] = plan.check_reward(step.reward)
    for path in (*plan.next_obs, REWARD):
        check_nan(path, values[path])
    values[TERMINATED] = step.terminated
    return values


def first_rows(env: SteppedEnv, spec: CollectionSpec) -> Batch:
    """What rows will be, before any are collected: by one reset, policy call and step."""
    probe = CollectionSpec(
        policy=spec.policy,
        frames_per_batch=1,
        register_primers=spec.register_primers,
        seed=spec.seed,
        exploration_type=spec.exploration_type,
    )
    roller = Roller(env, 1, probe)
    roller.step()
    assert roller.lanes.blocks is not None
    return roller.lanes.blocks.take(1)


def rollout(env: SteppedEnv, max_steps: int, policy: object, seed: int | None) -> Batch:
    """Rows from a reset until some lane is done, at most `max_steps` of each lane.

    For a look at an environment or a test of a policy.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    spec = CollectionSpec(policy=policy, frames_per_batch=max_steps * env.num_envs, seed=seed)
    roller = Roller(env, max_steps, spec)
    rows, ended = 0, False
    while rows < max_steps and not ended:
        step = roller.step()
        rows += 1
        ended = bool(step.terminated.any() or step.truncated.any())
    assert roller.lanes.blocks is not None
    batch = roller.lanes.blocks.take(rows)
    return batch if env.batch_shape else batch.reshape(rows)
