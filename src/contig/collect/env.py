"""EnvBase: what collectors step. B lanes side by side, whatever runs behind them.

    for users         reset(seed)     -> what a policy reads at first, with hidden states
                      step(action)    -> Step
                      rollout(n, policy)
    for subclasses    _reset(lanes, seed), _step(action)
    for collectors    begin(seed), begin_lanes(mask), advance(action): the same, leaf by leaf

An environment is a recipe until its first reset: it can be pickled, and each process makes its own.
Not thread-safe.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from ..errors import LayoutError
from ..keys import INIT
from ..layout import ShapeDtype
from ..tree import Path
from .places import check_apart
from .primers import register_primers
from .specs import Array, Spec, as_reward, nest, spec_of_space
from .stepping import Leaves, Step, wide

__all__ = ["EnvBase"]


def _with_policy(init: Any) -> Any:
    """A constructor that takes a `policy`; itself, if it does."""
    parameters = inspect.signature(init).parameters
    passes = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters.values())
    if passes or "policy" in parameters:
        return init

    @functools.wraps(init)
    def with_policy(self: Any, *args: Any, policy: Any = None, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if policy is not None:
            register_primers(self, policy)

    return with_policy


class EnvBase(ABC):
    """Base of all environments; subclass it for lanes that are stepped together, as arrays.

    A subclass has `_reset` and `_step`. Everything that they get and return has an env dim first,
    ``[B, ...]``, also for one environment.

    Args:
        observation_space, action_space: Gymnasium spaces of one lane.
        num_envs: B; None: a single environment, whose batches are ``[T]``.
        policy: recurrent modules in it are given what they need: `is_init` and hidden states.
            Constructors of subclasses take it, too, whether they name it or not.

    Attributes:
        num_envs: B, the lanes.
        batch_shape: ``()`` for a single environment, else ``(B,)``.
        primers: values that a policy's hidden state starts from at every reset, by path.
    """

    def __init__(
        self,
        observation_space: Any = None,
        action_space: Any = None,
        *,
        num_envs: int | None = None,
        policy: Any = None,
    ) -> None:
        if num_envs is not None and num_envs < 1:
            raise ValueError(f"the number of environments must be at least 1, got {num_envs}")
        self.num_envs = 1 if num_envs is None else num_envs
        self.batch_shape: tuple[int, ...] = () if num_envs is None else (num_envs,)
        self.primers: dict[Path, Array] = {}
        self.marks_init = False
        self._observation_space, self._action_space = observation_space, action_space
        self._spec: Spec | None = None
        if policy is not None:
            register_primers(self, policy)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _with_policy(cls.__init__)  # type: ignore[method-assign]

    # -- for subclasses -----------------------------------------------------------------------

    @abstractmethod
    def _reset(self, lanes: Array, seed: int | None) -> Any:
        """Starts new episodes in the lanes of a mask.

        A seed is only given for all lanes; lane i is seeded with ``seed + i``.

        Returns:
            observations of all lanes, of which only those of the mask count.
        """

    @abstractmethod
    def _step(self, action: Any) -> Any:
        """Steps every lane.

        Returns:
            (observation, reward, terminated, truncated), or a `Step`. Lanes that ended are reset by
            `_reset` then, unless a `Step` says in `obs` that this has happened.
        """

    def close(self) -> None:  # noqa: B027
        """Lets go of what it holds."""

    def probe(self) -> EnvBase:
        """An environment like this to learn specs from: itself, if there is no other way."""
        return self

    def single(self) -> Any:
        """The one raw environment behind this, if stepping it alone is all a step does."""
        return None

    def loop(self, policy: Any) -> Any:
        """A TensorDictLoop, or a class like it, if a policy and this have a way of their own."""
        return None

    def keep_infos(self) -> None:  # noqa: B027
        """From now on somebody reads the `infos` of steps: for who would not send them else."""

    # -- specs --------------------------------------------------------------------------------

    @property
    def spec(self) -> Spec:
        """The leaves of an observation."""
        if self._spec is None:
            if self._observation_space is None:
                raise ValueError(
                    f"{type(self).__name__} has no observation_space: give one to EnvBase.__init__"
                )
            self._spec = spec_of_space(self._observation_space, "observation")
        return self._spec

    @property
    def action_space(self) -> Any:
        """Of one lane; None if the environment does not say."""
        return self._action_space

    @property
    def full_observation_spec(self) -> dict[str, Any]:
        """Shapes and dtypes of everything a policy may read that the environment emits."""
        leaves = dict(self.spec.leaves)
        if self.marks_init:
            leaves[INIT] = ShapeDtype((), np.dtype(np.bool_))
        return nest(leaves)

    @property
    def full_state_spec(self) -> dict[str, Any]:
        """Shapes and dtypes of the hidden states that it starts."""
        return nest({p: ShapeDtype(v.shape, v.dtype) for p, v in self.primers.items()})

    # -- for users ----------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> dict[str, Any]:
        """Starts a new episode in every lane.

        Returns:
            what a policy reads then, as nested dicts of arrays with `batch_shape` first: the
            observation, hidden states at their defaults, and `is_init` if the environment marks it.
        """
        leaves = self.begin(seed)
        flat = {**dict(zip(self.spec.paths, leaves)), **self.hidden()}
        if self.marks_init:
            flat[INIT] = np.ones(self.num_envs, bool)
        return nest({p: self._unlaned(v) for p, v in flat.items()})

    def step(self, action: Any) -> Step:
        """Steps with an action that has `batch_shape` first; lanes that end are reset.

        Returns:
            a `Step` whose arrays have `batch_shape` first, observations as nested dicts.
        """
        step = self.advance(action if self.batch_shape else _laned(action))
        after, obs = (
            nest({p: self._unlaned(v) for p, v in zip(self.spec.paths, leaves)})
            for leaves in (step.next, step.obs)
        )
        return Step(
            after,
            self._unlaned(step.reward),
            self._unlaned(step.terminated),
            self._unlaned(step.truncated),
            obs,
            step.stepped,
            step.infos,
        )

    def _unlaned(self, array: Array) -> Any:
        return array if self.batch_shape else array[0]

    def rollout(self, max_steps: int, policy: Any = None, *, seed: int | None = None) -> Any:
        """Steps from a reset until some lane is done, at most `max_steps` times.

        Returns:
            a Batch ``[T]``, or ``[B, T]`` of a batched environment.
        """
        from .roller import rollout  # not before: processes of environments need no policies

        return rollout(self, max_steps, policy, seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    # -- for collectors -----------------------------------------------------------------------

    def begin(self, seed: int | None = None) -> Leaves:
        """Starts a new episode in every lane; observations, leaf by leaf."""
        return self._leaves(self._reset(np.ones(self.num_envs, bool), seed))

    def begin_lanes(self, lanes: Array) -> Leaves:
        """Starts new episodes in the lanes of a mask; only those are valid in what it returns."""
        return self._leaves(self._reset(lanes, None))

    def advance(self, action: Any) -> Step:
        """Steps every lane with a tree of ``[B, ...]`` actions; lanes that end are reset.

        Returns:
            a Step whose observations are `Leaves`.
        """
        given = self._step(action)
        if type(given) is not Step:
            if not isinstance(given, tuple) or len(given) != 4:
                raise LayoutError(
                    f"{type(self).__name__}._step: expected (observation, reward, terminated, "
                    f"truncated) or a Step, got {_what(given)}"
                )
            given = Step(*given)
        if type(given.next) is Leaves and given.obs is not None:
            return given
        after = self._leaves(given.next)
        terminated = self._flags("terminated", given.terminated)
        truncated = self._flags("truncated", given.truncated)
        reward = as_reward(np.array(given.reward), 1)
        if reward.shape[:1] != (self.num_envs,):
            raise LayoutError(
                f"{type(self).__name__}._step: reward: shape {list(reward.shape)}, expected "
                f"[{self.num_envs}, ...]: one for every lane"
            )
        if given.obs is not None:
            obs = self._leaves(given.obs)
        else:
            obs, done = after, terminated | truncated
            if done.any():
                fresh = self.begin_lanes(done)
                obs = Leaves(np.where(wide(done, o), f, o) for o, f in zip(after, fresh))
        return Step(after, reward, terminated, truncated, obs, given.stepped, given.infos)

    def hidden(self) -> dict[Path, Array]:
        """Hidden states of all lanes at a reset, ``[B, ...]`` by path.

        Raises:
            LayoutError: one has the name of something else.
        """
        check_apart(
            {
                "what the environment emits": [*self.spec.paths, INIT],
                "a hidden state": self.primers,
                "the action": [("action",)],
            }
        )
        return {
            p: np.broadcast_to(v, (self.num_envs, *v.shape)).copy() for p, v in self.primers.items()
        }

    def _leaves(self, obs: Any) -> Leaves:
        """An observation of all lanes, checked and copied: some use one array for ever."""
        if type(obs) is Leaves:
            return obs
        return Leaves(leaf.copy() for leaf in self.spec.checked(obs, (self.num_envs,)))

    def _flags(self, name: str, given: Any) -> Array:
        flags = np.array(given, bool)
        if flags.shape != (self.num_envs,):
            raise LayoutError(
                f"{type(self).__name__}._step: {name}: shape {list(flags.shape)}, expected "
                f"[{self.num_envs}]: one flag for every lane"
            )
        return flags


def _what(given: Any) -> str:
    return f"{len(given)} values" if isinstance(given, tuple) else type(given).__name__


def _laned(tree: Any) -> Any:
    """A tree of one lane's values with an env dim."""
    if isinstance(tree, dict):
        return {k: _laned(v) for k, v in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_laned(v) for v in tree)
    return np.asarray(tree)[None]
