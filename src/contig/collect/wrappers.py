"""Wrappers: what an environment gets added around it. Each holds the one it wraps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..layout import ShapeDtype
from .env import EnvBase
from .places import check_apart
from .primers import default_values
from .specs import Array, Spec
from .stepping import Leaves, Step, wide
from .vector import as_env

__all__ = ["InitTracker", "StepCounter", "TensorDictPrimer"]


class _Wrapper(EnvBase):
    """Passes everything on."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.env = as_env(env)
        self.num_envs, self.batch_shape = self.env.num_envs, self.env.batch_shape
        self.primers = dict(self.env.primers)
        self.marks_init = self.env.marks_init

    @property
    def spec(self) -> Spec:
        return self.env.spec

    @property
    def action_space(self) -> Any:
        return self.env.action_space

    def _adopt(self) -> None:
        """Takes over what the environment inside brings; a batched one knows it once it is made."""
        self.primers = {**self.env.primers, **self.primers}
        self.marks_init = self.marks_init or self.env.marks_init

    @property
    def full_observation_spec(self) -> dict[str, Any]:
        _ = self.env.full_observation_spec
        self._adopt()
        return super().full_observation_spec

    @property
    def full_state_spec(self) -> dict[str, Any]:
        _ = self.env.full_state_spec
        self._adopt()
        return super().full_state_spec

    def _reset(self, lanes: Array, seed: int | None) -> Leaves:
        obs = self.env.begin(seed) if lanes.all() else self.env.begin_lanes(lanes)
        self._adopt()
        return obs

    def _step(self, action: Any) -> Step:
        return self.env.advance(action)

    def keep_infos(self) -> None:
        self.env.keep_infos()

    def close(self) -> None:
        self.env.close()

    def probe(self) -> EnvBase:
        inner = self.env.probe()
        wrapper = self.__class__.__new__(self.__class__)
        wrapper.__dict__.update(self.__dict__)
        wrapper.env, wrapper.num_envs, wrapper.batch_shape = (
            inner,
            inner.num_envs,
            inner.batch_shape,
        )
        return wrapper


class InitTracker(_Wrapper):
    """Says that rows carry `is_init`, True at the first step of a trajectory.

    Collectors write it in any case; this puts it into the environment's specs.

    Args:
        env: the environment.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.marks_init = True

    def single(self) -> Any:
        return self.env.single()


class TensorDictPrimer(_Wrapper):
    """What hidden states start from at every reset.

    Args:
        env: the environment; None makes a primer to hand to `contig` later, as recurrent modules
            do in `make_tensordict_primer`.
        primers: by key, an array (the default value), or a ShapeDtype or shape (zeros, float32).
    """

    def __init__(self, env: Any, primers: Mapping[Any, Any]) -> None:
        self.defaults = default_values(primers)
        if env is not None:
            super().__init__(env)
            self.primers.update(self.defaults)

    def single(self) -> Any:
        return self.env.single()


class StepCounter(_Wrapper):
    """Counts the steps of each episode in `step_count`, and can end it.

    Args:
        env: the environment.
        max_steps: truncates an episode after this many; None: never.
    """

    def __init__(self, env: Any, max_steps: int | None = None) -> None:
        super().__init__(env)
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        self._most = max_steps
        self._counts = np.zeros(self.num_envs, np.int64)
        self._wider: Spec | None = None

    @property
    def spec(self) -> Spec:
        if self._wider is None:
            inner = self.env.spec
            leaf, path = ShapeDtype((), np.dtype(np.int64)), ("step_count",)
            check_apart({"an observation": inner.paths, "what StepCounter adds": [path]})
            sources = [*(inner.sources if inner.root is None else inner.paths), path]
            self._wider = Spec({**inner.leaves, path: leaf}, None, sources)
        return self._wider

    def probe(self) -> EnvBase:
        wrapper = super().probe()
        wrapper._counts = np.zeros(wrapper.num_envs, np.int64)  # type: ignore[attr-defined]
        return wrapper

    def _reset(self, lanes: Array, seed: int | None) -> Leaves:
        obs = super()._reset(lanes, seed)
        self._counts[lanes] = 0
        return Leaves([*obs, self._counts.copy()])

    def _step(self, action: Any) -> Step:
        step = self.env.advance(action)
        stepped = np.ones(self.num_envs, bool) if step.stepped is None else step.stepped
        self._counts = np.where(stepped, self._counts + 1, 0)
        after = self._counts.copy()
        done = step.terminated | step.truncated
        truncated, obs = step.truncated, step.obs
        if self._most is not None:
            cut = (self._counts >= self._most) & ~done & stepped
            if cut.any():
                truncated = truncated | cut
                fresh = self.env.begin_lanes(cut)
                obs = Leaves(np.where(wide(cut, o), f, o) for o, f in zip(obs, fresh))
                done = done | cut
        self._counts[done] = 0
        return step._replace(
            next=Leaves([*step.next, after]),
            truncated=truncated,
            obs=Leaves([*obs, self._counts.copy()]),
        )
