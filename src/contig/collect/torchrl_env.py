"""TorchRLEnv: an environment of TorchRL's, transforms and all, as collectors step it.

    reset            -> td            carried here: state, counters, what transforms keep in it
    action           -> td["action"]
    step_and_maybe_reset(td)          TorchRL's own step, and its reset of lanes that ended
        ("next", ...) of what it returns  -> Step.next, reward, flags
        the td to go on with              -> Step.obs

Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..convert import as_array, cast, to_torch
from ..errors import LayoutError
from ..keys import INIT
from ..tree import Path, as_path, show_path
from .env import EnvBase
from .primers import register_primers
from .specs import Array, nest, spec_of_value
from .stepping import Leaves, Step

__all__ = ["SpecSpace", "TorchRLEnv"]

_ACTION, _REWARD, _DONE = "action", "reward", ("done", "terminated", "truncated")


class TorchRLEnv(EnvBase):
    """An environment of TorchRL's: `GymEnv`, `TransformedEnv`, a subclass of its `EnvBase`.

    Rows have what the environment's observation spec has. `is_init` is the collector's; what a
    `TensorDictPrimer` among its transforms adds is a hidden state.

    Args:
        env: the environment; of its batch dims, all together are the lanes.
        policy: as in GymEnv.

    Raises:
        LayoutError: its action, reward or flags are not at the root (several groups of agents).
    """

    def __init__(self, env: Any, *, policy: Any = None) -> None:
        self._batch = tuple(int(n) for n in env.batch_size)
        lanes = int(np.prod(self._batch)) if self._batch else None
        super().__init__(num_envs=lanes)
        _check_keys(env)
        self.raw: Any = env
        self._td: Any = None  # what the next step goes on from
        self._hidden = list(_primer_keys(env))
        self._action_shape = tuple(env.full_action_spec[_ACTION].shape[len(self._batch) :])
        self._space = SpecSpace(env.full_action_spec[_ACTION], len(self._batch))
        self._prepare(policy)

    def _prepare(self, policy: Any) -> None:
        leaves = {as_path(k): v for k, v in self.raw.full_observation_spec.items(True, True)}
        self.marks_init = leaves.pop(INIT, None) is not None
        # What a TensorDictPrimer adds is no observation: the policy says what comes next.
        started = {p: leaves.pop(p) for p in self._hidden if p in leaves}
        lead = len(self._batch)
        zeros = {p: np.zeros(v.shape[lead:], as_array(v.zero()).dtype) for p, v in leaves.items()}
        self._spec = spec_of_value(nest(zeros), "observation")
        if started:
            first = self.raw.reset()
            for path in started:
                self.primers[path] = self._lanes_of(first, path)[0].copy()
        if policy is not None:
            register_primers(self, policy)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_td": None}

    def probe(self) -> EnvBase:
        import cloudpickle

        try:
            return cloudpickle.loads(cloudpickle.dumps(self))  # type: ignore[no-any-return]
        except (
            Exception
        ):  # whatever it holds (processes, sockets) says in its own way that it stays
            return self

    def loop(self, policy: Any) -> Any:
        if not hasattr(policy, "act"):
            return None
        from .tensordict_loop import TensorDictLoop

        return TensorDictLoop

    @property
    def batch_dims(self) -> tuple[int, ...]:
        """The environment's own batch dims, whose product is B."""
        return self._batch

    @property
    def action_space(self) -> Any:
        return self._space

    # -- stepping -----------------------------------------------------------------------------

    def _reset(self, lanes: Array, seed: int | None) -> Leaves:
        if seed is not None:
            self.raw.set_seed(seed)
        if lanes.all() or self._td is None:
            self._td = self.raw.reset()
        else:
            td = self._td.copy()
            td.set("_reset", to_torch(lanes.reshape(*self._batch, 1).copy()))
            self._td = self.raw.reset(td)
        return _own(self._observed(self._td))

    def _step(self, action: Any) -> Step:
        import torch

        # A tuple: an action of one environment may be a single number, of shape ().
        wanted = np.ascontiguousarray(action).reshape((*self._batch, *self._action_shape))
        given = to_torch(wanted.copy())
        td = self._td
        td.set(_ACTION, given if td.device is None else given.to(td.device))
        with torch.no_grad():
            step = self.stepped(td)
        after, obs = (_own(x) for x in (step.next, step.obs))  # some use one tensor for ever
        return step._replace(next=after, obs=obs, reward=step.reward.copy())

    def carried(self, init: Array | None) -> Any:
        """The TensorDict that a policy acts on; with `is_init`, if that is given."""
        td = self._td
        if init is not None and not self.marks_init:
            td.set("is_init", to_torch(init.reshape(*self._batch, 1).copy()))
        return td

    def stepped(self, td: Any) -> Step:
        """Steps with a TensorDict that has an action, without gradients: that is the caller's.
        What is in the Step may be the environment's own memory until the next one."""
        stepped, self._td = self.raw.step_and_maybe_reset(td)
        after = stepped.get("next")
        next_obs, reward = self._observed(after), self._lanes_of(after, (_REWARD,))
        if reward.shape[1:] == (1,):
            reward = reward[:, 0]
        done = self._flag(after, "done")
        if not done.any():
            return Step(next_obs, reward, done, done.copy(), next_obs)
        terminated = self._flag(after, "terminated")
        return Step(next_obs, reward, terminated, done & ~terminated, self._observed(self._td))

    def _observed(self, td: Any) -> Leaves:
        spec = self.spec
        out = Leaves(self._lanes_of(td, path) for path in spec.sources)
        for i, (leaf, shape, dtype) in enumerate(zip(out, spec.shapes, spec.dtypes)):
            if leaf.shape[1:] != shape:
                raise LayoutError(
                    f"{show_path(spec.paths[i])}: shape {list(leaf.shape[1:])}, expected "
                    f"{list(shape)}: fix the environment's observation, or its spec"
                )
            if leaf.dtype != dtype:
                out[i] = cast(leaf, dtype, spec.paths[i])
        return out

    def _lanes_of(self, td: Any, path: Path) -> Array:
        """A leaf of all lanes, ``[B, ...]``."""
        value = td.get(path if len(path) > 1 else path[0])
        if value is None:
            raise LayoutError(
                f"{show_path(path)}: missing in what {type(self.raw).__name__} returned, though "
                "its specs have it"
            )
        array = as_array(value)
        return array.reshape(self.num_envs, *array.shape[len(self._batch) :])

    def _flag(self, td: Any, key: str) -> Array:
        flags = self._lanes_of(td, (key,))
        return np.array(flags[:, 0] if flags.ndim == 2 else flags, bool).reshape(self.num_envs)

    def close(self) -> None:
        self._td = None
        if not getattr(self.raw, "is_closed", False):
            self.raw.close()

    def __repr__(self) -> str:
        return f"TorchRLEnv({type(self.raw).__name__})"


