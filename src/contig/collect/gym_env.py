"""GymEnv: one environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .adapters import is_env, is_vector, raw_env
from .env import EnvBase
from .specs import Array, Spec, as_reward, at_lane, spec_of_space, spec_of_value
from .stepping import Leaves, Step

__all__ = ["GymEnv"]


class GymEnv(EnvBase):
    """A Gymnasium environment, or any object with `reset` and `step`.

    Args:
        env: its Gymnasium name, the environment, or a function that makes it.
        policy: recurrent modules in it are given what they need: `is_init` and hidden states.
        options: for `gymnasium.make`, with a name.
    """

    def __init__(
        self, env: str | Callable[[], Any] | Any, *, policy: Any = None, **options: Any
    ) -> None:
        super().__init__(policy=policy)
        if options and not isinstance(env, str):
            raise TypeError(f"options {sorted(options)} are for gymnasium.make: give a name")
        if is_vector(env):
            raise TypeError(
                "GymEnv is one environment; give a vector environment to the collector as it is, "
                "or wrap it in VectorEnv"
            )
        self._source, self._options = env, options
        self._raw: Any = None
        self._was_reset = False

    # -- recipe -------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if self._was_reset:
            raise TypeError(
                "this GymEnv was reset: it is an environment now, no recipe any more; give a "
                "function that makes it to other processes"
            )
        own = isinstance(self._source, str) or not is_env(self._source)
        drop = {"_raw": None, "_spec": None} if own else {}
        return {**self.__dict__, **drop}

    def probe(self) -> GymEnv:
        import cloudpickle

        return cloudpickle.loads(cloudpickle.dumps(self))  # type: ignore[no-any-return]

    def single(self) -> Any:
        return self.raw

    @property
    def raw(self) -> Any:
        """The environment behind it, made on first use."""
        if self._raw is None:
            source = self._source
            if isinstance(source, str):
                import gymnasium

                self._raw = gymnasium.make(source, **self._options)
            elif is_env(source) or not callable(source):
                self._raw = raw_env(source)
            else:
                self._raw = raw_env(source())
        return self._raw

    @property
    def action_space(self) -> Any:
        return self.raw.action_space

    @property
    def spec(self) -> Spec:
        if self._spec is None:
            space = self.raw.observation_space
            if space is not None:
                self._spec = spec_of_space(space, "observation")
            else:
                self._spec = spec_of_value(self.raw.reset()[0], "observation")
        return self._spec

    # -- stepping -----------------------------------------------------------------------------

    def _reset(self, lanes: Array, seed: int | None) -> Leaves:
        self._was_reset = True
        spec = self.spec  # may need a reset of its own to be known
        obs = self.raw.reset()[0] if seed is None else self.raw.reset(seed=seed)[0]
        return Leaves(
            leaf[None].copy() for leaf in spec.checked(obs)
        )  # some use one array for ever

    def _step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.raw.step(at_lane(action, 0))
        after = Leaves(leaf[None].copy() for leaf in self.spec.checked(obs))
        done = bool(terminated) or bool(truncated)
        return Step(
            after,
            as_reward(reward)[None],
            np.array([bool(terminated)]),
            np.array([bool(truncated)]),
            self.begin() if done else after,
            infos=[info],
        )

    def close(self) -> None:
        if self._raw is not None and callable(getattr(self._raw, "close", None)):
            self._raw.close()
        self._raw = None

    def __repr__(self) -> str:
        return f"GymEnv({self._source!r})"
