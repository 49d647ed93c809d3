"""SingleEnvLoop: one environment, no hidden state; the short way of the Roller.

Nothing here is done per step that can be done per block of rows: columns are looked up once, flags
are zero already, ids and versions are filled in afterwards.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import numpy as np

from ..keys import DONE, INIT, REWARD, TERMINATED, TRAJ_IDS, TRUNCATED, VERSION
from ..process.heartbeat import Stage
from .actor import Actor, SingleActor
from .column_blocks import check_nan
from .episode_fields import EpisodeFields
from .lanes import Lanes
from .specs import Array, as_reward

__all__ = ["SingleEnvLoop"]

_NUMBERS = (float, int, np.float64, np.float32, np.int64)
_LOOK_S = 1.0  # NaN is looked for at least this often


class SingleEnvLoop:
    """Steps lane 0 to the end of its block or to the goal, whichever comes first, by `run`, once.

    Args:
        lanes: one lane that has made a step already, by the Roller.
        actor: without random frames.
        most: steps after which a trajectory is cut.
        fields: of trajectories, from infos.
    """

    def __init__(
        self, lanes: Lanes, actor: Actor, most: int | None, fields: EpisodeFields | None
    ) -> None:
        blocks, plan, spec = lanes.blocks, lanes.plan, lanes.env.spec
        assert blocks is not None and plan is not None
        self._lanes, self._blocks, self._plan = lanes, blocks, plan
        place = int(blocks.position[0])
        self._first, batch = blocks.block_at(place)
        self._from = self._looked = self._stamped = place - self._first
        self._stop = min(batch.shape[1], int(lanes.goal[0]) - self._first)
        self._most = 1 << 62 if most is None else most
        self._fields = fields
        self._columns = columns = {p: batch[p][0] for p in plan.layout.by_path}
        self._before = [columns[p] for p in spec.paths]
        self._after = [columns[p] for p in plan.next_obs]
        outputs = {p: columns[p] for p in plan.outputs}
        self._action = outputs.get(("action",))
        self._draw = self._act = None
        if actor.policy.random and self._action is not None:
            self._draw = actor.policy.policy.one
        else:
            self._act = SingleActor(actor, plan, spec.paths, outputs)

    def run(self) -> None:
        lanes, plan, spec = self._lanes, self._plan, self._lanes.env.spec
        step, enter, poll = lanes.env.single().step, lanes.enter, lanes.poll
        draw, act, col_action = self._draw, self._act, self._action
        before, after, single = self._before, self._after, len(self._before) == 1
        col_obs, col_next, col_reward = before[0], after[0], self._columns[REWARD]
        shape, dtype, checked = spec.shapes[0], spec.dtypes[0], spec.checked
        col_init, one_number = self._columns[INIT], not plan.reward
        t, stop, most = self._from, self._stop, self._most
        begun = int(lanes.start[0]) - self._first  # of the trajectory, in this block's rows
        obs: list[Any] = [x[0] for x in lanes.obs]
        obs0, init = obs[0], bool(lanes.init[0])
        version, look_at = lanes.version, monotonic() + _LOOK_S
        try:
            while t < stop:
                if poll is not None and (newest := poll()) != version:
                    self._stamp(version, t)
                    version = newest
                if init:
                    col_init[t] = True
                if single:
                    col_obs[t] = obs0
                else:
                    _put(before, t, obs)
                if draw is not None:
                    action = draw()
                    col_action[t] = action  # type: ignore[index]
                else:
                    if enter is not None:
                        enter(Stage.ACTING)
                    action = act([obs0] if single else obs, init, t)  # type: ignore[misc]
                if enter is not None:
                    enter(Stage.STEPPING)
                given, reward, terminated, truncated, info = step(action)
                if single:
                    fits = type(given) is np.ndarray and given.shape == shape
                    obs0 = given if fits and given.dtype == dtype else checked(given)[0]
                    col_next[t] = obs0
                else:
                    obs = checked(given)
                    _put(after, t, obs)
                if one_number and type(reward) in _NUMBERS:
                    col_reward[t] = reward
                else:
                    col_reward[t] = plan.check_reward(as_reward(reward)[None])[0]
                t += 1
                init = False
                if terminated or truncated or t - begun >= most:
                    since, begun = begun, t
                    if self._fields is not None and (terminated or truncated):
                        for path, value in self._fields.of(info).items():
                            self._columns[path][t - 1] = value
                    obs = self._end_episode(since, t, bool(terminated), bool(truncated))
                    obs0, init = obs[0], True
                if monotonic() > look_at:
                    look_at = self._look_for_nan(t)
        finally:
            self._leave(t, begun, version, [obs0] if single else obs, init)

    def _stamp(self, version: int, t: int) -> None:
        """The policy had this version in the rows before t that have none yet."""
        self._columns[VERSION][self._stamped : t] = version
        self._stamped = t

    def _end_episode(self, since: int, t: int, terminated: bool, truncated: bool) -> list[Array]:
        """The trajectory of rows [since, t) ended; the first observation of the next one."""
        lanes, columns = self._lanes, self._columns
        columns[TERMINATED][t - 1] = terminated
        columns[TRUNCATED][t - 1] = truncated or not terminated
        columns[DONE][t - 1] = True
        columns[TRAJ_IDS][max(since, self._from) : t] = lanes.traj[0]
        lanes.end(0, self._first + t)
        lanes.say(Stage.RESETTING)
        return [x[0] for x in lanes.env.begin()]

    def _look_for_nan(self, t: int) -> float:
        """Raises ValueError for a NaN; when to look again."""
        for path in (*self._plan.next_obs, REWARD):
            check_nan(path, self._columns[path][self._looked : t])
        self._looked = t
        return monotonic() + _LOOK_S

    def _leave(self, t: int, begun: int, version: int, obs: list[Array], init: bool) -> None:
        """Rows up to t are there."""
        lanes = self._lanes
        lanes.say(Stage.IDLE)
        self._columns[VERSION][self._stamped : t] = version
        self._columns[TRAJ_IDS][max(begun, self._from) : t] = lanes.traj[0]
        lanes.version, lanes.init[0] = version, init
        lanes.obs = [x[None] for x in obs]
        self._blocks.position = self._blocks.position + (t - self._from)


def _put(columns: list[Array], t: int, leaves: list[Array]) -> None:
    for column, leaf in zip(columns, leaves):
        column[t] = leaf