class SpecSpace:
    """The action spec of one lane, as much of a Gymnasium space as collectors need.

    Args:
        spec: of all lanes.
        batch_dims: how many of its dims are lanes.
    """

    def __init__(self, spec: Any, batch_dims: int) -> None:
        import torch

        for _ in range(batch_dims):
            spec = spec[0]
        self._spec = spec
        self.shape = tuple(spec.shape)
        self.dtype = as_array(spec.zero()).dtype
        self._state: Any = torch.Generator().manual_seed(_fresh()).get_state()

    def seed(self, seed: int | None = None) -> None:
        import torch

        start = _fresh() if seed is None else seed
        self._state = torch.Generator().manual_seed(start).get_state()

    def sample(self) -> Array:
        """An action of one lane. Specs draw from torch's own generator: it is as before then."""
        import torch

        with torch.random.fork_rng(devices=()):
            torch.set_rng_state(self._state)
            drawn = np.array(as_array(self._spec.rand()))
            self._state = torch.get_rng_state()
        return drawn

    def __repr__(self) -> str:
        return f"SpecSpace({self._spec!r})"


def _own(leaves: Leaves) -> Leaves:
    return Leaves(leaf.copy() for leaf in leaves)


def _fresh() -> int:
    return int(np.random.default_rng().integers(2**62))


def _check_keys(env: Any) -> None:
    flags = [k for k in env.done_keys if k not in _DONE]
    for what, keys, known in (
        ("the action", env.action_keys, [_ACTION]),
        ("the reward", env.reward_keys, [_REWARD]),
        ("done flags", flags, []),
    ):
        if [k if isinstance(k, str) else tuple(k) for k in keys] != known:
            raise LayoutError(
                f"{type(env).__name__}: {what}: expected {known or list(_DONE)} at the root, got "
                f"{keys}; rename them by TorchRL's RenameTransform, or collect with TorchRL's "
                "collectors into the buffer"
            )


def _primer_keys(env: Any) -> Iterator[Path]:
    """The keys of every TensorDictPrimer among the transforms of an environment."""
    from torchrl.envs import TensorDictPrimer, TransformedEnv

    while isinstance(env, TransformedEnv):
        held = list(env.transform) if hasattr(env.transform, "__iter__") else [env.transform]
        for transform in held:
            if isinstance(transform, TensorDictPrimer):
                yield from (as_path(k) for k in transform.primers.keys(True, True))
        env = env.base_env
