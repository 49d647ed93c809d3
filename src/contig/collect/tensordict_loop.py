"""TensorDictLoop: a policy and an environment of TorchRL's; the short way of the Roller.

The policy gets the TensorDict that the environment returned, and the environment gets it back with
the action in it, as in TorchRL's own collectors: nothing is taken apart in between but what rows
are made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..convert import as_array
from ..keys import DONE, INIT, REWARD, TERMINATED, TRAJ_IDS, TRUNCATED, VERSION
from ..process.heartbeat import Stage
from ..tree import Path
from .actor import Actor
from .column_blocks import check_nan
from .lanes import Lanes
from .specs import Array
from .stepping import Leaves

__all__ = ["TensorDictLoop"]


class TensorDictLoop:
    """Steps all lanes to the end of their block or to the goal, whichever comes first, by `run`.

    Args:
        lanes: of a TorchRLEnv, which have made a step already, by the Roller, and are together.
        actor: without random frames; its policy has `act` and `reads_init`.
    """

    def __init__(self, lanes: Lanes, actor: Actor) -> None:
        blocks, plan = lanes.blocks, lanes.plan
        assert blocks is not None and plan is not None
        self._lanes, self._blocks, self._plan = lanes, blocks, plan
        self._policy: Any = actor.policy.policy
        self._acting = actor.policy.acting
        self._env: Any = lanes.env
        place = int(blocks.position[0])
        self._first, batch = blocks.block_at(place)
        self._from = place - self._first
        self._stop = min(batch.shape[1], int(lanes.goal.max()) - self._first)
        self._columns = columns = {p: batch[p] for p in plan.layout.by_path}
        self._before = [columns[p] for p in lanes.env.spec.paths]
        self._after = [columns[p] for p in plan.next_obs]
        self._outputs: list[tuple[Path, Any, Array]] = [
            (p, p if len(p) > 1 else p[0], columns[p]) for p in plan.outputs
        ]

    def run(self) -> None:
        with self._acting:
            self._run()

    def _run(self) -> None:
        lanes, env, columns, plan = self._lanes, self._env, self._columns, self._plan
        enter, poll, act = lanes.enter, lanes.poll, self._policy.act
        reads_init = self._policy.reads_init
        t, obs, init = self._from, lanes.obs, lanes.init
        try:
            while t < self._stop:
                if poll is not None:
                    lanes.version = poll()
                for column, leaf in zip(self._before, obs):
                    column[:, t] = leaf
                columns[INIT][:, t] = init
                if enter is not None:
                    enter(Stage.ACTING)
                td = act(env.carried(init if reads_init else None))
                self._put_outputs(td, t)
                if enter is not None:
                    enter(Stage.STEPPING)
                step = env.stepped(td)
                for column, leaf in zip(self._after, step.next):
                    column[:, t] = leaf
                columns[REWARD][:, t] = plan.check_reward(step.reward)
                columns[TRAJ_IDS][:, t] = lanes.traj
                columns[VERSION][:, t] = lanes.version
                obs, init = step.obs, step.terminated | step.truncated
                t += 1
                if init.any():
                    self._end_episodes(step, init, t)
        finally:
            self._leave(t, obs, init)

    def _put_outputs(self, td: Any, t: int) -> None:
        for path, key, column in self._outputs:
            value = as_array(td.get(key))
            value = value.reshape(self._lanes.count, *value.shape[len(td.batch_size) :])
            column[:, t] = self._plan.check_output(path, value)

    def _end_episodes(self, step: Any, done: Array, t: int) -> None:
        """Trajectories of some lanes ended before row t."""
        columns = self._columns
        columns[TERMINATED][:, t - 1] = step.terminated
        columns[TRUNCATED][:, t - 1] = step.truncated
        columns[DONE][:, t - 1] = done
        for lane in np.flatnonzero(done):
            self._lanes.end(int(lane), self._first + t)

    def _leave(self, t: int, obs: Leaves | list[Array], init: Array) -> None:
        """Rows up to t are there."""
        lanes = self._lanes
        lanes.say(Stage.IDLE)
        lanes.obs, lanes.init = [leaf.copy() for leaf in obs], init.copy()
        self._blocks.position = self._blocks.position + (t - self._from)
        for path in (*self._plan.next_obs, REWARD):
            check_nan(path, self._columns[path][:, self._from : t])
