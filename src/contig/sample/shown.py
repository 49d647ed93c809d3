"""How samplers and limiters show themselves: the arguments that are not the defaults.

SliceSampler(slice_len=16, strict_length=True)
NStepSampler(n=3, gamma=0.99, sampler=PrioritizedSampler(alpha=0.6, beta=0.4))
"""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["shown"]


def _defaults(kind: type) -> dict[str, Any]:
    """A constructor's arguments and their defaults, with those that it passes on by **."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        parameters = inspect.signature(base.__init__).parameters.values()  # type: ignore[misc]
        for p in parameters:
            if p.name != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                found.setdefault(p.name, p.default)
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return found


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]  # the path of a key
    return value is default or bool(value == default)


def shown(thing: Any, more: dict[str, Any]) -> str:
    """A constructor call that says what `thing` is.

    Args:
        thing: whose attributes have the names of its arguments.
        more: arguments that are kept otherwise.
    """
    given = []
    for name, default in _defaults(type(thing)).items():
        value = more[name] if name in more else getattr(thing, name, default)
        text = value.__name__ if inspect.isfunction(value) else repr(value)
        if not _same(value, default) and text != "RandomSampler()":  # which is what None means
            given.append(f"{name}={text}")
    return f"{type(thing).__name__}({', '.join(given)})"
