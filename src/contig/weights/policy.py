"""A policy's weights: taken out as a pytree, and put back."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..convert import plain_tree, to_torch
from ..errors import LayoutError

__all__ = ["copy_weights", "get_weights", "modules_of", "policy_name", "refusal", "set_weights"]


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
        LayoutError: weights of other names or shapes than those of its nn.Modules.
    """
    modules = modules_of(policy)
    if modules:
        try:
            states = [tree] if len(modules) == 1 else [tree[i] for i in range(len(modules))]
            _load_all(modules, [{k: _tensor(v) for k, v in state.items()} for state in states])
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
            raise LayoutError(
                f"{policy_name(policy)} cannot take these weights, which must be like its own "
                f"state dict: {error}"
            ) from error
        return
    taking = _taking(policy)
    if taking is None:
        raise TypeError(refusal(policy))
    taking(tree)


def _load_all(modules: list[Any], states: list[dict[str, Any]]) -> None:
    """Loads the state of each module, or raises and leaves all of them as they were.

    torch copies what fits before it says what does not, so what may not fit is kept first.
    """
    fits = all(
        {k: v.shape for k, v in module.state_dict().items() if hasattr(v, "shape")}
        == {k: v.shape for k, v in state.items()}
        for module, state in zip(modules, states)
    )
    before = [] if fits else [copy.deepcopy(module.state_dict()) for module in modules]
    try:
        for module, state in zip(modules, states):
            module.load_state_dict(state)
    except BaseException:
        for module, state in zip(modules, before):
            module.load_state_dict(state)
        raise


def _taking(policy: Any) -> Callable[[Any], Any] | None:
    """Returns the setter of weights of a policy that is no nn.Module and holds none."""
    for name in ("load_state_dict", "set_weights"):
        method = getattr(policy, name, None)
        if callable(method):
            return method  # type: ignore[no-any-return]
    return None


def policy_name(policy: Any) -> str:
    """The name of a policy in messages: a function's own, or its class."""
    return str(getattr(policy, "__name__", type(policy).__name__))


def refusal(policy: Any, gives: bool = False) -> str | None:
    """Returns why new weights cannot be put into a policy, and what it needs, or None if they can.

    Args:
        policy: None: random actions.
        gives: it must also give weights, by which workers know what they are like.
    """
    if policy is None:
        return "random actions take no weights: give a policy"
    modules = bool(modules_of(policy))
    if get_weights(policy) is None if modules else _taking(policy) is None:
        what = "to take weights"
    elif gives and get_weights(policy) is None:
        what = "to give weights, by which workers know what they are like"
    else:
        return None
    return (
        f"{policy_name(policy)} has no way {what}: make it an nn.Module with parameters, or give "
        "it get_weights() and set_weights(weights), or state_dict() and load_state_dict(state)"
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
