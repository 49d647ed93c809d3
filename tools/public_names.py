"""The public surface: which names people may use, as the packages themselves list them.

`names()` gives every class and function of `contig.__all__` and of the packages in `PACKAGES`,
each once, under the shortest name it has. The API reference is made of it, and a test sees to it
that everything has a docstring.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import contig

#: In the order of reading. Names of `contig` come first.
PACKAGES = (
    "contig",
    "contig.learn",
    "contig.dataset",
    "contig.trajectory",
    "contig.collect",
    "contig.rollout",
    "contig.replay",
    "contig.sample",
    "contig.tape",
    "contig.tape.disk",
    "contig.codecs",
    "contig.weights",
    "contig.client",
    "contig.server",
    "contig.cluster",
    "contig.adapters.sb3",
    "contig.adapters.torchrl",
    "contig.adapters.cleanrl",
    "contig.adapters.rsl_rl",
    "contig.adapters.skrl",
    "contig.testing",
)


def names() -> Iterator[tuple[str, Any]]:
    """Every public class and function, with the package's name before its own."""
    seen: set[int] = set()
    for package in PACKAGES:
        module = contig if package == "contig" else importlib.import_module(package)
        for name in module.__all__:
            found = getattr(module, name)
            if (inspect.isclass(found) or inspect.isfunction(found)) and id(found) not in seen:
                seen.add(id(found))
                yield f"{package}.{name}", found


def ours(kind: type) -> bool:
    """Whether a class is one of this project's."""
    return kind.__module__.split(".")[0] == "contig"


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class, also those it inherits from classes of ours.

    Tests of the conformance suites are left out: their names say what they test.
    """
    seen: set[str] = set()
    for base in kind.__mro__:
        if not ours(base):
            continue
        for name, value in vars(base).items():
            if name.startswith(("_", "test_")) or name in seen:
                continue
            if isinstance(value, property | classmethod | staticmethod | cached_property):
                pass
            elif not inspect.isfunction(value):
                continue
            seen.add(name)
            yield name, value


def member_doc(kind: type, name: str) -> str:
    """A member's docstring, or that of what it overrides."""
    for base in kind.__mro__:
        value = vars(base).get(name)
        for attribute in ("__func__", "fget", "func"):
            value = getattr(value, attribute, value)
        doc = getattr(value, "__doc__", None) if value is not None else None
        if doc:
            return inspect.cleandoc(doc)
    return ""


def class_doc(kind: type) -> str:
    """What a class and the classes of ours that it is made of say of its arguments."""
    docs = [vars(base).get("__doc__") or "" for base in kind.__mro__ if ours(base)]
    made = vars(kind).get("__init__")
    return "\n".join([*docs, getattr(made, "__doc__", None) or ""])


def arguments(kind: type) -> list[str]:
    """A constructor's arguments by name; none if the constructor is not one of ours."""
    maker = next((b for b in kind.__mro__ if "__init__" in vars(b) or "_fields" in vars(b)), object)
    if not ours(maker) or issubclass(kind, BaseException):
        return []
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.name not in ("args", "kwargs", "self")]
