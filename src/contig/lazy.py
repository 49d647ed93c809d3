"""Packages whose names load when they are first used, and libraries that may be missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["install_hint", "lazy_names", "requires_extra"]


def install_hint(*extras: str) -> str:
    """Returns the words that say how to install contig's extras.

    contig is in no package index yet, so extras are installed from a checkout.
    """
    names = ",".join(extras)
    return f"install contig's extra {names} (in a checkout of contig: pip install '.[{names}]')"


@contextmanager
def requires_extra(user: str, extra: str) -> Iterator[None]:
    """Around imports of optional libraries: raises ImportError that names the extra.

    Args:
        user: what needs them, for the message.
        extra: the extra of contig that has them.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "contig":
            raise
        hint = install_hint(extra)
        raise ImportError(f"{user} needs {error.name}: {hint}", name=error.name) from error


def lazy_names(
    package: str, where: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__all__``, ``__getattr__`` and ``__dir__``, from the names in its modules."""
    module_of = {name: module for module, names in where.items() for name in names}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)

    names = list(module_of)
    return names, load, lambda: names
