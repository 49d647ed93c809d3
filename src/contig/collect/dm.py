"""DmEnv: a dm_env environment under Gymnasium's interface, as shimmy translates it.

shimmy's own wrapper needs dm_control, which most dm_env environments do not; its translation of
specs and time steps needs only dm_env.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DmEnv", "is_dm_env"]


def is_dm_env(env: Any) -> bool:
    """Whether it has dm_env's interface."""
    return callable(getattr(env, "observation_spec", None)) and hasattr(env, "action_spec")


class DmEnv:
    """A dm_env environment. Its last step is terminated if its discount is 0, else truncated.

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
