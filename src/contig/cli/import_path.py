"""Objects by import path, ``package.module:name``, as commands are told."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from .failure import fail

__all__ = ["load", "load_made"]


def load(text: str, option: str) -> Any:
    """What a path names; modules of the working directory are found, too."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        fail(f"{option} {text}: expected an import path, such as package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        fail(f"{option} {text}: {error}")
    for part in name.split("."):
        if not hasattr(found, part):
            fail(f"{option} {text}: {module} has no {name}")
        found = getattr(found, part)
    return found


def load_made(text: str, option: str) -> Any:
    """The same; a function or class that needs no arguments is called."""
    found = load(text, option)
    if not inspect.isroutine(found) and not inspect.isclass(found):
        return found
    try:
        inspect.signature(found).bind()
    except TypeError:
        return found  # it takes what a policy is given
    return found()
