"""Policies: what they are given, and what they may return.

A policy gets a mapping with a leading env dim: torch tensors if it is or holds an nn.Module, a
TensorDict if it is a TensorDictModule, else numpy. It returns a mapping (nested, or with tuple
keys), or just the action.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..convert import as_array, plain_tree, to_tensordict, to_torch
from ..errors import LayoutError
from ..keys import INIT
from ..tree import Path, as_path, show_path
from ..weights.policy import modules_of
from .exploration import Exploration
from .random_policy import RandomPolicy
from .specs import Array, nest

__all__ = ["PolicyRunner"]


class PolicyRunner:
    """Calls a policy the way it wants to be called. Not thread-safe.

    Args:
        policy: any callable; None: random actions.
        action_space: for random ones.
        device: where torch policies get their inputs.
        seed: of random actions.
        exploration: how TorchRL's policies choose actions: see `exploration_name`; None: as
            whoever calls has set it.

    Attributes:
        acting: entered around every call: no gradients, and exploration as it was asked for.
    """

    def __init__(
        self,
        policy: Any,
        action_space: Any,
        device: Any = None,
        seed: int | None = None,
        exploration: str | None = None,
    ) -> None:
        self.random = policy is None
        self.policy = RandomPolicy(action_space, seed) if policy is None else policy
        if not callable(self.policy):
            raise TypeError(f"policy: expected a callable, got {type(policy).__name__}")
        self.kind = _kind(self.policy)
        self._device = device
        self._flags: dict[bool, Any] = {}  # tensors of `is_init`, which are always the same two
        self.acting = _Acting(self.kind != "numpy", exploration)

    def __call__(self, inputs: dict[Path, Array]) -> dict[Path, Array]:
        """What the policy returns for inputs ``[B, ...]``, by path, as numpy arrays."""
        return self.outputs(self.call(inputs), inputs)

    def call(self, inputs: dict[Path, Array]) -> Any:
        """What the policy returns, as it is. Its inputs are copies, which it may change."""
        if self.random:
            return self.policy(nest(inputs))
        if self.kind == "numpy":
            arrays = nest({p: v.copy() for p, v in inputs.items()})
            with self.acting:
                return self.policy(arrays)
        tensors = {p: self._tensor(v) for p, v in inputs.items()}
        with self.acting:
            if self.kind == "torch":
                return self.policy(nest(tensors))
            tensors[INIT] = tensors[INIT].unsqueeze(-1)
            flat = {tuple(str(k) for k in p): t for p, t in tensors.items()}
            return self.policy(to_tensordict(flat, inputs[INIT].shape, self._device))

    def call_one(self, names: list[str], obs: list[Array], init: bool) -> Any:
        """The same, in one environment whose observation is not nested; not of a TensorDictModule.

        Args:
            names: of the observation's leaves.
            obs: the leaves, without an env dim.
            init: whether they are the first of an episode.
        """
        if self.kind == "numpy":
            arrays = {n: x[None].copy() for n, x in zip(names, obs)}
            with self.acting:
                return self.policy({**arrays, "is_init": np.array([init])})
        flag = self._flags.get(init)
        if flag is None or flag._version:  # nobody may have changed it in place
            flag = self._flags[init] = self._tensor(np.array([init]))
        inputs = {n: self._tensor(x[None]) for n, x in zip(names, obs)}
        inputs["is_init"] = flag
        with self.acting:
            return self.policy(inputs)

    def _tensor(self, array: Array) -> Any:
        tensor = to_torch(np.array(array, order="C"))
        return tensor if self._device is None else tensor.to(self._device)

    def outputs(self, given: Any, inputs: dict[Path, Array]) -> dict[Path, Array]:
        """What the policy returned for inputs, by path, as numpy arrays.

        Raises:
            LayoutError: no action, or an output without the env dim.
        """
        lanes = len(inputs[INIT])
        given, _ = plain_tree(given, text=False)
        if isinstance(given, Mapping):
            out = _flat_outputs(given, ())
        else:
            out = {("action",): as_array(given)}
        out = {p: v for p, v in out.items() if p not in inputs}
        if not any(p[0] == "action" for p in out):
            known = ", ".join(show_path(p) for p in out) or "nothing"
            raise LayoutError(f'the policy returned {known}; expected at least "action"')
        for path, value in out.items():
            if value.shape[:1] != (lanes,):
                raise LayoutError(
                    f"{show_path(path)}: the policy returned shape {list(value.shape)}, expected "
                    f"[{lanes}, ...]: inputs have an env dim first, and so must outputs"
                )
        return out


def _flat_outputs(given: Mapping[Any, Any], prefix: Path) -> dict[Path, Array]:
    out: dict[Path, Array] = {}
    for key, value in given.items():
        path = (*prefix, *as_path(key))
        if isinstance(value, tuple):
            value = {str(i): x for i, x in enumerate(value)}
        if isinstance(value, Mapping):
            out.update(_flat_outputs(value, path))
        else:
            out[path] = as_array(value)
    return out


class _Acting:
    """Entered while a policy acts. Made once: that takes longer than entering it.

    Args:
        torch: it is a policy of torch's, whose gradients nobody needs.
        exploration: as in PolicyRunner.
    """

    def __init__(self, torch: bool, exploration: str | None) -> None:
        self._no_grad: Any = _no_grad() if torch else None
        self._exploration = Exploration(exploration)

    def __enter__(self) -> None:
        self._exploration.__enter__()
        if self._no_grad is not None:
            self._no_grad.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._no_grad is not None:
            self._no_grad.__exit__(*error)
        self._exploration.__exit__(*error)


def _no_grad() -> Any:
    import torch

    return torch.no_grad()


def _kind(policy: Any) -> str:
    tensordict = sys.modules.get("tensordict.nn")
    if tensordict is not None and isinstance(policy, tensordict.TensorDictModuleBase):
        return "tensordict"
    return "torch" if modules_of(policy) else "numpy"
