"""Errors for arguments that a constructor does not know: which was meant, or who takes it."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import re
from typing import Any

__all__ = ["explains_unknown"]

_UNKNOWN = re.compile(r"got an unexpected keyword argument '(\w+)'")
_ADAPTER = "contig.adapters.torchrl"  # of names that are here, too, with more arguments


def explains_unknown(cls: type) -> None:
    """Has the constructor of a class say more when it is given an argument by a name that it, and
    the classes it passes arguments to, do not know. Once for each class."""
    init: Any = cls.__init__  # type: ignore[misc]
    if not inspect.isfunction(init) or hasattr(init, "explains_unknown"):
        return

    @functools.wraps(init)
    def explaining(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError as error:
            found = _UNKNOWN.search(str(error))
            hint = _hint(cls, found[1]) if found is not None and found[1] in kwargs else ""
            if not hint:
                raise
            raise TypeError(f"{error}; {hint}") from None

    explaining.explains_unknown = True  # type: ignore[attr-defined]
    cls.__init__ = explaining  # type: ignore[misc]


def _hint(cls: type, name: str) -> str:
    if name in _adapter_arguments(cls.__name__):
        return f"`{_ADAPTER}.{cls.__name__}` takes this"
    near = difflib.get_close_matches(name, sorted(_arguments(cls)), 1)
    return f"did you mean `{near[0]}`?" if near else ""


def _arguments(cls: type) -> set[str]:
    """Names that a class, or one that it passes arguments to, knows."""
    inits = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]
    found = {x for init in inits if inspect.isfunction(init) for x in _parameters(init)}
    return found - {"self"}


def _parameters(init: Any) -> list[str]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [n for n, x in inspect.signature(init).parameters.items() if x.kind in named]


def _adapter_arguments(name: str) -> set[str]:
    """Arguments of the class of this name that is as TorchRL's; none without TorchRL."""
    adapter = importlib.import_module(_ADAPTER)
    if name not in adapter.__all__:
        return set()
    try:
        return _arguments(getattr(adapter, name))
    except ImportError:
        return set()
