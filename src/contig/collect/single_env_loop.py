"""The short road of the Roller: one environment, no hidden state.

Nothing here is done per step that can be done per stretch of rows: columns are looked up once,
flags are zero already, ids and versions are filled in afterwards.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from ..keys import DONE, INIT, REWARD, TERMINATED, TRAJ_IDS, TRUNCATED, VERSION
from ..process.heartbeat import Stage
from .actor import SingleActor
from .column_blocks import check_nan
from .specs import as_reward

if TYPE_CHECKING:
    from .roller import Roller

__all__ = ["advance_single"]

_NUMBERS = (float, int, np.float64, np.float32, np.int64)
_LOOK_S = 1.0  # NaN is looked for at least this often


def advance_single(roller: Roller) -> None:
    """Steps lane 0 to the end of its block or to the goal, whichever comes first."""
    blocks, plan, env = roller.blocks, roller.plan, roller.env
    assert blocks is not None and plan is not None
    place = int(blocks.position[0])
    first, batch = blocks.block_at(place)
    t, stop = place - first, min(batch.shape[1], int(roller.goal[0]) - first)
    raw, spec = env.single(), env.spec
    step, enter, poll = raw.step, roller.enter, roller.poll
    single = len(spec.paths) == 1
    shape, dtype, checked = spec.shapes[0], spec.dtypes[0], spec.checked
    before = [batch[p][0] for p in spec.paths]
    after = [batch[p][0] for p in plan.next_obs]
    col_obs, col_next = before[0], after[0]
    columns = {p: batch[p][0] for p in plan.outputs}
    col_action = columns.get(("action",))
    col_reward, col_init, col_traj = batch[REWARD][0], batch[INIT][0], batch[TRAJ_IDS][0]
    col_done, col_terminated, col_truncated = (batch[p][0] for p in (DONE, TERMINATED, TRUNCATED))
    number = not plan.reward  # a reward is one number
    policy, init = roller.policy, bool(roller.init[0])
    draw = policy.policy.one if policy.random and col_action is not None else None
    act = SingleActor(roller, columns)
    obs: list[Any] = [x[0] for x in roller.obs]
    obs0 = obs[0]
    most = roller.most if roller.most is not None else 1 << 62
    begun = int(roller.start[0]) - first  # of the trajectory, in this block's rows
    stamped, version = t, roller.version
    looked, look_at = t, monotonic() + _LOOK_S
    from_t = t
    try:
        while t < stop:
            if poll is not None:
                newest = poll()
                if newest != version:
                    batch[VERSION][0, stamped:t] = version
                    stamped, version = t, newest
            if init:
                col_init[t] = True
            if single:
                col_obs[t] = obs0
            else:
                for column, leaf in zip(before, obs):
                    column[t] = leaf
            if draw is not None:
                action = draw()
                col_action[t] = action  # type: ignore[index]
            else:
                if enter is not None:
                    enter(Stage.ACTING)
                action = act([obs0] if single else obs, init, t)
            if enter is not None:
                enter(Stage.STEPPING)
            given, reward, terminated, truncated, _ = step(action)
            if single:
                fits = type(given) is np.ndarray and given.shape == shape
                obs0 = given if fits and given.dtype == dtype else checked(given)[0]
                col_next[t] = obs0
            else:
                obs = checked(given)
                for column, leaf in zip(after, obs):
                    column[t] = leaf
            if number and type(reward) in _NUMBERS:
                col_reward[t] = reward
            else:
                col_reward[t] = plan.check_reward(as_reward(reward)[None])[0]
            t += 1
            init = False
            if terminated or truncated or t - begun >= most:
                col_terminated[t - 1] = bool(terminated)
                col_truncated[t - 1] = bool(truncated) or not terminated
                col_done[t - 1] = True
                col_traj[max(begun, from_t) : t] = roller.traj[0]
                begun = t
                roller.end(0, first + t)
                if enter is not None:
                    enter(Stage.RESETTING)
                obs = [x[0] for x in env.begin()]
                obs0, init = obs[0], True
            if monotonic() > look_at:
                for path, column in zip((*plan.next_obs, REWARD), (*after, col_reward)):
                    check_nan(path, column[looked:t])
                looked, look_at = t, monotonic() + _LOOK_S
    finally:
        if enter is not None:
            enter(Stage.IDLE)
        col_traj[max(begun, from_t) : t] = roller.traj[0]
        batch[VERSION][0, stamped:t] = version
        roller.version = version
        roller.init[0] = init
        roller.obs = [x[None] for x in ([obs0] if single else obs)]
        blocks.position = blocks.position + (t - from_t)
