"""VectorEnv: a vector environment of Gymnasium's; and `as_env`, which knows every kind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import LayoutError
from .adapters import is_env, is_torchrl, is_vector
from .env import EnvBase
from .gym_env import GymEnv
from .specs import Array, as_reward, at_lane
from .stepping import Leaves, Step

__all__ = ["VectorEnv", "as_env"]


def as_env(given: Any) -> EnvBase:
    """The EnvBase of whatever a user calls an environment, or of a function that makes one."""
    if isinstance(given, EnvBase):
        return given
    if isinstance(given, str):
        return GymEnv(given)
    if is_vector(given):
        return VectorEnv(given)
    if is_torchrl(given):
        from .torchrl_env import TorchRLEnv

        return TorchRLEnv(given)
    if not is_env(given) and callable(given):
        return as_env(given())
    return GymEnv(given)


class VectorEnv(EnvBase):
    """A vector environment of Gymnasium's, with its own auto-reset, whichever mode that is.

    Args:
        env: made by ``gymnasium.make_vec`` or the like.
        policy: as in GymEnv.
    """

    def __init__(self, env: Any, *, policy: Any = None) -> None:
        super().__init__(
            env.single_observation_space,
            env.single_action_space,
            num_envs=int(env.num_envs),
            policy=policy,
        )
        self.raw = env
        self._mode = _autoreset_mode(env)
        self._ended = np.zeros(self.num_envs, bool)  # lanes whose next step is a reset
        self._was_reset = False

    def __getstate__(self) -> dict[str, Any]:
        if self._was_reset:
            raise TypeError("this vector environment was reset: give a function that makes it")
        return self.__dict__

    def _reset(self, lanes: Array, seed: int | None) -> Leaves:
        if lanes.all():
            self._was_reset = True
            self._ended[:] = False
            return self._leaves(self.raw.reset(seed=seed)[0])
        if self._mode != "disabled" and not _resets_lanes(self.raw):
            raise ValueError(
                f"{type(self.raw.unwrapped).__name__} cannot reset some of its environments alone, "
                "as max_frames_per_traj asks; use SerialEnv, ParallelEnv or gymnasium's sync or "
                "async vector environments"
            )
        self._ended[lanes] = False
        return self._leaves(self.raw.reset(options={"reset_mask": lanes.copy()})[0])

    def _step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.raw.step(action)
        after = self._leaves(obs)
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        reward = as_reward(np.array(reward), 1)
        done = terminated | truncated
        infos = _LaneInfos(info, done, self._mode == "same_step") if done.any() else None
        if self._mode == "next_step":
            stepped = None if not self._ended.any() else ~self._ended
            self._ended = done
            return Step(after, reward, terminated, truncated, after, stepped, infos)
        if not done.any():
            return Step(after, reward, terminated, truncated, after)
        if self._mode == "same_step":
            finals = self._finals(after, info, done)
            return Step(finals, reward, terminated, truncated, after, infos=infos)
        fresh = self._leaves(self.raw.reset(options={"reset_mask": done.copy()})[0])
        return Step(after, reward, terminated, truncated, fresh, infos=infos)

    def _finals(self, after: Leaves, info: dict[str, Any], done: Array) -> Leaves:
        finals = info.get("final_obs", info.get("final_observation"))
        if finals is None:
            raise LayoutError(
                'info["final_obs"]: missing, though the environment resets in the same step; the '
                "true final observation is lost: use another auto-reset mode"
            )
        out = Leaves(leaf.copy() for leaf in after)
        for lane in np.flatnonzero(done):
            one = finals[lane] if isinstance(finals, np.ndarray) else at_lane(finals, int(lane))
            for leaf, value in zip(out, self.spec.checked(one)):
                leaf[lane] = value
        return out

    def close(self) -> None:
        self.raw.close()


class _LaneInfos(Sequence[Any]):
    """The infos of lanes that ended, from a vector environment's: an array for each key, with a
    mask of the lanes that have it."""

    def __init__(self, info: dict[str, Any], done: Array, final: bool) -> None:
        self._info = info.get("final_info", info) if final else info
        self._done = done

    def __len__(self) -> int:
        return len(self._done)

    def __getitem__(self, lane: Any) -> Any:
        return _info_at(self._info, int(lane)) if self._done[lane] else None


def _info_at(info: Any, lane: int) -> Any:
    if not isinstance(info, dict):  # of older environments: one for each lane
        return info[lane]
    out = {}
    for key, value in info.items():
        has = info.get(f"_{key}")
        if (key.startswith("_") and key[1:] in info) or (has is not None and not has[lane]):
            continue
        if isinstance(value, dict):
            out[key] = _info_at(value, lane)
        elif np.ndim(value):
            out[key] = value[lane]
    return out


def _autoreset_mode(env: Any) -> str:
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if mode is None:
        return "next_step"  # all there was before modes had names
    name = str(getattr(mode, "name", mode)).lower()
    if name not in ("next_step", "same_step", "disabled"):
        raise ValueError(f"autoreset_mode {mode!r}: expected next-step, same-step or disabled")
    return name


def _resets_lanes(env: Any) -> bool:
    vector = sys.modules["gymnasium"].vector
    return isinstance(env.unwrapped, (vector.SyncVectorEnv, vector.AsyncVectorEnv))
