"""BatchedEnv: what environments of several lanes share, wherever the lanes run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import LayoutError
from .adapters import is_env
from .env import EnvBase
from .specs import Spec, nest
from .vector import as_env

__all__ = ["BatchedEnv", "check_lanes", "make_lane", "own_copy"]


class BatchedEnv(EnvBase):
    """n single environments of one kind, made on first use.

    Args:
        num_envs: n.
        make_env: makes one of them; or a list of n factories or environments.
        policy: as in GymEnv.
    """

    def __init__(
        self, num_envs: int, make_env: Callable[[], Any] | Any, *, policy: Any = None
    ) -> None:
        super().__init__(num_envs=num_envs, policy=policy)
        self._recipes = _recipes(num_envs, make_env)
        self._was_reset = False
        self._lanes: Any = None  # what runs them, once it is made

    @abstractmethod
    def _made(self) -> Any:
        """What runs the lanes. Made by the first call."""

    def _adopt(self, primers: dict[Any, Any], marks_init: bool) -> None:
        """Takes over what the lanes bring."""
        self.primers = {**primers, **self.primers}
        self.marks_init = self.marks_init or marks_init

    def __getstate__(self) -> dict[str, Any]:
        if self._was_reset:
            raise TypeError(
                f"this {type(self).__name__} was reset: it is no recipe any more; give a function "
                "that makes it"
            )
        return {**self.__dict__, "_lanes": None}

    def probe(self) -> EnvBase:
        lane = make_lane(own_copy(self._recipes[0]))
        lane.primers = {**lane.primers, **self.primers}
        return lane

    @property
    def full_observation_spec(self) -> dict[str, Any]:
        self._made()  # what the lanes bring is known once they are made
        return super().full_observation_spec

    @property
    def full_state_spec(self) -> dict[str, Any]:
        self._made()
        return super().full_state_spec


def _recipes(num_envs: int, make_env: Any) -> list[Any]:
    """A recipe for each lane, from one for all or one each.

    Raises:
        ValueError: not as many as lanes.
    """
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


def make_lane(recipe: Any) -> EnvBase:
    """One lane of a batched environment."""
    env = as_env(recipe)
    if env.batch_shape:
        raise TypeError(
            f"a lane of a batched environment must be a single environment, got a batch of "
            f"{env.num_envs}: give the factory of one"
        )
    return env


def check_lanes(specs: Sequence[Spec]) -> None:
    """Raises LayoutError if lanes differ in what they observe."""
    for number, spec in enumerate(specs):
        if spec.leaves != specs[0].leaves:
            raise LayoutError(
                f"environment {number} has other observations than environment 0: "
                f"{nest(spec.leaves)} and {specs[0].tree()}"
            )
