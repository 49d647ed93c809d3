"""Several environments as one: in this process, or a vector environment of Gymnasium's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import LayoutError
from .env import Env, Step
from .gym_env import GymEnv
from .raw import is_env, is_vector
from .specs import Array, Spec, at_lane, spec_of_space

__all__ = ["SerialEnv", "VectorEnv", "as_env"]


def as_env(given: Any) -> Env:
    """An Env of whatever a user calls an environment, or of a function that makes one."""
    if isinstance(given, Env):
        return given
    if isinstance(given, str):
        return GymEnv(given)
    if is_vector(given):
        return VectorEnv(given)
    if not is_env(given) and callable(given):
        return as_env(given())
    return GymEnv(given)


def recipes(num_envs: int, make_env: Any) -> list[Any]:
    """A recipe for each lane, from one for all or one each.

    Raises:
        ValueError: not as many as lanes.
    """
    if num_envs < 1:
        raise ValueError(f"the number of environments must be at least 1, got {num_envs}")
    if not isinstance(make_env, Sequence) or isinstance(make_env, str):
        return [make_env] * num_envs
    if len(make_env) != num_envs:
        raise ValueError(f"{len(make_env)} environments are given for {num_envs} lanes")
    return list(make_env)


def own_copy(recipe: Any) -> Any:
    """A recipe that is an environment, copied: the same object may be given several times."""
    if callable(recipe) and not is_env(recipe):
        return recipe
    import cloudpickle

    return cloudpickle.loads(cloudpickle.dumps(recipe))


def make_lane(recipe: Any) -> Env:
    """One lane of a batched environment."""
    env = as_env(recipe)
    if env.batch_shape:
        raise TypeError(
            f"a lane of a batched environment must be a single environment, got a batch of "
            f"{env.num_envs}: give the factory of one"
        )
    return env


class SerialEnv(Env):
    """n environments stepped one after another in this process.

    Args:
        num_envs: n.
        make_env: makes one of them; or a list of n factories or environments.
        policy: as in GymEnv.
    """

    def __init__(
        self, num_envs: int, make_env: Callable[[], Any] | Any, *, policy: Any = None
    ) -> None:
        super().__init__()
        self._recipes = recipes(num_envs, make_env)
        self.num_envs = num_envs
        self.batch_shape = (num_envs,)
        self._made: list[Env] | None = None
        self._was_reset = False
        if policy is not None:
            from .policy import register_primers

            register_primers(self, policy)

    def __getstate__(self) -> dict[str, Any]:
        if self._was_reset:
            raise TypeError(
                "this SerialEnv was reset: it is no recipe any more; give a function that makes it"
            )
        return {**self.__dict__, "_made": None}

    def probe(self) -> Env:
        lane = make_lane(own_copy(self._recipes[0]))
        lane.primers = {**lane.primers, **self.primers}
        return lane

    @property
    def _envs(self) -> list[Env]:
        if self._made is None:
            made = [make_lane(own_copy(recipe)) for recipe in self._recipes]
            for i, env in enumerate(made):
                if env.spec.leaves != made[0].spec.leaves:
                    raise LayoutError(
                        f"environment {i} has other observations than environment 0: "
                        f"{env.spec.tree()} and {made[0].spec.tree()}"
                    )
            self._made = made
            self.primers = {**made[0].primers, **self.primers}
            self.marks_init = self.marks_init or made[0].marks_init
        return self._made

    @property
    def full_observation_spec(self) -> dict[str, Any]:
        _ = self._envs  # what the lanes bring is known once they are made
        return super().full_observation_spec

    @property
    def full_state_spec(self) -> dict[str, Any]:
        _ = self._envs
        return super().full_state_spec

    @property
    def spec(self) -> Spec:
        return self._envs[0].spec

    @property
    def action_space(self) -> Any:
        return self._envs[0].action_space

    def reset(self, seed: int | None = None) -> list[Array]:
        self._was_reset = True
        lanes = [e.reset(None if seed is None else seed + i) for i, e in enumerate(self._envs)]
        return [np.concatenate(leaves) for leaves in zip(*lanes)]

    def reset_lanes(self, lanes: Array) -> list[Array]:
        spec = self.spec
        out = [np.zeros((self.num_envs, *s), d) for s, d in zip(spec.shapes, spec.dtypes)]
        for i in np.flatnonzero(lanes):
            for leaf, value in zip(out, self._envs[i].reset()):
                leaf[i] = value[0]
        return out

    def step(self, action: Any) -> Step:
        steps = []
        for i, env in enumerate(self._envs):
            steps.append(env.step(_keep_lane(action, i)))
        after = [np.concatenate(leaves) for leaves in zip(*(s.next for s in steps))]
        obs = after
        if any(s.obs is not s.next for s in steps):
            obs = [np.concatenate(leaves) for leaves in zip(*(s.obs for s in steps))]
        return Step(
            after,
            np.concatenate([s.reward for s in steps]),
            np.concatenate([s.terminated for s in steps]),
            np.concatenate([s.truncated for s in steps]),
            obs,
        )

    def close(self) -> None:
        for env in self._made or ():
            env.close()
        self._made = None


def _keep_lane(tree: Any, lane: int) -> Any:
    return at_lane(tree, slice(lane, lane + 1))  # type: ignore[arg-type]


class VectorEnv(Env):
    """A vector environment of Gymnasium's, with its own auto-reset, whichever mode that is.

    Args:
        env: made by ``gymnasium.make_vec`` or the like.
        policy: as in GymEnv.
    """

    def __init__(self, env: Any, *, policy: Any = None) -> None:
        super().__init__()
        self.raw = env
        self.num_envs = int(env.num_envs)
        self.batch_shape = (self.num_envs,)
        self._mode = _autoreset_mode(env)
        self._spec = spec_of_space(env.single_observation_space, "observation")
        self._ended = np.zeros(self.num_envs, bool)  # lanes whose next step is a reset
        self._was_reset = False
        if policy is not None:
            from .policy import register_primers

            register_primers(self, policy)

    def __getstate__(self) -> dict[str, Any]:
        if self._was_reset:
            raise TypeError("this vector environment was reset: give a function that makes it")
        return self.__dict__

    def probe(self) -> Env:
        return self  # it cannot be taken apart; the collector's own reset follows

    @property
    def spec(self) -> Spec:
        return self._spec

    @property
    def action_space(self) -> Any:
        return self.raw.single_action_space

    def reset(self, seed: int | None = None) -> list[Array]:
        self._was_reset = True
        self._ended[:] = False
        obs = self.raw.reset(seed=seed)[0]
        return self._spec.checked(obs, (self.num_envs,))

    def reset_lanes(self, lanes: Array) -> list[Array]:
        if lanes.all():
            return self.reset()
        if self._mode != "disabled" and not _resets_lanes(self.raw):
            raise ValueError(
                f"{type(self.raw.unwrapped).__name__} cannot reset some of its environments alone, "
                "as max_frames_per_traj asks; use SerialEnv, ParallelEnv or gymnasium's sync or "
                "async vector environments"
            )
        self._ended[lanes] = False
        obs = self.raw.reset(options={"reset_mask": lanes.copy()})[0]
        return self._spec.checked(obs, (self.num_envs,))

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.raw.step(action)
        lead = (self.num_envs,)
        after = self._spec.checked(obs, lead)
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        reward = np.array(reward)
        done = terminated | truncated
        if self._mode == "next_step":
            stepped = None if not self._ended.any() else ~self._ended
            self._ended = done
            return Step(after, reward, terminated, truncated, after, stepped)
        if not done.any():
            return Step(after, reward, terminated, truncated, after)
        if self._mode == "same_step":
            return Step(self._finals(after, info, done), reward, terminated, truncated, after)
        fresh = self._spec.checked(self.raw.reset(options={"reset_mask": done.copy()})[0], lead)
        return Step(after, reward, terminated, truncated, fresh)

    def _finals(self, after: list[Array], info: dict[str, Any], done: Array) -> list[Array]:
        finals = info.get("final_obs", info.get("final_observation"))
        if finals is None:
            raise LayoutError(
                'info["final_obs"]: missing, though the environment resets in the same step; the '
                "true final observation is lost: use another auto-reset mode"
            )
        out = [leaf.copy() for leaf in after]
        for lane in np.flatnonzero(done):
            one = finals[lane] if isinstance(finals, np.ndarray) else at_lane(finals, int(lane))
            for leaf, value in zip(out, self._spec.checked(one)):
                leaf[lane] = value
        return out

    def close(self) -> None:
        self.raw.close()


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
