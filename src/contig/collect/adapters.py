"""Single environments of several libraries under Gymnasium's interface."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["PlainEnv", "is_env", "is_gymnasium", "is_torchrl", "is_vector", "raw_env"]


def raw_env(env: Any) -> Any:
    """An environment with Gymnasium's `reset` and `step`.

    Raises:
        TypeError: it has no `reset` and `step`, or they are not Gymnasium's.
    """
    if is_gymnasium(env):
        return env
    if is_dm_env(env):
        return DmEnv(env)
    if callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None)):
        return PlainEnv(env)
    raise TypeError(
        f"expected an environment with reset() and step(), or a function that makes one, got "
        f"{type(env).__name__}"
    )


def is_gymnasium(env: Any) -> bool:
    module = sys.modules.get("gymnasium")
    return module is not None and isinstance(env, module.Env)


def is_env(given: Any) -> bool:
    """Whether this is an environment, and no function or class that makes one."""
    return not isinstance(given, type) and hasattr(given, "step")


def is_vector(env: Any) -> bool:
    module = sys.modules.get("gymnasium")
    return module is not None and isinstance(env, module.vector.VectorEnv)


def is_torchrl(env: Any) -> bool:
    module = sys.modules.get("torchrl.envs.common")
    return module is not None and isinstance(env, module.EnvBase)


def is_dm_env(env: Any) -> bool:
    """Whether it has dm_env's interface."""
    return callable(getattr(env, "observation_spec", None)) and hasattr(env, "action_spec")


class PlainEnv:
    """Any object with `reset()` and `step(action)`, of the old or the new form.

    `reset` may return an observation or a pair of it and a dict; `step` four values (one `done`,
    which counts as terminated unless the info says ``TimeLimit.truncated``) or five.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = getattr(env, "observation_space", None)
        self.action_space = getattr(env, "action_space", None)
        try:
            self._seeded = "seed" in inspect.signature(env.reset).parameters
        except (TypeError, ValueError):
            self._seeded = False

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        given = self.env.reset(seed=seed) if self._seeded else self.env.reset()
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
            return given[0], dict(given[1])
        return given, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        given = self.env.step(action)
        if len(given) == 5:
            return given  # type: ignore[no-any-return]
        if len(given) != 4:
            raise ValueError(
                f"step: expected (observation, reward, terminated, truncated, info) or "
                f"(observation, reward, done, info), got {len(given)} values"
            )
        obs, reward, done, info = given
        cut = bool(done) and bool(dict(info or {}).get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not cut, cut, info

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if callable(close):
            close()


class DmEnv:
    """A dm_env environment. Its last step is terminated if its discount is 0, else truncated.

    shimmy's own wrapper needs dm_control, which most dm_env environments do not; its translation of
    specs and time steps, which is used here, needs only dm_env.

    dm_env has no seeds: an environment takes one when it is made. Seeds given here are not used.

    Raises:
        ImportError: shimmy or dm_env is missing.
    """

    def __init__(self, env: Any) -> None:
        try:
            from shimmy.utils.dm_env import dm_env_step2gym_step, dm_spec2gym_space
        except ImportError as error:
            raise ImportError(
                f"{type(env).__name__} is a dm_env environment, which shimmy translates: "
                "pip install shimmy dm-env"
            ) from error
        self.env = env
        self._translate = dm_env_step2gym_step
        self.observation_space = dm_spec2gym_space(env.observation_spec())
        self.action_space = dm_spec2gym_space(env.action_spec())

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        obs, _, _, _, info = self._translate(self.env.reset())
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        return self._translate(self.env.step(action))  # type: ignore[no-any-return]

    def close(self) -> None:
        self.env.close()
