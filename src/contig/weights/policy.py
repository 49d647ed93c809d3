"""A policy's weights: taken out as a pytree, and put back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..convert import plain_tree, to_torch

__all__ = ["copy_weights", "get_weights", "modules_of", "set_weights"]


def modules_of(policy: Any) -> list[Any]:
    """The nn.Modules that a policy is or holds."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    found = [policy] if isinstance(policy, torch.nn.Module) else []
    held = [getattr(policy, "__self__", None), *getattr(policy, "__dict__", {}).values()]
    closure = getattr(policy, "__closure__", None) or ()
    for cell in closure:
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return found or [x for x in held if isinstance(x, torch.nn.Module)]


def get_weights(policy: Any) -> Any:
    """The weights of a policy as a pytree, or None if it has none.

    Of an nn.Module, or of what holds some, their state dicts; else what `state_dict()` or
    `get_weights()` return.
    """
    modules = modules_of(policy)
    if modules:
        states = [dict(m.state_dict()) for m in modules]
        return _or_none(states[0] if len(states) == 1 else dict(enumerate(states)))
    for name in ("state_dict", "get_weights"):
        method = getattr(policy, name, None)
        if callable(method):
            return _or_none(plain_tree(method(), text=False)[0])
    return None


def _or_none(tree: Any) -> Any:
    if isinstance(tree, Mapping) and not any(_or_none(v) is not None for v in tree.values()):
        return None
    return tree


def set_weights(policy: Any, tree: Any) -> None:
    """Puts weights into a policy, in place.

    Raises:
        TypeError: the policy has no way to take them.
    """
    modules = modules_of(policy)
    if modules:
        states = [tree] if len(modules) == 1 else [tree[i] for i in range(len(modules))]
        for module, state in zip(modules, states):
            module.load_state_dict({k: _tensor(v) for k, v in state.items()})
        return
    for name in ("load_state_dict", "set_weights"):
        method = getattr(policy, name, None)
        if callable(method):
            method(tree)
            return
    raise TypeError(
        f"{type(policy).__name__} has weights but neither load_state_dict nor set_weights to take "
        "new ones"
    )


def copy_weights(tree: Any) -> Any:
    """The same weights in memory of their own."""
    if isinstance(tree, Mapping):
        return {k: copy_weights(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        return type(tree)(copy_weights(v) for v in tree)
    if isinstance(tree, tuple):
        return type(tree)(*(copy_weights(v) for v in tree))
    clone = getattr(tree, "clone", None)
    return clone() if callable(clone) else np.array(tree)


def _tensor(value: Any) -> Any:
    return to_torch(value) if isinstance(value, np.ndarray) else value
