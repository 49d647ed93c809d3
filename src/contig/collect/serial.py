"""SerialEnv: several environments, one after another in this process."""

from __future__ import annotations

from typing import Any

import numpy as np

from .batched import BatchedEnv, check_lanes, make_lane, own_copy
from .env import EnvBase
from .specs import Array, Spec, at_lane
from .stepping import Leaves, Step

__all__ = ["SerialEnv"]


class SerialEnv(BatchedEnv):
    """n environments stepped one after another in this process.

    Args:
        num_envs: n.
        make_env: makes one of them; or a list of n factories or environments.
        policy: as in GymEnv.
    """

    def _made(self) -> list[EnvBase]:
        if self._lanes is None:
            made = [make_lane(own_copy(recipe)) for recipe in self._recipes]
            check_lanes([env.spec for env in made])
            self._lanes = made
            self._adopt(made[0].primers, made[0].marks_init)
        return self._lanes  # type: ignore[no-any-return]

    @property
    def spec(self) -> Spec:
        return self._made()[0].spec

    @property
    def action_space(self) -> Any:
        return self._made()[0].action_space

    def _reset(self, lanes: Array, seed: int | None) -> Leaves:
        self._was_reset = True
        spec, made = self.spec, self._made()
        out = Leaves(np.zeros((self.num_envs, *s), d) for s, d in zip(spec.shapes, spec.dtypes))
        for i in np.flatnonzero(lanes):
            for leaf, value in zip(out, made[i].begin(None if seed is None else seed + int(i))):
                leaf[i] = value[0]
        return out

    def _step(self, action: Any) -> Step:
        steps = []
        for i, env in enumerate(self._made()):
            lane: Any = slice(i, i + 1)
            steps.append(env.advance(at_lane(action, lane)))
        after = Leaves(np.concatenate(leaves) for leaves in zip(*(s.next for s in steps)))
        obs = after
        if any(s.obs is not s.next for s in steps):
            obs = Leaves(np.concatenate(leaves) for leaves in zip(*(s.obs for s in steps)))
        return Step(
            after,
            np.concatenate([s.reward for s in steps]),
            np.concatenate([s.terminated for s in steps]),
            np.concatenate([s.truncated for s in steps]),
            obs,
            infos=[None if s.infos is None else s.infos[0] for s in steps],
        )

    def close(self) -> None:
        for env in self._lanes or ():
            env.close()
        self._lanes = None
